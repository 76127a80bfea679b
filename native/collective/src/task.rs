//! What is worked on at a time: runs of buffers, with the places where their elements lie and where the results go.

use std::mem;
use std::ops::Range;

use crate::call::Call;

/// Bytes of a staging area: all areas of a few ranks fit in the second-level caches.
pub(crate) const STAGING_AREA: usize = 512 << 10;

/// Where results go on this host.
#[derive(Debug, Clone)]
pub(crate) enum Places {
    /// To each local member's own memory; or, of a staged buffer on one host, to the result area and the member's own.
    Each(Vec<*mut u8>),
    /// To one place that all local members read.
    Shared(*mut u8),
}

/// Work on `range` of the call's buffer `entry`. All addresses are those of `range.start`.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    /// The index of the buffer in the call.
    pub(crate) entry: usize,
    /// In elements of the buffer.
    pub(crate) range: Range<usize>,
    /// Each local member's elements.
    pub(crate) sources: Vec<*const u8>,
    pub(crate) places: Places,
}

impl Task {
    /// Work in place on members' buffers that start at `addresses`.
    ///
    /// # Safety
    /// Each address is that of a buffer that holds `range`.
    pub(crate) unsafe fn in_place(
        entry: usize,
        range: Range<usize>,
        size: usize,
        addresses: &[*mut u8],
    ) -> Self {
        // SAFETY: the caller's promise.
        let places: Vec<_> = addresses
            .iter()
            .map(|address| unsafe { address.add(range.start * size) })
            .collect();
        let sources = places.iter().map(|place| place.cast_const()).collect();
        Task {
            entry,
            range,
            sources,
            places: Places::Each(places),
        }
    }
}

/// A run of a staged buffer, and where it lies in a staging area and in the result area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) entry: usize,
    pub(crate) range: Range<usize>,
    /// In bytes.
    pub(crate) offset: usize,
}

/// What fits into the staging areas at a time.
pub(crate) type Chunk = Vec<Part>;

/// Which buffers of a call are staged: bit `i` is that of entry `i`.
pub(crate) type StagedMask = u64;

/// Every buffer is staged.
pub(crate) const ALL_STAGED: StagedMask = StagedMask::MAX;

/// Cuts the staged buffers into chunks: a function of the call and the mask alone, so that all ranks cut alike.
pub(crate) fn chunks(call: &Call<'_>, staged: StagedMask) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut chunk = Chunk::new();
    let mut used = 0;
    for (entry, shape) in call
        .entries
        .iter()
        .enumerate()
        .filter(|(entry, _)| staged >> entry & 1 == 1)
    {
        let size = shape.dtype.size();
        let mut start = 0;
        while start < shape.len {
            let room = (STAGING_AREA - used) / size;
            if room == 0 {
                chunks.push(mem::take(&mut chunk));
                used = 0;
                continue;
            }
            let end = shape.len.min(start + room);
            chunk.push(Part {
                entry,
                range: start..end,
                offset: used,
            });
            used = (used + (end - start) * size)
                .next_multiple_of(64)
                .min(STAGING_AREA);
            start = end;
        }
    }
    if !chunk.is_empty() {
        chunks.push(chunk);
    }
    chunks
}
