//! What can go wrong in a collective, with the rank and the host where they are known.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::peer::Peer;
use crate::phase::{self, LateRank};

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, CollectiveError>;

/// How a peer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossCause {
    /// Its connection ended without a goodbye: the process died, or its host did.
    Closed,
    /// Its connection stands, but nothing was heard of it: the process is stopped, or its network is gone.
    Silent,
    /// It left the group in good order, without taking part in an operation that others are in.
    Left,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossCause::Closed => "its connection ended: the process has died or was killed",
            LossCause::Silent => {
                "it is connected but silent: the process is stopped or its network is gone"
            }
            LossCause::Left => "it had finished and left the group without making this call",
        })
    }
}

/// Why a group, or the making of one, failed.
///
/// A group that has failed stays failed: the first cause is kept, sent to every other rank, and returned by every
/// later call.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// Some ranks did not take part before the deadline.
    #[error(
        "{operation} #{sequence} waited {waited:.1?} for {}",
        phase::list(missing)
    )]
    Timeout {
        /// The operation that waited.
        operation: String,
        /// Its number in the group, from 1; 0 while the group was being made.
        sequence: u64,
        /// The ranks that had not come, and what each was last known to be in.
        missing: Vec<LateRank>,
        /// How long the wait was.
        waited: Duration,
    },
    /// A rank died, froze, or left too early.
    #[error("lost rank {rank} on {host} during {operation}: {cause}")]
    PeerLost {
        /// The lost rank.
        rank: usize,
        /// Its host.
        host: String,
        /// What this group was doing.
        operation: String,
        /// How it was lost.
        cause: LossCause,
    },
    /// The ranks did not make the same call.
    #[error("ranks disagree about collective #{sequence}: {}", describe(calls))]
    Mismatch {
        /// The number of the call in the group, from 1.
        sequence: u64,
        /// Who called what; at least two that differ.
        calls: Vec<(Peer, String)>,
    },
    /// A rank gave up, and freed the others.
    #[error("rank {rank} on {host} aborted the group: {reason}")]
    Aborted {
        /// The rank that gave up.
        rank: usize,
        /// Its host.
        host: String,
        /// Why, in its own words.
        reason: String,
    },
    /// NCCL failed on a rank, or could not be made to begin there.
    #[error("NCCL failed on rank {rank} on {host} during {operation}: {message}")]
    Nccl {
        /// The rank on which it failed.
        rank: usize,
        /// Its host.
        host: String,
        /// What the rank was doing.
        operation: String,
        /// NCCL's own words, with the function that said them.
        message: String,
    },
    /// The ranks do not have one and the same NCCL.
    #[error(
        "the ranks need one version of NCCL: {}; install the same everywhere, or name it with FLAMBEAU_NCCL",
        describe_found(found)
    )]
    NcclVersions {
        /// What each rank has, in rank order.
        found: Vec<(Peer, String)>,
    },
    /// There is no NCCL library here that can be used.
    #[error("{message}")]
    NcclLibrary {
        /// What was tried, why it failed, and what to do.
        message: String,
    },
    /// A device, or its driver, refused something.
    #[error("{call}: {message}")]
    Device {
        /// What was called.
        call: String,
        /// Why it failed.
        message: String,
    },
    /// `GroupOptions::interrupt` said so.
    #[error("interrupted")]
    Interrupted,
    /// An argument that no rank could have meant; nothing was sent, and the group still works.
    #[error("invalid argument: {message}")]
    InvalidArgument {
        /// What is wrong and what is allowed.
        message: String,
    },
    /// The ranks could not find or trust each other.
    #[error("rendezvous failed: {message}")]
    Rendezvous {
        /// What happened, and with whom.
        message: String,
        /// The failure below, where there is one.
        #[source]
        source: Option<Arc<io::Error>>,
    },
    /// The ranks are not given the same job, or not the same attempt.
    #[error(
        "the ranks do not run the same job: {}; give all ranks one job",
        describe_terms(reference, differing)
    )]
    Terms {
        /// Rank 0, which the others are compared with.
        reference: Peer,
        /// The ranks that differ from it, and in what.
        differing: Vec<(Peer, Vec<String>)>,
    },
    /// The operating system refused something.
    #[error("{context}: {source}")]
    Io {
        /// What was tried.
        context: String,
        /// Why it failed.
        #[source]
        source: Arc<io::Error>,
    },
}

impl CollectiveError {
    pub(crate) fn io(context: impl Into<String>, source: io::Error) -> Self {
        CollectiveError::Io {
            context: context.into(),
            source: Arc::new(source),
        }
    }

    pub(crate) fn rendezvous(message: impl Into<String>) -> Self {
        CollectiveError::Rendezvous {
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn rendezvous_io(message: impl Into<String>, source: io::Error) -> Self {
        CollectiveError::Rendezvous {
            message: message.into(),
            source: Some(Arc::new(source)),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        CollectiveError::InvalidArgument {
            message: message.into(),
        }
    }
}

fn describe(calls: &[(Peer, String)]) -> String {
    calls
        .iter()
        .map(|(peer, call)| format!("{peer} called {call}"))
        .collect::<Vec<_>>()
        .join("; ")
}

fn describe_found(found: &[(Peer, String)]) -> String {
    found
        .iter()
        .map(|(peer, what)| format!("{peer} has {what}"))
        .collect::<Vec<_>>()
        .join("; ")
}

fn describe_terms(reference: &Peer, differing: &[(Peer, Vec<String>)]) -> String {
    differing
        .iter()
        .map(|(peer, names)| format!("{peer} differs from {reference} in {}", names.join(", ")))
        .collect::<Vec<_>>()
        .join("; ")
}
