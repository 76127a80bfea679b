//! The training of one rank, from its job to its result.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flambeau_collective::{CollectiveError, NcclGroup, ProcessGroup};
use flambeau_data::{SampleOrder, Store};

use crate::allocator::KeepFreed;
use crate::checkpoint::{Checkpoint, CheckpointWriter, Contents, Fixed, Position, State};
use crate::compression::Compression;
use crate::dataset::{Dataset, Datasets};
use crate::device::{self, Gpus};
use crate::error::{Cause, JobError, TrainError};
use crate::evaluate::{self, Evaluation};
use crate::events::{Event, EventWriter, Progress, Start};
use crate::history::{EpochRecord, History, StepTimes, Traffic};
use crate::hooks::{Hooks, Listener};
use crate::host;
use crate::job::TrainingJob;
use crate::model::{EpochReport, Model, StepReport, Tensors};
use crate::monitor::Monitor;
use crate::params::Precision;
use crate::reducer::ReducerOptions;
use crate::replicas;
use crate::result::TrainingResult;
use crate::scaler::LossScaler;
use crate::schedule::Schedule;
use crate::step::{StepPlan, StepSettings, Stepper, check_unscaled};
use crate::sums::LossTotals;
use crate::sync::{AllReduce, GradientSync};
use crate::weights::LocalWeights;

/// How many times `collectiveTimeout` a checkpoint's write may take: it may well be slower than any step, but an hour by default
/// is as good as for ever.
const CHECKPOINT_TIMEOUTS: u32 = 6;

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
        let mut place = Place {
            epoch: None,
            step: None,
        };
        let _keep_freed = KeepFreed::new();
        // Closing the one waits for the other ranks, and dropping the other for the store's answers to what was asked ahead. So
        // a rank that fails tells them before.
        let (mut nccl, mut run) = (None, None);
        self.train(&mut place, &mut nccl, &mut run)
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

    /// `nccl` takes the group of the ranks' GPUs, and `run` the training; both are to outlive the call.
    fn train(
        self,
        place: &mut Place,
        nccl: &mut Option<NcclGroup>,
        run: &mut Option<Run<'a>>,
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
        let (rank, world_size) = (group.rank(), group.world_size());
        let lanes = job.params.lanes();
        if world_size > lanes {
            let allowed = format!("at least the number of ranks, {world_size}");
            return Err(JobError::Invalid {
                param: "dataLanes".into(),
                value: lanes.to_string(),
                allowed,
            }
            .into());
        }
        let datasets = Datasets::open(&job, &group, &store, hooks.interrupt.clone())?;
        replicas::check_same_model(model, &group)?;
        let num_metrics = model.num_metric_sums().map_err(Cause::Model)?;
        let fixed = fixed(&job, &datasets.train, num_metrics);
        let monitor = monitor(&job, model, num_metrics)?;
        if job.attempt.resume.is_none() {
            replicas::broadcast(model, &group, Tensors::All)?;
        }
        let placement = device::occupy(
            job.params.device,
            Compression::of(&job.params),
            &group,
            &gpus,
            model,
        )?;
        *nccl = placement
            .accelerator
            .as_ref()
            .map(|accelerator| accelerator.nccl.clone());
        let (mut compression, mut best, mut resumed) = (None, None, None);
        let mut warnings: Vec<String> = placement.warning.into_iter().collect();
        let (position, history, scaler) = match &job.attempt.resume {
            None => {
                model
                    .seed(job.params.seed as u64, 0, rank)
                    .map_err(Cause::Model)?;
                let totals = LossTotals::new(num_metrics).to_bits();
                (
                    Position {
                        epoch: 0,
                        batch: 0,
                        step: 0,
                        num_rows: 0,
                        traffic: Traffic::default(),
                        totals,
                    },
                    History::default(),
                    None,
                )
            }
            Some(uri) => {
                let mut checkpoint = Checkpoint::read(&store, &group, &job.attempt, uri, &fixed)?;
                compression = checkpoint.compression.take();
                best = checkpoint.best.take().map(Arc::new);
                warnings.extend(checkpoint.warning.take());
                resumed = Some(checkpoint.uri.clone());
                resume(checkpoint, &job, &group, model)?
            }
        };
        let params = &job.params;
        let settings = StepSettings {
            schedule: Schedule::new(params, steps_per_epoch(&job, &datasets.train)),
            clip_norm: params.gradient_clip_norm,
        };
        let options = ReducerOptions {
            overlaps: host::overlaps(&job, &group),
            compression: Compression::of(params),
            ..ReducerOptions::default()
        };
        let scaler = (params.precision == Precision::Fp16).then(|| scaler.unwrap_or_default());
        let parameters = model.parameters().map_err(Cause::Model)?;
        if scaler.is_some() {
            check_unscaled(&parameters)?;
        }
        let accelerator = placement.accelerator;
        let sync = AllReduce::new(model, parameters, group.clone(), accelerator, options)?;
        if let Some(uri) = &resumed
            && !sync.restore(position.step, compression.as_ref())
        {
            return Err(Cause::Checkpoint {
                uri: uri.clone(),
                reason: "its gradients were compressed with other params".into(),
            });
        }
        let (on_event, on_step) = (hooks.on_event.clone(), hooks.on_step.clone());
        let stepper = Stepper::new(model, Box::new(sync), world_size, settings, scaler, hooks)?;
        let timeout = Duration::from_secs_f64(job.params.collective_timeout);
        let events = (rank == 0).then(|| {
            let directory = format!("{}/events", job.attempt.directory());
            EventWriter::new(store.clone(), directory, timeout)
        });
        let checkpoints = CheckpointWriter::new(
            store.clone(),
            &job.attempt,
            resumed.as_deref(),
            job.params.keep_checkpoints,
            timeout.saturating_mul(CHECKPOINT_TIMEOUTS),
        );
        let num_rows = datasets.train.num_rows;
        let num_validation_rows = datasets
            .validation
            .as_ref()
            .map_or(0, |dataset| dataset.num_rows);
        let run = run.insert(Run {
            job,
            group,
            stepper,
            datasets,
            fixed,
            position,
            history,
            monitor,
            best,
            events,
            on_event,
            on_step,
            checkpoints,
            // All ranks find these alike.
            warnings: if rank == 0 { warnings } else { vec![] },
        });
        run.epochs(place)?;

        let model = &mut *run.stepper.model;
        replicas::broadcast(model, &run.group, Tensors::Buffers)?;
        let weights = match (rank, run.best.take()) {
            (0, Some(best)) => Some(best),
            (0, None) => Some(Arc::new(LocalWeights::of(model)?)),
            _ => None,
        };
        let directory = run.job.attempt.models_directory();
        let weights = weights
            .map(|weights| weights.store(&store, &directory))
            .transpose()?;
        run.warnings.extend(model.warnings().map_err(Cause::Model)?);
        run.tell(Event::End);
        if let Some(events) = &mut run.events {
            run.warnings.extend(events.close().err());
        }
        Ok(TrainingResult {
            history: mem::take(&mut run.history),
            weights,
            num_rows,
            num_validation_rows,
            num_steps: run.position.step,
            world_size,
            seconds: began.elapsed().as_secs_f64(),
            warnings: mem::take(&mut run.warnings),
        })
    }
}

/// The epoch and the step that an error belongs to.
struct Place {
    epoch: Option<u64>,
    step: Option<u64>,
}

/// How fast the steps of an epoch went, those before a resume left out.
struct Pace {
    seconds: f64,
    rows_per_second: f64,
    times: StepTimes,
}

/// A training under way.
struct Run<'a> {
    job: TrainingJob,
    group: ProcessGroup,
    stepper: Stepper<'a>,
    datasets: Datasets,
    fixed: Fixed,
    position: Position,
    history: History,
    monitor: Monitor,
    /// On rank 0: the weights of the best epoch, with `restoreBestWeights`.
    best: Option<Arc<LocalWeights>>,
    /// On rank 0.
    events: Option<EventWriter>,
    on_event: Option<Listener<Event>>,
    on_step: Option<Listener<StepReport>>,
    checkpoints: CheckpointWriter,
    warnings: Vec<String>,
}

impl Run<'_> {
    fn epochs(&mut self, place: &mut Place) -> Result<(), Cause> {
        let epochs = self.job.params.epochs;
        let steps_per_epoch = steps_per_epoch(&self.job, &self.datasets.train);
        let (epoch, step) = (self.position.epoch, self.position.step);
        let (num_rows, world_size) = (self.fixed.num_rows, self.group.world_size());
        self.tell(Event::Start(Start {
            epoch,
            step,
            epochs,
            steps_per_epoch,
            num_rows,
            world_size,
        }));
        while self.position.epoch < epochs && !self.monitor.is_over(&self.history) {
            place.epoch = Some(self.position.epoch);
            let pace = self.epoch(place)?;
            place.step = None;
            self.end_epoch(pace)?;
        }
        *place = Place {
            epoch: None,
            step: None,
        };
        Ok(())
    }

    /// Takes the steps of the epoch that are left.
    fn epoch(&mut self, place: &mut Place) -> Result<Pace, Cause> {
        let order = self.datasets.train.order.clone();
        let num_batches = order.batches_per_epoch();
        let steps_per_epoch = steps_per_epoch(&self.job, &self.datasets.train);
        let mut totals = LossTotals::from_bits(&self.position.totals);
        let (began, mut paused) = (Instant::now(), Duration::ZERO);
        let rows_before = self.position.num_rows;
        let mut reported = (began, rows_before);
        if self.position.batch < num_batches {
            self.datasets
                .train
                .reader
                .start(self.position.epoch, self.position.batch)?;
        }
        while self.position.batch < num_batches {
            let plan = self.plan(&order, num_batches);
            place.step = Some(plan.step);
            let outcome = self.stepper.step(&mut self.datasets.train.reader, &plan)?;
            totals.add_slice(self.stepper.sums());
            self.position.batch += u64::from(plan.num_batches);
            self.position.step += 1;
            self.position.num_rows += plan.num_rows;
            self.position.traffic += outcome.traffic;
            let report = StepReport {
                epoch: plan.epoch,
                step: plan.step,
                steps_per_epoch,
                num_rows: plan.num_rows,
                loss: outcome.loss,
                gradient_norm: outcome.gradient_norm,
            };
            self.stepper
                .model
                .on_step_end(&report)
                .map_err(Cause::Model)?;
            if let Some(on_step) = &self.on_step {
                on_step(&report);
            }
            if outcome.is_cancelled {
                return Err(Cause::Cancelled);
            }
            self.report_progress(&totals, steps_per_epoch, &mut reported);
            if self.is_checkpoint_due_after_step(num_batches) {
                let before = Instant::now();
                self.position.totals = totals.to_bits();
                self.checkpoint()?;
                paused += before.elapsed();
            }
        }
        self.position.totals = totals.to_bits();
        let seconds = (began.elapsed() - paused).as_secs_f64();
        let num_rows = self.position.num_rows - rows_before;
        Ok(Pace {
            seconds,
            rows_per_second: num_rows as f64 / seconds.max(1e-9),
            times: self.stepper.take_times(),
        })
    }

    fn plan(&self, order: &SampleOrder, num_batches: u64) -> StepPlan {
        let first_batch = self.position.batch;
        let end =
            (first_batch + u64::from(self.job.params.gradient_accumulation_steps)).min(num_batches);
        StepPlan {
            epoch: self.position.epoch,
            step: self.position.step,
            first_batch,
            num_batches: (end - first_batch) as u32,
            num_rows: (first_batch..end)
                .map(|batch| order.global_rows(batch) as u64)
                .sum(),
        }
    }

    /// Evaluates, records the epoch, and moves on to the next.
    fn end_epoch(&mut self, pace: Pace) -> Result<(), Cause> {
        let last_step = self.position.step.saturating_sub(1);
        let rate_factor = self.stepper.rate_factor(last_step);
        let model = &mut *self.stepper.model;
        replicas::broadcast(model, &self.group, Tensors::Buffers)?;
        if self.job.params.verify_replicas {
            replicas::verify(model, &self.group)?;
        }
        if self.position.epoch + 1 < self.job.params.epochs {
            // Its first rows are decoded while this epoch is evaluated.
            let reader = &mut self.datasets.train.reader;
            reader.start(self.position.epoch + 1, 0)?;
        }
        let totals = LossTotals::from_bits(&self.position.totals);
        let metrics = evaluate::finish_metrics(model, &totals)?;
        let validation = match &mut self.datasets.validation {
            None => None,
            Some(dataset) => {
                let num_metrics = totals.metrics().len();
                Some(evaluate::evaluate(
                    model,
                    &self.group,
                    &mut dataset.reader,
                    num_metrics,
                )?)
            }
        };
        if validation
            .as_ref()
            .is_some_and(|validation| validation.loss.is_none())
        {
            self.warnings.push(format!(
                "the validation loss of epoch {} is not finite",
                self.position.epoch
            ));
        }
        let validation = validation.unwrap_or(Evaluation {
            loss: None,
            metrics: vec![],
        });
        let rate = model.learning_rate().map_err(Cause::Model)?;
        let record = EpochRecord {
            epoch: self.position.epoch,
            steps: self.position.step,
            num_rows: self.position.num_rows,
            seconds: pace.seconds,
            rows_per_second: pace.rows_per_second,
            learning_rate: rate.map(|rate| rate * rate_factor),
            times: pace.times,
            scaling: self.stepper.scaler.as_mut().map(LossScaler::end_epoch),
            traffic: self.position.traffic,
            loss: totals.mean(),
            metrics,
            validation_loss: validation.loss,
            validation_metrics: validation.metrics,
        };
        model
            .on_epoch_end(&EpochReport { record: &record })
            .map_err(Cause::Model)?;
        if self.monitor.is_best(&record, &self.history) {
            self.history.best_epoch = Some(record.epoch);
            if self.job.params.restore_best_weights && self.group.rank() == 0 {
                self.best = Some(Arc::new(LocalWeights::of(model)?));
            }
        }
        self.tell(Event::Epoch(record.clone()));
        self.history.epochs.push(record);
        let totals = LossTotals::new(totals.metrics().len()).to_bits();
        let (epoch, step) = (self.position.epoch + 1, self.position.step);
        self.position = Position {
            epoch,
            batch: 0,
            step,
            num_rows: 0,
            traffic: Traffic::default(),
            totals,
        };
        if self.is_checkpoint_due_after_epoch(epoch) {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Whether `checkpointInterval` asks for a checkpoint after this many epochs. After the last come the weights.
    fn is_checkpoint_due_after_epoch(&self, epochs: u64) -> bool {
        let interval = self.job.params.checkpoint_interval;
        interval > 0
            && epochs.is_multiple_of(interval as u64)
            && epochs < self.job.params.epochs
            && !self.monitor.is_over(&self.history)
    }

    /// Whether `checkpointSteps` asks for one now; not where the end of the epoch makes one anyway.
    fn is_checkpoint_due_after_step(&self, num_batches: u64) -> bool {
        let at_end = self.position.batch == num_batches
            && self.is_checkpoint_due_after_epoch(self.position.epoch + 1);
        self.job
            .params
            .checkpoint_steps
            .is_some_and(|steps| self.position.step.is_multiple_of(steps))
            && !at_end
    }

    fn checkpoint(&mut self) -> Result<(), Cause> {
        let model = &mut *self.stepper.model;
        replicas::broadcast(model, &self.group, Tensors::Buffers)?;
        let shared = if self.group.rank() == 0 {
            Some(model.save_state().map_err(Cause::Model)?)
        } else {
            None
        };
        let weights = (self.job.params.keep_checkpoints > 0 && self.group.rank() == 0)
            .then(|| LocalWeights::of(model).map(Arc::new))
            .transpose()?;
        let rank = model.save_rank_state().map_err(Cause::Model)?;
        let world_size = self.group.world_size();
        let state = State::new(
            world_size,
            self.fixed.clone(),
            self.position.clone(),
            self.history.clone(),
            self.stepper.scaler,
        );
        self.warnings.extend(self.checkpoints.write(
            &self.group,
            state,
            Contents {
                shared,
                rank,
                compression: self.stepper.sync.state().map(|state| state.to_bytes()),
                best: self.best.clone(),
                weights,
            },
        )?);
        Ok(())
    }

    fn tell(&self, event: Event) {
        if let Some(events) = &self.events {
            if let Some(on_event) = &self.on_event {
                on_event(&event);
            }
            events.send(event);
        }
    }

    /// `reported` holds when the last report was, and the epoch's rows then.
    fn report_progress(
        &mut self,
        totals: &LossTotals,
        steps_per_epoch: u64,
        reported: &mut (Instant, u64),
    ) {
        if !self.events.as_mut().is_some_and(EventWriter::is_due) {
            return;
        }
        let now = Instant::now();
        let seconds = now.duration_since(reported.0).as_secs_f64().max(1e-9);
        let accumulation = u64::from(self.job.params.gradient_accumulation_steps);
        let progress = Progress {
            epoch: self.position.epoch,
            step: self.position.step,
            epoch_step: self.position.batch.div_ceil(accumulation),
            steps_per_epoch,
            rows_per_second: (self.position.num_rows - reported.1) as f64 / seconds,
            loss: totals.mean(),
        };
        *reported = (now, self.position.num_rows);
        self.tell(Event::Progress(progress));
    }
}

fn fixed(job: &TrainingJob, train: &Dataset, num_metric_sums: usize) -> Fixed {
    let params = &job.params;
    Fixed {
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
    }
}

/// Optimizer steps in an epoch.
fn steps_per_epoch(job: &TrainingJob, train: &Dataset) -> u64 {
    let batches = train.order.batches_per_epoch();
    batches.div_ceil(u64::from(job.params.gradient_accumulation_steps))
}

/// What decides on the best epoch and the last. The metrics' names come with their values, whatever those are.
fn monitor(
    job: &TrainingJob,
    model: &mut dyn Model,
    num_metric_sums: usize,
) -> Result<Monitor, Cause> {
    let metrics = model
        .finish_metrics(&vec![0.0; num_metric_sums])
        .map_err(Cause::Model)?;
    let gathered = model.finish_gathered(&[]).map_err(Cause::Model)?;
    let names = |named: Vec<(String, f64)>| named.into_iter().map(|(name, _)| name).collect();
    let (names, of_validation): (Vec<String>, Vec<String>) = (names(metrics), names(gathered));
    Ok(Monitor::new(&job.params, &names, &of_validation)?)
}

/// Takes model, optimizer, generators and position from a checkpoint.
fn resume(
    checkpoint: Checkpoint,
    job: &TrainingJob,
    group: &ProcessGroup,
    model: &mut dyn Model,
) -> Result<(Position, History, Option<LossScaler>), Cause> {
    let State {
        position,
        history,
        scaler,
        ..
    } = checkpoint.state;
    model.load_state(&checkpoint.shared).map_err(Cause::Model)?;
    match &checkpoint.rank_state {
        Some(state) => model.load_rank_state(state),
        None => model.seed(job.params.seed as u64, position.step, group.rank()),
    }
    .map_err(Cause::Model)?;
    Ok((position, history, scaler))
}
