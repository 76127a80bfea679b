//! The learning rate of each step.

use std::f64::consts::PI;

use crate::job::params::{LrSchedule, TrainingParams};

/// The learning rate as a function of the step, as a factor of each rate that the optimizer was made with. The one place
/// for schedules: every step asks here.
///
/// The factors are those of PyTorch's schedulers stepped once a step: `LinearLR` for the warm-up, then `LinearLR`,
/// `CosineAnnealingLR` or, in units of `lrDecayEpochs` epochs, `StepLR` and `ExponentialLR`, which count from the end of
/// the warm-up, as in `SequentialLR`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Schedule {
    kind: LrSchedule,
    /// What the rate is multiplied by when the warm-up is over.
    peak: f64,
    /// What the first step of the warm-up has of the peak.
    warmup_start: f64,
    warmup_steps: f64,
    /// Steps after the warm-up.
    decay_steps: f64,
    end_factor: f64,
    decay_rate: f64,
    /// Steps in which the rate is multiplied by `decay_rate`.
    steps_per_decay: f64,
}

impl Schedule {
    /// The schedule of a job with this many optimizer steps in an epoch.
    pub(crate) fn new(params: &TrainingParams, steps_per_epoch: u64) -> Schedule {
        let steps = |epochs: f64| (epochs * steps_per_epoch as f64).round();
        let warmup_steps = steps(params.warmup_epochs);
        let (peak, warmup_start) = match params.scale_learning_rate {
            // From the rate of one worker to that of all, as in Goyal et al. 2017 (arXiv:1706.02677), 2.2.
            true => (params.num_workers as f64, 1.0 / params.num_workers as f64),
            // A first step of rate 0 would be lost.
            false => (1.0, 1.0 / (warmup_steps + 1.0)),
        };
        Schedule {
            kind: params.lr_schedule,
            peak,
            warmup_start,
            warmup_steps,
            decay_steps: steps(params.epochs as f64) - warmup_steps,
            end_factor: params.lr_end_factor,
            decay_rate: params.lr_decay_rate,
            steps_per_decay: steps(params.lr_decay_epochs as f64),
        }
    }

    /// What the rates are multiplied by in optimizer step `step`, counted from 0 over all epochs.
    pub(crate) fn factor(&self, step: u64) -> f64 {
        let step = step as f64;
        if step < self.warmup_steps {
            let warmed = step / self.warmup_steps;
            return self.peak * (self.warmup_start + (1.0 - self.warmup_start) * warmed);
        }
        let step = step - self.warmup_steps;
        let progress = step / self.decay_steps;
        let decays = step / self.steps_per_decay;
        let range = 1.0 - self.end_factor;
        self.peak
            * match self.kind {
                LrSchedule::Constant => 1.0,
                LrSchedule::Linear => 1.0 - range * progress,
                LrSchedule::Cosine => self.end_factor + range * (1.0 + (PI * progress).cos()) / 2.0,
                LrSchedule::Step => self.decay_rate.powf(decays.floor()),
                LrSchedule::Exponential => self.decay_rate.powf(decays),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(params: TrainingParams) -> Vec<f64> {
        let schedule = Schedule::new(&params, 4);
        (0..params.epochs * 4)
            .map(|step| schedule.factor(step))
            .collect()
    }

    #[test]
    fn without_a_schedule_the_rate_is_left_alone_to_the_bit() {
        let params = TrainingParams {
            epochs: 3,
            ..TrainingParams::default()
        };
        assert!(factors(params).iter().all(|&factor| factor == 1.0));
    }

    #[test]
    fn a_scaled_rate_grows_from_that_of_one_worker() {
        let params = TrainingParams {
            epochs: 2,
            num_workers: 4,
            scale_learning_rate: true,
            warmup_epochs: 1.0,
            ..TrainingParams::default()
        };
        let expected = [1.0, 1.75, 2.5, 3.25, 4.0, 4.0, 4.0, 4.0];
        assert_eq!(factors(params), expected);
    }

    #[test]
    fn a_decay_begins_at_the_full_rate_after_the_warm_up() {
        let params = TrainingParams {
            epochs: 1,
            warmup_epochs: 0.75,
            lr_schedule: LrSchedule::Cosine,
            ..TrainingParams::default()
        };
        assert_eq!(factors(params), [0.25, 0.5, 0.75, 1.0]);
    }
}
