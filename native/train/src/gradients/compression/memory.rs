//! Arithmetic on what a rank has not sent yet.

use flambeau_collective::Kernel;

/// Adds each of `values` to `sums`, which has as many.
pub(super) fn add(sums: &mut [f32], values: &[f32]) {
    Combine {
        sums,
        values,
        combine: |sum, value| sum + value,
    }
    .run();
}

/// Takes each of `values` away from `sums`, which has as many.
pub(super) fn subtract(sums: &mut [f32], values: &[f32]) {
    Combine {
        sums,
        values,
        combine: |sum, value| sum - value,
    }
    .run();
}

struct Combine<'a, F> {
    sums: &'a mut [f32],
    values: &'a [f32],
    combine: F,
}

impl<F: Fn(f32, f32) -> f32> Kernel for Combine<'_, F> {
    #[inline(always)]
    fn body(self) {
        debug_assert_eq!(self.sums.len(), self.values.len());
        for (sum, &value) in self.sums.iter_mut().zip(self.values) {
            *sum = (self.combine)(*sum, value);
        }
    }
}
