//! Arithmetic on the elements of gradients. Half types compute in float32, as torch does.

use std::ffi::c_void;
use std::slice;

use flambeau_collective::DType;
use half::{bf16, f16};

/// Multiplies `numel` elements by `factor`.
///
/// # Safety
///
/// `ptr` points to `numel` elements of `dtype`, aligned, which nobody else reads or writes during the call.
pub(crate) unsafe fn scale(ptr: *mut c_void, numel: usize, dtype: DType, factor: f64) {
    let single = factor as f32;
    // SAFETY: passed on from the caller.
    unsafe {
        match dtype {
            DType::Float32 => elements_mut::<f32>(ptr, numel)
                .iter_mut()
                .for_each(|x| *x *= single),
            DType::Float64 => elements_mut::<f64>(ptr, numel)
                .iter_mut()
                .for_each(|x| *x *= factor),
            DType::Float16 => {
                elements_mut::<f16>(ptr, numel)
                    .iter_mut()
                    .for_each(|x| *x = f16::from_f32(x.to_f32() * single));
            }
            DType::BFloat16 => {
                elements_mut::<bf16>(ptr, numel)
                    .iter_mut()
                    .for_each(|x| *x = bf16::from_f32(x.to_f32() * single));
            }
            DType::Int64 | DType::UInt8 => unreachable!("a reducer takes floating types only"),
        }
    }
}

/// Multiplies `numel` elements by `factor` and tells whether all products are finite.
///
/// # Safety
///
/// As for [`scale`].
pub(crate) unsafe fn unscale(ptr: *mut c_void, numel: usize, dtype: DType, factor: f64) -> bool {
    let single = factor as f32;
    // SAFETY: passed on from the caller.
    unsafe {
        match dtype {
            DType::Float32 => elements_mut::<f32>(ptr, numel)
                .iter_mut()
                .fold(true, |finite, x| {
                    *x *= single;
                    finite & x.is_finite()
                }),
            DType::Float64 => elements_mut::<f64>(ptr, numel)
                .iter_mut()
                .fold(true, |finite, x| {
                    *x *= factor;
                    finite & x.is_finite()
                }),
            DType::BFloat16 => {
                elements_mut::<bf16>(ptr, numel)
                    .iter_mut()
                    .fold(true, |finite, x| {
                        *x = bf16::from_f32(x.to_f32() * single);
                        finite & x.is_finite()
                    })
            }
            DType::Float16 | DType::Int64 | DType::UInt8 => {
                unreachable!("with loss scaling, gradients of other types are refused")
            }
        }
    }
}

/// The sum of the squares of `numel` elements, in float64 and in a fixed order.
///
/// # Safety
///
/// As for [`scale`].
pub(crate) unsafe fn sum_of_squares(ptr: *mut c_void, numel: usize, dtype: DType) -> f64 {
    // SAFETY: passed on from the caller.
    unsafe {
        match dtype {
            DType::Float32 => squares(elements_mut::<f32>(ptr, numel), |x| f64::from(*x)),
            DType::Float64 => squares(elements_mut::<f64>(ptr, numel), |x| *x),
            DType::Float16 => squares(elements_mut::<f16>(ptr, numel), |x| x.to_f64()),
            DType::BFloat16 => squares(elements_mut::<bf16>(ptr, numel), |x| x.to_f64()),
            DType::Int64 | DType::UInt8 => unreachable!("a reducer takes floating types only"),
        }
    }
}

unsafe fn elements_mut<'a, T>(ptr: *mut c_void, numel: usize) -> &'a mut [T] {
    // SAFETY: passed on from the caller.
    unsafe { slice::from_raw_parts_mut(ptr.cast(), numel) }
}

/// Eight running sums, which the compiler turns into vector instructions.
fn squares<T>(values: &[T], to_f64: impl Fn(&T) -> f64) -> f64 {
    let mut sums = [0.0f64; 8];
    let chunks = values.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            let value = to_f64(value);
            *sum += value * value;
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        let value = to_f64(value);
        *sum += value * value;
    }
    sums.iter().sum()
}
