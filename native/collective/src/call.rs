//! What a rank calls: the header that ranks compare before they trust each other's lengths.

use std::fmt;
use std::ops::Range;

use crate::buffer::{DType, ReduceOp};
use crate::wire::{Reader, Writer};

/// The most buffers in one call; longer groups are split.
pub(crate) const MAX_ENTRIES: usize = 64;

/// The operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    AllReduce = 1,
    ReduceScatter = 2,
    AllGather = 3,
    Broadcast = 4,
    Barrier = 5,
    Allocate = 6,
    /// The making of an NCCL communicator.
    NcclInit = 7,
}

impl Operation {
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        use Operation::*;
        [
            AllReduce,
            ReduceScatter,
            AllGather,
            Broadcast,
            Barrier,
            Allocate,
            NcclInit,
        ]
        .into_iter()
        .find(|op| *op as u8 == code)
    }

    /// Whether none of the ranks ends before all have begun.
    pub(crate) fn is_of_all(self) -> bool {
        self != Operation::Broadcast
    }

    pub(crate) fn reduces(self) -> bool {
        matches!(self, Operation::AllReduce | Operation::ReduceScatter)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::AllReduce => "all_reduce",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::AllGather => "all_gather",
            Operation::Broadcast => "broadcast",
            Operation::Barrier => "barrier",
            Operation::Allocate => "allocate",
            Operation::NcclInit => "nccl_init",
        })
    }
}

/// One buffer of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) dtype: DType,
    /// Meaningful for operations that reduce; `Sum` for the others.
    pub(crate) op: ReduceOp,
    /// In elements.
    pub(crate) len: usize,
}

/// One call, which must be the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call<'a> {
    pub(crate) sequence: u64,
    pub(crate) operation: Operation,
    /// The broadcasting rank; 0 for other operations.
    pub(crate) root: usize,
    pub(crate) entries: &'a [Entry],
}

impl Call<'_> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let head = Writer::default()
            .u64(self.sequence)
            .u8(self.operation as u8)
            .u32(self.root as u32)
            .u32(self.entries.len() as u32);
        self.entries
            .iter()
            .fold(head, |writer, entry| {
                writer
                    .u8(entry.dtype as u8)
                    .u8(entry.op as u8)
                    .u64(entry.len as u64)
            })
            .finish()
    }

    /// What this call is, with the first buffer in which it differs from `other`.
    pub(crate) fn describe(&self, other: &OwnedCall) -> String {
        describe(
            self.sequence,
            self.operation,
            self.root,
            self.entries,
            &other.entries,
        )
    }
}

/// A call read from a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnedCall {
    pub(crate) sequence: u64,
    pub(crate) operation: Operation,
    pub(crate) root: usize,
    pub(crate) entries: Vec<Entry>,
}

impl OwnedCall {
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let sequence = reader.u64()?;
        let operation = Operation::from_code(reader.u8()?)?;
        let root = reader.u32()? as usize;
        let count = reader.u32()? as usize;
        if count > MAX_ENTRIES {
            return None;
        }
        let entries = (0..count)
            .map(|_| {
                Some(Entry {
                    dtype: DType::from_code(reader.u8()?)?,
                    op: ReduceOp::from_code(reader.u8()?)?,
                    len: usize::try_from(reader.u64()?).ok()?,
                })
            })
            .collect::<Option<Vec<_>>>()?;
        Some(OwnedCall {
            sequence,
            operation,
            root,
            entries,
        })
    }

    pub(crate) fn borrow(&self) -> Call<'_> {
        Call {
            sequence: self.sequence,
            operation: self.operation,
            root: self.root,
            entries: &self.entries,
        }
    }

    pub(crate) fn describe(&self, other: &Call<'_>) -> String {
        describe(
            self.sequence,
            self.operation,
            self.root,
            &self.entries,
            other.entries,
        )
    }
}

fn describe(
    sequence: u64,
    operation: Operation,
    root: usize,
    own: &[Entry],
    other: &[Entry],
) -> String {
    let show = |entry: &Entry| {
        let reduced = if operation.reduces() {
            format!(" ({})", entry.op)
        } else {
            String::new()
        };
        format!("{} {}{reduced}", entry.len, entry.dtype)
    };
    let what = match own {
        [] => format!("{operation}"),
        [entry] if operation == Operation::Allocate => format!("allocate of {} bytes", entry.len),
        [entry] => format!("{operation} of {}", show(entry)),
        entries => {
            let first = entries
                .iter()
                .zip(other)
                .position(|(own, other)| own != other);
            let first = first.unwrap_or(other.len().min(entries.len() - 1));
            format!(
                "grouped {operation} of {} buffers, number {first} (from 0) of {}",
                entries.len(),
                show(&entries[first])
            )
        }
    };
    let root = if operation == Operation::Broadcast {
        format!(" from rank {root}")
    } else {
        String::new()
    };
    format!("{what}{root} as #{sequence}")
}

/// Whose elements a piece is made of, or who gets the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ranks {
    All,
    One(usize),
}

/// A run of a buffer whose elements all come from, and go to, the same ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// In elements of the buffer.
    pub(crate) range: Range<usize>,
    pub(crate) from: Ranks,
    pub(crate) to: Ranks,
}

impl Piece {
    /// Cuts the piece into runs of at most `len` elements, in order.
    pub(crate) fn runs(self, len: usize) -> impl Iterator<Item = Piece> {
        let Range { start, end } = self.range;
        let (from, to) = (self.from, self.to);
        (start..end).step_by(len).map(move |start| Piece {
            range: start..end.min(start + len),
            from,
            to,
        })
    }
}

/// Cuts `range` of a buffer of `len` elements into the operation's pieces, in order.
pub(crate) fn pieces(
    operation: Operation,
    root: usize,
    world_size: usize,
    len: usize,
    range: Range<usize>,
) -> impl Iterator<Item = Piece> {
    let parts = match operation {
        Operation::ReduceScatter | Operation::AllGather => world_size,
        _ => 1,
    };
    (0..parts).filter_map(move |part| {
        let own = part_of(len, part, parts);
        let range = own.start.max(range.start)..own.end.min(range.end);
        let (from, to) = match operation {
            Operation::AllReduce => (Ranks::All, Ranks::All),
            Operation::ReduceScatter => (Ranks::All, Ranks::One(part)),
            Operation::AllGather => (Ranks::One(part), Ranks::All),
            Operation::Broadcast => (Ranks::One(root), Ranks::All),
            Operation::Barrier | Operation::Allocate | Operation::NcclInit => return None,
        };
        (range.start < range.end).then_some(Piece { range, from, to })
    })
}

/// The part of a buffer of `len` elements that belongs to `rank` in `reduce_scatter` and `all_gather`: contiguous parts in
/// rank order, whose lengths differ by at most one.
pub fn part_of(len: usize, rank: usize, world_size: usize) -> Range<usize> {
    let cut = |rank: usize| (len as u128 * rank as u128 / world_size as u128) as usize;
    cut(rank)..cut(rank + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call() -> impl Strategy<Value = OwnedCall> {
        let operation = (1u8..=6).prop_map(|code| Operation::from_code(code).unwrap());
        let entry = (0u8..6, 0u8..4, any::<u32>()).prop_map(|(dtype, op, len)| Entry {
            dtype: DType::from_code(dtype).unwrap(),
            op: ReduceOp::from_code(op).unwrap(),
            len: len as usize,
        });
        (
            any::<u64>(),
            operation,
            0usize..1000,
            prop::collection::vec(entry, 0..=MAX_ENTRIES),
        )
            .prop_map(|(sequence, operation, root, entries)| OwnedCall {
                sequence,
                operation,
                root,
                entries,
            })
    }

    proptest! {
        #[test]
        fn calls_arrive_as_they_were_sent(call in call(), other in call()) {
            let bytes = call.borrow().encode();
            prop_assert_eq!(OwnedCall::decode(&mut Reader::new(&bytes)), Some(call.clone()));
            prop_assert_eq!(OwnedCall::decode(&mut Reader::new(&bytes[..bytes.len() - 1])), None);
            // Any two calls can be told apart in words.
            prop_assert!(!call.describe(&other.borrow()).is_empty());
        }

        #[test]
        fn bytes_of_strangers_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = OwnedCall::decode(&mut Reader::new(&bytes));
        }

        /// Every element is in exactly one piece, whose ends say where it comes from and goes.
        #[test]
        fn pieces_cover_a_range(code in 1u8..5, root in 0usize..5, world_size in 1usize..6, len in 0usize..100, cuts in any::<[usize; 2]>()) {
            let operation = Operation::from_code(code).unwrap();
            let mut ends = cuts.map(|cut| cut % (len + 1));
            ends.sort();
            let pieces: Vec<_> = pieces(operation, root % world_size, world_size, len, ends[0]..ends[1]).collect();
            let covered: Vec<usize> = pieces.iter().flat_map(|piece| piece.range.clone()).collect();
            prop_assert_eq!(covered, (ends[0]..ends[1]).collect::<Vec<_>>());
            for piece in pieces {
                let owner = (0..world_size).find(|rank| part_of(len, *rank, world_size).contains(&piece.range.start));
                match operation {
                    Operation::AllGather => prop_assert_eq!(Some(piece.from), owner.map(Ranks::One)),
                    Operation::ReduceScatter => prop_assert_eq!(Some(piece.to), owner.map(Ranks::One)),
                    _ => prop_assert_eq!(piece.to, Ranks::All),
                }
            }
        }
    }
}
