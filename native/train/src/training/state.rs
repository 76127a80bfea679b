//! What a training is, wherever it goes on.

use std::sync::Arc;

use bytes::Bytes;
use flambeau_collective::ProcessGroup;
use flambeau_data::Store;

use crate::checkpoint::weights::LocalWeights;
use crate::checkpoint::{self, Checkpoint, Position, State};
use crate::error::Cause;
use crate::gradients::compression::CompressionState;
use crate::job::TrainingJob;
use crate::model::Model;
use crate::record::history::{History, Traffic};
use crate::record::scaler::LossScaler;
use crate::record::sums::{LossTotals, StepMean};

/// All that a training is but for the model's own: its weights, its optimizer and its random generators, which the model has taken
/// when this is there. Nothing of it depends on the rank or on how many there are, but that rank 0 alone has `best`.
pub(crate) struct TrainState {
    pub(crate) position: Position,
    pub(crate) history: History,
    /// How losses were scaled; none where they never were.
    pub(crate) scaler: Option<LossScaler>,
    /// What the compression of gradients carried from the last step.
    pub(crate) compression: Option<CompressionState>,
    /// The averaged weights of a checkpoint, with `emaDecay`.
    pub(crate) average: Option<Bytes>,
    /// The weights of the best epoch, with `restoreBestWeights`.
    pub(crate) best: Option<Arc<LocalWeights>>,
    /// The checkpoint that it comes from.
    pub(crate) checkpoint: Option<String>,
    /// Whether a callback has ended it.
    pub(crate) is_stopped: bool,
    /// What the user should know.
    pub(crate) warnings: Vec<String>,
}

impl TrainState {
    /// That of a training that begins.
    pub(crate) fn new(
        job: &TrainingJob,
        group: &ProcessGroup,
        store: &Store,
        model: &mut dyn Model,
        num_metric_sums: usize,
    ) -> Result<TrainState, Cause> {
        model
            .seed(job.params.seed as u64, 0, group.rank())
            .map_err(Cause::Model)?;
        if let Some(uri) = &job.params.initial_state {
            let state = checkpoint::read_shared(store, group, uri)?;
            model.load_optimizer_state(&state).map_err(Cause::Model)?;
        }
        Ok(TrainState {
            position: Position::of_epoch(0, 0, num_metric_sums),
            history: History::default(),
            scaler: None,
            compression: None,
            average: None,
            best: None,
            checkpoint: None,
            is_stopped: false,
            warnings: vec![],
        })
    }

    /// That of a checkpoint.
    pub(crate) fn resume(
        checkpoint: Checkpoint,
        job: &TrainingJob,
        group: &ProcessGroup,
        model: &mut dyn Model,
    ) -> Result<TrainState, Cause> {
        let State {
            position,
            history,
            scaler,
            is_stopped,
            ..
        } = checkpoint.state;
        model.load_state(&checkpoint.shared).map_err(Cause::Model)?;
        match &checkpoint.rank_state {
            Some(state) => model.load_rank_state(state),
            None => model.seed(job.params.seed as u64, position.step, group.rank()),
        }
        .map_err(Cause::Model)?;
        Ok(TrainState {
            position,
            history,
            scaler,
            compression: checkpoint.compression,
            average: checkpoint.average,
            best: checkpoint.best.map(Arc::new),
            checkpoint: Some(checkpoint.uri),
            is_stopped,
            warnings: checkpoint.warning.into_iter().collect(),
        })
    }
}

impl Position {
    /// The beginning of an epoch, after `step` steps.
    pub(crate) fn of_epoch(epoch: u64, step: u64, num_metric_sums: usize) -> Position {
        Position {
            epoch,
            batch: 0,
            step,
            num_rows: 0,
            traffic: Traffic::default(),
            gradient_norm: StepMean::default(),
            totals: LossTotals::new(num_metric_sums).to_bits(),
        }
    }
}
