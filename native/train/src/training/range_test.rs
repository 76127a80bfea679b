//! A learning rate range test under way.

use crate::job::RangeTest;
use crate::record::result::RangeTestStep;

/// What a step leaves of the running mean of the losses, as in fastai and Lightning.
const SMOOTHING: f64 = 0.98;
/// The loss has diverged at so many times the least one so far, both smoothed; as there.
const DIVERGENCE: f64 = 4.0;

/// Follows the losses of a [`RangeTest`], and says when it is over. All ranks see the same losses.
pub(crate) struct RunningTest {
    num_steps: u64,
    mean: f64,
    /// The least smoothed loss so far.
    least: f64,
    pub(crate) steps: Vec<RangeTestStep>,
}

impl RunningTest {
    pub(crate) fn new(test: RangeTest) -> RunningTest {
        RunningTest {
            num_steps: test.num_steps,
            mean: 0.0,
            least: f64::INFINITY,
            steps: vec![],
        }
    }

    /// Takes the loss of a step, `None` where it had no rows that count. Returns whether the test is over.
    pub(crate) fn add(&mut self, step: u64, loss: Option<f64>) -> bool {
        let is_last = step + 1 >= self.num_steps;
        let Some(loss) = loss else {
            return is_last;
        };
        self.mean = SMOOTHING * self.mean + (1.0 - SMOOTHING) * loss;
        let smoothed = self.mean / (1.0 - SMOOTHING.powi(self.steps.len() as i32 + 1));
        // A loss that may be negative, such as that of a density, has no times.
        let has_diverged = self.least > 0.0 && smoothed > DIVERGENCE * self.least;
        self.least = self.least.min(smoothed);
        self.steps.push(RangeTestStep {
            step,
            loss,
            smoothed,
        });
        is_last || has_diverged
    }
}
