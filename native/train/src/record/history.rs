//! What a training tells afterwards: one record for each epoch.

use std::iter;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::record::resources::Resources;

/// A metric's name and value; `None` where the value is not a finite number, which JSON cannot hold.
pub type NamedValue = (String, Option<f64>);

/// The records of all epochs, those before a resume included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct History {
    /// One record for each finished epoch, in order.
    pub epochs: Vec<EpochRecord>,
    /// The epoch in which `monitor` was best; `None` while it has had no finite value.
    #[serde(default)]
    pub best_epoch: Option<u64>,
}

/// Where the seconds of steps went on one rank. What is left of an epoch's seconds is the loop itself, callbacks and
/// reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StepTimes {
    /// Waiting for batches, and making them.
    pub data_seconds: f64,
    /// Forward, loss, backward and metrics.
    pub model_seconds: f64,
    /// Averaging gradients over the ranks, waiting for slower ones included.
    pub reduce_seconds: f64,
    /// Clipping and the optimizer.
    pub optimizer_seconds: f64,
}

impl StepTimes {
    /// All of them, in seconds.
    pub fn total(&self) -> f64 {
        self.data_seconds + self.model_seconds + self.reduce_seconds + self.optimizer_seconds
    }
}

impl AddAssign for StepTimes {
    fn add_assign(&mut self, other: StepTimes) {
        self.data_seconds += other.data_seconds;
        self.model_seconds += other.model_seconds;
        self.reduce_seconds += other.reduce_seconds;
        self.optimizer_seconds += other.optimizer_seconds;
    }
}

/// What dynamic loss scaling came to in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LossScaling {
    /// What the loss is multiplied by, at the end of the epoch.
    pub loss_scale: f64,
    /// Steps of this epoch in which gradients overflowed, and the optimizer took no step.
    pub skipped_steps: u64,
}

/// The gradients that a rank sends to the others, in bytes: of an all-reduce, at least all of a buffer but the rank's own
/// part, and that part's sum to every other rank. Over shared memory that much is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Traffic {
    /// What it sent.
    pub sent_bytes: u64,
    /// What it would have sent without gradient compression.
    pub uncompressed_bytes: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.sent_bytes += other.sent_bytes;
        self.uncompressed_bytes += other.uncompressed_bytes;
    }
}

/// What one epoch came to. Losses and metrics are those of all rows of all ranks: sums divided once, never averages
/// of batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpochRecord {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// Optimizer steps since the training began, at the end of this epoch; those that an overflow skipped count.
    pub steps: u64,
    /// Training rows seen in this epoch, over all ranks.
    pub num_rows: u64,
    /// Seconds that the epoch's training steps took on rank 0, without evaluation and checkpoints. Only the part
    /// since the resume where the epoch was resumed.
    pub seconds: f64,
    /// Training rows per second over all ranks.
    pub rows_per_second: f64,
    /// The learning rate of the epoch's last step, of the optimizer's first group of parameters; `None` where that has none.
    #[serde(default)]
    pub learning_rate: Option<f64>,
    /// The mean over the epoch's steps of the gradients' 2-norm before clipping, with `logGradientNorm` or
    /// `gradientClipNorm`; steps that an overflow skipped, and norms that are not finite, do not count. With `syncEvery`
    /// above 1 it is of the gradients of this rank's own rows. `None` otherwise, and on a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// Where rank 0's seconds went.
    #[serde(flatten, default)]
    pub times: StepTimes,
    /// With precision fp16.
    #[serde(flatten)]
    pub scaling: Option<LossScaling>,
    /// What the steps took of the machines.
    #[serde(flatten, default)]
    pub resources: Resources,
    /// The gradients that each rank sent.
    #[serde(flatten, default)]
    pub traffic: Traffic,
    /// The mean training loss, each batch's at the parameters it met. `None` where every denominator was 0.
    pub loss: Option<f64>,
    /// Training metrics, gathered like the loss.
    pub metrics: Vec<NamedValue>,
    /// The mean loss over the validation rows at the end of the epoch; `None` without validation rows, and where it
    /// is not finite.
    pub validation_loss: Option<f64>,
    /// Metrics over the validation rows; empty without validation rows.
    pub validation_metrics: Vec<NamedValue>,
}

/// What the history puts before the names of what it has of the validation rows.
pub(crate) const VALIDATION: &str = "val_";

impl EpochRecord {
    /// The losses and metrics, by the names of the history.
    pub fn figures(&self) -> Vec<NamedValue> {
        let of = |prefix: &str, loss, metrics: &[NamedValue]| -> Vec<NamedValue> {
            let metrics = metrics
                .iter()
                .map(|(name, value)| (format!("{prefix}{name}"), *value));
            iter::once((format!("{prefix}loss"), loss))
                .chain(metrics)
                .collect()
        };
        let training = of("", self.loss, &self.metrics);
        let validation = of(VALIDATION, self.validation_loss, &self.validation_metrics);
        [training, validation].concat()
    }
}

#[cfg(test)]
impl EpochRecord {
    /// A record that holds nothing yet.
    pub(crate) fn empty(epoch: u64) -> EpochRecord {
        EpochRecord {
            epoch,
            steps: 0,
            num_rows: 0,
            seconds: 0.0,
            rows_per_second: 0.0,
            learning_rate: None,
            gradient_norm: None,
            times: StepTimes::default(),
            scaling: None,
            resources: Resources::default(),
            traffic: Traffic::default(),
            loss: None,
            metrics: vec![],
            validation_loss: None,
            validation_metrics: vec![],
        }
    }
}
