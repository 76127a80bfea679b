//! What a finished training gives back.

use serde::{Deserialize, Serialize};

use crate::record::bottleneck::Bottleneck;
use crate::record::history::History;

/// The result of a training. The same on every rank except `weights`, `warnings` and times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainingResult {
    /// Losses and metrics of each epoch.
    pub history: History,
    /// Where the weights are; on rank 0 only.
    pub weights: Option<WeightsInfo>,
    /// Rows of the training data.
    pub num_rows: u64,
    /// Rows of the validation data.
    pub num_validation_rows: u64,
    /// Optimizer steps taken, those before a resume included.
    pub num_steps: u64,
    /// Number of ranks that trained.
    pub world_size: usize,
    /// Seconds since this attempt's worker began.
    pub seconds: f64,
    /// What held this attempt's steps up most; none where it took no step.
    #[serde(default)]
    pub bottleneck: Option<Bottleneck>,
    /// URI of the timeline that `profile` asks for, on rank 0; none where this attempt wrote none.
    #[serde(default)]
    pub timeline: Option<String>,
    /// What went wrong without harm to the training, such as progress that could not be written.
    pub warnings: Vec<String>,
    /// What a learning rate range test found, in whose place there are no weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range_test: Option<RangeTestResult>,
}

/// What a learning rate range test found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RangeTestResult {
    /// Its steps, but for those without a row that counts.
    pub steps: Vec<RangeTestStep>,
    /// The rate of the step at which the smoothed loss falls most steeply; none of fewer than 13 steps.
    #[serde(default)]
    pub suggestion: Option<f64>,
}

/// A step of a learning rate range test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RangeTestStep {
    /// Its learning rate, before `scaleLearningRate` multiplies it.
    pub rate: f64,
    /// Its mean loss over all ranks.
    pub loss: f64,
    /// The running mean of the losses up to it, in which each counts 0.98 of the next one.
    pub smoothed: f64,
}

/// The weights in the store. `uri`, `size` and `sha256` are those of the first file, which holds the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightsInfo {
    /// URI of the file with the weights.
    pub uri: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256, in lower-case hexadecimal.
    pub sha256: String,
    /// Every file that the model wrote, that one first.
    pub files: Vec<StoredFile>,
}

/// A file in the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredFile {
    /// Its name in its directory.
    pub name: String,
    /// Its URI.
    pub uri: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256, in lower-case hexadecimal.
    pub sha256: String,
}
