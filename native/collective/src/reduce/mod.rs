//! The arithmetic: several ranks' elements become one, in rank order, block by block.
//!
//! Every transport reduces through `reduce`, with the same order and the same intermediate type, so that they agree to
//! the bit. A block is small enough for the first-level cache; within it all inputs are read before any output is
//! written, so outputs may be the inputs' own memory.

mod element;
mod halves;
mod kernel;

use std::marker::PhantomData;
use std::slice;

use half::{bf16, f16};

pub use self::halves::{Half, narrow, widen};
pub use self::kernel::Kernel;

use self::element::{Element, Max, Min, Operator, Sum, Wide};
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
            ReduceOp::Sum | ReduceOp::Average => Blocks::<T, Sum>::new(reduction, len).run(),
            ReduceOp::Min => Blocks::<T, Min>::new(reduction, len).run(),
            ReduceOp::Max => Blocks::<T, Max>::new(reduction, len).run(),
        }
    }
}

/// The loops of one type and operator.
struct Blocks<'a, T, O> {
    reduction: &'a Reduction<'a>,
    len: usize,
    kind: PhantomData<(T, O)>,
}

impl<'a, T: Element, O: Operator<T::Wide>> Blocks<'a, T, O> {
    /// # Safety
    /// As for `reduce`, until the loops have run.
    unsafe fn new(reduction: &'a Reduction<'a>, len: usize) -> Self {
        Blocks {
            reduction,
            len,
            kind: PhantomData,
        }
    }
}

impl<T: Element, O: Operator<T::Wide>> Kernel for Blocks<'_, T, O> {
    #[inline(always)]
    fn body(self) {
        // SAFETY: what `new` was promised.
        unsafe { blocks::<T, O>(self.reduction, self.len) }
    }
}

#[inline(always)]
unsafe fn blocks<T: Element, O: Operator<T::Wide>>(reduction: &Reduction<'_>, len: usize) {
    let divisor = match reduction.output {
        Output::Finished { world_size, .. } if reduction.op == ReduceOp::Average => {
            Some(world_size)
        }
        _ => None,
    };
    if let (None, Output::Finished { places, .. }) = (reduction.initial, &reduction.output) {
        // SAFETY: the caller's promise.
        let is_done = unsafe { in_registers::<T, O>(reduction.sources, places, len, divisor) };
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
unsafe fn in_registers<T: Element, O: Operator<T::Wide>>(
    sources: &[*const u8],
    places: &[*mut u8],
    len: usize,
    divisor: Option<usize>,
) -> bool {
    // SAFETY: the caller's promise, for each.
    unsafe {
        match *sources {
            [a, b] => divided::<T, O, 2>([a, b], places, len, divisor),
            [a, b, c] => divided::<T, O, 3>([a, b, c], places, len, divisor),
            [a, b, c, d] => divided::<T, O, 4>([a, b, c, d], places, len, divisor),
            [a, b, c, d, e, f, g, h] => {
                divided::<T, O, 8>([a, b, c, d, e, f, g, h], places, len, divisor)
            }
            _ => return false,
        }
    }
    true
}

/// # Safety
/// As for `reduce`.
#[inline(always)]
unsafe fn divided<T: Element, O: Operator<T::Wide>, const N: usize>(
    sources: [*const u8; N],
    places: &[*mut u8],
    len: usize,
    divisor: Option<usize>,
) {
    let sources = sources.map(<*const u8>::cast);
    // SAFETY: the caller's promise, for each.
    unsafe {
        match divisor.map(|divisor| (divisor, T::Wide::reciprocal(divisor))) {
            None => tiles::<T, O, N>(sources, places, len, |value| value),
            Some((divisor, Some(factor))) => tiles::<T, O, N>(sources, places, len, |value| {
                value.divided(divisor, Some(factor))
            }),
            Some((divisor, None)) => {
                tiles::<T, O, N>(sources, places, len, |value| value.divided(divisor, None))
            }
        }
    }
}

/// # Safety
/// As for `reduce`.
#[inline(always)]
unsafe fn tiles<T: Element, O: Operator<T::Wide>, const N: usize>(
    sources: [*const T; N],
    places: &[*mut u8],
    len: usize,
    finish: impl Fn(T::Wide) -> T::Wide + Copy,
) {
    let whole = len / TILE;
    // SAFETY: the caller's promise: the tiles and the elements behind them lie in the sources and places.
    unsafe {
        for tile in 0..whole {
            let at = |source: *const T| source.cast::<[T; TILE]>().add(tile).read();
            let mut total = [T::Wide::default(); TILE];
            T::widen(&at(sources[0]), &mut total);
            for source in &sources[1..] {
                T::combine::<O>(&mut total, &at(*source));
            }
            total.iter_mut().for_each(|value| *value = finish(*value));
            let finished = total.map(T::narrowed);
            for place in places {
                place.cast::<[T; TILE]>().add(tile).write(finished);
            }
        }
        for element in whole * TILE..len {
            let values = sources.map(|source| source.add(element).read().widened());
            let total = values[1..]
                .iter()
                .fold(values[0], |total, value| O::apply(total, *value));
            for place in places {
                place
                    .cast::<T>()
                    .add(element)
                    .write(T::narrowed(finish(total)));
            }
        }
    }
}
