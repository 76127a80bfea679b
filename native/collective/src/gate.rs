//! Opening and accepting connections between ranks that prove themselves to each other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::patience::{Patience, Timed};
use crate::secret::{Proof, Purpose};

/// How long a connection may take to prove itself. An honest one needs two ways there and back, and may pause between.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// How many unproven connections are examined at a time, or twice the ranks that are to come, where that is more. One more
/// takes the place of the oldest, which has had the longest to say who it is: so silent connections keep nobody waiting,
/// however many they are.
const MAX_PENDING: usize = 128;

/// Between two tries to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// What connections come in at, non-blocking.
pub(crate) trait Listener {
    type Stream: Timed + Send + 'static;

    /// The next connection, blocking; `None` where it is not worth examining, `WouldBlock` where there is none now.
    fn next(&self) -> io::Result<Option<Self::Stream>>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn next(&self) -> io::Result<Option<TcpStream>> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        Ok(Some(stream))
    }
}

/// What ended `accept` before all had come.
pub(crate) enum Refusal<S> {
    /// The wait ended: who had come and who had not, and what went wrong with other connections meanwhile.
    Missing {
        accepted: BTreeMap<usize, S>,
        missing: BTreeSet<usize>,
        trouble: Trouble,
        error: io::Error,
    },
    /// Two connections claim one rank.
    Twice(usize),
}

/// What went wrong with connections that none of the expected ranks is known to have made.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// How many could not prove themselves.
    strangers: usize,
    /// How many times one could not be taken, for want of file descriptors or threads, and the last reason.
    untaken: Option<(usize, io::Error)>,
}

impl Trouble {
    fn not_taken(&mut self, error: io::Error) {
        let times = self.untaken.take().map_or(0, |(times, _)| times);
        self.untaken = Some((times + 1, error));
    }

    /// In words; `None` where nothing went wrong.
    pub(crate) fn text(&self) -> Option<String> {
        let strangers = (self.strangers > 0).then(|| {
            format!(
                "{} connections could not prove that they hold this attempt's secret",
                self.strangers
            )
        });
        let untaken = self.untaken.as_ref().map(|(times, error)| {
            format!("{times} times a connection could not be taken: {error}")
        });
        let texts: Vec<String> = strangers.into_iter().chain(untaken).collect();
        (!texts.is_empty()).then(|| texts.join(", and "))
    }
}

/// Accepts one connection for `purpose` from each of the `expected` ranks.
///
/// Each is examined on its own thread, so that a stranger who says nothing delays nobody.
pub(crate) fn accept<L: Listener>(
    listener: &L,
    proof: &Proof,
    purpose: Purpose,
    expected: &BTreeSet<usize>,
    patience: &Patience,
) -> Result<BTreeMap<usize, L::Stream>, Refusal<L::Stream>> {
    let max_pending = MAX_PENDING.max(2 * expected.len());
    let mut accepted = BTreeMap::new();
    let mut trouble = Trouble::default();
    let mut pending = Pending::<L::Stream>(BTreeMap::new());
    let (sender, receiver) = mpsc::channel();
    let mut numbers = 0u64..;
    let mut wait = Duration::ZERO;
    while accepted.len() < expected.len() {
        let slice = match patience.slice() {
            Ok(slice) => slice,
            Err(error) => {
                let absent = |rank: &usize| !accepted.contains_key(rank);
                return Err(Refusal::Missing {
                    missing: expected.iter().copied().filter(absent).collect(),
                    accepted,
                    trouble,
                    error,
                });
            }
        };
        // All who have proved themselves by now, so that none of them gives way to another.
        let finished = receiver.recv_timeout(wait.min(slice)).into_iter();
        for (number, examined) in finished.chain(receiver.try_iter()) {
            if pending.0.remove(&number).is_none() {
                continue;
            }
            match examined {
                Ok(((what, rank), stream)) if what == purpose && expected.contains(&rank) => {
                    if accepted.insert(rank, stream).is_some() {
                        return Err(Refusal::Twice(rank));
                    }
                }
                Ok(_) | Err(_) => trouble.strangers += 1,
            }
        }
        // Who comes after the last is another wait's.
        if accepted.len() == expected.len() {
            break;
        }
        // A short wait: the next connection shows only on the listener.
        wait = Duration::from_millis(2);
        let room = max_pending.saturating_sub(pending.0.len());
        for number in numbers.by_ref().take(room.max(1)) {
            let examine = |mut stream: L::Stream| {
                let handle = stream.duplicate()?;
                let (sender, proof) = (sender.clone(), proof.clone());
                let patience = patience.at_most(HANDSHAKE);
                thread::Builder::new().spawn(move || {
                    let examined = proof.accept(&mut stream, &patience);
                    let _ = sender.send((number, examined.map(|who| (who, stream))));
                })?;
                Ok(handle)
            };
            match listener
                .next()
                .and_then(|next| next.map(examine).transpose())
            {
                Ok(None) => {}
                Ok(Some(handle)) => drop(pending.0.insert(number, handle)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    trouble.not_taken(error);
                    // What there is too little of comes with time.
                    wait = slice;
                    break;
                }
            }
            if pending.0.len() > max_pending
                && let Some((_, oldest)) = pending.0.pop_first()
            {
                oldest.hang_up();
                trouble.strangers += 1;
            }
        }
    }
    Ok(accepted)
}

/// The connections under examination, in the order in which they came. Hung up when dropped, so that no thread outlasts the
/// wait.
struct Pending<S: Timed>(BTreeMap<u64, S>);

impl<S: Timed> Drop for Pending<S> {
    fn drop(&mut self) {
        self.0.values().for_each(Timed::hang_up);
    }
}

/// Connects to `address` as `rank`, trying again while nobody listens there, for at most `refusals`, and where the other end
/// hangs up: it may have had too many connections at a time.
///
/// # Errors
/// `PermissionDenied` when the two ends' secrets or groups differ; otherwise the connection's last error.
pub(crate) fn connect(
    address: SocketAddr,
    proof: &Proof,
    purpose: Purpose,
    rank: usize,
    patience: &Patience,
    refusals: Duration,
) -> io::Result<TcpStream> {
    loop {
        patience.slice()?;
        // Long enough for a slow network's handshake, short enough to hear an interrupt soon after.
        let attempt = patience
            .remaining()
            .min(Duration::from_secs(1))
            .max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, attempt) {
            Ok(mut stream) => {
                stream.set_nodelay(true)?;
                match proof.connect(&mut stream, purpose, rank, patience) {
                    Ok(()) => return Ok(stream),
                    Err(error) if error.kind() != io::ErrorKind::ConnectionAborted => {
                        return Err(error);
                    }
                    Err(error) if patience.remaining() < PAUSE => return Err(error),
                    Err(_) => {}
                }
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => continue,
            Err(error) if patience.waited() > refusals => return Err(error),
            Err(_) => {}
        }
        thread::sleep(patience.slice()?.min(PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Instant;

    use super::*;

    /// What a listener says, for ever, and how often it was asked.
    struct Always<F>(F, Cell<usize>);

    impl<F: Fn() -> io::Result<Option<TcpStream>>> Listener for Always<F> {
        type Stream = TcpStream;

        fn next(&self) -> io::Result<Option<TcpStream>> {
            self.1.set(self.1.get() + 1);
            self.0()
        }
    }

    /// How often a listener is asked within 200 ms, and what the wait for a rank ended with.
    fn asked(next: impl Fn() -> io::Result<Option<TcpStream>>) -> (usize, Option<String>) {
        let listener = Always(next, Cell::new(0));
        let proof = Proof {
            secret: b"of all of the ranks".to_vec(),
            context: [7; 32],
        };
        let patience = Patience::new(Duration::from_millis(200), None);
        let expected = BTreeSet::from([1]);
        let started = Instant::now();
        let outcome = accept(&listener, &proof, Purpose::Data, &expected, &patience);
        assert!(started.elapsed() < Duration::from_secs(2));
        match outcome {
            Err(Refusal::Missing { trouble, .. }) => (listener.1.get(), trouble.text()),
            _ => panic!("nobody came"),
        }
    }

    #[test]
    fn want_of_descriptors_is_told_and_asked_about_seldom() {
        let (times, trouble) = asked(|| Err(io::Error::from_raw_os_error(libc::EMFILE)));
        assert!((1..20).contains(&times), "{times}");
        let expected =
            format!("{times} times a connection could not be taken: Too many open files");
        assert!(trouble.unwrap().starts_with(&expected));
    }

    #[test]
    fn connections_that_are_not_worth_examining_do_not_outlast_the_wait() {
        let (_, trouble) = asked(|| Ok(None));
        assert_eq!(trouble, None);
    }
}
