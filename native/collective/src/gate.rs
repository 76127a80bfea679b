//! Opening and accepting connections between ranks that prove themselves to each other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::iter;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::patience::{Patience, Timed};
use crate::secret::{Proof, Purpose};

/// How long a connection may take to prove itself. An honest one needs two ways there and back, and may pause between.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// How many unproven connections are examined at a time. One more takes the place of the oldest, which has had the longest
/// to say who it is: so silent connections keep nobody waiting, however many they are.
const MAX_PENDING: usize = 128;

/// What connections come in at, non-blocking.
pub(crate) trait Listener {
    type Stream: Timed + Send + 'static;

    /// The next connection, blocking, that is worth examining; `None` when there is none now.
    fn next(&self) -> Option<Self::Stream>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn next(&self) -> Option<TcpStream> {
        let (stream, _) = self.accept().ok()?;
        stream.set_nonblocking(false).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(stream)
    }
}

/// What ended `accept` before all had come.
pub(crate) enum Refusal<S> {
    /// The wait ended: who had come and who had not, and how many connections could not prove themselves meanwhile.
    Missing {
        accepted: BTreeMap<usize, S>,
        missing: BTreeSet<usize>,
        strangers: usize,
        error: io::Error,
    },
    /// Two connections claim one rank.
    Twice(usize),
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
    let mut accepted = BTreeMap::new();
    let mut strangers = 0;
    let mut pending = Pending::<L::Stream>(BTreeMap::new());
    let (sender, receiver) = mpsc::channel();
    let mut numbers = 0u64..;
    while accepted.len() < expected.len() {
        let slice = match patience.slice() {
            Ok(slice) => slice,
            Err(error) => {
                let absent = |rank: &usize| !accepted.contains_key(rank);
                return Err(Refusal::Missing {
                    missing: expected.iter().copied().filter(absent).collect(),
                    accepted,
                    strangers,
                    error,
                });
            }
        };
        for (mut stream, number) in iter::from_fn(|| listener.next())
            .zip(&mut numbers)
            .take(MAX_PENDING)
        {
            let Ok(handle) = stream.duplicate() else {
                continue;
            };
            if pending.0.len() == MAX_PENDING
                && let Some((_, oldest)) = pending.0.pop_first()
            {
                oldest.hang_up();
                strangers += 1;
            }
            let (sender, proof) = (sender.clone(), proof.clone());
            let patience = patience.at_most(HANDSHAKE);
            let examine = move || {
                let examined = proof.accept(&mut stream, &patience);
                let _ = sender.send((number, examined.map(|who| (who, stream))));
            };
            if thread::Builder::new().spawn(examine).is_ok() {
                pending.0.insert(number, handle);
            }
        }
        // A short wait: the next connection shows only on the listener.
        let Ok((number, examined)) = receiver.recv_timeout(slice.min(Duration::from_millis(2)))
        else {
            continue;
        };
        if pending.0.remove(&number).is_none() {
            continue;
        }
        match examined {
            Ok(((what, rank), stream)) if what == purpose && expected.contains(&rank) => {
                if accepted.insert(rank, stream).is_some() {
                    return Err(Refusal::Twice(rank));
                }
            }
            Ok(_) | Err(_) => strangers += 1,
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

/// Connects to `address` as `rank`, trying again while nobody listens there, for at most `refusals`.
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
                proof.connect(&mut stream, purpose, rank, patience)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) if patience.waited() > refusals => return Err(error),
            Err(_) => thread::sleep(patience.slice()?.min(Duration::from_millis(20))),
        }
    }
}
