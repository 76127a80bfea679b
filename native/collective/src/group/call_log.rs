//! What a rank's calls took, where somebody asks for it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::call::Operation;
use crate::lock::lock;

/// One call of this rank's, from its turn to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRecord {
    /// Its number in the group, the same on all ranks.
    pub sequence: u64,
    /// The operation's name.
    pub operation: String,
    /// Whether none ends before all ranks have begun it.
    pub is_of_all: bool,
    /// The bytes of this rank's buffers.
    pub num_bytes: u64,
    /// What the caller said that it is of.
    pub label: Option<String>,
    /// When it was this call's turn.
    pub began: Instant,
    /// When it had ended.
    pub ended: Instant,
}

/// The calls while they are recorded. Costs one look at a flag while they are not.
#[derive(Default)]
pub(super) struct CallLog {
    is_on: AtomicBool,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    calls: Vec<CallRecord>,
    /// Of calls that have not ended, by their numbers.
    labels: Vec<(u64, String)>,
    most: usize,
    num_dropped: u64,
}

impl CallLog {
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(super) fn start(&self, most: usize) {
        *lock(&self.kept) = Kept {
            most,
            ..Kept::default()
        };
        self.is_on.store(true, Ordering::Relaxed);
    }

    pub(super) fn take(&self) -> (Vec<CallRecord>, u64) {
        self.is_on.store(false, Ordering::Relaxed);
        let kept = std::mem::take(&mut *lock(&self.kept));
        (kept.calls, kept.num_dropped)
    }

    pub(super) fn label(&self, sequence: u64, label: String) {
        let mut kept = lock(&self.kept);
        // What was said last counts, where no call followed what was said before.
        kept.labels.retain(|(of, _)| *of != sequence);
        kept.labels.push((sequence, label));
    }

    pub(super) fn add(&self, sequence: u64, operation: Operation, bytes: usize, began: Instant) {
        let ended = Instant::now();
        let mut kept = lock(&self.kept);
        let label = kept.labels.iter().position(|(of, _)| *of == sequence);
        let label = label.map(|index| kept.labels.swap_remove(index).1);
        if kept.calls.len() >= kept.most {
            kept.num_dropped += 1;
            return;
        }
        kept.calls.push(CallRecord {
            sequence,
            operation: operation.to_string(),
            is_of_all: operation.is_of_all(),
            num_bytes: bytes as u64,
            label,
            began,
            ended,
        });
    }
}
