//! A shard as parquet's reader sees it.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use crate::error::DataError;
use crate::store::Store;

/// Bytes read at once where parquet asks for a stream, and bytes of a file's end that hold its footer in all but odd cases.
const STRIDE: u64 = 64 * 1024;

/// Ranges of one file held in memory; whatever else is asked for is read from the store. Parquet clones it for every page.
#[derive(Clone, Debug)]
pub(crate) struct ShardBytes {
    store: Store,
    uri: Arc<str>,
    size: u64,
    /// Ascending, with their offsets.
    held: Arc<[(u64, Bytes)]>,
}

impl ShardBytes {
    /// The file with its end in memory.
    pub(crate) fn with_tail(
        store: &Store,
        uri: &str,
        size: u64,
    ) -> std::result::Result<Self, DataError> {
        let start = size.saturating_sub(STRIDE);
        let tail = store.get_range(uri, start..size)?;
        Ok(ShardBytes {
            store: store.clone(),
            uri: uri.into(),
            size,
            held: [(start, tail)].into(),
        })
    }

    /// The file with some ranges in memory.
    pub(crate) fn with_ranges(
        store: &Store,
        uri: &str,
        size: u64,
        mut ranges: Vec<Range<u64>>,
    ) -> std::result::Result<Self, DataError> {
        if let Some(range) = ranges
            .iter()
            .find(|range| range.start > range.end || range.end > size)
        {
            let message = format!(
                "its footer says that a column lies in bytes {}..{} of {size}",
                range.start, range.end
            );
            return Err(DataError::Parquet {
                uri: uri.to_owned(),
                source: ParquetError::EOF(message),
            });
        }
        ranges.sort_by_key(|range| range.start);
        let pieces = store.get_ranges(uri, &ranges)?;
        let held = ranges.iter().map(|range| range.start).zip(pieces).collect();
        Ok(ShardBytes {
            store: store.clone(),
            uri: uri.into(),
            size,
            held,
        })
    }

    fn held(&self, start: u64, length: u64) -> Option<Bytes> {
        let next = self.held.partition_point(|(offset, _)| *offset <= start);
        let (offset, bytes) = self.held.get(next.checked_sub(1)?)?;
        let from = start - offset;
        (from.saturating_add(length) <= bytes.len() as u64)
            .then(|| bytes.slice(from as usize..(from + length) as usize))
    }
}

impl Length for ShardBytes {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for ShardBytes {
    type T = ShardStream;

    fn get_read(&self, start: u64) -> Result<ShardStream> {
        Ok(ShardStream {
            shard: self.clone(),
            position: start,
            current: Bytes::new(),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if let Some(bytes) = self.held(start, length as u64) {
            return Ok(bytes);
        }
        let end = start.saturating_add(length as u64);
        if end > self.size {
            let message = format!("bytes {start}..{end} of a file of {} bytes", self.size);
            return Err(ParquetError::EOF(message));
        }
        self.store
            .get_range(&self.uri, start..end)
            .map_err(|error| ParquetError::External(Box::new(error)))
    }
}

/// Reads a shard from some place on.
pub(crate) struct ShardStream {
    shard: ShardBytes,
    position: u64,
    current: Bytes,
}

impl Read for ShardStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.current.is_empty() {
            let wanted = STRIDE.min(self.shard.size.saturating_sub(self.position));
            if wanted == 0 {
                return Ok(0);
            }
            let next = self
                .shard
                .held
                .partition_point(|(offset, _)| *offset <= self.position);
            let held = next.checked_sub(1).and_then(|index| {
                let (offset, bytes) = &self.shard.held[index];
                let from = (self.position - offset) as usize;
                (from < bytes.len()).then(|| bytes.slice(from..))
            });
            self.current = match held {
                Some(bytes) => bytes,
                None => self
                    .shard
                    .get_bytes(self.position, wanted as usize)
                    .map_err(io::Error::other)?,
            };
            self.position += self.current.len() as u64;
        }
        let length = buffer.len().min(self.current.len());
        buffer[..length].copy_from_slice(&self.current[..length]);
        self.current.advance(length);
        Ok(length)
    }
}
