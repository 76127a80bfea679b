//! Opening and accepting connections between ranks that prove themselves to each other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::patience::Patience;
use crate::secret::{Proof, Purpose};

/// How many unproven connections are looked at at a time; more wait in the listener's queue.
const MAX_PENDING: usize = 256;

/// What ended `accept` before all had come.
pub(crate) enum Refusal {
    /// The wait ended: who had come and who had not, and how many connections could not prove themselves meanwhile.
    Missing {
        accepted: BTreeMap<usize, TcpStream>,
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
pub(crate) fn accept(
    listener: &TcpListener,
    proof: &Proof,
    purpose: Purpose,
    expected: &BTreeSet<usize>,
    patience: &Patience,
) -> Result<BTreeMap<usize, TcpStream>, Refusal> {
    let mut accepted = BTreeMap::new();
    let mut strangers = 0;
    let mut pending = 0;
    let (sender, receiver) = mpsc::channel();
    let give_up = |accepted: BTreeMap<usize, TcpStream>, strangers, error| {
        let missing = expected
            .iter()
            .copied()
            .filter(|rank| !accepted.contains_key(rank))
            .collect();
        Refusal::Missing {
            accepted,
            missing,
            strangers,
            error,
        }
    };
    if let Err(error) = listener.set_nonblocking(true) {
        return Err(give_up(accepted, strangers, error));
    }
    while accepted.len() < expected.len() {
        let slice = match patience.slice() {
            Ok(slice) => slice,
            Err(error) => return Err(give_up(accepted, strangers, error)),
        };
        while pending < MAX_PENDING {
            let Ok((stream, _)) = listener.accept() else {
                break;
            };
            pending += 1;
            let (sender, proof) = (sender.clone(), proof.clone());
            let patience = patience.with_interrupt(None);
            thread::spawn(move || {
                let examined = examine(stream, &proof, &patience);
                let _ = sender.send(examined);
            });
        }
        // A short wait: the next connection shows only on the listener.
        let Ok(examined) = receiver.recv_timeout(slice.min(Duration::from_millis(2))) else {
            continue;
        };
        pending -= 1;
        match examined {
            Ok((stream, what, rank)) if what == purpose && expected.contains(&rank) => {
                if accepted.insert(rank, stream).is_some() {
                    return Err(Refusal::Twice(rank));
                }
            }
            Ok(_) | Err(_) => strangers += 1,
        }
    }
    Ok(accepted)
}

fn examine(
    mut stream: TcpStream,
    proof: &Proof,
    patience: &Patience,
) -> io::Result<(TcpStream, Purpose, usize)> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let (purpose, rank) = proof.accept(&mut stream, patience)?;
    Ok((stream, purpose, rank))
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
