//! What an exchange works on: where a segment's elements lie on this host, and the arithmetic on them.

use std::ptr;

use super::segment::Segment;
use super::topology::Topology;
use crate::call::{self, Call, Entry, Ranks};
use crate::reduce::{self, Output, Reduction};
use crate::task::{Places, Task};

/// The tasks of an exchange.
#[derive(Clone, Copy)]
pub(crate) struct Tasks<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) call: &'a Call<'a>,
    pub(crate) tasks: &'a [Task],
}

impl<'a> Tasks<'a> {
    /// Bytes of one rank's elements in all tasks.
    pub(crate) fn bytes_per_rank(&self) -> usize {
        let bytes = |task: &Task| task.range.len() * self.call.entries[task.entry].dtype.size();
        self.tasks.iter().map(bytes).sum()
    }

    /// Cuts all tasks into segments of at most `bytes` bytes, alike on all hosts.
    pub(crate) fn cut(&self, bytes: usize) -> impl Iterator<Item = Segment> {
        self.tasks
            .iter()
            .enumerate()
            .flat_map(move |(index, task)| {
                let (call, world_size) = (self.call, self.topology.world_size());
                let entry = &call.entries[task.entry];
                let (operation, root, range) = (call.operation, call.root, task.range.clone());
                let len = bytes / entry.dtype.size();
                call::pieces(operation, root, world_size, entry.len, range)
                    .flat_map(move |piece| piece.runs(len))
                    .map(move |piece| Segment { task: index, piece })
            })
    }

    /// The buffer that a segment is a part of.
    pub(crate) fn entry(&self, segment: &Segment) -> &'a Entry {
        &self.call.entries[self.tasks[segment.task].entry]
    }

    pub(crate) fn num_bytes(&self, segment: &Segment) -> usize {
        segment.piece.range.len() * self.entry(segment).dtype.size()
    }

    /// How far into its task's memory a segment begins, in bytes.
    fn offset(&self, segment: &Segment) -> usize {
        let start = segment.piece.range.start - self.tasks[segment.task].range.start;
        start * self.entry(segment).dtype.size()
    }

    /// The address of a local member's elements of a segment.
    pub(crate) fn source(&self, segment: &Segment, member: usize) -> *const u8 {
        let source = self.tasks[segment.task].sources[member];
        // SAFETY: the segment lies in the task's range.
        unsafe { source.add(self.offset(segment)) }
    }

    /// The addresses where this host wants a finished segment.
    pub(crate) fn places(&self, segment: &Segment) -> Vec<*mut u8> {
        let wanted = match segment.piece.to {
            Ranks::All => None,
            Ranks::One(rank) => match self.topology.place(rank) {
                (host, index) if host == self.topology.here => Some(index),
                _ => return Vec::new(),
            },
        };
        let offset = self.offset(segment);
        // SAFETY: the segment lies in the task's range.
        let at = |place: &*mut u8| unsafe { place.add(offset) };
        match (&self.tasks[segment.task].places, wanted) {
            (Places::Each(places), None) => places.iter().map(at).collect(),
            (Places::Each(places), Some(index)) => vec![at(&places[index])],
            (Places::Shared(place), _) => vec![at(place)],
        }
    }

    /// Adds `sources` to `initial`, in this order.
    ///
    /// # Safety
    /// As `reduce::reduce`, for as many elements as the segment has.
    pub(crate) unsafe fn reduce(
        &self,
        segment: &Segment,
        initial: Option<*const u8>,
        sources: &[*const u8],
        output: Output<'_>,
    ) {
        let entry = self.entry(segment);
        let reduction = Reduction {
            dtype: entry.dtype,
            op: entry.op,
            initial,
            sources,
            output,
        };
        // SAFETY: the caller's promise.
        unsafe { reduce::reduce(&reduction, segment.piece.range.len()) };
    }

    /// `reduce`, to the finished elements in all `places`.
    ///
    /// # Safety
    /// As `reduce`.
    pub(crate) unsafe fn finish(
        &self,
        segment: &Segment,
        initial: Option<*const u8>,
        sources: &[*const u8],
        places: &[*mut u8],
    ) {
        let output = Output::Finished {
            places,
            world_size: self.topology.world_size(),
        };
        // SAFETY: the caller's promise.
        unsafe { self.reduce(segment, initial, sources, output) };
    }

    /// Copies a segment's elements to those of the `places` that they are not at.
    ///
    /// # Safety
    /// Source and places hold the segment; a place is the source, or apart from it.
    pub(crate) unsafe fn copy(&self, segment: &Segment, source: *const u8, places: &[*mut u8]) {
        let bytes = self.num_bytes(segment);
        for place in places
            .iter()
            .filter(|place| !ptr::eq(place.cast_const(), source))
        {
            // SAFETY: the caller's promise.
            unsafe { ptr::copy_nonoverlapping(source, *place, bytes) };
        }
    }
}
