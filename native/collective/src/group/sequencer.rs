//! Who is next: a group carries out one collective at a time, in the order in which they were called.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use crate::deadline::SLICE;
use crate::lock::lock;

/// A queue of numbered calls, from 1.
#[derive(Default)]
pub(crate) struct Sequencer {
    taken: AtomicU64,
    finished: AtomicU64,
    waiting: AtomicU64,
    queue: Mutex<()>,
    advanced: Condvar,
}

impl Sequencer {
    /// The number of the next call. Every number taken must come to its `wait`, or the group has failed.
    pub(crate) fn take(&self) -> u64 {
        self.taken.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number that the next call will have.
    pub(crate) fn next(&self) -> u64 {
        self.taken.load(Ordering::Relaxed) + 1
    }

    /// Waits for the calls before `number`, each of which ends by its own deadline; `gives_up` is asked at least every `SLICE`,
    /// and ends the wait with `None`. The turn ends when the returned value is dropped.
    pub(crate) fn wait(&self, number: u64, mut gives_up: impl FnMut() -> bool) -> Option<Turn<'_>> {
        if self.finished.load(Ordering::Acquire) + 1 != number {
            let _waiting = Waiting::new(&self.waiting);
            let mut queue = lock(&self.queue);
            while self.finished.load(Ordering::SeqCst) + 1 != number {
                queue = match self.advanced.wait_timeout(queue, SLICE) {
                    Ok((queue, _)) => queue,
                    Err(poisoned) => poisoned.into_inner().0,
                };
                drop(queue);
                if gives_up() {
                    return None;
                }
                queue = lock(&self.queue);
            }
        }
        Some(Turn { sequencer: self })
    }
}

/// One more that waits, until it is dropped.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The turn of one call.
pub(crate) struct Turn<'a> {
    sequencer: &'a Sequencer,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.sequencer.finished.fetch_add(1, Ordering::SeqCst);
        if self.sequencer.waiting.load(Ordering::SeqCst) > 0 {
            let _queue = lock(&self.sequencer.queue);
            self.sequencer.advanced.notify_all();
        }
    }
}
