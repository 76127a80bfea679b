//! The arithmetic: several ranks' elements become one, in rank order, block by block.
//!
//! Every transport reduces through `reduce`, with the same order and the same intermediate type, so that they agree to
//! the bit. A block is small enough for the first-level cache; within it all inputs are read before any output is
//! written, so outputs may be the inputs' own memory.

use std::slice;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::buffer::{DType, ReduceOp};

/// Elements per block: 4 KiB of float32.
const BLOCK: usize = 1024;
/// Elements that are reduced in registers at a time: 256 bytes of float32.
const TILE: usize = 64;

/// Where a reduction goes.
pub(crate) enum Output<'a> {
    /// One run of the intermediate type, for a later reduction to go on from.
    Partial(*mut u8),
    /// The finished elements, to each of these places; an average is divided by the number of ranks.
    Finished {
        places: &'a [*mut u8],
        world_size: usize,
    },
}

/// One run of elements to be reduced.
pub(crate) struct Reduction<'a> {
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    /// What lower ranks have come to, in the intermediate type.
    pub(crate) initial: Option<*const u8>,
    /// The next ranks' elements, in rank order.
    pub(crate) sources: &'a [*const u8],
    pub(crate) output: Output<'a>,
}

/// The size of the intermediate type's elements: float32 for the half types, otherwise the type itself.
pub(crate) fn partial_size(dtype: DType) -> usize {
    dtype.size().max(4)
}

/// Whether the intermediate type is the type itself, so that a single rank's elements are their own partial result.
pub(crate) fn is_own_partial(dtype: DType) -> bool {
    partial_size(dtype) == dtype.size()
}

/// Carries out `reduction` over `len` elements.
///
/// # Safety
/// Every pointer holds `len` elements of its type, aligned for it, that nobody else writes meanwhile, and nobody else reads
/// an output meanwhile. An output either equals an input or overlaps none. There is an `initial` or a source.
pub(crate) unsafe fn reduce(reduction: &Reduction<'_>, len: usize) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match reduction.dtype {
            DType::Float32 => by_op::<f32>(reduction, len),
            DType::Float64 => by_op::<f64>(reduction, len),
            DType::Float16 => by_op::<f16>(reduction, len),
            DType::BFloat16 => by_op::<bf16>(reduction, len),
            DType::Int64 => by_op::<i64>(reduction, len),
            // Bytes are only moved; the callers refuse to reduce them.
            DType::UInt8 => unreachable!("uint8 is refused before any reduction"),
        }
    }
}

/// Reduces buffers into each of them, as a member of a host does with its part of all members' buffers.
///
/// # Safety
/// Each buffer holds `len` elements of the type, aligned for it, that nobody else uses, and no two overlap. There is one.
pub unsafe fn reduce_in_place(dtype: DType, op: ReduceOp, buffers: &[*mut u8], len: usize) {
    let sources: Vec<_> = buffers.iter().map(|buffer| buffer.cast_const()).collect();
    let output = Output::Finished {
        places: buffers,
        world_size: buffers.len(),
    };
    let reduction = Reduction {
        dtype,
        op,
        initial: None,
        sources: &sources,
        output,
    };
    // SAFETY: the caller's promise.
    unsafe { reduce(&reduction, len) };
}

unsafe fn by_op<T: Element>(reduction: &Reduction<'_>, len: usize)
where
    Sum: Operator<T::Wide>,
    Min: Operator<T::Wide>,
    Max: Operator<T::Wide>,
{
    // SAFETY: the caller's promise is passed on.
    unsafe {
        match reduction.op {
            ReduceOp::Sum | ReduceOp::Average => by_processor::<T, Sum>(reduction, len),
            ReduceOp::Min => by_processor::<T, Min>(reduction, len),
            ReduceOp::Max => by_processor::<T, Max>(reduction, len),
        }
    }
}

/// The same loops, compiled for the widest vectors that the processor has. No fused multiply-add is ever formed, so
/// the results do not depend on the choice.
unsafe fn by_processor<T: Element, O: Operator<T::Wide>>(reduction: &Reduction<'_>, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
        unsafe fn avx512<T: Element, O: Operator<T::Wide>>(reduction: &Reduction<'_>, len: usize) {
            // SAFETY: the caller's promise is passed on.
            unsafe { blocks::<T, O>(reduction, len) }
        }
        #[target_feature(enable = "avx2")]
        unsafe fn avx2<T: Element, O: Operator<T::Wide>>(reduction: &Reduction<'_>, len: usize) {
            // SAFETY: the caller's promise is passed on.
            unsafe { blocks::<T, O>(reduction, len) }
        }
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
        {
            // SAFETY: the processor has these instructions; the rest is the caller's promise.
            return unsafe { avx512::<T, O>(reduction, len) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has these instructions; the rest is the caller's promise.
            return unsafe { avx2::<T, O>(reduction, len) };
        }
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { blocks::<T, O>(reduction, len) }
}

#[inline(always)]
unsafe fn blocks<T: Element, O: Operator<T::Wide>>(reduction: &Reduction<'_>, len: usize) {
    let divisor = match reduction.output {
        Output::Finished { world_size, .. } if reduction.op == ReduceOp::Average => {
            Some(world_size)
        }
        _ => None,
    };
    if let (true, None, Output::Finished { places, .. }) =
        (T::IS_WIDE, reduction.initial, &reduction.output)
    {
        // SAFETY: the caller's promise; T is its own intermediate type.
        let is_done =
            unsafe { in_registers::<T::Wide, O>(reduction.sources, places, len, divisor) };
        if is_done {
            return;
        }
    }

    let mut wide = [T::Wide::default(); BLOCK];
    let mut start = 0;
    while start < len {
        let count = BLOCK.min(len - start);
        let wide = &mut wide[..count];
        let source = |address: *const u8| {
            // SAFETY: `start + count <= len`, and each source holds `len` elements.
            unsafe { slice::from_raw_parts(address.cast::<T>().add(start), count) }
        };
        let rest = match reduction.initial {
            Some(initial) => {
                // SAFETY: `initial` holds `len` elements of the intermediate type.
                wide.copy_from_slice(unsafe {
                    slice::from_raw_parts(initial.cast::<T::Wide>().add(start), count)
                });
                reduction.sources
            }
            None => {
                T::widen(source(reduction.sources[0]), wide);
                &reduction.sources[1..]
            }
        };
        for address in rest {
            T::combine::<O>(wide, source(*address));
        }
        if let Some(divisor) = divisor {
            T::Wide::divide(wide, divisor);
        }
        match &reduction.output {
            Output::Partial(place) => {
                // SAFETY: the output holds `len` elements of the intermediate type, and the inputs of this block are read.
                unsafe { slice::from_raw_parts_mut(place.cast::<T::Wide>().add(start), count) }
                    .copy_from_slice(wide);
            }
            Output::Finished { places, .. } => {
                for place in *places {
                    // SAFETY: each output holds `len` elements, and the inputs of this block are read.
                    T::narrow(wide, unsafe {
                        slice::from_raw_parts_mut(place.cast::<T>().add(start), count)
                    });
                }
            }
        }
        start += count;
    }
}

/// Reduces a usual number of sources without the block in between; `false` for other numbers.
///
/// # Safety
/// As for `reduce`.
#[inline(always)]
unsafe fn in_registers<W: Wide, O: Operator<W>>(
    sources: &[*const u8],
    places: &[*mut u8],
    len: usize,
    divisor: Option<usize>,
) -> bool {
    // SAFETY: the caller's promise, for each.
    unsafe {
        match *sources {
            [a, b] => divided::<W, O, 2>([a, b], places, len, divisor),
            [a, b, c] => divided::<W, O, 3>([a, b, c], places, len, divisor),
            [a, b, c, d] => divided::<W, O, 4>([a, b, c, d], places, len, divisor),
            [a, b, c, d, e, f, g, h] => {
                divided::<W, O, 8>([a, b, c, d, e, f, g, h], places, len, divisor)
            }
            _ => return false,
        }
    }
    true
}

/// # Safety
/// As for `reduce`.
#[inline(always)]
unsafe fn divided<W: Wide, O: Operator<W>, const N: usize>(
    sources: [*const u8; N],
    places: &[*mut u8],
    len: usize,
    divisor: Option<usize>,
) {
    let sources = sources.map(<*const u8>::cast);
    // SAFETY: the caller's promise, for each.
    unsafe {
        match divisor.map(|divisor| (divisor, W::reciprocal(divisor))) {
            None => tiles::<W, O, N>(sources, places, len, |value| value),
            Some((divisor, Some(factor))) => tiles::<W, O, N>(sources, places, len, |value| {
                value.divided(divisor, Some(factor))
            }),
            Some((divisor, None)) => {
                tiles::<W, O, N>(sources, places, len, |value| value.divided(divisor, None))
            }
        }
    }
}

/// # Safety
/// As for `reduce`.
#[inline(always)]
unsafe fn tiles<W: Wide, O: Operator<W>, const N: usize>(
    sources: [*const W; N],
    places: &[*mut u8],
    len: usize,
    finish: impl Fn(W) -> W + Copy,
) {
    let whole = len / TILE;
    // SAFETY: the caller's promise: the tiles and the elements behind them lie in the sources and places.
    unsafe {
        for tile in 0..whole {
            let at = |source: *const W| source.cast::<[W; TILE]>().add(tile).read();
            let mut total = at(sources[0]);
            for source in &sources[1..] {
                for (total, value) in total.iter_mut().zip(at(*source)) {
                    *total = O::apply(*total, value);
                }
            }
            total.iter_mut().for_each(|value| *value = finish(*value));
            for place in places {
                place.cast::<[W; TILE]>().add(tile).write(total);
            }
        }
        for element in whole * TILE..len {
            let values = sources.map(|source| source.add(element).read());
            let total = values[1..]
                .iter()
                .fold(values[0], |total, value| O::apply(total, *value));
            for place in places {
                place.cast::<W>().add(element).write(finish(total));
            }
        }
    }
}

/// An element as it lies in memory.
trait Element: Copy {
    /// What it is reduced in.
    type Wide: Wide;
    /// Whether that is the element itself.
    const IS_WIDE: bool;
    fn widen(source: &[Self], wide: &mut [Self::Wide]);
    fn combine<O: Operator<Self::Wide>>(wide: &mut [Self::Wide], source: &[Self]);
    fn narrow(wide: &[Self::Wide], output: &mut [Self]);
}

/// An element as it is reduced.
trait Wide: Copy + Default {
    /// `1 / divisor` where multiplying by it equals dividing to the bit (powers of two).
    fn reciprocal(divisor: usize) -> Option<Self>;
    fn divided(self, divisor: usize, reciprocal: Option<Self>) -> Self;

    #[inline(always)]
    fn divide(wide: &mut [Self], divisor: usize) {
        let reciprocal = Self::reciprocal(divisor);
        for value in wide {
            *value = value.divided(divisor, reciprocal);
        }
    }
}

trait Operator<W> {
    fn apply(lower: W, higher: W) -> W;
}

struct Sum;
struct Min;
struct Max;

macro_rules! float {
    ($type:ty) => {
        impl Wide for $type {
            #[inline(always)]
            fn reciprocal(divisor: usize) -> Option<Self> {
                divisor.is_power_of_two().then(|| 1.0 / divisor as $type)
            }
            #[inline(always)]
            fn divided(self, divisor: usize, reciprocal: Option<Self>) -> Self {
                match reciprocal {
                    Some(reciprocal) => self * reciprocal,
                    None => self / divisor as $type,
                }
            }
        }
        impl Operator<$type> for Sum {
            #[inline(always)]
            fn apply(lower: $type, higher: $type) -> $type {
                lower + higher
            }
        }
        // A NaN on either side stays: the comparison with a NaN is false, which leaves `higher`, and `lower` is kept
        // where it is the NaN.
        impl Operator<$type> for Min {
            #[inline(always)]
            fn apply(lower: $type, higher: $type) -> $type {
                if (lower < higher) | lower.is_nan() {
                    lower
                } else {
                    higher
                }
            }
        }
        impl Operator<$type> for Max {
            #[inline(always)]
            fn apply(lower: $type, higher: $type) -> $type {
                if (lower > higher) | lower.is_nan() {
                    lower
                } else {
                    higher
                }
            }
        }
    };
}
float!(f32);
float!(f64);

impl Wide for i64 {
    #[inline(always)]
    fn reciprocal(_divisor: usize) -> Option<Self> {
        None
    }
    #[inline(always)]
    fn divided(self, divisor: usize, _reciprocal: Option<Self>) -> Self {
        self / divisor as i64
    }
}
impl Operator<i64> for Sum {
    #[inline(always)]
    fn apply(lower: i64, higher: i64) -> i64 {
        lower.wrapping_add(higher)
    }
}
impl Operator<i64> for Min {
    #[inline(always)]
    fn apply(lower: i64, higher: i64) -> i64 {
        lower.min(higher)
    }
}
impl Operator<i64> for Max {
    #[inline(always)]
    fn apply(lower: i64, higher: i64) -> i64 {
        lower.max(higher)
    }
}

macro_rules! own {
    ($type:ty) => {
        impl Element for $type {
            type Wide = $type;
            const IS_WIDE: bool = true;
            #[inline(always)]
            fn widen(source: &[Self], wide: &mut [Self]) {
                wide.copy_from_slice(source);
            }
            #[inline(always)]
            fn combine<O: Operator<Self>>(wide: &mut [Self], source: &[Self]) {
                for (wide, source) in wide.iter_mut().zip(source) {
                    *wide = O::apply(*wide, *source);
                }
            }
            #[inline(always)]
            fn narrow(wide: &[Self], output: &mut [Self]) {
                output.copy_from_slice(wide);
            }
        }
    };
}
own!(f32);
own!(f64);
own!(i64);

impl Element for f16 {
    type Wide = f32;
    const IS_WIDE: bool = false;
    #[inline(always)]
    fn widen(source: &[Self], wide: &mut [f32]) {
        source.convert_to_f32_slice(wide);
    }
    #[inline(always)]
    fn combine<O: Operator<f32>>(wide: &mut [f32], source: &[Self]) {
        let mut converted = [0.0; BLOCK];
        let converted = &mut converted[..source.len()];
        source.convert_to_f32_slice(converted);
        for (wide, source) in wide.iter_mut().zip(converted) {
            *wide = O::apply(*wide, *source);
        }
    }
    #[inline(always)]
    fn narrow(wide: &[f32], output: &mut [Self]) {
        output.convert_from_f32_slice(wide);
    }
}

impl Element for bf16 {
    type Wide = f32;
    const IS_WIDE: bool = false;
    #[inline(always)]
    fn widen(source: &[Self], wide: &mut [f32]) {
        for (wide, source) in wide.iter_mut().zip(source) {
            *wide = widened(*source);
        }
    }
    #[inline(always)]
    fn combine<O: Operator<f32>>(wide: &mut [f32], source: &[Self]) {
        for (wide, source) in wide.iter_mut().zip(source) {
            *wide = O::apply(*wide, widened(*source));
        }
    }
    #[inline(always)]
    fn narrow(wide: &[f32], output: &mut [Self]) {
        for (wide, output) in wide.iter().zip(output) {
            *output = narrowed(*wide);
        }
    }
}

/// `bf16::to_f32` without its branch for NaN, which keeps the compiler from vectors: a signalling NaN stays one.
#[inline(always)]
fn widened(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// `bf16::from_f32` without its branches: to the nearest, ties to even; NaN stays NaN, and becomes quiet.
#[inline(always)]
fn narrowed(value: f32) -> bf16 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    bf16::from_bits(if value.is_nan() { quiet } else { nearest } as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_bfloat16_is_widened_as_half_does_it() {
        for bits in 0..=u16::MAX {
            let value = bf16::from_bits(bits);
            let (own, theirs) = (widened(value), value.to_f32());
            assert!(own.to_bits() == theirs.to_bits() || own.is_nan() && theirs.is_nan());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..Default::default() })]

        /// Any bits, and bits near a tie between two values.
        #[test]
        fn floats_are_narrowed_as_half_does_it(bits: u32, tie in 0u32..3) {
            for bits in [bits, (bits & 0xffff_0000 | 0x7fff) + tie] {
                let value = f32::from_bits(bits);
                prop_assert_eq!(narrowed(value).to_bits(), bf16::from_f32(value).to_bits());
            }
        }
    }
}
