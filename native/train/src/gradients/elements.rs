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

/// Cuts `numel` elements to a magnitude of at most `limit`, as torch's `clamp_` does: what is no number stays so.
///
/// # Safety
///
/// As for [`scale`].
pub(crate) unsafe fn clamp(ptr: *mut c_void, numel: usize, dtype: DType, limit: f64) {
    let single = limit as f32;
    // SAFETY: passed on from the caller.
    unsafe {
        match dtype {
            DType::Float32 => elements_mut::<f32>(ptr, numel)
                .iter_mut()
                .for_each(|x| *x = x.clamp(-single, single)),
            DType::Float64 => elements_mut::<f64>(ptr, numel)
                .iter_mut()
                .for_each(|x| *x = x.clamp(-limit, limit)),
            DType::Float16 => {
                let limit = f16::from_f64(limit);
                elements_mut::<f16>(ptr, numel)
                    .iter_mut()
                    .for_each(|x| *x = x.clamp(-limit, limit));
            }
            DType::BFloat16 => {
                let limit = bf16::from_f64(limit);
                elements_mut::<bf16>(ptr, numel)
                    .iter_mut()
                    .for_each(|x| *x = x.clamp(-limit, limit));
            }
            DType::Int64 | DType::UInt8 => unreachable!("a reducer takes floating types only"),
        }
    }
}

/// Moves `numel` elements the share `weight` of the way to those at `end`, by the formula of torch's `lerp_`.
///
/// # Safety
///
/// As for [`scale`], and `end` points to as many elements of the type elsewhere, which nobody writes during the call.
pub(crate) unsafe fn lerp(
    ptr: *mut c_void,
    end: *const c_void,
    numel: usize,
    dtype: DType,
    weight: f64,
) {
    let single = weight as f32;
    let in_single = |start: f32, end: f32| match single < 0.5 {
        true => start + single * (end - start),
        false => end - (end - start) * (1.0 - single),
    };
    let in_double = |start: f64, end: f64| match weight < 0.5 {
        true => start + weight * (end - start),
        false => end - (end - start) * (1.0 - weight),
    };
    // SAFETY: passed on from the caller.
    unsafe {
        match dtype {
            DType::Float32 => map_with(ptr, end, numel, in_single),
            DType::Float64 => map_with(ptr, end, numel, in_double),
            DType::Float16 => map_with(ptr, end, numel, |start: f16, end: f16| {
                f16::from_f32(in_single(start.to_f32(), end.to_f32()))
            }),
            DType::BFloat16 => map_with(ptr, end, numel, |start: bf16, end: bf16| {
                bf16::from_f32(in_single(start.to_f32(), end.to_f32()))
            }),
            DType::Int64 | DType::UInt8 => unreachable!("trained weights are of floating types"),
        }
    }
}

/// Puts what `f` makes of each element and the one at `others` in its place.
unsafe fn map_with<T: Copy>(
    ptr: *mut c_void,
    others: *const c_void,
    numel: usize,
    f: impl Fn(T, T) -> T,
) {
    // SAFETY: passed on from the caller.
    let others = unsafe { slice::from_raw_parts(others.cast::<T>(), numel) };
    // SAFETY: passed on from the caller.
    let own = unsafe { elements_mut::<T>(ptr, numel) };
    for (own, other) in own.iter_mut().zip(others) {
        *own = f(*own, *other);
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
