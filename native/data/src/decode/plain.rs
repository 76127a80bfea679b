//! Columns whose pages hold numbers as they are, one after another, with no null among them: what Spark and Flambeau write for floats.
//!
//! Such pages need no decoder. Their levels, which say where rows begin and what is null, are looked at run by run; the numbers are
//! copied as they lie. Whatever is otherwise is left to parquet's own reader, errors included.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::ArrowNativeTypeOp;
use arrow_buffer::ScalarBuffer;
use arrow_schema::DataType;
use bytemuck::Pod;
use bytes::{Buf, Bytes};
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::serialized_reader::SerializedPageReader;

use super::extract::Values;
use super::shard_bytes::ShardBytes;
use crate::spec::DType;

/// A column of one row group, read from some row on.
pub(super) struct PlainColumn {
    pages: SerializedPageReader<ShardBytes>,
    number: DataType,
    /// Numbers a row.
    width: usize,
    /// The definition level of a number.
    defined: u8,
    is_list: bool,
    /// Bytes of numbers that come before the first row's.
    unwanted: usize,
    /// What is left of the current page's numbers.
    page: Bytes,
    /// The place within a row of the next page's first number.
    place: usize,
}

impl PlainColumn {
    /// The column at `root` of the footer's schema, whose rows have `width` numbers, from the first of `rows` on; `None` where the footer
    /// says that it is not plain, and where these are some rows of a file without an index of its pages: parquet's reader passes others
    /// without decompressing them.
    pub(super) fn open(
        bytes: &Arc<ShardBytes>,
        footer: &ArrowReaderMetadata,
        row_group: usize,
        rows: &Range<usize>,
        root: usize,
        width: usize,
    ) -> Option<PlainColumn> {
        let (number, is_list) = match footer.schema().field(root).data_type() {
            DataType::List(element) => (element.data_type(), true),
            number => (number, false),
        };
        let row_bytes = width * size_of_number(number)?;
        let schema = footer.parquet_schema();
        // Leaves lie in the order of their roots, each of which has at least one.
        let mut leaves = (root..schema.num_columns())
            .skip_while(|&leaf| schema.get_column_root_idx(leaf) < root)
            .take_while(|&leaf| schema.get_column_root_idx(leaf) == root);
        let (leaf, None) = (leaves.next()?, leaves.next()) else {
            return None;
        };
        let group = footer.metadata().row_group(row_group);
        let chunk = group.column(leaf);
        if !is_plain(chunk) {
            return None;
        }
        let num_rows = usize::try_from(group.num_rows()).ok()?;
        let mut pages = Pages::default();
        if *rows != (0..num_rows) {
            pages = Pages::before(footer.metadata(), row_group, leaf, rows.start)?;
        }
        let reader = SerializedPageReader::new(bytes.clone(), chunk, num_rows, pages.locations);
        let mut reader = reader.ok()?;
        for _ in 0..pages.num_passed {
            reader.skip_next_page().ok()?;
        }
        Some(PlainColumn {
            pages: reader,
            number: number.clone(),
            width,
            defined: u8::try_from(chunk.column_descr().max_def_level()).ok()?,
            is_list,
            unwanted: (rows.start - pages.passed_rows) * row_bytes,
            page: Bytes::new(),
            place: 0,
        })
    }

    /// The numbers of the next rows; `None` where they turn out not to be plain, after which nothing more can be taken.
    pub(super) fn take(&mut self, num_rows: usize) -> Option<Values> {
        Some(match self.number {
            DataType::Int32 => Values::I32(self.numbers(num_rows)?),
            DataType::Int64 => Values::I64(self.numbers(num_rows)?),
            DataType::Float32 => Values::F32(self.numbers(num_rows)?),
            _ => Values::F64(self.numbers(num_rows)?),
        })
    }

    fn numbers<T: Pod + ArrowNativeTypeOp>(&mut self, num_rows: usize) -> Option<ScalarBuffer<T>> {
        let mut numbers = vec![T::zeroed(); num_rows * self.width];
        self.fill(bytemuck::cast_slice_mut(&mut numbers))?;
        Some(numbers.into())
    }

    /// Whether its numbers are a tensor's as they are.
    pub(super) fn is(&self, dtype: DType) -> bool {
        matches!(
            (&self.number, dtype),
            (DataType::Float32, DType::Float32)
                | (DataType::Float64, DType::Float64)
                | (DataType::Int64, DType::Int64)
        )
    }

    /// Copies the next rows to `out`, which holds whole ones; `None` as [`take`](Self::take).
    pub(super) fn fill(&mut self, mut out: &mut [u8]) -> Option<()> {
        while !out.is_empty() {
            if self.page.is_empty() {
                self.page = self.next_page()?;
            }
            let unwanted = self.unwanted.min(self.page.len());
            self.page.advance(unwanted);
            self.unwanted -= unwanted;
            let length = out.len().min(self.page.len());
            self.page.copy_to_slice(&mut out[..length]);
            out = &mut out[length..];
        }
        Some(())
    }

    /// The next page's numbers.
    fn next_page(&mut self) -> Option<Bytes> {
        let (mut bytes, num_values, encoding, repetition, definition) =
            match self.pages.get_next_page().ok()?? {
                Page::DataPage {
                    mut buf,
                    num_values,
                    encoding,
                    def_level_encoding,
                    rep_level_encoding,
                    ..
                } => {
                    let mut levels = |present: bool, encoding| match (present, encoding) {
                        (false, _) => Some(Bytes::new()),
                        (true, Encoding::RLE) => {
                            let length = buf.try_get_u32_le().ok()? as usize;
                            (length <= buf.len()).then(|| buf.split_to(length))
                        }
                        _ => None,
                    };
                    let repetition = levels(self.is_list, rep_level_encoding)?;
                    let definition = levels(self.defined > 0, def_level_encoding)?;
                    (buf, num_values, encoding, repetition, definition)
                }
                Page::DataPageV2 {
                    mut buf,
                    num_values,
                    encoding,
                    def_levels_byte_len,
                    rep_levels_byte_len,
                    ..
                } => {
                    let mut levels = |length: u32| {
                        let length = length as usize;
                        (length <= buf.len()).then(|| buf.split_to(length))
                    };
                    let repetition = levels(rep_levels_byte_len)?;
                    let definition = levels(def_levels_byte_len)?;
                    (buf, num_values, encoding, repetition, definition)
                }
                Page::DictionaryPage { .. } => return None,
            };
        let num_values = num_values as usize;
        let length = num_values.checked_mul(size_of_number(&self.number)?)?;
        let is_plain = encoding == Encoding::PLAIN
            && length <= bytes.len()
            && self.all_defined(&definition, num_values)
            && self.rows_are_whole(&repetition, num_values);
        bytes.truncate(length);
        is_plain.then_some(bytes)
    }

    /// Whether there is a number at every place.
    fn all_defined(&self, levels: &[u8], num_values: usize) -> bool {
        let defined = self.defined;
        defined == 0 || each_run(levels, defined, num_values, |_, level| level == defined)
    }

    /// Whether a row begins where one of `width` numbers does, and nowhere else.
    fn rows_are_whole(&mut self, levels: &[u8], num_values: usize) -> bool {
        let width = self.width;
        if !self.is_list {
            return true;
        }
        let mut place = self.place;
        let whole = each_run(levels, 1, num_values, |count, level| {
            let fits = match level {
                0 => place == 0 && (count == 1 || width == 1),
                _ => place > 0 && count <= width - place,
            };
            place = (place + count) % width;
            fits
        });
        self.place = place;
        whole
    }
}

/// Where a column's pages lie, and those that come before some row.
#[derive(Default)]
struct Pages {
    locations: Option<Vec<PageLocation>>,
    num_passed: usize,
    passed_rows: usize,
}

impl Pages {
    /// `None` where the file has no index of them, or one that cannot be right.
    fn before(
        metadata: &ParquetMetaData,
        row_group: usize,
        leaf: usize,
        row: usize,
    ) -> Option<Pages> {
        let index = metadata.page_index_for_row_group(row_group);
        let locations = index.page_locations(leaf)?.clone();
        let (start, _) = metadata.row_group(row_group).column(leaf).byte_range();
        let first_rows: Vec<usize> = (locations.iter())
            .map(|location| usize::try_from(location.first_row_index).ok())
            .collect::<Option<_>>()?;
        // Where the first page lies elsewhere, parquet takes what comes before it for a dictionary.
        let is_sound = u64::try_from(locations.first()?.offset) == Ok(start)
            && first_rows[0] == 0
            && first_rows.is_sorted();
        if !is_sound {
            return None;
        }
        let num_passed = first_rows.partition_point(|&first| first <= row) - 1;
        Some(Pages {
            num_passed,
            passed_rows: first_rows[num_passed],
            locations: Some(locations),
        })
    }
}

fn size_of_number(number: &DataType) -> Option<usize> {
    match number {
        DataType::Int32 | DataType::Float32 => Some(4),
        DataType::Int64 | DataType::Float64 => Some(8),
        _ => None,
    }
}

/// Whether the footer says that the chunk has plain pages only.
fn is_plain(chunk: &ColumnChunkMetaData) -> bool {
    #[allow(deprecated)] // what Parquet's first version writes for levels
    let levels = |encoding| matches!(encoding, Encoding::RLE | Encoding::BIT_PACKED);
    chunk.dictionary_page_offset().is_none()
        && chunk.column_descr().max_rep_level() <= 1
        && chunk
            .encodings()
            .all(|encoding| encoding == Encoding::PLAIN || levels(encoding))
}

/// Calls `accept` with the length and the level of each run of `num_values` levels, until it refuses one. `false` then, and where the
/// bytes are no levels.
///
/// This is the hybrid of runs and of bit-packed groups of eight: <https://parquet.apache.org/docs/file-format/data-pages/encodings/>.
fn each_run(
    mut bytes: &[u8],
    max_level: u8,
    num_values: usize,
    mut accept: impl FnMut(usize, u8) -> bool,
) -> bool {
    let bit_width = (u8::BITS - max_level.leading_zeros()) as usize;
    let mask = (1u16 << bit_width) - 1;
    let mut left = num_values;
    while left > 0 {
        let Some(header) = varint(&mut bytes) else {
            return false;
        };
        let count = (header >> 1) as usize;
        if header & 1 == 0 {
            let Some((&level, rest)) = bytes.split_first().filter(|_| count > 0) else {
                return false;
            };
            bytes = rest;
            let count = count.min(left);
            if !accept(count, level) {
                return false;
            }
            left -= count;
        } else {
            let Some(packed) = (count.checked_mul(bit_width))
                .filter(|&length| length > 0)
                .and_then(|length| bytes.split_off(..length))
            else {
                return false;
            };
            let here = left.min(count * 8);
            let level = |index: usize| {
                let bit = index * bit_width;
                let high = packed.get(bit / 8 + 1).copied().unwrap_or(0);
                let word = u16::from_le_bytes([packed[bit / 8], high]);
                ((word >> (bit % 8)) & mask) as u8
            };
            if !(0..here).all(|index| accept(1, level(index))) {
                return false;
            }
            left -= here;
        }
    }
    true
}

/// An unsigned number in groups of seven bits, the lowest first.
fn varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in (0..32).step_by(7) {
        let byte = *bytes.split_off_first()?;
        value |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(bytes: &[u8], max_level: u8, num_values: usize) -> Option<Vec<(usize, u8)>> {
        let mut runs = Vec::new();
        let whole = each_run(bytes, max_level, num_values, |count, level| {
            runs.push((count, level));
            true
        });
        whole.then_some(runs)
    }

    #[test]
    fn levels_are_runs_and_packed_groups() {
        // The example of the format's own description: 0 to 7 in three bits, least significant first.
        let packed: Vec<_> = (0..8).map(|level| (1, level)).collect();
        assert_eq!(runs(&[3, 0x88, 0xc6, 0xfa], 7, 8), Some(packed.clone()));
        assert_eq!(
            runs(&[3, 0x88, 0xc6, 0xfa], 7, 5),
            Some(packed[..5].to_vec())
        );
        assert_eq!(runs(&[0x90, 0x03, 1], 1, 200), Some(vec![(200, 1)]));
        assert_eq!(runs(&[4, 1, 6, 0], 1, 5), Some(vec![(2, 1), (3, 0)]));
        for broken in [&[][..], &[4], &[0, 1], &[1], &[3, 0x88], &[0xff; 6]] {
            assert_eq!(runs(broken, 7, 8), None, "{broken:?}");
        }
    }
}
