//! What a rank says that it is doing, so that the others can tell what one is in that they wait for.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock::lock;
use crate::peer::Peer;

/// The longest name that a rank may send.
pub(crate) const MAX_NAME: usize = 100;

/// What a rank is in, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// The caller's name for it.
    pub name: String,
    /// How long the rank has been in it.
    pub lasted: Duration,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {} for {:.1?}", self.name, self.lasted)
    }
}

/// A rank that others wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateRank {
    /// Which.
    pub peer: Peer,
    /// What it was last known to be in; `None` where it has not said so.
    pub phase: Option<Phase>,
}

impl fmt::Display for LateRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.phase {
            None => self.peer.fmt(f),
            Some(phase) => write!(f, "{} ({phase})", self.peer),
        }
    }
}

impl From<Peer> for LateRank {
    fn from(peer: Peer) -> Self {
        LateRank { peer, phase: None }
    }
}

/// Ranks that have kept the others waiting in a collective for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stall {
    /// Those ranks, in order.
    pub late: Vec<LateRank>,
    /// The number of the collective in the group, from 1.
    pub sequence: u64,
    /// How long they were waited for so far.
    pub waited: Duration,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (late, waited) = (list(&self.late), self.waited);
        write!(f, "the other workers have waited {waited:.1?} for {late}")
    }
}

/// The ranks in words.
pub(crate) fn list(late: &[LateRank]) -> String {
    if late.is_empty() {
        return "its peers".into();
    }
    let names: Vec<String> = late.iter().map(LateRank::to_string).collect();
    names.join(", ")
}

/// The phase of a rank as it was last told, which goes on.
#[derive(Default)]
pub(crate) struct CurrentPhase(Mutex<Option<(String, Instant)>>);

impl CurrentPhase {
    /// A phase that began now.
    pub(crate) fn enter(&self, name: &str) {
        let mut current = lock(&self.0);
        let (kept, since) = current.get_or_insert_with(|| (String::new(), Instant::now()));
        *since = Instant::now();
        kept.clear();
        kept.push_str(name);
    }

    /// A phase that has lasted a while on its rank; no clocks are compared.
    pub(crate) fn set(&self, phase: Option<Phase>) {
        let now = Instant::now();
        *lock(&self.0) =
            phase.map(|phase| (phase.name, now.checked_sub(phase.lasted).unwrap_or(now)));
    }

    pub(crate) fn get(&self) -> Option<Phase> {
        let current = lock(&self.0);
        let (name, since) = current.as_ref()?;
        Some(Phase {
            name: name.clone(),
            lasted: since.elapsed(),
        })
    }
}
