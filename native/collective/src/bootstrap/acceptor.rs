//! Accepting connections from ranks that prove themselves, over TCP and over a socket of the host.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::handshake::{Proof, Purpose};
use crate::bell::Bell;
use crate::deadline::{Deadline, Timed};
use crate::poll::{NOTHING, interest, poll};

/// Connections that may wait to be accepted, as far as the system allows. All ranks come to a rendezvous at once, and one that
/// finds no room is heard again after a second or more.
const BACKLOG: libc::c_int = 4096;

/// How long a connection may take to prove itself. An honest one needs two ways there and back, and may pause between.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// How many unproven connections are examined at a time, or twice the ranks that are to come, where that is more. One more
/// takes the place of the oldest, which has had the longest to say who it is: so silent connections keep nobody waiting,
/// however many they are.
const MAX_PENDING: usize = 128;

/// Listens on an address, without blocking and with room for all ranks.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    // SAFETY: the descriptor is open. Listening again changes the backlog, for which the standard library has 128.
    match unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) } {
        0 => Ok(listener),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What connections come in at, non-blocking.
pub(crate) trait Listener: AsRawFd {
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

impl Listener for UnixListener {
    type Stream = UnixStream;

    /// Any user of the host can connect to an abstract socket; ranks of one job are one user's.
    fn next(&self) -> io::Result<Option<UnixStream>> {
        let (stream, _) = self.accept()?;
        // SAFETY: the call takes no argument and cannot fail.
        let own = unsafe { libc::geteuid() };
        if user_of(&stream)? != own {
            return Ok(None);
        }
        stream.set_nonblocking(false)?;
        Ok(Some(stream))
    }
}

/// The user who connected a socket, as the kernel saw it.
fn user_of(stream: &UnixStream) -> io::Result<libc::uid_t> {
    // SAFETY: all-zero credentials are a valid value to be overwritten.
    let mut credentials: libc::ucred = unsafe { mem::zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and pointer and length are those of a live value.
    let outcome = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    match outcome {
        0 => Ok(credentials.uid),
        _ => Err(io::Error::last_os_error()),
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

/// Lets in who holds the attempt's secret.
pub(crate) struct Acceptor<'a, L> {
    pub(crate) listener: &'a L,
    pub(crate) proof: &'a Proof,
}

impl<L: Listener> Acceptor<'_, L> {
    /// Accepts one connection for `purpose` from each of the `expected` ranks.
    ///
    /// Blocks until all have come, for at most `deadline`. Each is examined on its own thread, so that a stranger who says
    /// nothing delays nobody; no such thread outlasts the call.
    ///
    /// # Errors
    /// Who has come, and who has not, when the wait ended first.
    pub(crate) fn accept(
        &self,
        purpose: Purpose,
        expected: &BTreeSet<usize>,
        deadline: &Deadline,
    ) -> Result<BTreeMap<usize, L::Stream>, Refusal<L::Stream>> {
        let max_pending = MAX_PENDING.max(2 * expected.len());
        let mut accepted = BTreeMap::new();
        let mut trouble = Trouble::default();
        let missing = |accepted: BTreeMap<usize, L::Stream>, trouble, error| Refusal::Missing {
            missing: expected
                .iter()
                .copied()
                .filter(|rank| !accepted.contains_key(rank))
                .collect(),
            accepted,
            trouble,
            error,
        };
        let mut pending = Pending::<L::Stream>(BTreeMap::new());
        let (sender, receiver) = mpsc::channel();
        // Rung by those who have sent.
        let bell = match Bell::new() {
            Ok(bell) => bell,
            Err(error) => {
                let kind = error.kind();
                trouble.not_taken(error);
                return Err(missing(accepted, trouble, kind.into()));
            }
        };
        let mut numbers = 0u64..;
        let mut takes = true;
        while accepted.len() < expected.len() {
            let waited = deadline
                .slice()
                .and_then(|slice| self.wait(takes, &bell, slice));
            if let Err(error) = waited {
                return Err(missing(accepted, trouble, error));
            }
            // All who have proved themselves by now, so that none of them gives way to another.
            for (number, examined) in receiver.try_iter() {
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
            takes = true;
            let room = max_pending.saturating_sub(pending.0.len());
            for number in numbers.by_ref().take(room.max(1)) {
                let examine = |mut stream: L::Stream| {
                    let handle = stream.duplicate()?;
                    let (sender, bell, proof) = (sender.clone(), bell.clone(), self.proof.clone());
                    let deadline = deadline.at_most(HANDSHAKE);
                    thread::Builder::new().spawn(move || {
                        let examined = proof.accept(&mut stream, &deadline);
                        let _ = sender.send((number, examined.map(|who| (who, stream))));
                        bell.ring();
                    })?;
                    Ok(handle)
                };
                match self
                    .listener
                    .next()
                    .and_then(|next| next.map(examine).transpose())
                {
                    Ok(None) => {}
                    Ok(Some(handle)) => drop(pending.0.insert(number, handle)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        trouble.not_taken(error);
                        // What there is too little of comes with time.
                        takes = false;
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

    /// Waits until a connection comes, where one is taken, or until one has been examined, for at most `limit`.
    fn wait(&self, takes: bool, bell: &Bell, limit: Duration) -> io::Result<()> {
        let coming = if takes {
            interest(self.listener, true, false)
        } else {
            NOTHING
        };
        let mut ready = [coming, interest(bell, true, false)];
        poll(&mut ready, limit)?;
        if ready[1].revents != 0 {
            bell.hush()?;
        }
        Ok(())
    }
}

/// The connections under examination, in the order in which they came. Hung up when dropped, so that no thread outlasts the
/// wait.
struct Pending<S: Timed>(BTreeMap<u64, S>);

impl<S: Timed> Drop for Pending<S> {
    fn drop(&mut self) {
        self.0.values().for_each(Timed::hang_up);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::RawFd;
    use std::time::Instant;

    use super::*;

    /// What a listener says, for ever, and how often it was asked.
    struct Always<F>(F, Cell<usize>);

    impl<F> AsRawFd for Always<F> {
        fn as_raw_fd(&self) -> RawFd {
            -1
        }
    }

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
        let deadline = Deadline::new(Duration::from_millis(200), None);
        let expected = BTreeSet::from([1]);
        let started = Instant::now();
        let acceptor = Acceptor {
            listener: &listener,
            proof: &proof,
        };
        let outcome = acceptor.accept(Purpose::Data, &expected, &deadline);
        assert!(started.elapsed() < Duration::from_secs(20));
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
