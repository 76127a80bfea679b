//! One optimizer step: its batches, the reduction, and what follows it.

use std::sync::Arc;
use std::time::Instant;

use flambeau_collective::{DType, ProcessGroup};
use flambeau_data::BatchReader;

use crate::compression::CompressionState;
use crate::device::Accelerator;
use crate::error::{Cause, JobError};
use crate::history::{StepTimes, Traffic};
use crate::hooks::Hooks;
use crate::layout::BucketLayout;
use crate::model::{MicroBatch, Model, ModelError, ParameterInfo, StepContext};
use crate::reducer::{GradientReducer, ReducerOptions};
use crate::scaler::LossScaler;
use crate::schedule::Schedule;
use crate::staging::{Staged, Staging};
use crate::sums::LossTotals;

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
    /// Whether a rank asked to stop.
    pub(crate) is_cancelled: bool,
    /// The gradients that this rank sent.
    pub(crate) traffic: Traffic,
}

/// What of the job concerns steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepSettings {
    pub(crate) schedule: Schedule,
    pub(crate) clip_norm: Option<f64>,
    pub(crate) reducer: ReducerOptions,
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
    group: ProcessGroup,
    /// Where gradients are reduced, if not in main memory.
    accelerator: Option<Accelerator>,
    reducer: Arc<GradientReducer>,
    staging: Staging,
    settings: StepSettings,
    /// With precision fp16.
    pub(crate) scaler: Option<LossScaler>,
    hooks: Hooks,
    totals: LossTotals,
    /// The totals, then the cancel flag: what is reduced in each step.
    vector: Vec<f64>,
    times: StepTimes,
    /// Whether the layout may still change to the order in which gradients become ready.
    is_first: bool,
}

impl<'a> Stepper<'a> {
    /// Makes the reducer and attaches the model to it. All ranks call this.
    pub(crate) fn new(
        model: &'a mut dyn Model,
        group: ProcessGroup,
        accelerator: Option<Accelerator>,
        settings: StepSettings,
        scaler: Option<LossScaler>,
        hooks: Hooks,
    ) -> Result<Stepper<'a>, Cause> {
        let parameters = model.parameters().map_err(Cause::Model)?;
        if scaler.is_some() {
            check_unscaled(&parameters)?;
        }
        let totals = LossTotals::new(model.num_metric_sums().map_err(Cause::Model)?);
        let reducer = make_reducer(
            model,
            &group,
            accelerator.as_ref(),
            parameters,
            None,
            settings.reducer,
        )?;
        let vector = vec![0.0; totals.len() + 1];
        Ok(Stepper {
            model,
            group,
            accelerator,
            reducer,
            staging: Staging::default(),
            settings,
            scaler,
            hooks,
            totals,
            vector,
            times: StepTimes::default(),
            is_first: true,
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
        let reference = plan.num_rows as f64 / self.group.world_size() as f64;
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
            self.reducer.begin(micro.is_first, micro.is_last);
            // A rank without rows has nothing to compute: its gradients count as zeros.
            if batch.num_rows > 0 {
                let sums = self
                    .model
                    .train_batch(batch, &micro)
                    .map_err(|error| self.blame(error))?;
                self.totals.add(&sums)?;
            }
            self.times.model_seconds += watch.lap();
        }
        let in_backward = self.reducer.take_time_in_backward().as_secs_f64();
        self.times.model_seconds -= in_backward;
        self.reduce()?;
        self.times.reduce_seconds += in_backward + watch.lap();
        let sums = self.sums();
        let (numerator, denominator) = (sums[0], sums[1]);
        let loss = (denominator != 0.0).then(|| numerator / denominator);
        let mut outcome = StepOutcome {
            loss,
            gradient_norm: None,
            is_cancelled: self.vector[self.totals.len()] > 0.0,
            traffic: self.reducer.take_traffic(),
        };
        if let Some(loss) = loss {
            if !loss.is_finite() {
                let in_float16 = self.scaler.is_some();
                return Err(Cause::Diverged { loss, in_float16 });
            }
            if self.correct(plan.num_rows as f64 / denominator)? {
                outcome.gradient_norm = self.clip()?;
                self.optimize(plan)?;
            } else {
                self.model.skip_step().map_err(Cause::Model)?;
            }
            self.times.optimizer_seconds += watch.lap();
        }
        if std::mem::take(&mut self.is_first) {
            self.lay_out_anew()?;
        }
        Ok(outcome)
    }

    fn reduce(&mut self) -> Result<(), Cause> {
        let num = self.totals.len();
        self.vector[..num].copy_from_slice(self.totals.as_mut_slice());
        self.vector[num] = if self.hooks.is_cancelled() { 1.0 } else { 0.0 };
        let finished = self.reducer.finish(&mut self.vector);
        finished.map_err(|failure| self.reducer.cause_of(failure))
    }

    /// Multiplies the reduced gradients by `factor` and takes the loss scale off them. Returns whether the optimizer
    /// may step: without loss scaling it always may.
    fn correct(&mut self, factor: f64) -> Result<bool, Cause> {
        let on_device = self.accelerator.is_some();
        let Some(scaler) = &mut self.scaler else {
            match on_device {
                true => self.model.scale_gradients(factor).map_err(Cause::Model)?,
                false => self.reducer.scale(factor),
            }
            return Ok(true);
        };
        let factor = factor / scaler.scale();
        let is_finite = match on_device {
            true => self.model.unscale_gradients(factor).map_err(Cause::Model)?,
            false => self.reducer.unscale(factor),
        };
        if is_finite {
            scaler.count_good();
        } else {
            scaler.count_overflow()?;
        }
        Ok(is_finite)
    }

    /// Clips the gradients where the job says so, and returns their norm where that is known.
    fn clip(&mut self) -> Result<Option<f64>, Cause> {
        let Some(max_norm) = self.settings.clip_norm else {
            return Ok(None);
        };
        if self.accelerator.is_none() {
            return Ok(Some(self.reducer.clip(max_norm)));
        }
        self.model.clip_gradients(max_norm).map_err(Cause::Model)?;
        Ok(None)
    }

    /// What the learning rates are multiplied by in a step.
    pub(crate) fn rate_factor(&self, step: u64) -> f64 {
        self.settings.schedule.factor(step)
    }

    fn optimize(&mut self, plan: &StepPlan) -> Result<(), Cause> {
        let rate_factor = self.rate_factor(plan.step);
        let model = &mut *self.model;
        self.reducer
            .with_used(|used| {
                model.optimizer_step(&StepContext {
                    epoch: plan.epoch,
                    step: plan.step,
                    used,
                    rate_factor,
                })
            })
            .map_err(Cause::Model)
    }

    /// Goes on after `num_steps` steps with what the compression of gradients had carried. Returns whether that is of this
    /// model and these params.
    pub(crate) fn restore(
        &self,
        num_steps: u64,
        state: Option<&CompressionState>,
    ) -> Result<bool, Cause> {
        let restored = self.reducer.restore(num_steps, state);
        restored.map_err(|failure| self.reducer.cause_of(failure))
    }

    /// What the compression of gradients carries to the next step, as bytes.
    pub(crate) fn compression_state(&self) -> Result<Option<Vec<u8>>, Cause> {
        let state = self.reducer.compression_state();
        let state = state.map_err(|failure| self.reducer.cause_of(failure))?;
        Ok(state.map(|state| state.to_bytes()))
    }

    /// After the first step: buckets in the order in which rank 0's gradients became ready, where that makes a
    /// difference.
    fn lay_out_anew(&mut self) -> Result<(), Cause> {
        let present = self.reducer.layout();
        if present.buckets.len() == 1 {
            return Ok(());
        }
        let observed: Vec<u8> = self
            .reducer
            .observed_order()
            .iter()
            .flat_map(|&index| (index as u32).to_le_bytes())
            .collect();
        let agreed = self.group.broadcast_bytes(&observed, 0)?;
        let order: Vec<usize> = agreed
            .chunks_exact(4)
            .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
            .collect();
        let parameters = self.reducer.parameters();
        let options = self.settings.reducer;
        if BucketLayout::new(parameters, &order, options.sizes) == *present {
            return Ok(());
        }
        let reducer = make_reducer(
            self.model,
            &self.group,
            self.accelerator.as_ref(),
            parameters.to_vec(),
            Some(&order),
            options,
        )?;
        let state = self.reducer.compression_state();
        let state = state.map_err(|failure| self.reducer.cause_of(failure))?;
        let restored = reducer.restore(self.reducer.num_steps(), state.as_ref());
        restored.map_err(|failure| reducer.cause_of(failure))?;
        self.reducer = reducer;
        Ok(())
    }

    /// A backward that failed because a reduction in it failed has that one's cause.
    fn blame(&self, error: ModelError) -> Cause {
        match self.reducer.failure() {
            Some(failure) => self.reducer.cause_of(failure),
            None => Cause::Model(error),
        }
    }
}

/// A reducer for the model's gradients, to which the model is attached.
fn make_reducer(
    model: &mut dyn Model,
    group: &ProcessGroup,
    accelerator: Option<&Accelerator>,
    parameters: Vec<ParameterInfo>,
    order: Option<&[usize]>,
    options: ReducerOptions,
) -> Result<Arc<GradientReducer>, Cause> {
    let group = group.clone();
    let reducer = match accelerator {
        None => GradientReducer::new(group, parameters, order, options),
        Some(accelerator) => {
            GradientReducer::on_device(group, accelerator, parameters, order, options, model)
        }
    }?;
    let reducer = Arc::new(reducer);
    model.attach(reducer.clone()).map_err(Cause::Model)?;
    Ok(reducer)
}

/// Refuses parameters whose own gradients are float16, which cannot hold what they are divided by, as PyTorch does.
fn check_unscaled(parameters: &[ParameterInfo]) -> Result<(), JobError> {
    match parameters
        .iter()
        .find(|parameter| parameter.dtype == DType::Float16)
    {
        None => Ok(()),
        Some(parameter) => Err(JobError::Invalid {
            param: "precision".into(),
            value: "fp16".into(),
            allowed: format!(
                "float32 for a module whose weights are float16, such as {}; or give the module in float32",
                parameter.name
            ),
        }),
    }
}
