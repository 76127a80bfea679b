//! How the ranks agree on the gradients of a step.

use std::sync::Arc;
use std::time::Duration;

use flambeau_collective::{DType, ProcessGroup};

use crate::device::Accelerator;
use crate::error::{Cause, JobError, ModelError};
use crate::gradients::average::ModelAverage;
use crate::gradients::compression::CompressionState;
use crate::gradients::reducer::{GradientReducer, ReducerOptions};
use crate::job::compression::Compression;
use crate::job::groups;
use crate::job::params::{Precision, TrainingParams};
use crate::model::Model;
use crate::model::layout::{BucketLayout, BucketSizes, ParameterInfo};
use crate::model::sink::GradientSink;
use crate::record::history::Traffic;

/// What stands between a step and the group: it has given the model a [`GradientSink`], and makes of what comes there the gradients
/// that the optimizer takes. All ranks make the same calls in the same order.
pub(crate) trait GradientSync {
    /// Begins a micro-batch of a step.
    fn begin(&self, is_first: bool, is_last: bool);

    /// Why a micro-batch failed that gave `error`: where an exchange within backward did, what that failed with.
    fn blame(&self, error: ModelError) -> Cause;

    /// Ends the micro-batches of a step: brings the gradients to where the optimizer reads them, and adds `sums` up over the ranks.
    fn finish(&mut self, sums: &mut [f64]) -> Result<(), Cause>;

    /// For each parameter whether any rank used it in the step that ended.
    fn used(&self) -> &[bool];

    /// Multiplies all gradients by `factor`; exactly 1 leaves them alone.
    fn scale(&self, factor: f64) -> Result<(), Cause>;

    /// Multiplies all gradients by `factor`, and tells whether they are finite, the same on every rank; where they are not, some may
    /// be left as they were.
    fn unscale(&self, factor: f64) -> Result<bool, Cause>;

    /// The 2-norm of all gradients together; none on a device, which would have to be waited for.
    fn norm(&self) -> Option<f64>;

    /// Scales all gradients down to a 2-norm of at most `max_norm`, and returns the norm before where it is known.
    fn clip(&self, max_norm: f64) -> Result<Option<f64>, Cause>;

    /// Cuts each entry of the gradients to a magnitude of at most `max_value`; not on a device.
    fn clip_value(&self, max_value: f64);

    /// After the optimizer's step: what is learned from it for the next ones.
    fn settle(&mut self, model: &mut dyn Model) -> Result<(), Cause>;

    /// Whether the model is to be averaged after the step that ended.
    fn is_average_due(&self) -> bool;

    /// Averages the weights and the optimizer's state over the ranks, where these have stepped on their own since it was last done.
    /// Returns the bytes that this rank sent.
    fn average_model(&mut self, model: &mut dyn Model) -> Result<u64, Cause>;

    /// How long exchanges within backward took since this was last asked.
    fn take_time_in_backward(&self) -> Duration;

    /// The gradients that this rank sent in the step that ended.
    fn take_traffic(&self) -> Traffic;

    /// What is carried from this step to the next, for a checkpoint; none where nothing is.
    fn state(&self) -> Option<CompressionState>;

    /// Goes on after `num_steps` steps with what was carried. Returns whether that is of this model and these params.
    fn restore(&self, num_steps: u64, state: Option<&CompressionState>) -> bool;
}

/// How the ranks of a job agree, and where the gradients of `model` go from now on; with `overlaps` they are exchanged while backward
/// goes on. All ranks call this.
///
/// # Errors
///
/// The model's, the group's, and parameters whose gradients cannot be reduced, or not be scaled.
pub(crate) fn new(
    params: &TrainingParams,
    overlaps: bool,
    group: &ProcessGroup,
    accelerator: Option<Accelerator>,
    model: &mut dyn Model,
) -> Result<Box<dyn GradientSync>, Cause> {
    let parameters = model.parameters().map_err(Cause::Model)?;
    if params.precision == Precision::Fp16 {
        check_unscaled(&parameters)?;
    }
    let names: Vec<&str> = parameters.iter().map(|info| &*info.name).collect();
    let groups = params.gradient_groups.as_deref().unwrap_or_default();
    let options = ReducerOptions {
        sizes: BucketSizes::up_to(params.bucket_size),
        groups: groups::places(groups, &names)?,
        overlaps,
        compression: Compression::of(params),
        is_local: params.sync_every > 1,
    };
    let average = (options.is_local).then(|| ModelAverage::new(group.clone(), params.sync_every));
    let sync = AllReduce::new(
        model,
        parameters,
        group.clone(),
        accelerator,
        options,
        average,
    )?;
    Ok(Box::new(sync))
}

/// Refuses parameters whose own gradients are float16, which cannot hold what they are divided by, as PyTorch does.
fn check_unscaled(parameters: &[ParameterInfo]) -> Result<(), JobError> {
    match parameters
        .iter()
        .find(|parameter| parameter.dtype == DType::Float16)
    {
        None => Ok(()),
        Some(parameter) => Err(JobError::invalid(
            "precision",
            "fp16",
            format!(
                "float32 for a module whose weights are float16, such as {}; or give the module in float32",
                parameter.name
            ),
        )),
    }
}

/// The mean over all ranks: of the gradients in each step, or, where each rank steps on those of its own rows, of the model every few
/// steps.
struct AllReduce {
    group: ProcessGroup,
    /// Where gradients are reduced, if not in main memory.
    accelerator: Option<Accelerator>,
    options: ReducerOptions,
    reducer: Arc<GradientReducer>,
    used: Vec<bool>,
    /// Whether the layout may still change to the order in which gradients become ready.
    is_first: bool,
    /// In place of the mean of the gradients, where the reducer is local.
    average: Option<ModelAverage>,
}

impl AllReduce {
    /// Makes the buckets, and attaches the model to them.
    fn new(
        model: &mut dyn Model,
        parameters: Vec<ParameterInfo>,
        group: ProcessGroup,
        accelerator: Option<Accelerator>,
        options: ReducerOptions,
        average: Option<ModelAverage>,
    ) -> Result<AllReduce, Cause> {
        let used = vec![false; parameters.len()];
        let reducer = reducer(
            model,
            &group,
            accelerator.as_ref(),
            parameters,
            None,
            &options,
        )?;
        Ok(AllReduce {
            group,
            accelerator,
            options,
            reducer,
            used,
            is_first: true,
            average,
        })
    }

    /// After the first step: buckets in the order in which rank 0's gradients became ready, where that makes a
    /// difference.
    fn lay_out_anew(&mut self, model: &mut dyn Model) -> Result<(), Cause> {
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
        let ReducerOptions { sizes, groups, .. } = &self.options;
        if BucketLayout::new(parameters, &order, *sizes, groups) == *present {
            return Ok(());
        }
        let reducer = reducer(
            model,
            &self.group,
            self.accelerator.as_ref(),
            parameters.to_vec(),
            Some(&order),
            &self.options,
        )?;
        reducer.restore(
            self.reducer.num_steps(),
            self.reducer.compression_state().as_ref(),
        );
        self.reducer = reducer;
        Ok(())
    }
}

impl GradientSync for AllReduce {
    fn begin(&self, is_first: bool, is_last: bool) {
        self.reducer.begin(is_first, is_last);
    }

    fn blame(&self, error: ModelError) -> Cause {
        match self.reducer.failure() {
            Some(failure) => self.reducer.cause_of(failure),
            None => Cause::Model(error),
        }
    }

    fn finish(&mut self, sums: &mut [f64]) -> Result<(), Cause> {
        let finished = self.reducer.finish(sums);
        finished.map_err(|failure| self.reducer.cause_of(failure))?;
        self.reducer
            .with_used(|used| self.used.copy_from_slice(used));
        if let Some(average) = &mut self.average {
            average.note_step();
        }
        Ok(())
    }

    fn used(&self) -> &[bool] {
        &self.used
    }

    fn scale(&self, factor: f64) -> Result<(), Cause> {
        self.reducer.scale(factor)
    }

    fn unscale(&self, factor: f64) -> Result<bool, Cause> {
        self.reducer.unscale(factor)
    }

    fn norm(&self) -> Option<f64> {
        self.reducer.norm()
    }

    fn clip(&self, max_norm: f64) -> Result<Option<f64>, Cause> {
        self.reducer.clip(max_norm)
    }

    fn clip_value(&self, max_value: f64) {
        self.reducer.clip_value(max_value);
    }

    fn settle(&mut self, model: &mut dyn Model) -> Result<(), Cause> {
        match std::mem::take(&mut self.is_first) {
            true if self.average.is_none() => self.lay_out_anew(model),
            _ => Ok(()),
        }
    }

    fn is_average_due(&self) -> bool {
        let num_steps = self.reducer.num_steps();
        (self.average.as_ref()).is_some_and(|average| average.is_due(num_steps))
    }

    fn average_model(&mut self, model: &mut dyn Model) -> Result<u64, Cause> {
        match &mut self.average {
            Some(average) => average.take(model),
            None => Ok(0),
        }
    }

    fn take_time_in_backward(&self) -> Duration {
        self.reducer.take_time_in_backward()
    }

    fn take_traffic(&self) -> Traffic {
        self.reducer.take_traffic()
    }

    fn state(&self) -> Option<CompressionState> {
        self.reducer.compression_state()
    }

    fn restore(&self, num_steps: u64, state: Option<&CompressionState>) -> bool {
        self.reducer.restore(num_steps, state)
    }
}

/// A reducer for the model's gradients, to which the model is attached.
fn reducer(
    model: &mut dyn Model,
    group: &ProcessGroup,
    accelerator: Option<&Accelerator>,
    parameters: Vec<ParameterInfo>,
    order: Option<&[usize]>,
    options: &ReducerOptions,
) -> Result<Arc<GradientReducer>, Cause> {
    let (group, options) = (group.clone(), options.clone());
    let reducer = match accelerator {
        None => GradientReducer::new(group, parameters, order, options),
        Some(accelerator) => {
            let model = model
                .on_cuda()
                .map_err(|reason| Cause::Model(reason.into()))?;
            let allocate = |buckets: &_, halves| model.allocate_gradients(buckets, halves);
            GradientReducer::on_device(group, accelerator, parameters, order, options, allocate)
        }
    }?;
    let reducer = Arc::new(reducer);
    model.attach(reducer.clone()).map_err(Cause::Model)?;
    Ok(reducer)
}
