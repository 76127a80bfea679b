//! Sums of losses and metrics, in the one flat form in which they are added, reduced and saved.

use serde::{Deserialize, Serialize};

use crate::error::Cause;
use crate::model::LossSums;

const NUMERATOR: usize = 0;
const DENOMINATOR: usize = 1;
const METRICS: usize = 2;

/// The mean of a number that some steps have; in JSON it is kept to the bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepMean {
    /// The bits of the sum.
    sum: u64,
    num_steps: u64,
}

impl StepMean {
    pub(crate) fn add(&mut self, value: f64) {
        self.sum = (f64::from_bits(self.sum) + value).to_bits();
        self.num_steps += 1;
    }

    /// The mean; `None` where no step had the number, and where the sum is not finite.
    pub(crate) fn mean(&self) -> Option<f64> {
        let mean = f64::from_bits(self.sum) / self.num_steps as f64;
        mean.is_finite().then_some(mean)
    }
}

/// Summed numerators, denominators and metric states.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LossTotals {
    values: Vec<f64>,
}

impl LossTotals {
    pub(crate) fn new(num_metrics: usize) -> LossTotals {
        LossTotals {
            values: vec![0.0; METRICS + num_metrics],
        }
    }

    /// Totals that were saved as bits.
    pub(crate) fn from_bits(bits: &[u64]) -> LossTotals {
        LossTotals {
            values: bits.iter().map(|&bits| f64::from_bits(bits)).collect(),
        }
    }

    /// The exact values, those that JSON has no number for included.
    pub(crate) fn to_bits(&self) -> Vec<u64> {
        self.values.iter().map(|value| value.to_bits()).collect()
    }

    pub(crate) fn clear(&mut self) {
        self.values.fill(0.0);
    }

    /// Adds what a model made of a batch.
    ///
    /// # Errors
    ///
    /// [`Cause::Model`] where the model gave another number of metric sums than it said.
    pub(crate) fn add(&mut self, sums: &LossSums) -> Result<(), Cause> {
        let expected = self.values.len() - METRICS;
        if sums.metrics.len() != expected {
            let message = format!(
                "the model gave {} metric sums instead of {expected}",
                sums.metrics.len()
            );
            return Err(Cause::Model(message.into()));
        }
        self.values[NUMERATOR] += sums.numerator;
        self.values[DENOMINATOR] += sums.denominator;
        self.values[METRICS..]
            .iter_mut()
            .zip(&sums.metrics)
            .for_each(|(total, value)| *total += value);
        Ok(())
    }

    /// Adds the values of a slice as [`as_mut_slice`](Self::as_mut_slice) lays them out.
    pub(crate) fn add_slice(&mut self, values: &[f64]) {
        self.values
            .iter_mut()
            .zip(values)
            .for_each(|(total, value)| *total += value);
    }

    /// Numerator, denominator, then the metrics.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [f64] {
        &mut self.values
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn denominator(&self) -> f64 {
        self.values[DENOMINATOR]
    }

    pub(crate) fn metrics(&self) -> &[f64] {
        &self.values[METRICS..]
    }

    /// The mean loss; `None` where nothing counted.
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.denominator() != 0.0).then(|| self.values[NUMERATOR] / self.denominator())
    }
}
