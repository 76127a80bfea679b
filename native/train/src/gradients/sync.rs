//! How the ranks agree on the gradients of a step.

use std::sync::Arc;
use std::time::Duration;

use flambeau_collective::{DType, ProcessGroup, RawBuffer, ReduceOp};

use crate::device::Accelerator;
use crate::digest;
use crate::error::{Cause, JobError, ModelError};
use crate::gradients::compression::{self, CompressionState};
use crate::gradients::reducer::{GradientReducer, ReducerOptions};
use crate::job::compression::Compression;
use crate::job::params::{Precision, TrainingParams};
use crate::model::layout::{BucketLayout, BucketSizes, ParameterInfo};
use crate::model::sink::GradientSink;
use crate::model::{Model, Tensors};
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
    let options = ReducerOptions {
        sizes: BucketSizes::up_to(params.bucket_size),
        overlaps,
        compression: Compression::of(params),
        is_local: params.sync_every > 1,
    };
    let mut sync = AllReduce::new(model, parameters, group.clone(), accelerator, options)?;
    sync.every = params.sync_every;
    Ok(Box::new(sync))
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

/// The mean over all ranks: of the gradients in each step, or, after so many steps that each rank takes on the gradients of its own
/// rows, of the weights and the optimizer's state. The latter is local SGD, as in Stich, "Local SGD Converges Fast and Communicates
/// Little" (2019), and for the momentum in Yu, Jin and Yang, "On the Linear Speedup Analysis of Communication Efficient Momentum SGD"
/// (2019).
///
/// A rank's gradient is the sum over its rows, divided by its even share of all rows, so that the average of one step of plain SGD on
/// each rank is the step on the gradient of all rows. Which parameters any rank used is agreed on in each step: all ranks step
/// the same ones, and have state of the same ones.
struct AllReduce {
    group: ProcessGroup,
    /// Where gradients are reduced, if not in main memory.
    accelerator: Option<Accelerator>,
    options: ReducerOptions,
    reducer: Arc<GradientReducer>,
    used: Vec<bool>,
    /// Whether the layout may still change to the order in which gradients become ready.
    is_first: bool,
    /// Steps from one average of the model to the next; 1 where there is none, but of the gradients.
    every: u64,
    /// Whether the ranks have stepped on their own since the last one.
    is_apart: bool,
}

impl AllReduce {
    /// Makes the buckets, and attaches the model to them.
    fn new(
        model: &mut dyn Model,
        parameters: Vec<ParameterInfo>,
        group: ProcessGroup,
        accelerator: Option<Accelerator>,
        options: ReducerOptions,
    ) -> Result<AllReduce, Cause> {
        let used = vec![false; parameters.len()];
        let reducer = reducer(
            model,
            &group,
            accelerator.as_ref(),
            parameters,
            None,
            options,
        )?;
        Ok(AllReduce {
            group,
            accelerator,
            options,
            reducer,
            used,
            is_first: true,
            every: 1,
            is_apart: false,
        })
    }

    /// Refuses state of the optimizer that is not of the same names, types and lengths on all ranks.
    fn check_state(&self, model: &mut dyn Model) -> Result<(), Cause> {
        let tensors = model.tensors(Tensors::Optimizer).map_err(Cause::Model)?;
        let told = tensors
            .iter()
            .map(|tensor| format!("{} {} {}\n", tensor.name, tensor.dtype, tensor.numel));
        let own = digest::of_bytes(told.collect::<String>().as_bytes());
        let all = self.group.all_gather_bytes(own.as_bytes())?;
        if all.iter().all(|other| other == own.as_bytes()) {
            return Ok(());
        }
        let message = "the optimizer keeps other state on one worker than on another, and syncEvery averages it: take an \
                       optimizer that keeps the same of each parameter, or set syncEvery to 1";
        Err(Cause::Model(message.into()))
    }

    /// Averages these tensors of the model over the ranks. Returns the bytes that travel.
    fn average(&self, model: &mut dyn Model, which: Tensors) -> Result<u64, Cause> {
        let group = &self.group;
        let tensors = model.tensors(which).map_err(Cause::Model)?;
        let buffers: Vec<_> = tensors
            .iter()
            .map(|tensor| {
                let buffer = RawBuffer::cpu(tensor.ptr, tensor.numel, tensor.dtype);
                (buffer, ReduceOp::Average)
            })
            .collect();
        if buffers.is_empty() {
            return Ok(0);
        }
        group.label_next_call(|| format!("the average of {which:?}"));
        // SAFETY: the model says that this memory is its own and stays until its next call.
        unsafe { group.grouped_all_reduce(&buffers) }?;
        model.take_tensors().map_err(Cause::Model)?;
        let bytes = buffers.iter().map(|(buffer, _)| 2 * buffer.bytes() as u64);
        Ok(bytes.sum())
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
        if BucketLayout::new(parameters, &order, self.options.sizes) == *present {
            return Ok(());
        }
        let reducer = reducer(
            model,
            &self.group,
            self.accelerator.as_ref(),
            parameters.to_vec(),
            Some(&order),
            self.options,
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
        self.is_apart = self.every > 1;
        let finished = self.reducer.finish(sums);
        finished.map_err(|failure| self.reducer.cause_of(failure))?;
        self.reducer
            .with_used(|used| self.used.copy_from_slice(used));
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
            true if self.every == 1 => self.lay_out_anew(model),
            _ => Ok(()),
        }
    }

    fn is_average_due(&self) -> bool {
        self.every > 1 && self.reducer.num_steps().is_multiple_of(self.every)
    }

    fn average_model(&mut self, model: &mut dyn Model) -> Result<u64, Cause> {
        if !std::mem::take(&mut self.is_apart) {
            return Ok(0);
        }
        self.check_state(model)?;
        let travelled =
            self.average(model, Tensors::Trained)? + self.average(model, Tensors::Optimizer)?;
        Ok(compression::sent_by_each(
            travelled,
            self.group.world_size(),
        ))
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
    options: ReducerOptions,
) -> Result<Arc<GradientReducer>, Cause> {
    let group = group.clone();
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
