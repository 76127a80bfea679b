//! The files of a checkpoint: their names, where they lie, and how one is read.

use bytes::Bytes;
use flambeau_data::{DataError, Store};
use serde::Serialize;

/// Of what lies in a checkpoint, and of the order of the rows that it was written in the middle of.
pub(super) const FORMAT: u32 = 4;
pub(super) const MARKER: &str = "COMMITTED";
pub(super) const SHARED: &str = "shared.bin";
pub(super) const STATE: &str = "state.json";
pub(super) const AVERAGE: &str = "average.bin";
pub(super) const BEST: &str = "best";
pub(super) const WEIGHTS: &str = "weights";
/// The file of `WEIGHTS` that models of both languages read.
pub(super) const WEIGHTS_FILE: &str = "weights.safetensors";

pub(super) fn checkpoints_directory(work_dir: &str, attempt: &str) -> String {
    format!(
        "{}/attempts/{attempt}/checkpoints",
        work_dir.trim_end_matches('/')
    )
}

pub(super) fn step_directory(directory: &str, step: u64) -> String {
    format!("{directory}/{step:010}")
}

/// The bytes of a file of a checkpoint; none where it is not there.
pub(super) fn read_if_there(
    store: &Store,
    uri: &str,
    name: &str,
) -> Result<Option<Bytes>, DataError> {
    match store.get(&format!("{uri}/{name}")) {
        Err(DataError::NotFound { .. }) => Ok(None),
        bytes => bytes.map(Some),
    }
}

/// The name of a file in a directory of a checkpoint, where a part is one.
pub(super) fn file_in<'a>(directory: &str, part: &'a str) -> Option<&'a str> {
    part.strip_prefix(directory)?.strip_prefix('/')
}

pub(super) fn compression_part(rank: usize) -> String {
    format!("compression-{rank}.bin")
}

pub(super) fn rank_part(rank: usize) -> String {
    format!("rank-{rank}.bin")
}

pub(super) fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain structs are JSON")
}
