//! Ways through the staging areas, for buffers that do not lie in the group's memory.

use std::ops::Range;
use std::ptr;

use super::host::Host;
use super::slices::slice;
use crate::buffer::RawBuffer;
use crate::call::{Call, Piece, Ranks};
use crate::task::Part;

/// The staged buffers of a call at one member.
pub(crate) struct Staging<'a> {
    pub(crate) host: &'a Host,
    pub(crate) call: &'a Call<'a>,
    pub(crate) buffers: &'a [RawBuffer],
    /// Whether the member reduces its slice of an all-reduce (`slices`) from and into its own buffer, so that the slice passes
    /// through no area.
    pub(crate) skips_own_slice: bool,
}

/// Bytes of an entry that are copied between a buffer and an area, and where they begin in each, in bytes.
struct Span {
    entry: usize,
    in_buffer: usize,
    in_area: usize,
    len: usize,
}

impl Staging<'_> {
    /// Copies the elements of a chunk that others need from this member into its staging area.
    ///
    /// # Safety
    /// The buffers hold their entries' elements; nobody else uses them or the area meanwhile.
    pub(crate) unsafe fn copy_in(&self, chunk: &[Part]) {
        let rank = Ranks::One(self.host.rank());
        let area = self.host.board.staging(self.host.board.me);
        let is_needed = |piece: &Piece| piece.from == Ranks::All || piece.from == rank;
        for span in self.spans(chunk, is_needed) {
            let buffer = self.buffers[span.entry].ptr.cast::<u8>();
            // SAFETY: the buffer and the area hold the span, and are different memory.
            unsafe {
                let source = buffer.add(span.in_buffer);
                ptr::copy_nonoverlapping(source, area.add(span.in_area), span.len)
            };
        }
    }

    /// Copies the pieces of a chunk that are `wanted` from the result area into this member's buffers.
    ///
    /// # Safety
    /// As for `copy_in`, but that others may read the area.
    pub(crate) unsafe fn copy_out(&self, chunk: &[Part], wanted: impl Fn(&Piece) -> bool) {
        let area = self.host.board.result();
        for span in self.spans(chunk, wanted) {
            let buffer = self.buffers[span.entry].ptr.cast::<u8>();
            // SAFETY: the buffer and the area hold the span, and are different memory.
            unsafe {
                let source = area.add(span.in_area);
                ptr::copy_nonoverlapping(source, buffer.add(span.in_buffer), span.len)
            };
        }
    }

    /// What of a chunk passes through an area, of the pieces that are `wanted`.
    fn spans(&self, chunk: &[Part], wanted: impl Fn(&Piece) -> bool) -> impl Iterator<Item = Span> {
        chunk.iter().flat_map(move |part| {
            let size = self.call.entries[part.entry].dtype.size();
            let pieces: Vec<_> = self
                .host
                .pieces(self.call, part.entry, &part.range)
                .filter(&wanted)
                .collect();
            pieces.into_iter().flat_map(move |piece| {
                let (start, len) = (piece.range.start, piece.range.len());
                let own = self.own(&piece, size);
                [0..own.start, own.end..len].map(|span| Span {
                    entry: part.entry,
                    in_buffer: (start + span.start) * size,
                    in_area: part.offset + (start + span.start - part.range.start) * size,
                    len: span.len() * size,
                })
            })
        })
    }

    /// What of a piece passes through no area, relative to its start.
    fn own(&self, piece: &Piece, size: usize) -> Range<usize> {
        let len = piece.range.len();
        match (piece.from, piece.to) {
            (Ranks::All, Ranks::All) if self.skips_own_slice => {
                slice(len, size, self.host.board.me, self.host.num_members())
            }
            _ => len..len,
        }
    }
}
