//! What a collective has to come to, computed one rank after the other.

use flambeau_collective::{DType, ReduceOp};
use half::{bf16, f16};

/// One rank's elements.
#[derive(Debug, Clone)]
pub enum Elements {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    I64(Vec<i64>),
    U8(Vec<u8>),
}

macro_rules! each {
    ($elements:expr, $values:ident => $body:expr) => {
        match $elements {
            Elements::F32($values) => $body,
            Elements::F64($values) => $body,
            Elements::F16($values) => $body,
            Elements::BF16($values) => $body,
            Elements::I64($values) => $body,
            Elements::U8($values) => $body,
        }
    };
}

impl Elements {
    /// Arbitrary but reproducible elements; with `specials`, some are NaN, infinite or zeros of either sign.
    pub fn random(dtype: DType, len: usize, seed: u64, specials: bool) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move || {
            // xorshift64*
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            state.wrapping_mul(0x2545_f491_4f6c_dd1d)
        };
        let mut float = || {
            let bits = next();
            match bits % 64 {
                0 if specials => f64::NAN,
                1 if specials => f64::INFINITY,
                2 if specials => f64::NEG_INFINITY,
                3 => -0.0,
                4 => 0.0,
                // Of several magnitudes, so that the order of a sum shows.
                _ => {
                    ((bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5)
                        * 10f64.powi((bits >> 6 & 7) as i32 - 3)
                }
            }
        };
        match dtype {
            DType::Float32 => Elements::F32((0..len).map(|_| float() as f32).collect()),
            DType::Float64 => Elements::F64((0..len).map(|_| float()).collect()),
            DType::Float16 => Elements::F16((0..len).map(|_| f16::from_f64(float())).collect()),
            DType::BFloat16 => Elements::BF16((0..len).map(|_| bf16::from_f64(float())).collect()),
            DType::Int64 => Elements::I64((0..len).map(|_| next() as i64).collect()),
            DType::UInt8 => Elements::U8((0..len).map(|_| next() as u8).collect()),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        each!(self, values => {
            // SAFETY: plain numbers, read as the bytes that they are.
            unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(&values[..])) }
        })
    }

    pub fn as_mut_ptr(&mut self) -> *mut std::ffi::c_void {
        each!(self, values => values.as_mut_ptr().cast())
    }

    /// Reads elements back from memory of this type.
    pub fn overwrite(&mut self, bytes: &[u8]) {
        assert_eq!(self.bytes().len(), bytes.len());
        // SAFETY: as many bytes, of numbers for which any bits are valid.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_mut_ptr().cast(), bytes.len())
        };
    }

    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            Elements::F32(values) => values.iter().map(|value| f64::from(*value)).collect(),
            Elements::F64(values) => values.clone(),
            Elements::F16(values) => values.iter().map(|value| value.to_f64()).collect(),
            Elements::BF16(values) => values.iter().map(|value| value.to_f64()).collect(),
            Elements::I64(values) => values.iter().map(|value| *value as f64).collect(),
            Elements::U8(values) => values.iter().map(|value| f64::from(*value)).collect(),
        }
    }

    pub fn copy_from(&mut self, other: &Elements, range: std::ops::Range<usize>, size: usize) {
        let range = range.start * size..range.end * size;
        let mut bytes = self.bytes().to_vec();
        bytes[range.clone()].copy_from_slice(&other.bytes()[range]);
        self.overwrite(&bytes);
    }
}

/// Whether two results agree: to the bit, but for zeros' signs and NaNs' payloads.
pub fn same(left: &Elements, right: &Elements) -> bool {
    fn all<T: Copy>(left: &[T], right: &[T], equal: impl Fn(T, T) -> bool) -> bool {
        left.len() == right.len()
            && left
                .iter()
                .zip(right)
                .all(|(left, right)| equal(*left, *right))
    }
    match (left, right) {
        (Elements::F32(left), Elements::F32(right)) => {
            all(left, right, |l, r| l == r || l.is_nan() && r.is_nan())
        }
        (Elements::F64(left), Elements::F64(right)) => {
            all(left, right, |l, r| l == r || l.is_nan() && r.is_nan())
        }
        (Elements::F16(left), Elements::F16(right)) => {
            all(left, right, |l, r| l == r || l.is_nan() && r.is_nan())
        }
        (Elements::BF16(left), Elements::BF16(right)) => {
            all(left, right, |l, r| l == r || l.is_nan() && r.is_nan())
        }
        (Elements::I64(left), Elements::I64(right)) => left == right,
        (Elements::U8(left), Elements::U8(right)) => left == right,
        _ => false,
    }
}

/// The reduction of all ranks' elements, one rank after the other, in the type that it is defined in.
pub fn reduced(ranks: &[Elements], op: ReduceOp) -> Elements {
    macro_rules! fold {
        ($variant:ident, $from:expr, $to:expr, $divide:expr, $add:expr, $nan:expr) => {{
            let all: Vec<&Vec<_>> = ranks
                .iter()
                .map(|elements| match elements {
                    Elements::$variant(values) => values,
                    _ => panic!("ranks of several types"),
                })
                .collect();
            let column = |index: usize| {
                let mut total = $from(all[0][index]);
                for values in &all[1..] {
                    let value = $from(values[index]);
                    total = match op {
                        ReduceOp::Sum | ReduceOp::Average => $add(total, value),
                        _ if $nan(total) => total,
                        _ if $nan(value) => value,
                        ReduceOp::Min => {
                            if value < total {
                                value
                            } else {
                                total
                            }
                        }
                        ReduceOp::Max => {
                            if value > total {
                                value
                            } else {
                                total
                            }
                        }
                    };
                }
                $to(if op == ReduceOp::Average {
                    $divide(total, ranks.len())
                } else {
                    total
                })
            };
            Elements::$variant((0..all[0].len()).map(column).collect())
        }};
    }
    let same = |value: f32| value;
    let add = |left: f32, right: f32| left + right;
    let divide = |value: f32, count: usize| value / count as f32;
    match &ranks[0] {
        Elements::F32(_) => fold!(F32, same, same, divide, add, f32::is_nan),
        Elements::F16(_) => fold!(F16, f16::to_f32, f16::from_f32, divide, add, f32::is_nan),
        Elements::BF16(_) => fold!(BF16, bf16::to_f32, bf16::from_f32, divide, add, f32::is_nan),
        Elements::F64(_) => {
            let same = |value: f64| value;
            fold!(
                F64,
                same,
                same,
                |value: f64, count: usize| value / count as f64,
                |l: f64, r: f64| l + r,
                f64::is_nan
            )
        }
        Elements::I64(_) => {
            let same = |value: i64| value;
            fold!(
                I64,
                same,
                same,
                |value: i64, count: usize| value / count as i64,
                i64::wrapping_add,
                |_: i64| false
            )
        }
        Elements::U8(_) => panic!("bytes are not reduced"),
    }
}

/// Whether `result` is near the reduction carried out in float64.
pub fn near(result: &Elements, ranks: &[Elements], op: ReduceOp) -> bool {
    let epsilon = match result {
        Elements::F32(_) => f64::from(f32::EPSILON),
        Elements::F64(_) => f64::EPSILON,
        Elements::F16(_) => f16::EPSILON.to_f64(),
        Elements::BF16(_) => bf16::EPSILON.to_f64(),
        Elements::I64(_) | Elements::U8(_) => return true,
    };
    let wide: Vec<Vec<f64>> = ranks.iter().map(Elements::to_f64).collect();
    result.to_f64().iter().enumerate().all(|(index, result)| {
        let column = wide.iter().map(|values| values[index]);
        let magnitude: f64 = column.clone().map(f64::abs).sum();
        let expected = match op {
            ReduceOp::Sum => column.sum::<f64>(),
            ReduceOp::Average => column.sum::<f64>() / wide.len() as f64,
            _ if column.clone().any(f64::is_nan) => f64::NAN,
            ReduceOp::Min => column.fold(f64::INFINITY, f64::min),
            ReduceOp::Max => column.fold(f64::NEG_INFINITY, f64::max),
        };
        let bound = magnitude * epsilon * wide.len() as f64 + f64::MIN_POSITIVE;
        // float16 overflows and underflows where float64 does not.
        let out_of_range = matches!(result, r if r.is_infinite()) && magnitude > 60000.0;
        (result.is_nan() && expected.is_nan())
            || *result == expected
            || (result - expected).abs() <= bound.max(1e-7)
            || out_of_range
    })
}
