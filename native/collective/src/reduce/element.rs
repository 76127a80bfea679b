//! The element types and operators, each a loop that the compiler makes vectors of.

use half::{bf16, f16};

use super::halves::Half;

/// An element as it lies in memory.
pub(super) trait Element: Copy {
    /// What it is reduced in.
    type Wide: Wide;
    fn widened(self) -> Self::Wide;
    fn narrowed(wide: Self::Wide) -> Self;

    #[inline(always)]
    fn widen(source: &[Self], wide: &mut [Self::Wide]) {
        for (wide, source) in wide.iter_mut().zip(source) {
            *wide = source.widened();
        }
    }
    #[inline(always)]
    fn combine<O: Operator<Self::Wide>>(wide: &mut [Self::Wide], source: &[Self]) {
        for (wide, source) in wide.iter_mut().zip(source) {
            *wide = O::apply(*wide, source.widened());
        }
    }
    #[inline(always)]
    fn narrow(wide: &[Self::Wide], output: &mut [Self]) {
        for (wide, output) in wide.iter().zip(output) {
            *output = Self::narrowed(*wide);
        }
    }
}

/// An element as it is reduced.
pub(super) trait Wide: Copy + Default {
    /// `1 / divisor` where multiplying by it equals dividing to the bit (powers of two).
    fn reciprocal(divisor: usize) -> Option<Self>;
    /// The value divided; `reciprocal` is that of `divisor`, where there is one.
    fn divided(self, divisor: usize, reciprocal: Option<Self>) -> Self;

    #[inline(always)]
    fn divide(wide: &mut [Self], divisor: usize) {
        let reciprocal = Self::reciprocal(divisor);
        for value in wide {
            *value = value.divided(divisor, reciprocal);
        }
    }
}

/// How the elements of a lower and a higher rank become one.
pub(super) trait Operator<W> {
    fn apply(lower: W, higher: W) -> W;
}

pub(super) struct Sum;
pub(super) struct Min;
pub(super) struct Max;

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
            #[inline(always)]
            fn widened(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrowed(wide: Self) -> Self {
                wide
            }
        }
    };
}
own!(f32);
own!(f64);
own!(i64);

macro_rules! half {
    ($type:ty) => {
        impl Element for $type {
            type Wide = f32;
            #[inline(always)]
            fn widened(self) -> f32 {
                Half::widened(self)
            }
            #[inline(always)]
            fn narrowed(wide: f32) -> Self {
                Half::narrowed(wide)
            }
        }
    };
}
half!(f16);
half!(bf16);
