//! A learning rate range test under way.

use crate::job::RangeTest;
use crate::record::result::{RangeTestResult, RangeTestStep};

/// What a step leaves of the running mean of the losses, as in fastai and Lightning.
const SMOOTHING: f64 = 0.98;
/// The loss has diverged at so many times the least one so far, both smoothed; as there.
const DIVERGENCE: f64 = 4.0;
/// Steps at either end that no suggestion comes from, as in Lightning's `lr_find`: the running mean warms up, and the loss
/// may leap.
const SKIPPED_FIRST: usize = 10;
const SKIPPED_LAST: usize = 1;

/// Follows the losses of a [`RangeTest`], and says when it is over. All ranks see the same losses.
pub(crate) struct RunningTest {
    test: RangeTest,
    mean: f64,
    /// The least smoothed loss so far.
    least: f64,
    steps: Vec<RangeTestStep>,
}

impl RunningTest {
    pub(crate) fn new(test: RangeTest) -> RunningTest {
        RunningTest {
            test,
            mean: 0.0,
            least: f64::INFINITY,
            steps: vec![],
        }
    }

    /// Takes the loss of a step, `None` where it had no rows that count. Returns whether the test is over.
    pub(crate) fn add(&mut self, step: u64, loss: Option<f64>) -> bool {
        let is_last = step + 1 >= self.test.num_steps as u64;
        let Some(loss) = loss else {
            return is_last;
        };
        self.mean = SMOOTHING * self.mean + (1.0 - SMOOTHING) * loss;
        let smoothed = self.mean / (1.0 - SMOOTHING.powi(self.steps.len() as i32 + 1));
        // A loss that may be negative, such as that of a density, has no times.
        let has_diverged = self.least > 0.0 && smoothed > DIVERGENCE * self.least;
        self.least = self.least.min(smoothed);
        self.steps.push(RangeTestStep {
            rate: self.test.rate(step),
            loss,
            smoothed,
        });
        is_last || has_diverged
    }

    /// What it found.
    pub(crate) fn result(self) -> RangeTestResult {
        RangeTestResult {
            suggestion: suggestion(&self.steps),
            steps: self.steps,
        }
    }
}

/// The rate at which the smoothed loss falls most steeply from step to step; none of too few steps.
fn suggestion(steps: &[RangeTestStep]) -> Option<f64> {
    let counted = steps.get(SKIPPED_FIRST..steps.len().saturating_sub(SKIPPED_LAST))?;
    let last = counted.len().checked_sub(1).filter(|&last| last > 0)?;
    // Central differences, one-sided at both ends, as `numpy.gradient` has them.
    let slope = |at: usize| {
        let (before, after) = (at.saturating_sub(1), (at + 1).min(last));
        (counted[after].smoothed - counted[before].smoothed) / (after - before) as f64
    };
    let steepest = (0..=last).min_by(|&a, &b| slope(a).total_cmp(&slope(b)))?;
    Some(counted[steepest].rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSSES: [f64; 18] = [
        3.0, 3.1, 2.9, 3.0, 2.8, 2.9, 2.7, 2.8, 2.6, 2.7, 2.5, 2.4, 1.0, 2.0, 0.5, 1.9, 2.2, 9.0,
    ];

    /// A test over losses, which is to be over with the last.
    fn tested(losses: &[f64]) -> RangeTestResult {
        let mut running = RunningTest::new(RangeTest {
            min_rate: 1e-4,
            max_rate: 10.0,
            num_steps: 18,
        });
        for (step, &loss) in losses.iter().enumerate() {
            assert_eq!(running.add(step as u64, Some(loss)), step == 17);
        }
        running.result()
    }

    #[test]
    fn a_loss_counts_0_98_of_the_next() {
        // pandas: Series(LOSSES).ewm(alpha=0.02, adjust=True).mean()
        let expected = [
            3.0,
            3.0505050505050506,
            2.9993198204325946,
            2.9994950525454507,
            2.957967844595947,
            2.94781208888999,
            2.9102290608799333,
            2.8954567085062948,
            2.859913522767334,
            2.8424296790537285,
            2.8080610334747877,
            2.770151815392087,
            2.616877062075372,
            2.5667973475518444,
            2.408683110216805,
            2.3718490108525265,
            2.360025008167873,
            2.795626484094773,
        ];
        let steps = tested(&LOSSES).steps;
        assert_eq!(steps.len(), expected.len());
        for (step, smoothed) in steps.iter().zip(expected) {
            assert!((step.smoothed - smoothed).abs() < 1e-12, "{step:?}");
        }
    }

    #[test]
    fn the_suggestion_is_lightnings() {
        // numpy.gradient(smoothed[10:-1]) is [-0.0379, -0.0956, -0.1017, -0.1041, -0.0975, -0.0243, -0.0118], and
        // numpy.geomspace(1e-4, 10, 18)[13] the rate at its least.
        let rate = tested(&LOSSES).suggestion.unwrap();
        assert!((rate / 0.6660846290809161 - 1.0).abs() < 1e-12, "{rate}");
        // Of two steps, whose slope is one.
        let rates = tested(&LOSSES[..13]);
        assert_eq!(rates.suggestion, Some(rates.steps[10].rate));
        for few in [0, 1, 10, 11, 12] {
            assert_eq!(tested(&LOSSES[..few]).suggestion, None);
        }
    }

    #[test]
    fn a_test_ends_at_four_times_the_least_loss_and_leaves_out_steps_without_rows() {
        let mut running = RunningTest::new(RangeTest {
            min_rate: 0.1,
            max_rate: 0.4,
            num_steps: 3,
        });
        assert!(!running.add(0, None));
        assert!(!running.add(1, Some(1.0)));
        // Smoothed (0.98 + 8) / 1.98.
        assert!(running.add(2, Some(400.0)));
        let rates: Vec<f64> = running.result().steps.iter().map(|one| one.rate).collect();
        assert_eq!(rates, [0.2, 0.4]);
    }
}
