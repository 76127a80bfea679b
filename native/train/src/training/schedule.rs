//! The learning rate of each step.

use std::f64::consts::PI;

use crate::job::RangeTest;
use crate::job::monitor::Monitor;
use crate::job::params::{LrSchedule, TrainingParams};
use crate::record::history::History;

/// The learning rate as a function of the step, as a factor of each rate that the optimizer was made with. The one place
/// for schedules: every step asks here.
///
/// The factors are those of PyTorch's schedulers stepped once a step: `LinearLR` for the warm-up, then `LinearLR`,
/// `CosineAnnealingLR` or, in units of `lrDecayEpochs` epochs, `StepLR` and `ExponentialLR`, which count from the end of
/// the warm-up, as in `SequentialLR`; `OneCycleLR` without `cycle_momentum`, whose `max_lr` is the optimizer's rate; and
/// `ReduceLROnPlateau` with an `eps` of 0, stepped once an epoch.
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
    one_cycle: OneCycle,
    plateau: Plateau,
    /// What the epochs so far came to.
    progress: Progress,
    /// Whose rates take the place of all else.
    range_test: Option<RangeTest>,
}

/// `OneCycleLR`'s arguments of these names.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OneCycle {
    pct_start: f64,
    div_factor: f64,
    final_div_factor: f64,
}

/// `ReduceLROnPlateau`'s arguments of these names, with `threshold_mode="rel"`; `min_factor` is its `min_lr` as a factor.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Plateau {
    factor: f64,
    patience: u64,
    threshold: f64,
    cooldown: u64,
    min_factor: f64,
}

/// The state of `ReduceLROnPlateau` after some epochs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Progress {
    num_epochs: usize,
    /// What the plateaus have left of the peak.
    factor: f64,
    best: Option<f64>,
    num_bad: u64,
    cooldown: u64,
}

impl Schedule {
    /// The schedule of a job with this many optimizer steps in an epoch.
    pub(crate) fn new(
        params: &TrainingParams,
        steps_per_epoch: u64,
        range_test: Option<RangeTest>,
    ) -> Schedule {
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
            one_cycle: OneCycle {
                pct_start: params.one_cycle_pct_start,
                div_factor: params.one_cycle_div_factor,
                final_div_factor: params.one_cycle_final_div_factor,
            },
            plateau: Plateau {
                factor: params.lr_decay_rate,
                patience: params.plateau_patience,
                threshold: params.plateau_threshold,
                cooldown: params.plateau_cooldown,
                min_factor: params.lr_end_factor,
            },
            progress: Progress::new(),
            range_test,
        }
    }

    /// Takes in what the epochs so far came to, of which the history has all, so that a checkpoint needs nothing besides.
    pub(crate) fn follow(&mut self, monitor: &Monitor, history: &History) {
        if self.kind == LrSchedule::Plateau {
            for record in history.epochs.iter().skip(self.progress.num_epochs) {
                let value = monitor.value(record);
                self.progress
                    .add(&self.plateau, value, monitor.is_larger_better);
            }
        }
    }

    /// What the rates are multiplied by in optimizer step `step`, counted from 0 over all epochs.
    pub(crate) fn factor(&self, step: u64) -> f64 {
        if let Some(test) = &self.range_test {
            return self.peak * test.factor(step);
        }
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
                LrSchedule::OneCycle => self.one_cycle.factor(step, self.decay_steps),
                LrSchedule::Plateau => self.progress.factor,
            }
    }
}

impl OneCycle {
    /// The factor in a step of so many: half a wave of the cosine up, another one down.
    fn factor(&self, step: f64, num_steps: f64) -> f64 {
        let start = 1.0 / self.div_factor;
        let end = start / self.final_div_factor;
        // The step with the whole rate, which need not be a whole number.
        let top = self.pct_start * num_steps - 1.0;
        let (from, to, progress) = match step <= top {
            // With the top in the first step PyTorch would divide by 0.
            true if top == 0.0 => (start, 1.0, 1.0),
            true => (start, 1.0, step / top),
            false => (1.0, end, (step - top) / (num_steps - 1.0 - top)),
        };
        to + (from - to) / 2.0 * (1.0 + (PI * progress).cos())
    }
}

impl Progress {
    /// Before the first epoch.
    fn new() -> Progress {
        Progress {
            num_epochs: 0,
            factor: 1.0,
            best: None,
            num_bad: 0,
            cooldown: 0,
        }
    }

    /// Takes in an epoch. A value that is no number is never better.
    fn add(&mut self, plateau: &Plateau, value: Option<f64>, is_larger_better: bool) {
        self.num_epochs += 1;
        let is_better = value.is_some_and(|value| match self.best {
            None => true,
            Some(best) if is_larger_better => value > best * (1.0 + plateau.threshold),
            Some(best) => value < best * (1.0 - plateau.threshold),
        });
        if is_better {
            self.best = value;
            self.num_bad = 0;
        } else {
            self.num_bad += 1;
        }
        if self.cooldown > 0 {
            self.cooldown -= 1;
            self.num_bad = 0;
        }
        if self.num_bad > plateau.patience {
            self.factor = (self.factor * plateau.factor).max(plateau.min_factor);
            self.cooldown = plateau.cooldown;
            self.num_bad = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(params: TrainingParams) -> Vec<f64> {
        let schedule = Schedule::new(&params, 4, None);
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

    /// The rates of `OneCycleLR(SGD([p], lr=1.0), 1.0, n, cycle_momentum=False, ...)` of torch 2.13 in each of n steps.
    #[test]
    fn one_cycle_is_torchs() {
        let golden: [([f64; 3], &[f64]); 5] = [
            (
                [0.3, 25.0, 1e4],
                &[
                    0.040000000000000036,
                    0.52,
                    1.0,
                    0.9504846320134737,
                    0.8117456539497631,
                    0.6112620219362893,
                    0.38874197806371075,
                    0.18825834605023697,
                    0.049519367986526286,
                    4e-06,
                ],
            ),
            // The whole rate lies between two steps.
            (
                [0.5, 10.0, 100.0],
                &[
                    0.09999999999999998,
                    0.41094235253127365,
                    0.9140576474687263,
                    0.9505339495172583,
                    0.611649206511179,
                    0.18906684397156262,
                    0.001,
                ],
            ),
            (
                [0.0, 4.0, 2.0],
                &[
                    0.941386114155692,
                    0.78125,
                    0.5625,
                    0.3437500000000001,
                    0.18361388584430807,
                    0.125,
                ],
            ),
            (
                [1.0, 4.0, 2.0],
                &[
                    0.25,
                    0.3216186271093947,
                    0.5091186271093947,
                    0.7408813728906052,
                    0.9283813728906053,
                    1.0,
                ],
            ),
            ([0.3, 25.0, 1e4], &[4e-06]),
        ];
        for ([pct_start, div_factor, final_div_factor], rates) in golden {
            let cycle = OneCycle {
                pct_start,
                div_factor,
                final_div_factor,
            };
            for (step, rate) in rates.iter().enumerate() {
                let factor = cycle.factor(step as f64, rates.len() as f64);
                assert!(
                    (factor - rate).abs() < 1e-15,
                    "{cycle:?}, step {step}: {factor}"
                );
            }
        }
    }

    /// The rates of `ReduceLROnPlateau(SGD([p], lr=1.0), mode, factor, patience, threshold, "rel", cooldown, min_lr, eps=0.0)` of
    /// torch 2.13 after each epoch, which had these values.
    #[test]
    fn a_plateau_is_torchs() {
        let plateau = |patience, threshold, cooldown, min_factor| Plateau {
            factor: 0.5,
            patience,
            threshold,
            cooldown,
            min_factor,
        };
        let nan = f64::NAN;
        let golden: [(bool, Plateau, &[f64], &[f64]); 3] = [
            (
                false,
                plateau(1, 0.1, 2, 0.2),
                &[
                    1.0, 0.9, 0.85, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.5, 0.5, 0.5, 0.5,
                ],
                &[
                    1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.2, 0.2,
                ],
            ),
            (
                true,
                plateau(0, 0.05, 0, 0.0),
                &[0.5, nan, 0.5, 0.75, 0.5, 0.78, 0.8, nan],
                &[1.0, 0.5, 0.25, 0.25, 0.125, 0.0625, 0.0625, 0.03125],
            ),
            (
                false,
                plateau(0, 0.1, 0, 0.0),
                &[nan, -1.0, -1.05, -2.0, nan],
                &[0.5, 0.5, 0.5, 0.5, 0.25],
            ),
        ];
        for (is_larger_better, plateau, values, rates) in golden {
            let mut progress = Progress::new();
            for (epoch, (value, rate)) in values.iter().zip(rates).enumerate() {
                // A record has no value where it is no number.
                let value = Some(*value).filter(|value| !value.is_nan());
                progress.add(&plateau, value, is_larger_better);
                assert_eq!(progress.factor, *rate, "{plateau:?}, epoch {epoch}");
            }
            assert_eq!(progress.num_epochs, values.len());
        }
    }
}
