//! What computes gradients, and where they go: the traits between the training loop and a module, and the messages that cross
//! them.

pub(crate) mod layout;
pub(crate) mod sink;

use std::any::Any;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flambeau_collective::{DType, Stream};
use flambeau_data::Batch;

use self::layout::{BucketInfo, ParameterInfo};
use self::sink::{DeviceGradients, GradientSink};
use crate::error::ModelError;

/// A contiguous tensor of the model, in main memory: the tensor itself, or a copy of one that lies on a device. The model
/// owns the memory and keeps it where it is until the next call of one of its methods other than [`Model::tensors`].
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
}

/// Which of the model's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tensors {
    /// Parameters and buffers.
    All,
    /// What is no parameter, such as a running mean. Buffers may differ between ranks while an epoch runs and take rank 0's
    /// values before each evaluation and checkpoint and at the end.
    Buffers,
    /// The parameters that are trained, in the order of [`Model::parameters`], of a model in main memory. Asked for after each step
    /// with `emaDecay`.
    Trained,
    /// What the optimizer keeps of each of these in floating types, of a model in main memory: the same on ranks whose parameters
    /// had gradients in the same steps. Asked for with `syncEvery`.
    Optimizer,
}

/// A batch as the model will take it: as it was read, or on its way to the model's device.
pub struct StagedBatch {
    /// Its rows.
    pub num_rows: usize,
    /// Where it is.
    pub data: StagedData,
}

/// Where a batch is.
pub enum StagedData {
    /// In main memory.
    Host(Batch),
    /// Where the model has put it.
    Device(Box<dyn Any>),
}

impl From<Batch> for StagedBatch {
    fn from(batch: Batch) -> Self {
        StagedBatch {
            num_rows: batch.num_rows,
            data: StagedData::Host(batch),
        }
    }
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

/// Which rows an epoch's sums are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Those that are trained on.
    Training,
    /// Those that are evaluated.
    Validation,
}

/// The metrics by name, in the order of the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricNames {
    /// Those of training rows.
    pub training: Vec<String>,
    /// Those of validation rows, by the same names without `val_`.
    pub validation: Vec<String>,
}

impl MetricNames {
    /// Metrics that training and validation rows have alike.
    pub fn of_both(names: Vec<String>) -> MetricNames {
        MetricNames {
            validation: names.clone(),
            training: names,
        }
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
    /// What each learning rate that the optimizer was made with is multiplied by in this step; often exactly 1.
    pub rate_factor: f64,
}

/// What a model does beside [`Model`] whose framework computes on GPUs here.
pub trait DeviceModel {
    /// Where its framework keeps `libnccl.so.2`: directories, best first.
    fn nccl_directories(&mut self) -> Vec<PathBuf>;

    /// Moves everything, once, to the CUDA device of this number among those that the process sees, and returns the stream that
    /// its work runs on from then on.
    fn to_device(&mut self, index: u32) -> Result<Stream, ModelError>;

    /// Makes zeros for the gradients of a model that was moved, in place of those that it made last; with `halves`, floats of that
    /// type beside each bucket of float32.
    fn allocate_gradients(
        &mut self,
        buckets: &[BucketInfo],
        halves: Option<DType>,
    ) -> Result<Arc<dyn DeviceGradients>, ModelError>;
}

/// A module with its loss, optimizer and metrics.
///
/// The loop calls every method on one thread. A rank without rows in a batch skips [`train_batch`] and
/// [`evaluate_batch`].
///
/// A model begins on the CPU. One that can compute elsewhere gives itself as a [`DeviceModel`].
///
/// [`train_batch`]: Model::train_batch
/// [`evaluate_batch`]: Model::evaluate_batch
pub trait Model {
    /// Itself, where its framework computes on GPUs here.
    ///
    /// # Errors
    ///
    /// Why it does not, in words for the user.
    fn on_cuda(&mut self) -> Result<&mut dyn DeviceModel, String> {
        Err("the model computes on the CPU only".into())
    }

    /// How many batches are to be [`stage`](Model::stage)d ahead of the one that is computed on.
    fn looks_ahead(&self) -> usize {
        0
    }

    /// Begins to bring a batch, of training or of validation, to where the model computes. Does not wait for the device.
    fn stage(&mut self, batch: Batch, is_training: bool) -> Result<StagedBatch, ModelError> {
        let _ = is_training;
        Ok(batch.into())
    }

    /// Waits until a staged batch can be computed on, where that is made of it beside the loop: such time is the data's.
    fn await_staged(&mut self, batch: &StagedBatch) -> Result<(), ModelError> {
        let _ = batch;
        Ok(())
    }

    /// The parameters that are trained, in an order that is the same on all ranks.
    fn parameters(&mut self) -> Result<Vec<ParameterInfo>, ModelError>;

    /// The number of sums that hold the state of the metrics; constant, and the same on all ranks.
    fn num_metric_sums(&mut self) -> Result<usize, ModelError>;

    /// The learning rate of the last step that the optimizer has taken, schedules included, else the one that it has: that of
    /// its first group of parameters. `None` where it has none.
    fn learning_rate(&mut self) -> Result<Option<f64>, ModelError>;

    /// Takes what gradients go to from now on. Called before the first batch, and once more after the
    /// first step where buckets were laid out anew; there are no gradients then.
    fn attach(&mut self, gradients: Arc<dyn GradientSink>) -> Result<(), ModelError>;

    /// Those tensors that have elements, frozen ones included, tied ones once, in an order that is the same on all ranks. The loop reads them, or overwrites them with rank 0's and then calls
    /// [`take_tensors`](Model::take_tensors).
    fn tensors(&mut self, which: Tensors) -> Result<Vec<TensorRef>, ModelError>;

    /// What [`tensors`](Model::tensors) gave last has other values now: a device takes them over.
    fn take_tensors(&mut self) -> Result<(), ModelError> {
        Ok(())
    }

    /// Forward, loss and backward in training mode. For each parameter `i` that has a gradient after the backward, as
    /// soon as it has: the gradient is copied to [`GradientSink::view`]`(i)` where
    /// [`GradientSink::is_filled`]`(i)` is false and added to it otherwise, then
    /// [`GradientSink::mark_ready`]`(i)` is called, from whatever thread.
    ///
    /// A batch whose denominator is 0 has no loss: it does no backward and returns its sums. `batch` is what
    /// [`stage`](Model::stage) gave. On a device this waits for the forward pass at most.
    fn train_batch(
        &mut self,
        batch: StagedBatch,
        micro: &MicroBatch,
    ) -> Result<LossSums, ModelError>;

    /// One step of the optimizer on the reduced gradients, after which there are no gradients.
    fn optimizer_step(&mut self, context: &StepContext<'_>) -> Result<(), ModelError>;

    /// In place of [`optimizer_step`](Model::optimizer_step) where the reduced gradients overflowed: they are dropped.
    fn skip_step(&mut self) -> Result<(), ModelError>;

    /// Forward and loss in evaluation mode, without gradients.
    fn evaluate_batch(&mut self, batch: StagedBatch) -> Result<LossSums, ModelError>;

    /// The names of all metrics, whether sums make them or not.
    fn metric_names(&mut self) -> Result<MetricNames, ModelError>;

    /// The names and values of metrics from their sums over all batches and ranks. Called once the last step of an epoch is
    /// taken, for training rows, and once its validation rows are evaluated, where there are any.
    fn finish_metrics(
        &mut self,
        split: Split,
        sums: &[f64],
    ) -> Result<Vec<(String, f64)>, ModelError>;

    /// What metrics that no sums make, such as an area under a curve, hold of the rows that were evaluated since the last
    /// call, which it then forgets. `None` where there are no such metrics, on all ranks alike. Called at the end of an
    /// evaluation.
    fn take_gathered(&mut self) -> Result<Option<Vec<u8>>, ModelError> {
        Ok(None)
    }

    /// The names and values of those metrics, from what [`take_gathered`](Model::take_gathered) gave on each rank, in rank
    /// order.
    fn finish_gathered(&mut self, states: &[Vec<u8>]) -> Result<Vec<(String, f64)>, ModelError> {
        let _ = states;
        Ok(vec![])
    }

    /// An epoch has ended, its evaluation too, with these losses and metrics by the names of the history; `None` stands for
    /// what is not a finite number. The same on all ranks.
    fn end_epoch(&mut self, figures: &[(String, Option<f64>)]) -> Result<(), ModelError> {
        let _ = figures;
        Ok(())
    }

    /// Parameters, buffers and the optimizer's state. Called on rank 0, since all ranks have the same.
    fn save_state(&mut self) -> Result<Vec<u8>, ModelError>;

    /// Takes what [`save_state`](Model::save_state) gave, on every rank.
    fn load_state(&mut self, state: &[u8]) -> Result<(), ModelError>;

    /// Takes the optimizer's part of what [`save_state`](Model::save_state) gave in another training, on every rank: all but its
    /// rates and other options.
    fn load_optimizer_state(&mut self, state: &[u8]) -> Result<(), ModelError>;

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
}
