//! One connection between every two of some ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::acceptor::{Acceptor, Refusal};
use super::connector::connect;
use super::handshake::{Proof, Purpose};
use super::peer_info::PeerInfo;
use crate::deadline::{Deadline, SLICE};
use crate::error::{CollectiveError, Result};
use crate::peer::Peer;

/// How long a refused connection is tried again: the other end listened before the rendezvous, so it is gone.
const REFUSALS: Duration = Duration::from_secs(1);

/// What connections with all others are made from.
pub(super) struct FullMesh<'a> {
    pub(super) rank: usize,
    pub(super) listener: &'a TcpListener,
    pub(super) infos: &'a [PeerInfo],
    pub(super) peers: &'a [Peer],
    pub(super) proof: &'a Proof,
}

impl FullMesh<'_> {
    /// One connection with each of `others`: to the lower ranks, from the higher ones, both at the same time.
    ///
    /// Blocks until the last is made, for at most `deadline`, whose interrupt is asked on this thread.
    ///
    /// # Errors
    /// `Rendezvous` where a rank cannot be reached or two come as one; `Timeout` naming who did not come; `Interrupted`.
    pub(super) fn connect_all(
        &self,
        purpose: Purpose,
        others: &BTreeSet<usize>,
        deadline: &Deadline,
    ) -> Result<BTreeMap<usize, TcpStream>> {
        let (lower, higher): (BTreeSet<usize>, BTreeSet<usize>) =
            others.iter().partition(|other| **other < self.rank);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        // The caller's interrupt is asked on the caller's thread alone.
        let quiet =
            deadline.with_interrupt(Some(Arc::new(move || stopped.load(Ordering::Relaxed))));
        let interrupt = deadline.interrupt().cloned();
        let stopped = stop.clone();
        let both = move || {
            stopped.load(Ordering::Relaxed)
                || interrupt.as_ref().is_some_and(|interrupt| interrupt())
        };
        let loud = deadline.with_interrupt(Some(Arc::new(both)));

        thread::scope(|scope| {
            // Hangs up at the end of the thread.
            let (held, end) = mpsc::channel::<()>();
            let (stop, lower, quiet) = (&stop, &lower, &quiet);
            let connecting = scope.spawn(move || {
                let _held = held;
                let made = self.connect(purpose, lower, quiet);
                if made.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                made
            });
            let acceptor = Acceptor {
                listener: self.listener,
                proof: self.proof,
            };
            let accepted = acceptor.accept(purpose, &higher, &loud);
            if accepted.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            // Connecting looks at the interrupt too, when there is nobody to accept.
            while end.recv_timeout(SLICE) == Err(RecvTimeoutError::Timeout) {
                if loud.interrupted() {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            let made = connecting.join().unwrap_or_else(|_| Err(Failure::Stopped));
            match (made, accepted) {
                (Ok(mut made), Ok(accepted)) => {
                    made.extend(accepted);
                    Ok(made)
                }
                (Err(Failure::With(rank, error)), _) => {
                    Err(self.unreachable(rank, error, deadline))
                }
                (_, Err(refusal)) => Err(self.refused(refusal, deadline)),
                (Err(Failure::Stopped), Ok(_)) => Err(CollectiveError::Interrupted),
            }
        })
    }

    fn connect(
        &self,
        purpose: Purpose,
        lower: &BTreeSet<usize>,
        deadline: &Deadline,
    ) -> std::result::Result<BTreeMap<usize, TcpStream>, Failure> {
        let mut made = BTreeMap::new();
        // From its neighbour downwards, so that not all ranks come to the first ones at once.
        for rank in lower.iter().rev() {
            let address = self.infos[*rank].address;
            match connect(address, self.proof, purpose, self.rank, deadline, REFUSALS) {
                Ok(stream) => drop(made.insert(*rank, stream)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    return Err(Failure::Stopped);
                }
                Err(error) => return Err(Failure::With(*rank, error)),
            }
        }
        Ok(made)
    }

    fn unreachable(&self, rank: usize, error: io::Error, deadline: &Deadline) -> CollectiveError {
        let address = self.infos[rank].address;
        match error.kind() {
            io::ErrorKind::TimedOut => self.timed_out(&BTreeSet::from([rank]), deadline),
            _ => CollectiveError::rendezvous_io(
                format!("with {} at {address}: {error}", self.peers[rank]),
                error,
            ),
        }
    }

    fn refused<S>(&self, refusal: Refusal<S>, deadline: &Deadline) -> CollectiveError {
        match refusal {
            Refusal::Twice(rank) => {
                CollectiveError::rendezvous(format!("two processes are {}", self.peers[rank]))
            }
            Refusal::Missing { error, .. } if error.kind() == io::ErrorKind::Interrupted => {
                CollectiveError::Interrupted
            }
            Refusal::Missing {
                missing, trouble, ..
            } => match trouble.text() {
                Some(trouble) => CollectiveError::rendezvous(format!(
                    "after {:.1?} {} had not connected, and {trouble}",
                    deadline.waited(),
                    missing
                        .iter()
                        .map(|rank| self.peers[*rank].to_string())
                        .collect::<Vec<_>>()
                        .join(", ")
                )),
                None => self.timed_out(&missing, deadline),
            },
        }
    }

    fn timed_out(&self, missing: &BTreeSet<usize>, deadline: &Deadline) -> CollectiveError {
        CollectiveError::Timeout {
            operation: "connect".into(),
            sequence: 0,
            missing: missing
                .iter()
                .map(|rank| self.peers[*rank].clone().into())
                .collect(),
            waited: deadline.waited(),
        }
    }
}

/// Why the connecting thread stopped.
enum Failure {
    /// It was told to.
    Stopped,
    /// This rank could not be reached.
    With(usize, io::Error),
}
