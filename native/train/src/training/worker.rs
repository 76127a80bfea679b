//! The training of one rank, from its job to its result.

use std::time::Instant;

use flambeau_collective::{CollectiveError, NcclGroup, ProcessGroup};
use flambeau_data::Store;

use crate::checkpoint::{Checkpoint, Invariants};
use crate::device::{self, Gpus};
use crate::error::{Cause, JobError, TrainError};
use crate::job::TrainingJob;
use crate::job::monitor::Monitor;
use crate::model::{Model, Tensors};
use crate::record::result::TrainingResult;

use super::allocator::KeepFreed;
use super::average;
use super::dataset::{Dataset, Datasets};
use super::hooks::Hooks;
use super::replicas;
use super::session::{Place, RankContext, Session};
use super::state::TrainState;
use super::usage::UsageSampler;

/// The training of one rank.
pub struct Worker<'a> {
    job: TrainingJob,
    group: ProcessGroup,
    model: &'a mut dyn Model,
    store: Store,
    hooks: Hooks,
    gpus: Gpus,
}

impl<'a> Worker<'a> {
    /// A worker for the rank of `group`. Nothing is read or sent yet. The number of ranks may differ from the job's
    /// `numWorkers`, up to its lanes: the global batch stays what the job says.
    pub fn new(
        job: TrainingJob,
        group: ProcessGroup,
        model: &'a mut dyn Model,
        store: Store,
        hooks: Hooks,
    ) -> Self {
        Worker {
            job,
            group,
            model,
            store,
            hooks,
            gpus: Gpus::default(),
        }
    }

    /// The same with these GPUs in place of those that the machine has.
    pub fn with_gpus(self, gpus: Gpus) -> Self {
        Worker { gpus, ..self }
    }

    /// Trains to the end. All ranks call it, and it returns on all of them.
    ///
    /// # Errors
    ///
    /// [`TrainError`] says what, where and when. A rank that fails aborts the group, so that the others return
    /// within seconds with an error whose [`TrainError::is_cause`] is false.
    pub fn run(self) -> Result<TrainingResult, TrainError> {
        let group = self.group.clone();
        let mut place = Place::default();
        let _keep_freed = KeepFreed::new();
        let _sampler = UsageSampler::of(&self.job.attempt, group.rank(), &self.store);
        // Closing the one waits for the other ranks, and dropping the other for the store's answers to what was asked ahead. So
        // a rank that fails tells them before.
        let (mut nccl, mut session) = (None, None);
        self.train(&mut place, &mut nccl, &mut session)
            .map_err(|cause| {
                let rank = group.rank();
                let host = group.host_of(rank).to_string();
                let error = TrainError {
                    rank,
                    host,
                    epoch: place.epoch,
                    step: place.step,
                    cause: Box::new(cause),
                };
                let is_aborted = matches!(&*error.cause,
                Cause::Collective(source) if matches!(**source, CollectiveError::Aborted { .. }));
                // What all ranks find by themselves needs no abort, which could overtake it on a slower rank.
                if !is_aborted && !error.cause.is_common() {
                    group.abort(&error.cause.to_string());
                }
                error
            })
    }

    /// `nccl` takes the group of the ranks' GPUs, and `session` the training; both are to outlive the call.
    fn train(
        self,
        place: &mut Place,
        nccl: &mut Option<NcclGroup>,
        session: &mut Option<Session<'a>>,
    ) -> Result<TrainingResult, Cause> {
        let Worker {
            job,
            group,
            model,
            store,
            hooks,
            gpus,
        } = self;
        let began = Instant::now();
        group.enter_phase("the beginning of the training");
        check_lanes(&job, group.world_size())?;
        let datasets = Datasets::open(&job, &group, &store, hooks.interrupt.clone())?;
        replicas::check_same_model(model, &group)?;
        let num_metrics = model.num_metric_sums().map_err(Cause::Model)?;
        let invariants = invariants(&job, &datasets.train, num_metrics);
        let names = model.metric_names().map_err(Cause::Model)?;
        let monitor = Monitor::new(&job.params, &names)?;
        if job.attempt.resume.is_none() {
            replicas::broadcast(model, &group, Tensors::All)?;
        }
        let placement = device::occupy(&job.params, &group, &gpus, model)?;
        let accelerator = placement.accelerator;
        check_profile(&job, accelerator.is_some())?;
        *nccl = accelerator
            .as_ref()
            .map(|accelerator| accelerator.nccl.clone());
        let mut state = match &job.attempt.resume {
            None => TrainState::new(&job, &group, &store, model, num_metrics)?,
            Some(uri) => {
                let ema_decay = job.params.ema_decay;
                let average_bytes = ema_decay.map(|_| average::num_bytes(model)).transpose()?;
                let attempt = &job.attempt;
                let checkpoint =
                    Checkpoint::read(&store, &group, attempt, uri, &invariants, average_bytes)?;
                TrainState::resume(checkpoint, &job, &group, model)?
            }
        };
        state.warnings.splice(0..0, placement.warning);
        let context = RankContext {
            group,
            datasets,
            accelerator,
            store,
        };
        let session = session.insert(Session::enter(
            job, invariants, monitor, context, model, hooks, state,
        )?);
        session.run(place)?;
        session.finish(began)
    }
}

/// Refuses more ranks than there are lanes of rows.
fn check_lanes(job: &TrainingJob, world_size: usize) -> Result<(), JobError> {
    let lanes = job.params.lanes();
    if world_size <= lanes {
        return Ok(());
    }
    Err(JobError::invalid(
        "dataLanes",
        lanes,
        format!("at least the number of ranks, {world_size}"),
    ))
}

/// Refuses a timeline on a GPU, where the host's times are not those of the work.
fn check_profile(job: &TrainingJob, is_on_device: bool) -> Result<(), JobError> {
    match &job.params.profile {
        Some(profile) if is_on_device => Err(JobError::invalid(
            "profile",
            format!("{profile:?}"),
            "not set where the workers train on GPUs; set device to cpu, or unset profile",
        )),
        _ => Ok(()),
    }
}

/// What may not change in a training that goes on.
fn invariants(job: &TrainingJob, train: &Dataset, num_metric_sums: usize) -> Invariants {
    let params = &job.params;
    Invariants {
        num_rows: train.num_rows,
        global_batch: params.global_batch(),
        data_lanes: params.lanes(),
        seed: params.seed,
        shuffle: params.shuffle,
        shuffle_window: train.window_rows,
        drop_last: params.drop_last,
        gradient_accumulation_steps: params.gradient_accumulation_steps,
        num_metric_sums,
        gradient_compression: params.gradient_compression,
        ema_decay: params.ema_decay,
    }
}
