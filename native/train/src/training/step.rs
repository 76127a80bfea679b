//! One optimizer step: its batches, the reduction, and what follows it.

use std::time::Instant;

use flambeau_data::BatchReader;

use crate::error::Cause;
use crate::gradients::sync::GradientSync;
use crate::model::{MicroBatch, Model, StepContext};
use crate::record::history::{StepTimes, Traffic};
use crate::record::scaler::LossScaler;
use crate::record::sums::LossTotals;
use crate::training::hooks::Hooks;
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
    /// Whether somebody is told of the gradients' norm.
    pub(crate) needs_norm: bool,
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
    /// The gradients that this rank sent.
    pub(crate) traffic: Traffic,
}

/// What of the job concerns steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepSettings {
    pub(crate) schedule: Schedule,
    pub(crate) clip_norm: Option<f64>,
}

/// Tells the time since it was last asked.
struct Stopwatch(Instant);

impl Stopwatch {
    /// In seconds.
    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        (now - std::mem::replace(&mut self.0, now)).as_secs_f64()
    }
}

/// Takes optimizer steps.
pub(crate) struct Stepper<'a> {
    pub(crate) model: &'a mut dyn Model,
    pub(crate) sync: Box<dyn GradientSync>,
    world_size: usize,
    staging: Staging,
    settings: StepSettings,
    /// With precision fp16.
    pub(crate) scaler: Option<LossScaler>,
    hooks: Hooks,
    totals: LossTotals,
    /// The totals, then the flags for a cancel and for a stop: what is added up in each step.
    vector: Vec<f64>,
    times: StepTimes,
}

impl<'a> Stepper<'a> {
    /// Steps of a model that `sync` is attached to, on `world_size` ranks.
    pub(crate) fn new(
        model: &'a mut dyn Model,
        sync: Box<dyn GradientSync>,
        world_size: usize,
        settings: StepSettings,
        scaler: Option<LossScaler>,
        hooks: Hooks,
    ) -> Result<Stepper<'a>, Cause> {
        let totals = LossTotals::new(model.num_metric_sums().map_err(Cause::Model)?);
        let vector = vec![0.0; totals.len() + 2];
        Ok(Stepper {
            model,
            sync,
            world_size,
            staging: Staging::default(),
            settings,
            scaler,
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
        let mut watch = Stopwatch(Instant::now());
        for micro in 0..plan.num_batches {
            let expected = plan.first_batch + u64::from(micro);
            let Staged { batch, .. } = self
                .staging
                .next(reader, self.model)?
                .filter(|staged| staged.index == expected)
                .ok_or(Cause::BatchLost(expected))?;
            self.times.data_seconds += watch.lap();
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
            self.times.model_seconds += watch.lap();
        }
        let in_backward = self.sync.take_time_in_backward().as_secs_f64();
        self.times.model_seconds -= in_backward;
        self.reduce()?;
        self.times.reduce_seconds += in_backward + watch.lap();
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
                    None if plan.needs_norm => self.sync.norm(),
                    None => None,
                };
                outcome.gradient_norm = norm.filter(|norm| norm.is_finite());
                self.optimize(plan)?;
            } else {
                self.model.skip_step().map_err(Cause::Model)?;
            }
            self.times.optimizer_seconds += watch.lap();
        }
        self.sync.settle(self.model)?;
        Ok(outcome)
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
        self.model.optimizer_step(&context).map_err(Cause::Model)
    }
}
