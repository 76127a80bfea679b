//! The training loop of Flambeau, the only one there is: it turns a [`TrainingJob`], a [`Model`] and a process group
//! into trained weights and a history.
//!
//! Every rank makes a [`Worker`] with the same job and calls [`Worker::run`]. Epochs and steps count from 0 in
//! everything that programs read: contexts, reports, errors, events, checkpoints and the history.

mod allocator;
mod bounds;
mod buckets;
pub mod checkpoint;
mod compression;
mod dataset;
mod device;
mod digest;
mod elements;
mod error;
mod evaluate;
mod events;
mod history;
mod hooks;
mod host;
mod job;
mod layout;
mod model;
mod monitor;
mod params;
mod program;
mod purity;
mod reducer;
mod replicas;
mod result;
mod scaler;
mod schedule;
mod staging;
mod step;
mod storages;
mod sums;
mod usage;
mod weights;
mod worker;

pub use allocator::keep_freed_batches;
pub use compression::{
    Compression, CompressionState, DeviceOperation, DevicePlan, DevicePrograms, Matrices,
    ParameterState, TensorPart,
};
pub use device::{Devices, Gpus};
pub use error::{Cause, ErrorKind, JobError, TrainError, error_chain};
pub use events::{Event, Progress, Start};
pub use history::{EpochRecord, History, LossScaling, NamedValue, StepTimes, Traffic};
pub use hooks::{Hooks, Interrupt, Listener};
pub use host::num_threads;
pub use job::{Attempt, FORMAT, JobData, StoreOptions, TrainingJob};
pub use layout::{BucketInfo, BucketLayout, BucketSizes, View};
pub use model::{
    EpochReport, LossSums, MicroBatch, Model, ModelError, ParameterInfo, StagedBatch, StagedData,
    StepContext, StepReport, TensorRef, Tensors,
};
pub use params::{
    DeviceChoice, GradientCompression, InputType, LrSchedule, MonitorMode, OutputKind, Precision,
    TrainingParams,
};
pub use program::{
    LossSpec, NamedOptions, NativeProgram, ProgramForm, ScriptedLoss, StoredWeights,
};
pub use purity::{check_script_file, is_pure_operator};
pub use reducer::{GradientReducer, ReduceError, ReducerOptions};
pub use result::{StoredFile, TrainingResult, WeightsInfo};
pub use worker::Worker;
