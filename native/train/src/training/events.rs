//! What happens in a training, as hooks and the attempt's files are told of it.

use flambeau_collective::Stall;
use serde::{Deserialize, Serialize};

use crate::record::history::EpochRecord;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Event {
    /// Training began, or went on from a checkpoint.
    Start(Start),
    /// The first step of an epoch is next. Not told of an epoch that goes on.
    EpochBegin(EpochBegin),
    /// Training is under way.
    Progress(Progress),
    /// A checkpoint was written whole.
    Checkpoint(CheckpointWritten),
    /// An epoch and its evaluation ended.
    Epoch(EpochRecord),
    /// Ranks keep the others waiting.
    Stall(Stalled),
    /// Training ended well, weights written.
    End,
}

/// What is known when training starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// The epoch that begins or goes on, counted from 0.
    pub epoch: u64,
    /// Optimizer steps taken before.
    pub step: u64,
    /// Epochs in all.
    pub epochs: u64,
    /// Optimizer steps in an epoch.
    pub steps_per_epoch: u64,
    /// Training rows.
    pub num_rows: u64,
    /// Validation rows; without any, no epoch is evaluated.
    pub num_validation_rows: u64,
    /// Number of ranks.
    pub world_size: usize,
}

/// An epoch that begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpochBegin {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// Optimizer steps taken before.
    pub step: u64,
}

/// A checkpoint that can be gone on from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointWritten {
    /// The epoch that it was written in or at the end of, counted from 0.
    pub epoch: u64,
    /// Optimizer steps taken before.
    pub step: u64,
    /// Its directory.
    pub uri: String,
}

/// Ranks that have kept the others waiting in a collective for a while; told once of each collective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stalled {
    /// Which ranks, what each was last known to be in, and for how long, as a sentence.
    pub message: String,
    /// Those ranks.
    pub ranks: Vec<Late>,
    /// Seconds that the others have waited so far.
    pub seconds: f64,
}

/// A rank that others wait for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Late {
    /// The rank.
    pub rank: usize,
    /// The host that it runs on.
    pub host: String,
    /// What it was last known to be in, such as `data`, `forward and backward`, `optimizer`, `evaluation`, `checkpoint`,
    /// `a callback` or `logging`.
    pub phase: Option<String>,
    /// For how long, in seconds.
    pub phase_seconds: Option<f64>,
}

impl From<Stall> for Stalled {
    fn from(stall: Stall) -> Stalled {
        let message = stall.to_string();
        let ranks = stall.late.into_iter().map(|late| Late {
            rank: late.peer.rank,
            host: late.peer.host,
            phase_seconds: late.phase.as_ref().map(|phase| phase.lasted.as_secs_f64()),
            phase: late.phase.map(|phase| phase.name),
        });
        Stalled {
            message,
            ranks: ranks.collect(),
            seconds: stall.waited.as_secs_f64(),
        }
    }
}

/// How far training is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The running epoch, counted from 0.
    pub epoch: u64,
    /// Optimizer steps taken since the training began.
    pub step: u64,
    /// Optimizer steps taken in this epoch.
    pub epoch_step: u64,
    /// Optimizer steps in an epoch.
    pub steps_per_epoch: u64,
    /// Rows per second over all ranks, since the last report.
    pub rows_per_second: f64,
    /// The mean loss of the epoch so far.
    pub loss: Option<f64>,
    /// The mean loss of the last step, over all ranks.
    pub step_loss: Option<f64>,
    /// Of the last step, as in a [`StepReport`](crate::StepReport).
    pub learning_rate: Option<f64>,
    /// Of the last step, as in a [`StepReport`](crate::StepReport).
    pub gradient_norm: Option<f64>,
}
