//! Where training is, in `state.json`, and what a resume keeps.

use serde::{Deserialize, Serialize};

use super::files::{FORMAT, STATE};
use crate::job::params::GradientCompression;
use crate::record::history::{History, Traffic};
use crate::record::scaler::LossScaler;
use crate::record::sums::{LossTotals, StepMean};

/// What of a job, its data and its model fixes the meaning of a position and its sums: a resume keeps all of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Invariants {
    pub(crate) num_rows: u64,
    pub(crate) global_batch: usize,
    pub(crate) data_lanes: usize,
    pub(crate) seed: i64,
    pub(crate) shuffle: bool,
    pub(crate) shuffle_window: usize,
    pub(crate) drop_last: bool,
    pub(crate) gradient_accumulation_steps: u32,
    pub(crate) num_metric_sums: usize,
    pub(crate) gradient_compression: GradientCompression,
    pub(crate) ema_decay: Option<f64>,
}

impl Invariants {
    /// The first field in which another differs: its name, this value and that one.
    fn difference(&self, other: &Invariants) -> Option<String> {
        let of = |invariants| match serde_json::to_value(invariants) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => unreachable!("a struct is an object"),
        };
        let (ours, theirs) = (of(self), of(other));
        ours.iter()
            .find(|(name, value)| theirs.get(*name) != Some(value))
            .map(|(name, value)| {
                format!(
                    "{name} was {value} and is now {}",
                    theirs.get(name).unwrap_or(&().into())
                )
            })
    }
}

/// Where training is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Position {
    /// The epoch.
    pub(crate) epoch: u64,
    /// The next batch of the epoch.
    pub(crate) batch: u64,
    /// Optimizer steps taken since the training began.
    pub(crate) step: u64,
    /// Rows of the epoch so far.
    pub(crate) num_rows: u64,
    /// The gradients sent in the epoch so far.
    pub(crate) traffic: Traffic,
    /// The norms of the gradients in the epoch so far, where they are known.
    pub(crate) gradient_norm: StepMean,
    /// The bits of the epoch's loss totals so far, which may be beyond what JSON's numbers hold.
    pub(crate) totals: Vec<u64>,
}

/// The contents of `state.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct State {
    pub(crate) format: u32,
    pub(crate) version: String,
    pub(crate) world_size: usize,
    pub(crate) invariants: Invariants,
    pub(crate) position: Position,
    pub(crate) history: History,
    /// With precision fp16.
    pub(crate) scaler: Option<LossScaler>,
    /// Whether a callback has ended the training.
    pub(crate) is_stopped: bool,
}

impl State {
    pub(crate) fn new(
        world_size: usize,
        invariants: Invariants,
        position: Position,
        history: History,
        scaler: Option<LossScaler>,
        is_stopped: bool,
    ) -> State {
        State {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            world_size,
            invariants,
            position,
            history,
            scaler,
            is_stopped,
        }
    }

    /// Reads a state and compares it with what must not have changed, or says what is wrong.
    pub(super) fn parse(bytes: &[u8], invariants: &Invariants) -> Result<State, String> {
        let state: State =
            serde_json::from_slice(bytes).map_err(|error| format!("{STATE}: {error}"))?;
        if let Some(difference) = state.invariants.difference(invariants) {
            return Err(format!("the job has changed: {difference}"));
        }
        let num_totals = LossTotals::new(invariants.num_metric_sums).len();
        if state.world_size == 0 || state.position.totals.len() != num_totals {
            return Err(format!(
                "{STATE}: {} sums of {} ranks make no sense",
                state.position.totals.len(),
                state.world_size
            ));
        }
        let History {
            epochs, best_epoch, ..
        } = &state.history;
        let is_in_order = (0..)
            .zip(epochs)
            .all(|(epoch, record)| record.epoch == epoch);
        let num_epochs = epochs.len() as u64;
        if num_epochs != state.position.epoch || !is_in_order {
            return Err(format!(
                "{STATE}: a history of {num_epochs} epochs does not lead to epoch {}",
                state.position.epoch
            ));
        }
        if let Some(best) = best_epoch
            && *best >= num_epochs
        {
            return Err(format!(
                "{STATE}: epoch {best} cannot be the best of {num_epochs}"
            ));
        }
        if let Some(scaler) = &state.scaler {
            scaler
                .check()
                .map_err(|reason| format!("{STATE}: {reason}"))?;
        }
        Ok(state)
    }
}
