//! Dynamic loss scaling, as PyTorch's `GradScaler` does it.
//!
//! Gradients that are computed in float16 vanish below 6e-8. So backward runs on the loss times a large scale, and the
//! reduced gradients are divided by it before anything reads them. A scale that is too large makes gradients overflow:
//! that step is skipped and the scale halved. After many steps without an overflow the scale is doubled.

use serde::{Deserialize, Serialize};

use crate::error::Cause;
use crate::record::history::LossScaling;

/// The scale begins at 2^16.
const FIRST_EXPONENT: i32 = 16;

/// It grows no further than float32, the type of the loss, holds.
const LARGEST_EXPONENT: i32 = 127;

/// The scale falls no lower than 2^-14, the smallest normal number of float16: gradients that overflow even then are
/// too large, or no numbers, by themselves.
const SMALLEST_EXPONENT: i32 = -14;

/// Steps without an overflow after which the scale is doubled.
const GROWTH_INTERVAL: u32 = 2000;

/// The scale, and what decides when it changes. The same on every rank, since it follows from the reduced gradients,
/// which are; part of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LossScaler {
    /// The scale is 2 to this power, so that scaling rounds nothing.
    exponent: i32,
    /// Steps without an overflow since the scale last changed.
    good_steps: u32,
    /// Steps skipped in the running epoch.
    skipped_steps: u64,
}

impl Default for LossScaler {
    fn default() -> LossScaler {
        LossScaler {
            exponent: FIRST_EXPONENT,
            good_steps: 0,
            skipped_steps: 0,
        }
    }
}

impl LossScaler {
    /// Says what is wrong with a scale that no training comes to.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_known = (SMALLEST_EXPONENT..=LARGEST_EXPONENT).contains(&self.exponent);
        if is_known && self.good_steps < GROWTH_INTERVAL {
            return Ok(());
        }
        Err(format!(
            "a loss scale of 2^{} after {} good steps makes no sense",
            self.exponent, self.good_steps
        ))
    }

    /// What the loss is multiplied by.
    pub(crate) fn scale(&self) -> f64 {
        2f64.powi(self.exponent)
    }

    /// Counts a step whose gradients were finite, and was taken.
    pub(crate) fn count_good(&mut self) {
        self.good_steps += 1;
        if self.good_steps == GROWTH_INTERVAL {
            self.good_steps = 0;
            self.exponent = (self.exponent + 1).min(LARGEST_EXPONENT);
        }
    }

    /// Counts a step whose gradients overflowed, and was skipped.
    ///
    /// # Errors
    ///
    /// [`Cause::Overflow`] where the scale cannot be halved any more.
    pub(crate) fn count_overflow(&mut self) -> Result<(), Cause> {
        if self.exponent == SMALLEST_EXPONENT {
            return Err(Cause::Overflow {
                scale: self.scale(),
            });
        }
        self.exponent -= 1;
        self.good_steps = 0;
        self.skipped_steps += 1;
        Ok(())
    }

    /// What the epoch that ends is told to have come to. The next one counts its skipped steps from 0.
    pub(crate) fn end_epoch(&mut self) -> LossScaling {
        LossScaling {
            loss_scale: self.scale(),
            skipped_steps: std::mem::take(&mut self.skipped_steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_grows_after_2000_good_steps_in_a_row_and_no_further_than_float32() {
        let mut scaler = LossScaler::default();
        assert_eq!(scaler.scale(), 65536.0);
        (0..1999).for_each(|_| scaler.count_good());
        assert_eq!(scaler.scale(), 65536.0);
        scaler.count_overflow().unwrap();
        (0..1999).for_each(|_| scaler.count_good());
        assert_eq!(scaler.scale(), 32768.0);
        scaler.count_good();
        assert_eq!(scaler.scale(), 65536.0);
        (0..2000 * 200).for_each(|_| scaler.count_good());
        assert_eq!(scaler.scale(), 2f64.powi(127));
        assert!((scaler.scale() as f32).is_finite());
    }

    #[test]
    fn a_scale_that_no_training_comes_to_is_told() {
        let of = |exponent, good_steps| LossScaler {
            exponent,
            good_steps,
            skipped_steps: 0,
        };
        assert_eq!(of(-14, 1999).check(), Ok(()));
        for wrong in [of(-15, 0), of(128, 0), of(16, 2000)] {
            let reason = wrong.check().unwrap_err();
            assert!(reason.ends_with("makes no sense"), "{reason}");
        }
    }

    #[test]
    fn the_scale_is_halved_30_times_and_then_training_ends() {
        let mut scaler = LossScaler::default();
        (0..30).for_each(|_| scaler.count_overflow().unwrap());
        assert_eq!(scaler.scale(), 2f64.powi(-14));
        let error = scaler.count_overflow().unwrap_err();
        assert!(error.to_string().contains("0.00006103515625"), "{error}");
        assert_eq!(scaler.end_epoch().skipped_steps, 30);
        assert_eq!(scaler.end_epoch().skipped_steps, 0);
    }
}
