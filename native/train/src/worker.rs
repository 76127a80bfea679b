//! The training of one rank, from its job to its result.

use std::sync::Arc;

use flambeau_collective::ProcessGroup;
use flambeau_data::Store;

use crate::error::TrainError;
use crate::job::TrainingJob;
use crate::model::Model;
use crate::result::TrainingResult;

/// What the caller may ask of a running training.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Asked before each step. Once it says true on any rank, all ranks finish the same step and then stop.
    pub cancel: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

/// The training of one rank.
pub struct Worker<'a> {
    job: TrainingJob,
    group: ProcessGroup,
    model: &'a mut dyn Model,
    store: Store,
    hooks: Hooks,
}

impl<'a> Worker<'a> {
    /// A worker for the rank of `group`. Nothing is read or sent yet.
    pub fn new(job: TrainingJob, group: ProcessGroup, model: &'a mut dyn Model, store: Store, hooks: Hooks) -> Self {
        Worker { job, group, model, store, hooks }
    }

    /// Trains to the end. All ranks call it; it returns on all of them.
    ///
    /// # Errors
    ///
    /// [`TrainError`] says what, where and when. A rank that fails aborts the group, so that the others return
    /// within seconds with an error whose [`TrainError::is_cause`] is false.
    pub fn run(mut self) -> Result<TrainingResult, TrainError> {
        unimplemented!()
    }
}
