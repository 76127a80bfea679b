//! Sums and averages of the ranks' elements, in rank order.

use std::ffi::c_int;

use half::{bf16, f16};

/// `ncclAvg`; the other operation is `ncclSum`.
const AVERAGE: c_int = 4;

/// Bytes per element of an `ncclDataType_t`; `None` for those that are not carried.
pub(crate) fn size_of_type(dtype: c_int) -> Option<usize> {
    match dtype {
        1 => Some(1),
        6 | 9 => Some(2),
        7 => Some(4),
        4 | 8 => Some(8),
        _ => None,
    }
}

/// Whether `reduce` knows the operation.
pub(crate) fn is_known(op: c_int) -> bool {
    matches!(op, 0 | AVERAGE)
}

/// What an operation is called.
pub(crate) fn name(op: c_int) -> &'static str {
    if op == AVERAGE { "avg" } else { "sum" }
}

/// Writes the reduction of the ranks' bytes to `result`.
pub(crate) fn reduce(ranks: &[&[u8]], result: &mut [u8], dtype: c_int, op: c_int) {
    let count = ranks.len();
    // An average divides by this; a sum by one.
    let parts = if op == AVERAGE { count } else { 1 };
    match dtype {
        4 => each(ranks, result, i64::from_le_bytes, i64::to_le_bytes, |x| {
            x.fold(0, i64::wrapping_add) / parts as i64
        }),
        6 => each(ranks, result, f16::from_le_bytes, f16::to_le_bytes, |x| {
            f16::from_f32(x.map(f16::to_f32).sum::<f32>() / parts as f32)
        }),
        7 => each(ranks, result, f32::from_le_bytes, f32::to_le_bytes, |x| {
            x.sum::<f32>() / parts as f32
        }),
        8 => each(ranks, result, f64::from_le_bytes, f64::to_le_bytes, |x| {
            x.sum::<f64>() / parts as f64
        }),
        9 => each(ranks, result, bf16::from_le_bytes, bf16::to_le_bytes, |x| {
            bf16::from_f32(x.map(bf16::to_f32).sum::<f32>() / parts as f32)
        }),
        _ => unreachable!("checked when called"),
    }
}

fn each<T, const SIZE: usize>(
    ranks: &[&[u8]],
    result: &mut [u8],
    read: fn([u8; SIZE]) -> T,
    write: fn(T) -> [u8; SIZE],
    combine: impl Fn(&mut dyn Iterator<Item = T>) -> T,
) {
    for (index, place) in result.chunks_exact_mut(SIZE).enumerate() {
        let mut elements = ranks.iter().map(|bytes| {
            let (element, _) = bytes[index * SIZE..]
                .split_first_chunk()
                .expect("as long as the result");
            read(*element)
        });
        place.copy_from_slice(&write(combine(&mut elements)));
    }
}
