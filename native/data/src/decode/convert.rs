//! From flat runs of numbers to rows of a tensor.

use std::ops::Range;

use crate::spec::DType;

use super::extract::{Fault, Flaw, Values};

/// Rows copied at once from all columns: few enough that the columns of a tile stay in the first-level cache.
const TILE_ROWS: usize = 64;

/// Columns of one element a row that are transposed together: as many as fill a cache line with float32.
const TILE_COLUMNS: usize = 16;

/// What a tensor is for, which decides what its values may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Input,
    Label,
    Weight,
}

/// One column's numbers and their place in a row of the tensor.
pub(crate) struct Part {
    pub(crate) values: Values,
    /// Elements of a row before this column's.
    pub(crate) offset: usize,
    /// Elements a row.
    pub(crate) width: usize,
}

/// Refuses what the role or the dtype cannot take.
pub(crate) fn check(values: &Values, width: usize, role: Role, dtype: DType) -> Result<(), Fault> {
    let refuse = |found: Option<(usize, Flaw)>| match found {
        None => Ok(()),
        Some((index, flaw)) => Err(Fault {
            row: index / width.max(1),
            flaw,
        }),
    };
    macro_rules! first {
        ($values:expr, $bad:expr, $flaw:expr) => {
            refuse(first($values, $bad).map(|(index, value)| (index, $flaw(value))))?
        };
    }
    macro_rules! floats {
        ($values:expr, $type:ty) => {{
            match role {
                Role::Input => {}
                Role::Label => first!($values, |x: $type| x.is_nan(), |_| Flaw::NanLabel),
                Role::Weight => {
                    first!($values, |x: $type| !(x.is_finite() && x >= 0.0), |x| {
                        Flaw::Weight(f64::from(x))
                    })
                }
            }
            if dtype == DType::Int64 {
                // -2^63 is a whole number that fits, 2^63 is the first that does not.
                let limit = 9_223_372_036_854_775_808.0;
                first!(
                    $values,
                    |x: $type| x.trunc() != x || x.is_infinite(),
                    |x: $type| Flaw::NonIntegral(x.to_string())
                );
                first!(
                    $values,
                    |x: $type| !(-limit..limit).contains(&x),
                    |x: $type| Flaw::OutOfRange(x.to_string())
                );
            }
        }};
    }
    macro_rules! integers {
        ($values:expr, $type:ty) => {{
            if role == Role::Weight {
                first!(
                    $values,
                    |x: $type| (x as i128) < 0,
                    |x: $type| Flaw::Weight(x as f64)
                );
            }
            let limits: Option<(i128, i128)> = match dtype {
                DType::Bool => Some((0, 1)),
                DType::UInt8 => Some((0, 255)),
                DType::Int64 if <$type>::MAX as i128 > i64::MAX as i128 => {
                    Some((0, i64::MAX as i128))
                }
                _ => None,
            };
            if let Some((low, high)) = limits {
                let (low, high) = (low as $type, (<$type>::MAX as i128).min(high) as $type);
                first!($values, |x: $type| x < low || x > high, |x: $type| {
                    Flaw::OutOfRange(x.to_string())
                });
            }
        }};
    }
    match values {
        Values::I8(values) => integers!(values, i8),
        Values::I16(values) => integers!(values, i16),
        Values::I32(values) => integers!(values, i32),
        Values::I64(values) => integers!(values, i64),
        Values::U8(values) => integers!(values, u8),
        Values::U16(values) => integers!(values, u16),
        Values::U32(values) => integers!(values, u32),
        Values::U64(values) => integers!(values, u64),
        Values::F32(values) => floats!(values, f32),
        Values::F64(values) => floats!(values, f64),
    }
    Ok(())
}

/// The first value that `bad` holds for. Looks at blocks without an early exit, which vectorises.
fn first<T: Copy>(values: &[T], bad: impl Fn(T) -> bool) -> Option<(usize, T)> {
    const BLOCK: usize = 1024;
    let mut start = 0;
    for block in values.chunks(BLOCK) {
        if block.iter().fold(false, |found, &value| found | bad(value)) {
            let index = block.iter().position(|&value| bad(value))?;
            return Some((start + index, block[index]));
        }
        start += block.len();
    }
    None
}

/// Lays `num_rows` rows of all parts into `rows`, the bytes of a row-major tensor with `elements` elements a row.
///
/// The values were checked, so that every conversion is a plain cast. Floats round to the nearest.
pub(crate) fn interleave(
    rows: &mut [u8],
    num_rows: usize,
    elements: usize,
    parts: &[Part],
    dtype: DType,
) {
    match dtype {
        DType::Float32 => tiles::<f32>(bytemuck::cast_slice_mut(rows), num_rows, elements, parts),
        DType::Float64 => tiles::<f64>(bytemuck::cast_slice_mut(rows), num_rows, elements, parts),
        DType::Int64 => tiles::<i64>(bytemuck::cast_slice_mut(rows), num_rows, elements, parts),
        DType::Bool | DType::UInt8 => tiles::<u8>(rows, num_rows, elements, parts),
    }
}

fn tiles<D: Target>(tensor: &mut [D], num_rows: usize, elements: usize, parts: &[Part]) {
    let mut block = [[D::default(); TILE_ROWS]; TILE_COLUMNS];
    for first in (0..num_rows).step_by(TILE_ROWS) {
        let rows = first..num_rows.min(first + TILE_ROWS);
        let tile = &mut tensor[rows.start * elements..rows.end * elements];
        for group in parts.chunk_by(|part, next| part.width == 1 && next.width == 1) {
            if let [part] = group {
                lay(tile, elements, part, &rows);
                continue;
            }
            for columns in group.chunks(TILE_COLUMNS) {
                for (part, column) in columns.iter().zip(&mut block) {
                    // To the column itself it is a tensor of one element a row.
                    lay(&mut column[..rows.len()], 1, part, &rows);
                }
                transpose(&block[..columns.len()], tile, elements, columns[0].offset);
            }
        }
    }
}

/// Lays columns next to each other into the rows of a tile, from the element `offset` of each row on. Written row by row,
/// whole cache lines at a time, where column by column each line would be visited once a column.
fn transpose<D: Copy>(columns: &[[D; TILE_ROWS]], tile: &mut [D], elements: usize, offset: usize) {
    for (row, out) in tile.chunks_exact_mut(elements).take(TILE_ROWS).enumerate() {
        for (out, column) in out[offset..offset + columns.len()].iter_mut().zip(columns) {
            *out = column[row];
        }
    }
}

/// Lays one part's values into the rows of a tile.
fn lay<D: Target>(tile: &mut [D], elements: usize, part: &Part, rows: &Range<usize>) {
    match &part.values {
        Values::I8(values) => lay_values(tile, elements, part, rows, values),
        Values::I16(values) => lay_values(tile, elements, part, rows, values),
        Values::I32(values) => lay_values(tile, elements, part, rows, values),
        Values::I64(values) => lay_values(tile, elements, part, rows, values),
        Values::U8(values) => lay_values(tile, elements, part, rows, values),
        Values::U16(values) => lay_values(tile, elements, part, rows, values),
        Values::U32(values) => lay_values(tile, elements, part, rows, values),
        Values::U64(values) => lay_values(tile, elements, part, rows, values),
        Values::F32(values) => lay_values(tile, elements, part, rows, values),
        Values::F64(values) => lay_values(tile, elements, part, rows, values),
    }
}

fn lay_values<S: Copy, D: Target + CastFrom<S>>(
    tile: &mut [D],
    elements: usize,
    part: &Part,
    rows: &Range<usize>,
    values: &[S],
) {
    let width = part.width;
    let values = &values[rows.start * width..rows.end * width];
    if width == elements {
        for (out, &value) in tile.iter_mut().zip(values) {
            *out = D::cast(value);
        }
        return;
    }
    for (row, values) in tile
        .chunks_exact_mut(elements)
        .zip(values.chunks_exact(width))
    {
        for (out, &value) in row[part.offset..part.offset + width].iter_mut().zip(values) {
            *out = D::cast(value);
        }
    }
}

/// A plain cast between number types, as the `as` operator does it.
trait CastFrom<S> {
    fn cast(value: S) -> Self;
}

/// A tensor's element.
trait Target:
    Copy
    + Default
    + CastFrom<i8>
    + CastFrom<i16>
    + CastFrom<i32>
    + CastFrom<i64>
    + CastFrom<u8>
    + CastFrom<u16>
    + CastFrom<u32>
    + CastFrom<u64>
    + CastFrom<f32>
    + CastFrom<f64>
{
}

macro_rules! casts {
    ($target:ty: $($source:ty),*) => {
        $(impl CastFrom<$source> for $target {
            #[inline(always)]
            fn cast(value: $source) -> Self {
                value as $target
            }
        })*
        impl Target for $target {}
    };
}

casts!(f32: i8, i16, i32, i64, u8, u16, u32, u64, f32, f64);
casts!(f64: i8, i16, i32, i64, u8, u16, u32, u64, f32, f64);
casts!(i64: i8, i16, i32, i64, u8, u16, u32, u64, f32, f64);
casts!(u8: i8, i16, i32, i64, u8, u16, u32, u64, f32, f64);
