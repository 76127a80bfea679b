//! Bytes that are almost what they should be, for tests of what reads the files of strangers.

use proptest::prelude::*;
use proptest::sample::Index;

/// How often a property is tried: so many times, and a hundred times as often where the environment has `FLAMBEAU_LONG=1`.
pub fn cases(short: u32) -> ProptestConfig {
    let is_long = std::env::var("FLAMBEAU_LONG").is_ok_and(|value| value == "1");
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if is_long { 100 * short } else { short })
    }
}

/// Numbers in text that a reader may not have thought of.
const NUMBERS: [&str; 9] = [
    "0",
    "-1",
    "1",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "1e300",
    "null",
    "[]",
];

#[derive(Clone, Debug)]
enum Edit {
    Set(Index, u8),
    Flip(Index, u8),
    Insert(Index, u8),
    Remove(Index, usize),
    Repeat(Index, usize),
    Truncate(Index),
    /// Another number in place of the first one that is written out from there on.
    Number(Index, &'static str),
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let len = bytes.len();
        match *self {
            Edit::Set(at, value) => bytes[at.index(len)] = value,
            Edit::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
            Edit::Insert(at, value) => bytes.insert(at.index(len), value),
            Edit::Remove(at, num) => {
                let at = at.index(len);
                bytes.drain(at..(at + num).min(len));
            }
            Edit::Repeat(at, num) => {
                let at = at.index(len);
                let piece = bytes[at..(at + num).min(len)].to_vec();
                bytes.splice(at..at, piece);
            }
            Edit::Truncate(at) => bytes.truncate(at.index(len)),
            Edit::Number(at, number) => {
                let at = at.index(len);
                let is_digit = |byte: &u8| byte.is_ascii_digit();
                if let Some(first) = bytes[at..].iter().position(is_digit) {
                    let first = at + first;
                    let digits = bytes[first..].iter().take_while(|byte| is_digit(byte));
                    let end = first + digits.count();
                    bytes.splice(first..end, number.bytes());
                }
            }
        }
    }
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, value)| Edit::Set(at, value)),
        (at(), 0u8..8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        (at(), any::<u8>()).prop_map(|(at, value)| Edit::Insert(at, value)),
        (at(), 1usize..16).prop_map(|(at, num)| Edit::Remove(at, num)),
        (at(), 1usize..64).prop_map(|(at, num)| Edit::Repeat(at, num)),
        at().prop_map(Edit::Truncate),
        (at(), prop::sample::select(&NUMBERS[..]))
            .prop_map(|(at, number)| Edit::Number(at, number)),
    ]
}

/// One of `corpus`, each of which is well formed, after one to three small changes.
pub fn mutated(corpus: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec(edit(), 1..4);
    (prop::sample::select(corpus), edits).prop_map(|(mut bytes, edits)| {
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        bytes
    })
}
