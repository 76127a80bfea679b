//! What computes gradients: the trait between the training loop and a module, and the messages that cross it.

use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use flambeau_collective::{DType, Device};
use flambeau_data::Batch;

use crate::history::EpochRecord;
use crate::reducer::GradientReducer;

/// An error of a model's own, such as a Python exception. The loop keeps it whole as the cause of its own error.
pub type ModelError = Box<dyn std::error::Error + Send + Sync>;

/// A parameter that is trained. A tied parameter is listed once.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterInfo {
    /// Its qualified name, such as `layers.0.weight`.
    pub name: String,
    /// Number of elements.
    pub numel: usize,
    /// Size of its first dimension, 1 where it has none: the rows of the matrix that it counts as where gradients are
    /// compressed to matrices of low rank.
    pub num_rows: usize,
    /// Type of its elements; one of the floating types.
    pub dtype: DType,
    /// Where it lies, and so where its gradients are reduced.
    pub device: Device,
}

/// A contiguous tensor of the model. The model owns the memory and keeps it where it is until the next call of one of
/// its methods other than [`Model::tensors`].
#[derive(Clone, Debug)]
pub struct TensorRef {
    /// Its qualified name.
    pub name: String,
    /// The first element.
    pub ptr: *mut c_void,
    /// Number of elements of `dtype`.
    pub numel: usize,
    /// Type of its elements. A type that the group does not know is given as bytes (`UInt8`).
    pub dtype: DType,
    /// Where it lies.
    pub device: Device,
    /// Whether this is a buffer (such as a running mean) rather than a parameter. Buffers may differ between ranks
    /// while an epoch runs and take rank 0's values before each evaluation and checkpoint and at the end.
    pub is_buffer: bool,
}

/// What a model made of one batch: sums, so that they add up over batches and ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossSums {
    /// The sum of the losses of the rows, each times its weight.
    pub numerator: f64,
    /// What the sum is divided by to give the mean loss: rows, or weights, or targets that count.
    pub denominator: f64,
    /// The state of each metric, as long as [`Model::num_metric_sums`] says.
    pub metrics: Vec<f64>,
}

/// Where a batch stands. Epochs, steps and micro-batches count from 0, steps over all epochs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MicroBatch {
    /// The epoch.
    pub epoch: u64,
    /// The optimizer step that this batch belongs to.
    pub step: u64,
    /// The batch among those that are accumulated for this step.
    pub micro: u32,
    /// Whether this is the first batch of the step.
    pub is_first: bool,
    /// Whether this is the last batch of the step: gradients are reduced as they become ready.
    pub is_last: bool,
    /// Rows of the whole step over all ranks, divided by the number of ranks.
    pub reference: f64,
    /// What gradients are scaled by, a power of two: 1 without loss scaling.
    pub loss_scale: f64,
}

impl MicroBatch {
    /// What the model multiplies the mean loss of its rows, `numerator / denominator`, by before backward; a factor of
    /// 1 is left out.
    pub fn factor(&self, denominator: f64) -> f64 {
        denominator / self.reference * self.loss_scale
    }
}

/// What the optimizer needs to know of its step.
#[derive(Clone, Copy, Debug)]
pub struct StepContext<'a> {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The optimizer step, counted from 0 over all epochs.
    pub step: u64,
    /// For each parameter whether any rank used it. An unused one has no gradient (None in torch); a used one has the
    /// reducer's view, on every rank.
    pub used: &'a [bool],
    /// The learning rate to set; `None` leaves the optimizer's.
    pub learning_rate: Option<f64>,
}

/// What an optimizer step came to, over all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The optimizer step, counted from 0 over all epochs.
    pub step: u64,
    /// Optimizer steps in an epoch.
    pub steps_per_epoch: u64,
    /// Rows of the step over all ranks.
    pub num_rows: u64,
    /// The mean loss of the step. `None` where the denominator is 0, in which case the optimizer took no step.
    pub loss: Option<f64>,
    /// 2-norm of all gradients before clipping; `None` where `gradientClipNorm` is not set, and where the gradients
    /// overflowed.
    pub gradient_norm: Option<f64>,
}

/// What an epoch came to.
#[derive(Clone, Copy, Debug)]
pub struct EpochReport<'a> {
    /// The epoch's record; its seconds are this rank's own, all else is the same on every rank.
    pub record: &'a EpochRecord,
}

/// A module with its loss, optimizer and metrics.
///
/// The loop calls every method on one thread. A rank without rows in a batch skips [`train_batch`] and
/// [`evaluate_batch`].
///
/// [`train_batch`]: Model::train_batch
/// [`evaluate_batch`]: Model::evaluate_batch
pub trait Model {
    /// The parameters that are trained, in an order that is the same on all ranks.
    fn parameters(&mut self) -> Result<Vec<ParameterInfo>, ModelError>;

    /// The number of sums that hold the state of the metrics; constant, and the same on all ranks.
    fn num_metric_sums(&mut self) -> Result<usize, ModelError>;

    /// Takes the reducer that gradients go to from now on. Called before the first batch, and once more after the
    /// first step where buckets were laid out anew; there are no gradients then.
    fn attach(&mut self, reducer: Arc<GradientReducer>) -> Result<(), ModelError>;

    /// All parameters and buffers, frozen ones included, tied ones once, in an order that is the same on all ranks.
    /// The loop overwrites them with rank 0's.
    fn tensors(&mut self) -> Result<Vec<TensorRef>, ModelError>;

    /// Forward, loss and backward in training mode. For each parameter `i` that has a gradient after the backward, as
    /// soon as it has: the gradient is copied to [`GradientReducer::view`]`(i)` where
    /// [`GradientReducer::is_filled`]`(i)` is false and added to it otherwise, then
    /// [`GradientReducer::mark_ready`]`(i)` is called, from whatever thread.
    ///
    /// A batch whose denominator is 0 has no loss: it does no backward and returns its sums.
    fn train_batch(&mut self, batch: Batch, micro: &MicroBatch) -> Result<LossSums, ModelError>;

    /// One step of the optimizer on the reduced gradients, after which there are no gradients.
    fn optimizer_step(&mut self, context: &StepContext<'_>) -> Result<(), ModelError>;

    /// In place of [`optimizer_step`](Model::optimizer_step) where the reduced gradients overflowed: they are dropped.
    fn skip_step(&mut self) -> Result<(), ModelError>;

    /// Forward and loss in evaluation mode, without gradients.
    fn evaluate_batch(&mut self, batch: Batch) -> Result<LossSums, ModelError>;

    /// The metrics' names and values from their sums over all batches and ranks.
    fn finish_metrics(&mut self, sums: &[f64]) -> Result<Vec<(String, f64)>, ModelError>;

    /// Parameters, buffers and the optimizer's state. Called on rank 0, since all ranks have the same.
    fn save_state(&mut self) -> Result<Vec<u8>, ModelError>;

    /// Takes what [`save_state`](Model::save_state) gave, on every rank.
    fn load_state(&mut self, state: &[u8]) -> Result<(), ModelError>;

    /// What differs between ranks: the states of random generators.
    fn save_rank_state(&mut self) -> Result<Vec<u8>, ModelError>;

    /// Takes what [`save_rank_state`](Model::save_rank_state) gave on the same rank of as many ranks.
    fn load_rank_state(&mut self, state: &[u8]) -> Result<(), ModelError>;

    /// Seeds the random generators for this rank: at the start, and after a resume with another number of ranks,
    /// from what the job's seed, the step and the rank say alone.
    fn seed(&mut self, seed: u64, step: u64, rank: usize) -> Result<(), ModelError>;

    /// Writes the weights into `directory`, which is empty, and returns the names of the files written; the first is
    /// the one with the weights. Called on rank 0 at the end.
    fn write_weights(&mut self, directory: &Path) -> Result<Vec<String>, ModelError>;

    /// What the user should know although nothing failed, such as a module that could not be compiled. Called on every
    /// rank at the end.
    fn warnings(&mut self) -> Result<Vec<String>, ModelError> {
        Ok(vec![])
    }

    /// Called on every rank after each step.
    fn on_step_end(&mut self, report: &StepReport) -> Result<(), ModelError> {
        let _ = report;
        Ok(())
    }

    /// Called on every rank after each epoch and its evaluation, before its checkpoint.
    fn on_epoch_end(&mut self, report: &EpochReport<'_>) -> Result<(), ModelError> {
        let _ = report;
        Ok(())
    }
}
