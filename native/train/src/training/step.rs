//! One optimizer step: its batches, the reduction, and what follows it.

use flambeau_collective::ProcessGroup;
use flambeau_data::BatchReader;

use crate::error::Cause;
use crate::gradients::sync::GradientSync;
use crate::model::{MicroBatch, Model, StepContext};
use crate::record::history::{StepTimes, Traffic};
use crate::record::scaler::LossScaler;
use crate::record::sums::LossTotals;
use crate::training::average::WeightAverage;
use crate::training::hooks::Hooks;
use crate::training::phases::{Phase, Phases};
use crate::training::schedule::Schedule;
use crate::training::staging::{Staged, Staging};

/// Which batches make up a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepPlan {
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    /// The first batch, counted within the epoch.
    pub(crate) first_batch: u64,
    /// Batches that are accumulated; fewer than the job says at the end of an epoch.
    pub(crate) num_batches: u32,
    /// Rows of all of them over all ranks.
    pub(crate) num_rows: u64,
}

/// What a step came to, over all ranks; its sums are in [`Stepper::sums`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepOutcome {
    pub(crate) loss: Option<f64>,
    pub(crate) gradient_norm: Option<f64>,
    /// Whether a rank has cancelled the training.
    pub(crate) is_cancelled: bool,
    /// Whether a rank asked for a stop.
    pub(crate) is_stopped: bool,
    /// What this rank sent of gradients, or of weights and the optimizer's state.
    pub(crate) traffic: Traffic,
}

/// What of the job concerns steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepSettings {
    pub(crate) schedule: Schedule,
    /// Whether the gradients' norm is told where nothing is clipped by it.
    pub(crate) logs_norm: bool,
    pub(crate) clip_norm: Option<f64>,
    pub(crate) clip_value: Option<f64>,
}

/// Takes optimizer steps.
pub(crate) struct Stepper<'a> {
    pub(crate) model: &'a mut dyn Model,
    pub(crate) sync: Box<dyn GradientSync>,
    /// What the rank is in, also outside of steps.
    pub(crate) phases: Phases,
    world_size: usize,
    staging: Staging,
    pub(crate) settings: StepSettings,
    /// With precision fp16.
    pub(crate) scaler: Option<LossScaler>,
    /// With `emaDecay`.
    pub(crate) average: Option<WeightAverage>,
    hooks: Hooks,
    totals: LossTotals,
    /// The totals, then the flags for a cancel and for a stop: what is added up in each step.
    vector: Vec<f64>,
    times: StepTimes,
}

impl<'a> Stepper<'a> {
    /// Steps of a model that `sync` is attached to, on the ranks of `group`.
    pub(crate) fn new(
        model: &'a mut dyn Model,
        sync: Box<dyn GradientSync>,
        group: &ProcessGroup,
        settings: StepSettings,
        scaler: Option<LossScaler>,
        average: Option<WeightAverage>,
        hooks: Hooks,
    ) -> Result<Stepper<'a>, Cause> {
        let totals = LossTotals::new(model.num_metric_sums().map_err(Cause::Model)?);
        let vector = vec![0.0; totals.len() + 2];
        Ok(Stepper {
            model,
            sync,
            phases: Phases::new(group.clone()),
            world_size: group.world_size(),
            staging: Staging::new(true),
            settings,
            scaler,
            average,
            hooks,
            totals,
            vector,
            times: StepTimes::default(),
        })
    }

    /// The sums of the last step over all ranks, laid out as [`LossTotals`] has them.
    pub(crate) fn sums(&self) -> &[f64] {
        &self.vector[..self.totals.len()]
    }

    /// Where the time of the steps went since this was last asked.
    pub(crate) fn take_times(&mut self) -> StepTimes {
        std::mem::take(&mut self.times)
    }

    /// Takes one step on the next batches of `reader`.
    ///
    /// # Errors
    ///
    /// [`Cause::Diverged`] on all ranks where the reduced loss is not finite, [`Cause::Overflow`] where the gradients
    /// overflow at the smallest loss scale; the optimizer has not stepped then.
    pub(crate) fn step(
        &mut self,
        reader: &mut BatchReader,
        plan: &StepPlan,
    ) -> Result<StepOutcome, Cause> {
        self.totals.clear();
        let reference = plan.num_rows as f64 / self.world_size as f64;
        let loss_scale = self.scaler.map_or(1.0, |scaler| scaler.scale());
        self.phases.begin_step(plan.step);
        for micro in 0..plan.num_batches {
            let expected = plan.first_batch + u64::from(micro);
            let Staged { batch, .. } = self
                .staging
                .next(reader, self.model)?
                .filter(|staged| staged.index == expected)
                .ok_or(Cause::BatchLost(expected))?;
            self.times.data_seconds += self.phases.enter(Phase::Model);
            let micro = MicroBatch {
                epoch: plan.epoch,
                step: plan.step,
                micro,
                is_first: micro == 0,
                is_last: micro + 1 == plan.num_batches,
                reference,
                loss_scale,
            };
            self.sync.begin(micro.is_first, micro.is_last);
            // A rank without rows has nothing to compute: its gradients count as zeros.
            if batch.num_rows > 0 {
                let sums = self
                    .model
                    .train_batch(batch, &micro)
                    .map_err(|error| self.sync.blame(error))?;
                self.totals.add(&sums)?;
            }
            let next = match micro.is_last {
                true => Phase::Reduction,
                false => Phase::Data,
            };
            self.times.model_seconds += self.phases.enter(next);
        }
        let in_backward = self.sync.take_time_in_backward().as_secs_f64();
        self.times.model_seconds -= in_backward;
        self.reduce()?;
        self.times.reduce_seconds += in_backward + self.phases.enter(Phase::Optimizer);
        let sums = self.sums();
        let flags = &self.vector[sums.len()..];
        let (numerator, denominator) = (sums[0], sums[1]);
        let loss = (denominator != 0.0).then(|| numerator / denominator);
        let mut outcome = StepOutcome {
            loss,
            gradient_norm: None,
            is_cancelled: flags[0] > 0.0,
            is_stopped: flags[1] > 0.0,
            traffic: self.sync.take_traffic(),
        };
        if let Some(loss) = loss {
            if !loss.is_finite() {
                let in_float16 = self.scaler.is_some();
                return Err(Cause::Diverged { loss, in_float16 });
            }
            if self.correct(plan.num_rows as f64 / denominator)? {
                let norm = match self.settings.clip_norm {
                    Some(max_norm) => self.sync.clip(max_norm)?,
                    None if self.settings.logs_norm => self.sync.norm(),
                    None => None,
                };
                outcome.gradient_norm = norm.filter(|norm| norm.is_finite());
                if let Some(max_value) = self.settings.clip_value {
                    self.sync.clip_value(max_value);
                }
                self.optimize(plan)?;
            } else {
                self.model.skip_step().map_err(Cause::Model)?;
            }
        }
        if self.sync.is_average_due() {
            self.times.optimizer_seconds += self.phases.enter(Phase::Reduction);
            outcome.traffic.sent_bytes += self.sync.average_model(self.model)?;
            self.times.reduce_seconds += self.phases.end_step();
        } else {
            self.times.optimizer_seconds += self.phases.end_step();
        }
        self.sync.settle(self.model)?;
        Ok(outcome)
    }

    /// Averages the weights and the optimizer's state over the ranks, where these have stepped on their own. Returns the bytes that
    /// this rank sent.
    pub(crate) fn average_model(&mut self) -> Result<u64, Cause> {
        self.sync.average_model(self.model)
    }

    fn reduce(&mut self) -> Result<(), Cause> {
        let num = self.totals.len();
        self.vector[..num].copy_from_slice(self.totals.as_mut_slice());
        let flags = [self.hooks.is_cancelled(), self.hooks.asks_to_stop()];
        self.vector[num..].copy_from_slice(&flags.map(|flag| f64::from(u8::from(flag))));
        self.sync.finish(&mut self.vector)
    }

    /// Multiplies the reduced gradients by `factor` and takes the loss scale off them. Returns whether the optimizer
    /// may step: without loss scaling it always may.
    fn correct(&mut self, factor: f64) -> Result<bool, Cause> {
        let Some(scaler) = &mut self.scaler else {
            self.sync.scale(factor)?;
            return Ok(true);
        };
        let is_finite = self.sync.unscale(factor / scaler.scale())?;
        if is_finite {
            scaler.count_good();
        } else {
            scaler.count_overflow()?;
        }
        Ok(is_finite)
    }

    fn optimize(&mut self, plan: &StepPlan) -> Result<(), Cause> {
        let context = StepContext {
            epoch: plan.epoch,
            step: plan.step,
            used: self.sync.used(),
            rate_factor: self.settings.schedule.factor(plan.step),
        };
        self.model.optimizer_step(&context).map_err(Cause::Model)?;
        match &mut self.average {
            Some(average) => average.update(self.model),
            None => Ok(()),
        }
    }

    /// What `on` makes of the model while that has the weights that the fitted model is to have: with `emaDecay` the averaged
    /// ones, in whose place it finds its own again afterwards.
    pub(crate) fn with_fitted<T>(
        &mut self,
        on: impl FnOnce(&mut dyn Model) -> Result<T, Cause>,
    ) -> Result<T, Cause> {
        let Some(average) = &mut self.average else {
            return on(self.model);
        };
        average.exchange(self.model)?;
        let made = on(self.model)?;
        average.exchange(self.model)?;
        Ok(made)
    }
}
