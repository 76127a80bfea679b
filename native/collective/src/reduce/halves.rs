//! The 16-bit floats: to float32 and back, many at a time.
//!
//! Conversions have no branches and no instructions of a certain processor, so that the compiler makes vectors of them for
//! whatever it compiles the loops around them for. They equal `half`'s to the bit, but that a signalling NaN stays one.

use half::{bf16, f16};

use super::kernel::Kernel;

/// A 16-bit floating type.
pub trait Half: Copy {
    /// The value, exactly.
    fn widened(self) -> f32;
    /// The nearest value, ties to even; beyond the type's range infinity, and NaN stays NaN.
    fn narrowed(value: f32) -> Self;
}

impl Half for bf16 {
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrowed(value: f32) -> Self {
        let bits = value.to_bits();
        let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        bf16::from_bits(if value.is_nan() { quiet } else { nearest } as u16)
    }
}

/// How far float32's exponents are beyond float16's.
const BIAS: u32 = (127 - 15) << 23;
/// The least normal float16, 2^-14, as float32 bits.
const LEAST_NORMAL: u32 = (127 - 14) << 23;
/// A float32 whose last bit is worth float16's least, 2^-24: what is added to it is rounded to that.
const DENORMAL_MAGIC: u32 = (127 - 24 + 23) << 23;

impl Half for f16 {
    #[inline(always)]
    fn widened(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = (bits & 0x7fff) << 13;
        let normal = magnitude + BIAS;
        let infinite = normal + BIAS;
        // A denormal's digits behind the 1 of 2^-14, which goes again.
        let denormal = f32::from_bits(magnitude + LEAST_NORMAL) - f32::from_bits(LEAST_NORMAL);
        let value = match () {
            () if magnitude >= 0x7c00 << 13 => infinite,
            () if magnitude < 0x0400 << 13 => denormal.to_bits(),
            () => normal,
        };
        f32::from_bits(value | (bits & 0x8000) << 16)
    }

    #[inline(always)]
    fn narrowed(value: f32) -> Self {
        let bits = value.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let normal = magnitude
            .wrapping_sub(BIAS)
            .wrapping_add(0xfff + (magnitude >> 13 & 1))
            >> 13;
        let magic = f32::from_bits(DENORMAL_MAGIC);
        let denormal = (f32::from_bits(magnitude) + magic)
            .to_bits()
            .wrapping_sub(DENORMAL_MAGIC);
        // 65520 is the least that is nearer to 65536 than to 65504.
        let overflows = magnitude >= 0x477f_f000;
        let quiet = 0x7e00 | magnitude >> 13 & 0x3ff;
        let finite = if magnitude < LEAST_NORMAL {
            denormal
        } else {
            normal
        };
        let magnitude = match () {
            () if value.is_nan() => quiet,
            () if overflows => 0x7c00,
            () => finite,
        };
        f16::from_bits((magnitude | bits >> 16 & 0x8000) as u16)
    }
}

/// Converts every element of `source`; `output` has as many.
///
/// # Panics
/// Where it has not.
pub fn widen<H: Half>(source: &[H], output: &mut [f32]) {
    assert_eq!(source.len(), output.len());
    Widen { source, output }.run()
}

/// Converts every element of `source`, rounding to the nearest; `output` has as many.
///
/// # Panics
/// Where it has not.
pub fn narrow<H: Half>(source: &[f32], output: &mut [H]) {
    assert_eq!(source.len(), output.len());
    Narrow { source, output }.run()
}

struct Widen<'a, H> {
    source: &'a [H],
    output: &'a mut [f32],
}

impl<H: Half> Kernel for Widen<'_, H> {
    #[inline(always)]
    fn body(self) {
        for (output, value) in self.output.iter_mut().zip(self.source) {
            *output = value.widened();
        }
    }
}

struct Narrow<'a, H> {
    source: &'a [f32],
    output: &'a mut [H],
}

impl<H: Half> Kernel for Narrow<'_, H> {
    #[inline(always)]
    fn body(self) {
        for (output, value) in self.output.iter_mut().zip(self.source) {
            *output = H::narrowed(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn same(left: f32, right: f32) -> bool {
        left.to_bits() == right.to_bits() || left.is_nan() && right.is_nan()
    }

    #[test]
    fn every_half_is_widened_as_the_half_crate_does_it() {
        for bits in 0..=u16::MAX {
            let (b, f) = (bf16::from_bits(bits), f16::from_bits(bits));
            assert!(same(b.widened(), b.to_f32()), "{bits:#x}");
            assert!(same(f.widened(), f.to_f32()), "{bits:#x}");
        }
    }

    /// Every float16, the floats beside it, and those at and beside the tie with the next.
    #[test]
    fn floats_near_every_float16_and_tie_are_narrowed_as_the_half_crate_does_it() {
        for bits in 0..=u16::MAX {
            let value = f16::from_bits(bits).to_f32_const().to_bits();
            let next = f16::from_bits(bits.wrapping_add(1)).to_f32_const();
            let tie = ((f64::from(f32::from_bits(value)) + f64::from(next)) / 2.0) as f32;
            for near in [value, tie.to_bits()] {
                for offset in [u32::MAX, 0, 1] {
                    let value = f32::from_bits(near.wrapping_add(offset));
                    let expected = f16::from_f32_const(value).to_bits();
                    assert_eq!(f16::narrowed(value).to_bits(), expected, "{value:e}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..Default::default() })]

        /// Any bits, and bits near a tie between two values.
        #[test]
        fn floats_are_narrowed_as_the_half_crate_does_it(bits: u32, tie in 0u32..3) {
            for bits in [bits, (bits & 0xffff_0000 | 0x7fff) + tie] {
                let value = f32::from_bits(bits);
                prop_assert_eq!(bf16::narrowed(value).to_bits(), bf16::from_f32(value).to_bits());
                prop_assert_eq!(f16::narrowed(value).to_bits(), f16::from_f32_const(value).to_bits());
            }
        }
    }

    proptest! {
        /// Whole slices, whatever vectors the processor has: as one element at a time.
        #[test]
        fn slices_are_converted_as_their_elements(bits in prop::collection::vec(any::<u32>(), 0..300)) {
            let wide: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
            let mut halves = vec![f16::ZERO; wide.len()];
            narrow(&wide, &mut halves);
            let expected: Vec<u16> = wide.iter().map(|&value| f16::from_f32_const(value).to_bits()).collect();
            prop_assert_eq!(halves.iter().map(|half| half.to_bits()).collect::<Vec<_>>(), expected);
            let mut back = vec![0.0; wide.len()];
            widen(&halves, &mut back);
            prop_assert!(back.iter().zip(&halves).all(|(back, half)| same(*back, half.to_f32_const())));
        }
    }
}
