//! Segments, the runs of elements that travel as one, and how many of them a host has under way.

use std::collections::VecDeque;

use crate::call::Piece;

/// Bytes of a segment: enough that a system call costs little beside it, and several fit in a cache.
pub(crate) const SEGMENT: usize = 256 << 10;
/// Segments that a host has under way at a time.
pub(crate) const WINDOW: usize = 16;

/// A run of a piece that travels as one.
pub(crate) struct Segment {
    /// The index of the task whose elements these are.
    pub(crate) task: usize,
    pub(crate) piece: Piece,
}

/// The segments that this host starts, by index: a bounded number at a time, so that what peers have to queue is bounded.
pub(crate) struct Window {
    unstarted: VecDeque<usize>,
    under_way: usize,
    limit: usize,
}

impl Window {
    pub(crate) fn new(unstarted: VecDeque<usize>, limit: usize) -> Self {
        Window {
            unstarted,
            under_way: 0,
            limit,
        }
    }

    /// The next segment to start, which is under way from now on; `None` while there is no room, and when all are started.
    pub(crate) fn next(&mut self) -> Option<usize> {
        if self.under_way == self.limit {
            return None;
        }
        let next = self.unstarted.pop_front()?;
        self.under_way += 1;
        Some(next)
    }

    /// A segment has come to the end of its way.
    pub(crate) fn end_one(&mut self) {
        self.under_way -= 1;
    }

    /// Whether every segment has come to the end of its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way == 0 && self.unstarted.is_empty()
    }
}
