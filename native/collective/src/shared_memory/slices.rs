//! The algorithm between two barriers of one host: every member works on its own slice, and reads all others' memory.
//!
//! **All-reduce.** Each member reduces its slice of all members' buffers, in rank order, and writes the result into all of
//! them. **Reduce-scatter.** Each reduces its part into its own buffer. **All-gather, broadcast.** Each copies what it needs from
//! where it lies.
//!
//! **Chosen** where all ranks are on one host, for every operation and size.
//!
//! **Cost**, for n members and buffers of B bytes in the group's memory: two barriers of latency, one before the work (which
//! also compares the calls) and one behind it. Of an all-reduce each member reads B bytes and writes B, and adds
//! `(n - 1) / n * B` of them, so all do the same work; of a reduce-scatter it reads B and writes `B / n`; of a broadcast or an
//! all-gather it copies what it lacks, once. Buffers that lie elsewhere are copied into the staging areas before the first and out
//! of the result area behind the second barrier, with two barriers for each 512 KiB. Of an all-reduce the member's own slice is left out
//! of both, which makes `2 * (n - 1) / n * B` bytes more; a reduce-scatter copies B in and `B / n` out, a broadcast and an all-gather
//! the member's own part in, and what it lacks from there.

use std::ops::Range;
use std::ptr;

use super::host::Host;
use crate::buffer::RawBuffer;
use crate::call::{self, Call, Ranks};
use crate::reduce::{self, Output, Reduction};
use crate::task::{Places, Task};

/// Does this member's share of a task, when all ranks are on this host, so that member and rank are the same.
///
/// # Safety
/// The buffers and the task's memory hold the task's range. All members do their shares between the same two barriers, between
/// which nobody else uses that memory.
pub(crate) unsafe fn share(host: &Host, call: &Call<'_>, task: &Task, buffers: &[RawBuffer]) {
    let entry = &call.entries[task.entry];
    let size = entry.dtype.size();
    let me = host.board.me;
    for piece in host.pieces(call, task.entry, &task.range) {
        let (start, len) = (piece.range.start - task.range.start, piece.range.len());
        // SAFETY: `start` lies in the task's range, which each of its places holds.
        let source =
            |member: usize, start: usize| unsafe { task.sources[member].add(start * size) };
        // SAFETY: the buffer holds the piece.
        let own = || unsafe {
            buffers[task.entry]
                .ptr
                .cast::<u8>()
                .add(piece.range.start * size)
        };
        match (piece.from, piece.to) {
            (Ranks::All, Ranks::All) => {
                let slice = slice(len, size, me, host.num_members());
                let start = start + slice.start;
                let sources: Vec<_> = (0..host.num_members())
                    .map(|member| source(member, start))
                    .collect();
                // SAFETY: as for `source`.
                let at = |place: &*mut u8| unsafe { place.add(start * size) };
                let places: Vec<_> = match &task.places {
                    Places::Each(places) => places.iter().map(at).collect(),
                    Places::Shared(place) => vec![at(place)],
                };
                // SAFETY: the caller's promise; the slice is this member's alone.
                unsafe { reduce(host, entry, &sources, &places, slice.len()) };
            }
            (Ranks::All, Ranks::One(rank)) if rank == me => {
                let sources: Vec<_> = (0..host.num_members())
                    .map(|member| source(member, start))
                    .collect();
                // SAFETY: the caller's promise; nobody else touches the part of the buffer that is this rank's.
                unsafe { reduce(host, entry, &sources, &[own()], len) };
            }
            (Ranks::One(rank), _) if rank != me => {
                // SAFETY: the source is another member's memory, the target is this one's own.
                unsafe { ptr::copy_nonoverlapping(source(rank, start), own(), len * size) };
            }
            _ => {}
        }
    }
}

/// # Safety
/// As for `reduce::reduce`, of `len` elements.
unsafe fn reduce(
    host: &Host,
    entry: &call::Entry,
    sources: &[*const u8],
    places: &[*mut u8],
    len: usize,
) {
    let output = Output::Finished {
        places,
        world_size: host.world_size,
    };
    let reduction = Reduction {
        dtype: entry.dtype,
        op: entry.op,
        initial: None,
        sources,
        output,
    };
    // SAFETY: the caller's promise.
    unsafe { reduce::reduce(&reduction, len) };
}

/// One member's share of `len` elements: whole cache lines, so that no two members write one.
pub(crate) fn slice(len: usize, size: usize, member: usize, num_members: usize) -> Range<usize> {
    let line = 64 / size;
    let lines = call::part_of(len.div_ceil(line), member, num_members);
    (lines.start * line).min(len)..(lines.end * line).min(len)
}
