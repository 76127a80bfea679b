//! A dataset's files, of which all rows are read, or some.

use std::collections::BTreeMap;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::DataError;
use crate::store::Store;

/// A Parquet file, and which of its rows are read. As JSON it is the file's URI alone, or an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum DataFile {
    /// The URI of a file that is read as a whole.
    Whole(String),
    /// A file of which some rows are read.
    Selected(SelectedRows),
}

/// A Parquet file of which some rows are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub struct SelectedRows {
    /// The file's URI.
    pub uri: String,
    /// Which rows are read.
    pub rows: FileRows,
    /// Values of the table's partition columns, as text; of those that are not given, `key=value` directories tell.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, String>,
}

/// Which rows of a file are read. As JSON it is a number, or an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum FileRows {
    /// So many, from the first on, which may be all.
    First(u64),
    /// Those of a bitmap.
    Bitmap(BitmapRange),
}

/// Where a bitmap lies that has a bit for each row of a file, eight in a byte, the lowest first: 1 where the row is read. Rows after its
/// last bit are not, and bits after the file's last row are 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub struct BitmapRange {
    /// The URI of the file that holds it, beside others.
    pub uri: String,
    /// Its first byte there.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
}

impl DataFile {
    /// The file's URI.
    pub fn uri(&self) -> &str {
        match self {
            DataFile::Whole(uri) => uri,
            DataFile::Selected(selected) => &selected.uri,
        }
    }

    /// Which rows are read; `None` for all.
    pub fn rows(&self) -> Option<&FileRows> {
        match self {
            DataFile::Whole(_) => None,
            DataFile::Selected(selected) => Some(&selected.rows),
        }
    }

    /// What is given of columns that have one value in all rows.
    pub fn values(&self) -> Option<&BTreeMap<String, String>> {
        match self {
            DataFile::Whole(_) => None,
            DataFile::Selected(selected) => Some(&selected.values),
        }
    }

    /// Files that are read as a whole.
    pub fn whole(uris: &[String]) -> Vec<DataFile> {
        uris.iter().cloned().map(DataFile::Whole).collect()
    }
}

impl FileRows {
    /// A bit for each, for a file `of` so many rows.
    pub(crate) fn read_all(
        &self,
        store: &Store,
        of: &str,
        num_rows: u64,
    ) -> Result<Bitmap, DataError> {
        match self {
            FileRows::Bitmap(range) => range.read_all(store, of, num_rows),
            FileRows::First(first) if *first <= num_rows => Ok(Bitmap {
                bytes: vec![0xff; first.div_ceil(8) as usize].into(),
                shift: 0,
                num_rows: *first as usize,
            }),
            FileRows::First(first) => Err(DataError::ShardChanged {
                uri: of.to_owned(),
                reason: format!("it has {num_rows} rows, and the first {first} are to be read"),
            }),
        }
    }
}

impl BitmapRange {
    /// Reads it, for a file `of` so many rows.
    pub(crate) fn read_all(
        &self,
        store: &Store,
        of: &str,
        num_rows: u64,
    ) -> Result<Bitmap, DataError> {
        let needed = num_rows.div_ceil(8);
        if self.length > needed {
            let reason = format!(
                "it has {} bytes, and the file's {num_rows} rows take {needed}",
                self.length
            );
            return Err(self.invalid(of, reason));
        }
        let bitmap = self.read_rows(store, of, 0, num_rows)?;
        let spare = needed * 8 - num_rows;
        let last = bitmap.bytes.get(needed.saturating_sub(1) as usize);
        if last.is_some_and(|last| u16::from(*last) >> (8 - spare) != 0) {
            return Err(self.invalid(of, "it has rows after the file's last".into()));
        }
        Ok(bitmap)
    }

    /// Reads some of it: `num_rows` rows from the file's row `first` on.
    pub(crate) fn read_rows(
        &self,
        store: &Store,
        of: &str,
        first: u64,
        num_rows: u64,
    ) -> Result<Bitmap, DataError> {
        let end = (first + num_rows).div_ceil(8).min(self.length);
        let start = (first / 8).min(end);
        let range = (self.offset.checked_add(start)).zip(self.offset.checked_add(end));
        let Some((from, to)) = range else {
            return Err(self.invalid(of, format!("no file has a byte {}", self.offset)));
        };
        let bytes = match from == to {
            true => Bytes::new(),
            false => store.get_range(&self.uri, from..to)?,
        };
        if bytes.len() as u64 != to - from {
            return Err(self.invalid(of, format!("{} is shorter than it", self.uri)));
        }
        Ok(Bitmap {
            bytes,
            shift: (first % 8) as usize,
            num_rows: num_rows as usize,
        })
    }

    fn invalid(&self, of: &str, reason: String) -> DataError {
        DataError::InvalidBitmap {
            uri: of.to_owned(),
            bitmap: self.uri.clone(),
            reason,
        }
    }
}

/// A bit for each of some rows, the lowest of a byte first: 1 where the row is read. Rows after the last bit have 0.
pub(crate) struct Bitmap {
    bytes: Bytes,
    /// Bits before the first row's.
    shift: usize,
    /// Rows, those after the last bit too.
    num_rows: usize,
}

impl Bitmap {
    /// The rows whose bits are set, of some of its rows, numbered from its first; ascending.
    pub(crate) fn set_rows(&self, among: std::ops::Range<usize>) -> impl Iterator<Item = usize> {
        let held = (self.bytes.len() * 8)
            .saturating_sub(self.shift)
            .min(self.num_rows);
        let bits = among.start.min(held) + self.shift..among.end.min(held) + self.shift;
        let words = (bits.start / 64..bits.end.div_ceil(64)).map(move |word| {
            let bytes = &self.bytes[word * 8..self.bytes.len().min(word * 8 + 8)];
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            let mut value = u64::from_le_bytes(whole);
            if word == bits.start / 64 {
                value &= u64::MAX << (bits.start % 64);
            }
            if bits.end < word * 64 + 64 {
                value &= (1 << (bits.end % 64)) - 1;
            }
            (word * 64, value)
        });
        let shift = self.shift;
        words.flat_map(move |(first, mut left)| {
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(first + bit - shift)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn set_rows_are_those_of_set_bits(
            bytes in prop::collection::vec(any::<u8>(), 1..40),
            first in 0usize..40,
            num_rows in 0usize..320,
            among in (0usize..320, 0usize..320),
        ) {
            let first = first.min(bytes.len() * 8);
            let bitmap = Bitmap {
                bytes: Bytes::from(bytes.clone()).slice(first / 8..),
                shift: first % 8,
                num_rows,
            };
            let is_set = |row: &usize| {
                let byte = bytes.get((first + row) / 8).copied().unwrap_or(0);
                byte >> ((first + row) % 8) & 1 == 1
            };
            let expected: Vec<usize> = (among.0..among.1.min(num_rows)).filter(is_set).collect();
            prop_assert_eq!(bitmap.set_rows(among.0..among.1).collect::<Vec<_>>(), expected);
        }
    }
}
