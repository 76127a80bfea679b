//! The training loop of Flambeau, the only one there is: it turns a [`TrainingJob`], a [`Model`] and a process group
//! into trained weights and a history.
//!
//! The modules, lowest first: each knows those above it in this table, and none below.
//!
//! | module | what it is about |
//! |---|---|
//! | `error`, `digest` | what can go wrong, and who is to blame; the SHA-256 of what is stored |
//! | `model` | what computes gradients, and the memory that they go to |
//! | `record` | what a training has come to: the history, running sums, the loss scale, the result |
//! | `job` | what is to be trained and how: the params, their bounds and schema, the programs of strangers |
//! | `device` | which GPU each rank trains on |
//! | `gradients` | how gradients are compressed and reduced; `sync` is what a step sees of that |
//! | `checkpoint` | what outlives a training that ends early, and the weights |
//! | `training` | the loop: `worker` begins a training, `session` is it on so many ranks, `step` is a step, `state` what goes on |
//!
//! Every rank makes a [`Worker`] with the same job and calls [`Worker::run`]. Epochs and steps count from 0 in
//! everything that programs read: contexts, reports, errors, events, checkpoints and the history.

pub mod checkpoint;
mod device;
pub mod digest;
mod error;
mod gradients;
mod job;
mod model;
mod record;
mod training;

pub use device::{Devices, Gpus};
pub use error::{
    Cause, ErrorKind, HookError, JobError, ModelError, ReduceError, TrainError, error_chain,
};
pub use gradients::compression::{CompressionState, ParameterState};
pub use gradients::reducer::{GradientReducer, ReducerOptions};
pub use job::compression::Compression;
pub use job::params::{
    DeviceChoice, GradientCompression, HandleInvalid, InPlace, InputType, LrSchedule, MonitorMode,
    OutputKind, Precision, TrainingParams,
};
pub use job::program::{
    LossSpec, NamedOptions, NativeProgram, ProgramForm, ScriptedLoss, StoredWeights,
};
pub use job::purity::{check_script_file, is_pure_operator};
pub use job::{Attempt, FORMAT, JobData, RangeTest, StoreOptions, TrainingJob};
pub use model::layout::{BucketInfo, BucketLayout, BucketSizes, ParameterInfo, View};
pub use model::sink::{DeviceGradients, GradientSink};
pub use model::{
    DeviceModel, LossSums, MetricNames, MicroBatch, Model, Split, StagedBatch, StagedData,
    StepContext, TensorRef, Tensors,
};
pub use record::bottleneck::{Bottleneck, StepPart};
pub use record::history::{EpochRecord, History, LossScaling, NamedValue, StepTimes, Traffic};
pub use record::resources::Resources;
pub use record::result::{RangeTestResult, RangeTestStep, StoredFile, TrainingResult, WeightsInfo};
pub use training::allocator::keep_freed_batches;
pub use training::events::{CheckpointWritten, EpochBegin, Event, Late, Progress, Stalled, Start};
pub use training::hooks::{Hook, Hooks, Interrupt, StepReport};
pub use training::host::num_threads;
pub use training::worker::Worker;
