//! The training of one rank, from its meeting with the others to its result.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use flambeau_collective::{GroupOptions, ProcessGroup, Rendezvous, TransportChoice};
use flambeau_data::Store;
use flambeau_train::{
    Cause, Event, Gpus, Hook, Hooks, Interrupt, StepReport, TrainingJob, TrainingResult, Worker,
};

use crate::failure::Failure;
use crate::lines::{Line, Lines, Step};

/// What a rank is told beside its job.
pub(crate) struct Settings {
    pub(crate) rank: usize,
    /// The address that the other ranks reach this one at.
    pub(crate) bind_address: IpAddr,
    /// Proves that ranks belong together.
    pub(crate) secret: Vec<u8>,
    /// `auto`, `sharedMemory` or `tcp`.
    pub(crate) transport: String,
    /// The addresses of the GPUs that a scheduler has assigned to the rank; none where it has not.
    pub(crate) gpus: Option<Vec<String>>,
    /// Whether rank 0 tells of each step.
    pub(crate) report_steps: bool,
    /// Once it says true on any rank, all ranks stop after the same step.
    pub(crate) cancel: Option<Interrupt>,
}

/// Does what a rank is asked for, writes how it ended as the last line, and returns the failure where it failed. Panics end
/// here.
pub(crate) fn conclude<T>(
    lines: &Lines,
    rank: usize,
    asked: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure>
where
    for<'a> &'a T: Into<Line<'a>>,
{
    let outcome = catch_unwind(AssertUnwindSafe(asked))
        .unwrap_or_else(|panic| Err(Failure::of_panic(rank, panic)));
    match &outcome {
        Ok(result) => lines.write(&result.into()),
        Err(failure) => lines.write(&Line::Error(failure)),
    }
    outcome
}

/// Trains a rank to the end. The program is loaded before the ranks meet, so that one that cannot be loaded fails at once.
pub(crate) fn train(
    job: TrainingJob,
    settings: Settings,
    rendezvous: &mut dyn Rendezvous,
    lines: &Arc<Lines>,
) -> Result<TrainingResult, Failure> {
    let rank = settings.rank;
    let early = |cause: Cause| Failure::early(rank, cause);
    let transport = transport(rank, &settings.transport)?;
    let store = Store::new(&job.store).map_err(|error| early(error.into()))?;
    let mut model = flambeau_torch::build(&job, &store)
        .map_err(|error| early(Cause::Model(Box::new(error))))?;
    let options = GroupOptions {
        secret: settings.secret,
        bind_address: settings.bind_address,
        transport,
        timeout: Duration::from_secs_f64(job.params.collective_timeout),
        terms: job.terms(&store).map_err(|error| early(error.into()))?,
        heartbeat_timeout: Duration::from_secs_f64(job.params.heartbeat_timeout),
        ..GroupOptions::default()
    };
    let group = ProcessGroup::connect(rendezvous, options).map_err(|error| early(error.into()))?;
    flambeau_torch::set_num_threads(flambeau_train::num_threads(&job, &group));
    let hooks = Hooks {
        cancel: settings.cancel,
        on_event: (rank == 0).then(|| tell_events(lines)),
        on_step: (rank == 0 && settings.report_steps).then(|| tell_steps(lines)),
        ..Hooks::default()
    };
    // A rank computes on one GPU, whatever number its task was given.
    let gpus = Gpus {
        assigned: settings
            .gpus
            .and_then(|addresses| addresses.into_iter().next()),
        ..Gpus::default()
    };
    let worker = Worker::new(job, group, &mut model, store, hooks).with_gpus(gpus);
    worker.run().map_err(Failure::from)
}

fn transport(rank: usize, name: &str) -> Result<TransportChoice, Failure> {
    match name {
        "auto" => Ok(TransportChoice::Auto),
        "sharedMemory" => Ok(TransportChoice::SharedMemory),
        "tcp" => Ok(TransportChoice::Tcp),
        _ => Err(Failure::of_environment(
            rank,
            format!("transport is {name:?}, but must be auto, sharedMemory or tcp"),
        )),
    }
}

fn tell_events(lines: &Arc<Lines>) -> Hook<Event> {
    let lines = lines.clone();
    Arc::new(move |event| {
        match event {
            Event::Progress(progress) => lines.write(&Line::Progress(progress)),
            Event::Epoch(record) => lines.write(&Line::Epoch(record)),
            Event::Start(_)
            | Event::EpochBegin(_)
            | Event::Checkpoint(_)
            | Event::Stall(_)
            | Event::End => {}
        }
        Ok(())
    })
}

fn tell_steps(lines: &Arc<Lines>) -> Hook<StepReport> {
    let lines = lines.clone();
    Arc::new(move |report| {
        let (epoch, step, loss) = (report.epoch, report.step, report.loss);
        lines.write(&Line::Step(Step { epoch, step, loss }));
        Ok(())
    })
}
