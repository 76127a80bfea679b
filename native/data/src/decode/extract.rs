//! From Arrow arrays to flat runs of numbers, every row with the same count of them.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;

use crate::error::DataError;
use crate::spec::DType;

/// What is wrong with a value, before it is known in which file.
#[derive(Debug)]
pub(crate) enum Flaw {
    Null,
    NanLabel,
    Weight(f64),
    Ragged {
        expected: usize,
        got: usize,
    },
    NonIntegral(String),
    OutOfRange(String),
    Vector(String),
    /// The array is of a type that the manifest did not see.
    Type(String),
}

/// A flaw and the row it is in, counted from the batch's first.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) row: usize,
    pub(crate) flaw: Flaw,
}

impl Flaw {
    /// The error of a value of `column` in the file's row `row`.
    pub(crate) fn at(self, column: &str, uri: &str, row: u64, dtype: DType) -> DataError {
        let (column, uri, dtype) = (column.to_owned(), uri.to_owned(), dtype.name());
        match self {
            Flaw::Null => DataError::NullValue { column, uri, row },
            Flaw::NanLabel => DataError::NanLabel { column, uri, row },
            Flaw::Weight(value) => DataError::InvalidWeight {
                column,
                uri,
                row,
                value,
            },
            Flaw::Ragged { expected, got } => DataError::RaggedArray {
                column,
                uri,
                row,
                expected,
                got,
            },
            Flaw::NonIntegral(value) => DataError::NonIntegral {
                column,
                uri,
                row,
                value,
                dtype,
            },
            Flaw::OutOfRange(value) => DataError::OutOfRange {
                column,
                uri,
                row,
                value,
                dtype,
            },
            Flaw::Vector(reason) => DataError::InvalidVector {
                column,
                uri,
                row,
                reason,
            },
            Flaw::Type(found) => DataError::ShardChanged {
                uri,
                reason: format!("column `{column}` has type {found} now"),
            },
        }
    }
}

/// Numbers of one type, rows one after another. Clones share them.
#[derive(Clone)]
pub(crate) enum Values {
    I8(ScalarBuffer<i8>),
    I16(ScalarBuffer<i16>),
    I32(ScalarBuffer<i32>),
    I64(ScalarBuffer<i64>),
    /// Also bytes, and booleans as 0 and 1.
    U8(ScalarBuffer<u8>),
    U16(ScalarBuffer<u16>),
    U32(ScalarBuffer<u32>),
    U64(ScalarBuffer<u64>),
    F32(ScalarBuffer<f32>),
    F64(ScalarBuffer<f64>),
}

impl Values {
    /// Those of some rows, of `num_rows` that have as many numbers each.
    pub(crate) fn take(self, rows: &[u32], num_rows: usize) -> Values {
        fn take<T: Copy + arrow_buffer::ArrowNativeType>(
            values: &ScalarBuffer<T>,
            rows: &[u32],
            num_rows: usize,
        ) -> ScalarBuffer<T> {
            let width = values.len() / num_rows.max(1);
            let mut taken = Vec::with_capacity(rows.len() * width);
            for &row in rows {
                let first = row as usize * width;
                taken.extend_from_slice(&values[first..first + width]);
            }
            taken.into()
        }
        match self {
            Values::I8(values) => Values::I8(take(&values, rows, num_rows)),
            Values::I16(values) => Values::I16(take(&values, rows, num_rows)),
            Values::I32(values) => Values::I32(take(&values, rows, num_rows)),
            Values::I64(values) => Values::I64(take(&values, rows, num_rows)),
            Values::U8(values) => Values::U8(take(&values, rows, num_rows)),
            Values::U16(values) => Values::U16(take(&values, rows, num_rows)),
            Values::U32(values) => Values::U32(take(&values, rows, num_rows)),
            Values::U64(values) => Values::U64(take(&values, rows, num_rows)),
            Values::F32(values) => Values::F32(take(&values, rows, num_rows)),
            Values::F64(values) => Values::F64(take(&values, rows, num_rows)),
        }
    }
}

/// The numbers of a column, each row holding exactly `shape`'s count of them.
pub(crate) fn extract(array: &ArrayRef, shape: &[usize], dtype: DType) -> Result<Values, Fault> {
    let mut array = array.clone();
    let mut per_row = 1;
    for &length in shape {
        refuse_nulls(&array, per_row)?;
        match array.data_type() {
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                refuse_ragged(list.offsets(), length, per_row)?;
                let first = list.offsets()[0] as usize;
                array = list.values().slice(first, list.len() * length);
                per_row *= length;
            }
            DataType::Struct(_) => return vectors(&array, length).map(Values::F64),
            DataType::Binary => {
                let binary = array.as_binary::<i32>();
                refuse_ragged(binary.offsets(), length, per_row)?;
                let first = binary.offsets()[0] as usize;
                let bytes = binary
                    .values()
                    .slice_with_length(first, binary.len() * length);
                return Ok(Values::U8(bytes.into()));
            }
            DataType::FixedSizeBinary(_) => {
                let binary = array.as_fixed_size_binary();
                let got = binary.value_length() as usize;
                if got != length {
                    return Err(Fault {
                        row: 0,
                        flaw: Flaw::Ragged {
                            expected: length,
                            got,
                        },
                    });
                }
                let bytes = binary.values().slice_with_length(0, binary.len() * length);
                return Ok(Values::U8(bytes.into()));
            }
            other => {
                return Err(Fault {
                    row: 0,
                    flaw: Flaw::Type(other.to_string()),
                });
            }
        }
    }
    refuse_nulls(&array, per_row)?;
    scalars(&array, per_row, dtype)
}

/// The first row with a null at any level, of arrays whose rows may differ in length.
pub(crate) fn first_null(array: &ArrayRef) -> Option<usize> {
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    let own = nulls.and_then(|nulls| nulls.iter().position(|valid| !valid));
    let nested = array.as_list_opt::<i32>().and_then(|list| {
        let offsets = list.offsets();
        let (first, last) = (offsets[0] as usize, offsets[list.len()] as usize);
        let element = first_null(&list.values().slice(first, last - first))? + first;
        Some(offsets.partition_point(|&offset| offset as usize <= element) - 1)
    });
    own.into_iter().chain(nested).min()
}

fn refuse_nulls(array: &ArrayRef, per_row: usize) -> Result<(), Fault> {
    match array.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => Ok(()),
        Some(nulls) => {
            let index = nulls.iter().position(|valid| !valid).unwrap_or(0);
            Err(Fault {
                row: index / per_row,
                flaw: Flaw::Null,
            })
        }
    }
}

fn refuse_ragged(
    offsets: &OffsetBuffer<i32>,
    expected: usize,
    per_row: usize,
) -> Result<(), Fault> {
    let lengths = || offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize);
    // Without an early exit the comparison is vectorised.
    if lengths().fold(false, |ragged, got| ragged | (got != expected)) {
        let (index, got) = lengths()
            .enumerate()
            .find(|(_, got)| *got != expected)
            .unwrap_or((0, expected));
        return Err(Fault {
            row: index / per_row,
            flaw: Flaw::Ragged { expected, got },
        });
    }
    Ok(())
}

fn scalars(array: &ArrayRef, per_row: usize, dtype: DType) -> Result<Values, Fault> {
    Ok(match array.data_type() {
        DataType::Boolean => Values::U8(array.as_boolean().values().iter().map(u8::from).collect()),
        DataType::Int8 => Values::I8(array.as_primitive::<Int8Type>().values().clone()),
        DataType::Int16 => Values::I16(array.as_primitive::<Int16Type>().values().clone()),
        DataType::Int32 => Values::I32(array.as_primitive::<Int32Type>().values().clone()),
        DataType::Int64 => Values::I64(array.as_primitive::<Int64Type>().values().clone()),
        DataType::UInt8 => Values::U8(array.as_primitive::<UInt8Type>().values().clone()),
        DataType::UInt16 => Values::U16(array.as_primitive::<UInt16Type>().values().clone()),
        DataType::UInt32 => Values::U32(array.as_primitive::<UInt32Type>().values().clone()),
        DataType::UInt64 => Values::U64(array.as_primitive::<UInt64Type>().values().clone()),
        DataType::Float16 => Values::F32(
            array
                .as_primitive::<Float16Type>()
                .values()
                .iter()
                .map(|value| value.to_f32())
                .collect(),
        ),
        DataType::Float32 => Values::F32(array.as_primitive::<Float32Type>().values().clone()),
        DataType::Float64 => Values::F64(array.as_primitive::<Float64Type>().values().clone()),
        DataType::Decimal32(_, scale) => {
            let values = array.as_primitive::<Decimal32Type>().values();
            decimals(
                values.iter().map(|&value| i128::from(value)),
                *scale,
                per_row,
                dtype,
            )?
        }
        DataType::Decimal64(_, scale) => {
            let values = array.as_primitive::<Decimal64Type>().values();
            decimals(
                values.iter().map(|&value| i128::from(value)),
                *scale,
                per_row,
                dtype,
            )?
        }
        DataType::Decimal128(_, scale) => decimals(
            array
                .as_primitive::<Decimal128Type>()
                .values()
                .iter()
                .copied(),
            *scale,
            per_row,
            dtype,
        )?,
        other => {
            return Err(Fault {
                row: 0,
                flaw: Flaw::Type(other.to_string()),
            });
        }
    })
}

/// Decimals as whole numbers, exactly, where integers are asked for; as doubles otherwise.
fn decimals(
    unscaled: impl Iterator<Item = i128>,
    scale: i8,
    per_row: usize,
    dtype: DType,
) -> Result<Values, Fault> {
    if dtype != DType::Int64 {
        // Exact to the last bit while digits and factor fit a double's 53 bits, within one rounding more beyond.
        let factor = 10f64.powi(i32::from(scale));
        return Ok(Values::F64(
            unscaled.map(|value| value as f64 / factor).collect(),
        ));
    }
    let factor = 10i128.pow(u32::from(scale.max(0).unsigned_abs()));
    let multiplier = 10i128.pow(u32::from(scale.min(0).unsigned_abs()));
    unscaled
        .enumerate()
        .map(|(index, value)| {
            let text = || format!("{}", value as f64 / factor as f64 * multiplier as f64);
            let fault = |flaw| Fault {
                row: index / per_row,
                flaw,
            };
            if value % factor != 0 {
                return Err(fault(Flaw::NonIntegral(text())));
            }
            let whole = (value / factor)
                .checked_mul(multiplier)
                .and_then(|whole| i64::try_from(whole).ok());
            whole.ok_or_else(|| fault(Flaw::OutOfRange(text())))
        })
        .collect::<Result<ScalarBuffer<i64>, Fault>>()
        .map(Values::I64)
}

/// Spark ML's vectors: `type` 1 is dense (`values`), 0 sparse (`size`, `indices`, `values`).
fn vectors(array: &ArrayRef, length: usize) -> Result<ScalarBuffer<f64>, Fault> {
    let fields = array.as_struct();
    let column = |name: &str, data_type: &dyn Fn(&DataType) -> bool| {
        let column = fields
            .column_by_name(name)
            .filter(|column| data_type(column.data_type()));
        column.ok_or_else(|| Fault {
            row: 0,
            flaw: Flaw::Type(array.data_type().to_string()),
        })
    };
    let is_list = |data_type: &DataType| matches!(data_type, DataType::List(_));
    let kinds =
        column("type", &|data_type| *data_type == DataType::Int8)?.as_primitive::<Int8Type>();
    let sizes =
        column("size", &|data_type| *data_type == DataType::Int32)?.as_primitive::<Int32Type>();
    let indices = column("indices", &is_list)?.as_list::<i32>();
    let values = column("values", &is_list)?.as_list::<i32>();
    let flat_indices = indices.values().as_primitive::<Int32Type>().values();
    let flat_values = values.values().as_primitive::<Float64Type>().values();
    let span =
        |offsets: &OffsetBuffer<i32>, row: usize| offsets[row] as usize..offsets[row + 1] as usize;

    let mut flat = vec![0f64; array.len() * length];
    for (row, out) in flat.chunks_exact_mut(length).enumerate() {
        let fail = |flaw| Err(Fault { row, flaw });
        let found = &flat_values[span(values.offsets(), row)];
        match kinds.value(row) {
            1 if found.len() == length => out.copy_from_slice(found),
            1 => {
                return fail(Flaw::Ragged {
                    expected: length,
                    got: found.len(),
                });
            }
            0 => {
                let size = sizes.value(row);
                if size as usize != length {
                    return fail(Flaw::Ragged {
                        expected: length,
                        got: size as usize,
                    });
                }
                let places = &flat_indices[span(indices.offsets(), row)];
                if places.len() != found.len() {
                    let reason = format!("{} indices for {} values", places.len(), found.len());
                    return fail(Flaw::Vector(reason));
                }
                for (&place, &value) in places.iter().zip(found) {
                    match out.get_mut(place as usize) {
                        Some(out) => *out = value,
                        None => {
                            return fail(Flaw::Vector(format!(
                                "index {place} in a vector of size {size}"
                            )));
                        }
                    }
                }
            }
            kind => {
                return fail(Flaw::Vector(format!(
                    "its type is {kind}, neither 0 (sparse) nor 1 (dense)"
                )));
            }
        }
    }
    Ok(flat.into())
}

/// The shape of the first row: one length a level of nesting.
pub(crate) fn shape_of_first(array: &ArrayRef) -> Result<Vec<usize>, Flaw> {
    let mut shape = Vec::new();
    let mut array = array.clone();
    loop {
        if array.is_empty() || array.is_null(0) {
            return Err(if array.is_empty() {
                Flaw::Ragged {
                    expected: 1,
                    got: 0,
                }
            } else {
                Flaw::Null
            });
        }
        let inner = match array.data_type() {
            DataType::List(_) => array.as_list::<i32>().value(0),
            DataType::Struct(_) => {
                let fields = array.as_struct();
                let kind = fields
                    .column_by_name("type")
                    .and_then(|column| column.as_primitive_opt::<Int8Type>());
                let size = fields
                    .column_by_name("size")
                    .and_then(|column| column.as_primitive_opt::<Int32Type>());
                let values = fields
                    .column_by_name("values")
                    .and_then(|column| column.as_list_opt::<i32>());
                let (Some(kind), Some(size), Some(values)) = (kind, size, values) else {
                    return Err(Flaw::Type(array.data_type().to_string()));
                };
                shape.push(if kind.value(0) == 1 {
                    values.value_length(0) as usize
                } else {
                    size.value(0) as usize
                });
                break;
            }
            DataType::Binary => {
                shape.push(array.as_binary::<i32>().value(0).len());
                break;
            }
            DataType::FixedSizeBinary(length) => {
                shape.push(*length as usize);
                break;
            }
            _ => break,
        };
        shape.push(inner.len());
        array = inner;
    }
    if shape.contains(&0) {
        Err(Flaw::Ragged {
            expected: 1,
            got: 0,
        })
    } else {
        Ok(shape)
    }
}
