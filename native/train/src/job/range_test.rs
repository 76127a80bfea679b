//! What a learning rate range test is asked for: its rates.

use schemars::JsonSchema;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

use crate::error::JobError;

/// A learning rate range test (Smith, arXiv:1506.01186) in place of a training: the rate grows by the same factor from step
/// to step, whatever the schedule, and the result has the loss of each in place of weights. It ends early where the loss
/// diverges, writes no checkpoints, and does not go on from one. The job's `learningRate` is `minRate`, since the optimizer
/// is made with it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub struct RangeTest {
    /// The learning rate of the first step, above 0.
    #[serde(deserialize_with = "number")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0.0))]
    pub min_rate: f64,
    /// That of the last one, above `minRate`.
    #[serde(deserialize_with = "number")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0.0))]
    pub max_rate: f64,
    /// The most optimizer steps, of as many epochs as that takes, up to the job's.
    // A number below 0 is refused as those are that are too small.
    #[schemars(range(min = 2))]
    pub num_steps: i64,
}

impl RangeTest {
    /// Refuses what is no range.
    pub(super) fn validate(&self) -> Result<(), JobError> {
        let (min, max) = (self.min_rate, self.max_rate);
        if !(0.0 < min && min < max && max < f64::INFINITY) {
            let value = format!("{min:?} and maxRate {max:?}");
            return Err(JobError::invalid(
                "minRate",
                value,
                "above 0, the latter the larger",
            ));
        }
        if (max / min).is_infinite() {
            let value = format!("{min:?} and maxRate {max:?}");
            return Err(JobError::invalid(
                "minRate",
                value,
                "less than 1e308 times smaller than maxRate",
            ));
        }
        if self.num_steps < 2 {
            return Err(JobError::invalid("numSteps", self.num_steps, "at least 2"));
        }
        Ok(())
    }

    /// What the rate of the first step is multiplied by in a step, counted from 0.
    pub(crate) fn factor(&self, step: u64) -> f64 {
        (self.max_rate / self.min_rate).powf(step as f64 / (self.num_steps - 1) as f64)
    }

    /// The learning rate of a step, counted from 0, before `scaleLearningRate` multiplies it.
    pub(crate) fn rate(&self, step: u64) -> f64 {
        self.min_rate * self.factor(step)
    }
}

/// A number, or the name of one that is not finite, since JSON has none of those.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Value(f64),
        Name(String),
    }
    match Number::deserialize(deserializer)? {
        Number::Value(value) => Ok(value),
        Number::Name(name) => match name.parse::<f64>() {
            Ok(value) if !value.is_finite() => Ok(value),
            _ => Err(D::Error::custom(format!("{name:?} is no number"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::RangeTest;

    #[test]
    fn the_rates_are_a_geometric_sequence() {
        let test = RangeTest {
            min_rate: 1e-8,
            max_rate: 1.0,
            num_steps: 7,
        };
        // numpy.geomspace(1e-8, 1, 7)
        let expected = [
            1e-08,
            2.154434690031884e-07,
            4.641588833612782e-06,
            0.0001,
            0.0021544346900318843,
            0.046415888336127774,
            1.0,
        ];
        for (step, rate) in expected.into_iter().enumerate() {
            let found = test.rate(step as u64);
            assert!((found / rate - 1.0).abs() < 1e-12, "step {step}: {found}");
        }
    }
}
