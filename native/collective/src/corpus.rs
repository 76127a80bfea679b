//! Bytes that are nearly what a peer sends: the corpus of the tests of all that is read from peers. `PROPTEST_CASES` says how
//! many of them each test tries.

use proptest::prelude::*;
use proptest::sample::Index;

/// Numbers that lengths and counts go wrong at.
const EDGES: [u64; 7] = [
    0,
    1,
    1 << 20,
    1 << 40,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX,
];

/// `seed` after up to five changes: of a byte, of a bit, of eight bytes to a number from `EDGES`, of its length, or of a run
/// that comes twice.
pub(crate) fn mutations(seed: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec((0..6u8, any::<Index>(), any::<Index>(), any::<u8>()), 0..6).prop_map(
        move |changes| {
            let mut bytes = seed.clone();
            for (kind, at, to, value) in changes {
                if bytes.is_empty() {
                    break;
                }
                let (at, to) = (at.index(bytes.len()), to.index(bytes.len()));
                match kind {
                    0 => bytes[at] = value,
                    1 => bytes[at] ^= 1 << (value % 8),
                    2 => bytes.truncate(at),
                    3 => bytes.insert(at, value),
                    4 => {
                        let edge = EDGES[usize::from(value) % EDGES.len()].to_le_bytes();
                        let end = bytes.len().min(at + edge.len());
                        bytes[at..end].copy_from_slice(&edge[..end - at]);
                    }
                    _ => {
                        let run = bytes[at.min(to)..at.max(to)].to_vec();
                        bytes.splice(at..at, run);
                    }
                }
            }
            bytes
        },
    )
}
