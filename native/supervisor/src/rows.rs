//! The files that hold the rows of a training: what is in them, and digests, which tell them from others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use flambeau_data::{DataError, DataFile, DatasetSpec, Manifest, Store};
use flambeau_train::digest;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// How much of a file is read at once.
const PIECE: u64 = 8 << 20;
/// The end of a file that counts for it: of small files the whole, of others the footer, which has the numbers, ranges
/// and places of the values of each row group.
const END: u64 = 256 << 10;
/// Requests that are under way at once, for what is mostly waiting.
const AT_ONCE: usize = 16;
/// What part rows are to be of those of their row groups, to be read in place: below it an epoch may decode more than four times what it
/// reads. Not measured.
const LEAST_SHARE: f64 = 0.25;

/// A text for each file, in their order: a SHA-256 of its bytes, or with `ends` its size and one of its end.
pub(crate) fn digests(
    store: &Store,
    files: &[String],
    ends: bool,
) -> Result<Vec<String>, DataError> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let workers = if ends { AT_ONCE } else { cores };
    let next = AtomicUsize::new(0);
    let digest_all = || -> Result<Vec<(usize, String)>, DataError> {
        let mut found = vec![];
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = files.get(index) else {
                return Ok(found);
            };
            found.push((index, digest_of(store, file, ends)?));
        }
    };
    let found: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers.min(files.len()))
            .map(|_| scope.spawn(digest_all))
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("digests do not panic"))
            .collect()
    });
    let mut digests = vec![String::new(); files.len()];
    for part in found {
        for (index, digest) in part? {
            digests[index] = digest;
        }
    }
    Ok(digests)
}

/// What files hold of the tensors; none where they have no rows.
pub(crate) fn manifest(
    store: &Store,
    files: &[DataFile],
    spec: &DatasetSpec,
) -> Result<Option<Manifest>, DataError> {
    match Manifest::read(store, files, spec) {
        Err(DataError::EmptyDataset { .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// What a training would find in files.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Inspected {
    num_rows: u64,
    num_validation_rows: u64,
    /// What the files take, those without rows left out.
    num_bytes: u64,
    /// Why they had better be written anew than be read where they lie.
    objection: Option<String>,
    /// With every shape, where there are rows.
    spec: DatasetSpec,
}

/// What a training would find in files for training and for validation, read as those tensors. Refuses what it would refuse.
pub(crate) fn inspect(
    store: &Store,
    train: &[DataFile],
    validation: &[DataFile],
    mut spec: DatasetSpec,
) -> Result<Inspected, DataError> {
    let (mut num_rows, mut stored_rows, mut num_bytes) = ([0, 0], 0, 0);
    for (num_rows, files) in num_rows.iter_mut().zip([train, validation]) {
        if let Some(found) = manifest(store, files, &spec)? {
            *num_rows = found.num_rows();
            stored_rows += (found.row_groups())
                .filter(|(_, group)| group.num_rows > 0)
                .map(|(_, group)| group.stored_rows)
                .sum::<u64>();
            num_bytes += found.shards().iter().map(|shard| shard.size).sum::<u64>();
            spec = found.spec().clone();
        }
    }
    let [num_rows, num_validation_rows] = num_rows;
    let share = (num_rows + num_validation_rows) as f64 / stored_rows as f64;
    Ok(Inspected {
        num_rows,
        num_validation_rows,
        num_bytes,
        objection: (share < LEAST_SHARE).then(|| {
            format!(
                "they are {:.0}% of the rows of their row groups",
                100.0 * share
            )
        }),
        spec,
    })
}

/// What tells a file's bytes from others: with `end` its size and last bytes, else all. Of the footer of a Parquet file that a fit
/// wrote, how often each value of a byte is there: Java's writer names the encodings of a column in the order of a hash set, another
/// one in each JVM, so that a driver that is started anew would write other bytes for the same rows.
fn digest_of(store: &Store, uri: &str, end: bool) -> Result<String, DataError> {
    let size = store.size(uri)?.ok_or_else(|| DataError::NotFound {
        uri: uri.to_owned(),
    })?;
    let end_start = size.saturating_sub(END);
    let last = store.get_range(uri, end_start..size)?;
    let data_size = size
        - footer_size(&last)
            .filter(|&footer| footer <= size)
            .unwrap_or(0);
    let mut hash = Sha256::new();
    let mut start = if end { end_start.min(data_size) } else { 0 };
    while start < data_size.min(end_start) {
        let stop = data_size.min(end_start).min(start + PIECE);
        hash.update(store.get_range(uri, start..stop)?);
        start = stop;
    }
    let footer = if data_size < end_start {
        store.get_range(uri, data_size..size)?
    } else {
        let data_end = (data_size - end_start) as usize;
        hash.update(&last[..data_end]);
        last.slice(data_end..)
    };
    if end {
        hash.update(&footer);
    } else if !footer.is_empty() {
        let mut counts = [0_u64; 256];
        for &byte in &footer {
            counts[usize::from(byte)] += 1;
        }
        hash.update(counts.map(u64::to_le_bytes).as_flattened());
    }
    let hash = digest::hex(&hash.finalize());
    Ok(if end { format!("{size}:{hash}") } else { hash })
}

/// How long the footer of a Parquet file is, with its length and the magic number behind it; none of another file.
fn footer_size(end: &[u8]) -> Option<u64> {
    let (rest, magic) = end.split_last_chunk::<4>()?;
    let (_, length) = rest.split_last_chunk::<4>()?;
    (magic == b"PAR1").then(|| u64::from(u32::from_le_bytes(*length)) + 8)
}
