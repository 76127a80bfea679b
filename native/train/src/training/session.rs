//! A training on so many ranks: its epochs, and what it tells and keeps of them.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flambeau_collective::ProcessGroup;
use flambeau_data::{SampleOrder, Store};
use serde::{Deserialize, Serialize};

use crate::checkpoint::weights::LocalWeights;
use crate::checkpoint::{CheckpointWriter, Contents, Invariants, Position, State};
use crate::device::Accelerator;
use crate::error::Cause;
use crate::gradients::sync;
use crate::job::TrainingJob;
use crate::job::monitor::Monitor;
use crate::job::params::Precision;
use crate::model::{Model, Split, Tensors};
use crate::record::bottleneck::Bottleneck;
use crate::record::history::{EpochRecord, History, StepTimes};
use crate::record::resources::{ProcessUsage, Resources};
use crate::record::result::TrainingResult;
use crate::record::scaler::LossScaler;
use crate::record::sums::LossTotals;

use super::average::WeightAverage;
use super::dataset::{Dataset, Datasets};
use super::evaluation::{self, Evaluation};
use super::events::{CheckpointWritten, EpochBegin, Event, Progress, Start};
use super::hooks::{Hooks, StepReport};
use super::host;
use super::phases::Phase;
use super::range_test::RunningTest;
use super::replicas;
use super::schedule::Schedule;
use super::state::TrainState;
use super::step::{StepOutcome, StepPlan, StepSettings, Stepper};
use super::timeline::{Timeline, Written};
use super::writer::Writer;

/// How many times `collectiveTimeout` a checkpoint's write may take: it may well be slower than any step, but an hour by default
/// is as good as for ever.
const CHECKPOINT_TIMEOUTS: u32 = 6;

/// The epoch and the step that an error belongs to.
#[derive(Default)]
pub(crate) struct Place {
    pub(crate) epoch: Option<u64>,
    pub(crate) step: Option<u64>,
}

/// What depends on the rank and on how many there are.
pub(crate) struct RankContext {
    pub(crate) group: ProcessGroup,
    pub(crate) datasets: Datasets,
    pub(crate) accelerator: Option<Accelerator>,
    pub(crate) store: Store,
}

/// How fast the steps of an epoch went, those before a resume left out.
struct Throughput {
    seconds: f64,
    rows_per_second: f64,
    times: StepTimes,
    cpu_seconds: f64,
}

/// What the steps of an epoch took on a rank.
#[derive(Serialize, Deserialize)]
struct RankCost {
    times: StepTimes,
    /// Of the epoch's steps.
    cpu_seconds: f64,
    /// Of the process, since it began.
    peak_memory_bytes: u64,
}

/// How many rows a second there were since this was last asked.
struct RowRate {
    since: Instant,
    num_rows: u64,
}

impl RowRate {
    /// Begins with so many rows.
    fn new(num_rows: u64) -> RowRate {
        RowRate {
            since: Instant::now(),
            num_rows,
        }
    }

    /// The rate up to so many rows.
    fn take(&mut self, num_rows: u64) -> f64 {
        let before = std::mem::replace(self, RowRate::new(num_rows));
        let seconds = self.since.duration_since(before.since).as_secs_f64();
        (num_rows - before.num_rows) as f64 / seconds.max(1e-9)
    }
}

/// A training under way on so many ranks.
pub(crate) struct Session<'a> {
    job: TrainingJob,
    group: ProcessGroup,
    store: Store,
    stepper: Stepper<'a>,
    datasets: Datasets,
    invariants: Invariants,
    position: Position,
    history: History,
    monitor: Monitor,
    /// On rank 0: the weights of the best epoch, with `restoreBestWeights`.
    best: Option<Arc<LocalWeights>>,
    /// On rank 0.
    writer: Option<Writer>,
    hooks: Hooks,
    /// With `profile`.
    timeline: Option<Timeline>,
    /// Where that is, on rank 0.
    timeline_uri: Option<String>,
    progress_rate: RowRate,
    log_rate: RowRate,
    range_test: Option<RunningTest>,
    /// Whether the ranks have agreed on a stop.
    is_stopping: bool,
    checkpoints: CheckpointWriter,
    /// Where the time of all steps went, on each rank.
    times: Vec<StepTimes>,
    warnings: Vec<String>,
}

impl<'a> Session<'a> {
    /// Goes on with a training on these ranks, of a model that has taken its part of the state. All ranks call this.
    ///
    /// # Errors
    ///
    /// Gradients that cannot be reduced or scaled, a state whose gradients were compressed with other params, and files of
    /// TensorBoard's that cannot be written.
    pub(crate) fn enter(
        job: TrainingJob,
        invariants: Invariants,
        monitor: Monitor,
        context: RankContext,
        model: &'a mut dyn Model,
        hooks: Hooks,
        state: TrainState,
    ) -> Result<Session<'a>, Cause> {
        let RankContext {
            group,
            datasets,
            accelerator,
            store,
        } = context;
        let params = &job.params;
        let steps_per_epoch = steps_per_epoch(&job, &datasets.train);
        let mut schedule = Schedule::new(params, steps_per_epoch, job.range_test);
        schedule.follow(&monitor, &state.history);
        let settings = StepSettings {
            schedule,
            logs_norm: params.log_gradient_norm,
            clip_norm: params.gradient_clip_norm,
            clip_value: params.gradient_clip_value,
        };
        let overlaps = host::overlaps(&job, &group);
        let sync = sync::new(params, overlaps, &group, accelerator, model)?;
        if let Some(uri) = &state.checkpoint
            && !sync.restore(state.position.step, state.compression.as_ref())
        {
            return Err(Cause::Checkpoint {
                uri: uri.clone(),
                reason: "its gradients were compressed with other params".into(),
            });
        }
        let average = params.ema_decay.map(|decay| {
            let saved = state.average.as_deref().unwrap_or_default();
            WeightAverage::new(decay, model, saved)
        });
        let average = average.transpose()?;
        let is_scaled = params.precision == Precision::Fp16;
        let scaler = is_scaled.then(|| state.scaler.unwrap_or_default());
        let (rank, world_size) = (group.rank(), group.world_size());
        let timeout = Duration::from_secs_f64(params.collective_timeout);
        let writer = (rank == 0)
            .then(|| Writer::new(store.clone(), &job, state.position.step, timeout))
            .transpose()?;
        let hooks = match &writer {
            Some(writer) => hooks.stopped_by(writer.stop()),
            None => hooks,
        };
        let stepper = Stepper::new(
            model,
            sync,
            &group,
            settings,
            scaler,
            average,
            hooks.clone(),
        )?;
        let checkpoints = CheckpointWriter::new(
            store.clone(),
            &job.attempt,
            state.checkpoint.as_deref(),
            params.keep_checkpoints,
            timeout.saturating_mul(CHECKPOINT_TIMEOUTS),
        );
        let timeline = Timeline::of(&job, &group, &store);
        if let Some(writer) = &writer {
            group.watch_stalls(stall_time(timeout), writer.stall_listener());
        }
        Ok(Session {
            range_test: job.range_test.map(RunningTest::new),
            job,
            group,
            store,
            stepper,
            datasets,
            invariants,
            position: state.position,
            history: state.history,
            monitor,
            best: state.best,
            writer,
            hooks,
            timeline,
            timeline_uri: None,
            progress_rate: RowRate::new(0),
            log_rate: RowRate::new(0),
            is_stopping: state.is_stopped,
            checkpoints,
            times: vec![StepTimes::default(); world_size],
            // All ranks find these alike.
            warnings: if rank == 0 { state.warnings } else { vec![] },
        })
    }

    /// Takes the epochs that are left. `place` tells where it is, for the error of one that fails.
    pub(crate) fn run(&mut self, place: &mut Place) -> Result<(), Cause> {
        let epochs = self.job.params.epochs;
        self.tell(Event::Start(Start {
            epoch: self.position.epoch,
            step: self.position.step,
            epochs,
            steps_per_epoch: self.steps_per_epoch(),
            num_rows: self.invariants.num_rows,
            num_validation_rows: self.num_validation_rows(),
            world_size: self.group.world_size(),
        }))?;
        while self.position.epoch < epochs && !self.is_over() {
            place.epoch = Some(self.position.epoch);
            let throughput = self.epoch(place)?;
            place.step = None;
            self.end_epoch(throughput)?;
        }
        *place = Place::default();
        Ok(())
    }

    /// Stores the weights, and tells what the training came to, which began then.
    pub(crate) fn finish(&mut self, began: Instant) -> Result<TrainingResult, Cause> {
        if let Some(mut timeline) = self.timeline.take() {
            let written = timeline.end(&mut self.stepper.phases)?;
            self.note(written);
            if self.group.rank() == 0 {
                self.warnings.extend(timeline.missed());
            }
        }
        self.stepper.phases.enter(Phase::Weights);
        let model = &mut *self.stepper.model;
        replicas::broadcast(model, &self.group, Tensors::Buffers)?;
        let range_test = self.range_test.take().map(RunningTest::result);
        let weights = match (self.group.rank(), self.best.take()) {
            _ if range_test.is_some() => None,
            (0, Some(best)) => Some(best),
            (0, None) => Some(Arc::new(self.stepper.with_fitted(LocalWeights::of)?)),
            _ => None,
        };
        let directory = self.job.attempt.models_directory();
        let weights = weights
            .map(|weights| weights.store(&self.store, &directory))
            .transpose()?;
        self.warnings
            .extend(self.stepper.model.warnings().map_err(Cause::Model)?);
        self.tell(Event::End)?;
        if let Some(writer) = &mut self.writer {
            self.warnings.extend(writer.close());
        }
        let num_validation_rows = self.num_validation_rows();
        Ok(TrainingResult {
            history: mem::take(&mut self.history),
            weights,
            num_rows: self.datasets.train.num_rows,
            num_validation_rows,
            num_steps: self.position.step,
            world_size: self.group.world_size(),
            seconds: began.elapsed().as_secs_f64(),
            bottleneck: Bottleneck::of(
                &self.times,
                !self.job.data.spec.raw_columns.is_empty(),
                self.job.params.averaging(),
            ),
            timeline: self.timeline_uri.take(),
            warnings: mem::take(&mut self.warnings),
            range_test,
        })
    }

    /// Takes the steps of the epoch that are left.
    fn epoch(&mut self, place: &mut Place) -> Result<Throughput, Cause> {
        let order = self.datasets.train.order.clone();
        let num_batches = order.batches_per_epoch();
        if self.position.batch == 0 {
            let (epoch, step) = (self.position.epoch, self.position.step);
            self.tell(Event::EpochBegin(EpochBegin { epoch, step }))?;
        }
        let mut totals = LossTotals::from_bits(&self.position.totals);
        let (began, mut paused) = (Instant::now(), Duration::ZERO);
        let mut cpu_seconds = -ProcessUsage::now().cpu_seconds;
        let rows_before = self.position.num_rows;
        self.progress_rate = RowRate::new(rows_before);
        self.log_rate = RowRate::new(rows_before);
        if self.position.batch < num_batches {
            self.datasets
                .train
                .reader
                .start(self.position.epoch, self.position.batch)?;
        }
        while self.position.batch < num_batches && !self.is_stopping {
            let plan = self.plan(&order, num_batches);
            place.step = Some(plan.step);
            self.record(plan.step)?;
            let outcome = match self.stepper.step(&mut self.datasets.train.reader, &plan) {
                Err(Cause::Diverged { .. } | Cause::Overflow { .. })
                    if self.range_test.is_some() =>
                {
                    // All ranks find it alike, and it is what the test was to find.
                    self.is_stopping = true;
                    break;
                }
                outcome => outcome?,
            };
            totals.add_slice(self.stepper.sums());
            self.position.batch += u64::from(plan.num_batches);
            self.position.step += 1;
            self.position.num_rows += plan.num_rows;
            self.position.traffic += outcome.traffic;
            if let Some(norm) = outcome.gradient_norm {
                self.position.gradient_norm.add(norm);
            }
            self.report_step(&plan, &outcome)?;
            if outcome.is_cancelled {
                return Err(Cause::Cancelled);
            }
            let is_tested = self
                .range_test
                .as_mut()
                .is_some_and(|test| test.add(plan.step, outcome.loss));
            self.is_stopping = outcome.is_stopped || is_tested;
            self.report_progress(&totals, &outcome)?;
            if self.is_checkpoint_due_after_step(num_batches) {
                let (before, used) = (Instant::now(), ProcessUsage::now());
                self.position.totals = totals.to_bits();
                self.checkpoint(plan.epoch)?;
                paused += before.elapsed();
                cpu_seconds -= ProcessUsage::now().cpu_seconds - used.cpu_seconds;
            }
        }
        self.position.totals = totals.to_bits();
        let seconds = (began.elapsed() - paused).as_secs_f64();
        let num_rows = self.position.num_rows - rows_before;
        Ok(Throughput {
            seconds,
            rows_per_second: num_rows as f64 / seconds.max(1e-9),
            times: self.stepper.take_times(),
            cpu_seconds: cpu_seconds + ProcessUsage::now().cpu_seconds,
        })
    }

    /// Begins or ends the timeline where the step that is next asks for it.
    fn record(&mut self, step: u64) -> Result<(), Cause> {
        if let Some(timeline) = &mut self.timeline {
            let written = timeline.before_step(step, &mut self.stepper.phases)?;
            self.note(written);
        }
        Ok(())
    }

    fn note(&mut self, written: Option<Written>) {
        match written {
            Some(Written::At(uri)) => self.timeline_uri = Some(uri),
            Some(Written::Not(reason)) => self.warnings.push(reason),
            None => {}
        }
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

    /// Evaluates and records the epoch, moves on to the next, if there is to be one, and writes a checkpoint where one is due.
    fn end_epoch(&mut self, throughput: Throughput) -> Result<(), Cause> {
        self.position.traffic.sent_bytes += self.stepper.average_model()?;
        let model = &mut *self.stepper.model;
        replicas::broadcast(model, &self.group, Tensors::Buffers)?;
        if self.job.params.verify_replicas {
            replicas::verify(model, self.stepper.average.as_ref(), &self.group)?;
        }
        if self.position.epoch + 1 < self.job.params.epochs && !self.is_stopping {
            // Its first rows are decoded while this epoch is evaluated.
            let reader = &mut self.datasets.train.reader;
            reader.start(self.position.epoch + 1, 0)?;
        }
        let resources = self.share_cost(&throughput)?;
        let totals = LossTotals::from_bits(&self.position.totals);
        let metrics = evaluation::finish_metrics(self.stepper.model, Split::Training, &totals)?;
        let validation = self.validate(totals.metrics().len())?;
        let record = EpochRecord {
            epoch: self.position.epoch,
            steps: self.position.step,
            num_rows: self.position.num_rows,
            seconds: throughput.seconds,
            rows_per_second: throughput.rows_per_second,
            learning_rate: self.stepper.model.learning_rate().map_err(Cause::Model)?,
            gradient_norm: self.position.gradient_norm.mean(),
            times: throughput.times,
            scaling: self.stepper.scaler.as_mut().map(LossScaler::end_epoch),
            resources,
            traffic: self.position.traffic,
            loss: totals.mean(),
            metrics,
            validation_loss: validation.loss,
            validation_metrics: validation.metrics,
        };
        let model = &mut *self.stepper.model;
        model.end_epoch(&record.figures()).map_err(Cause::Model)?;
        if self.monitor.is_best(&record, &self.history) {
            self.history.best_epoch = Some(record.epoch);
            if self.job.params.restore_best_weights && self.group.rank() == 0 {
                self.best = Some(Arc::new(self.stepper.with_fitted(LocalWeights::of)?));
            }
        }
        self.tell(Event::Epoch(record.clone()))?;
        self.history.epochs.push(record);
        let schedule = &mut self.stepper.settings.schedule;
        schedule.follow(&self.monitor, &self.history);
        let (epoch, step) = (self.position.epoch + 1, self.position.step);
        self.position = Position::of_epoch(epoch, step, totals.metrics().len());
        // Before the checkpoint, which holds the stop.
        self.agree_on_a_stop()?;
        if self.is_checkpoint_due_after_epoch(epoch) {
            self.checkpoint(epoch - 1)?;
            // Callbacks that are told of the checkpoint may end the training too; the checkpoint does not tell of that.
            self.agree_on_a_stop()?;
        }
        Ok(())
    }

    /// Evaluates the validation rows: no loss and no metrics where there are none.
    fn validate(&mut self, num_metrics: usize) -> Result<Evaluation, Cause> {
        let Some(dataset) = &mut self.datasets.validation else {
            return Ok(Evaluation::default());
        };
        let group = &self.group;
        self.stepper.phases.enter(Phase::Evaluation);
        let validation = self.stepper.with_fitted(|model| {
            evaluation::evaluate(model, group, &mut dataset.reader, num_metrics)
        })?;
        self.stepper.phases.enter(Phase::Loop);
        if validation.loss.is_none() {
            self.warnings.push(format!(
                "the validation loss of epoch {} is not finite",
                self.position.epoch
            ));
        }
        Ok(validation)
    }

    /// Asks all ranks whether a callback of one ends the training.
    fn agree_on_a_stop(&mut self) -> Result<(), Cause> {
        if self.job.attempt.callbacks && !self.is_stopping {
            let asks = [u8::from(self.hooks.asks_to_stop())];
            self.is_stopping = self.group.all_gather_bytes(&asks)?.concat().contains(&1);
        }
        Ok(())
    }

    /// Tells the ranks of each other's times, and gives what the epoch took of their machines.
    fn share_cost(&mut self, throughput: &Throughput) -> Result<Resources, Cause> {
        let own = RankCost {
            times: throughput.times,
            cpu_seconds: throughput.cpu_seconds,
            peak_memory_bytes: ProcessUsage::now().peak_memory_bytes,
        };
        let own = serde_json::to_vec(&own).expect("a few numbers are JSON");
        let all = self.group.all_gather_bytes(&own)?;
        let mut resources = Resources::default();
        for (times, bytes) in self.times.iter_mut().zip(&all) {
            let cost: RankCost =
                serde_json::from_slice(bytes).expect("a few numbers of another rank's");
            *times += cost.times;
            let percent = 100.0 * cost.cpu_seconds / throughput.seconds.max(1e-9);
            resources.cpu_percent += percent / all.len() as f64;
            let memory = &mut resources.peak_memory_bytes;
            *memory = cost.peak_memory_bytes.max(*memory);
        }
        Ok(resources)
    }

    /// Whether no further epoch is to be trained, though there are some left: the same on all ranks.
    fn is_over(&self) -> bool {
        self.is_stopping || self.monitor.is_over(&self.history)
    }

    /// Whether there is to be a checkpoint after this many epochs: where `checkpointInterval` says so, and after the last, which
    /// the weights follow, where checkpoints are kept.
    fn is_checkpoint_due_after_epoch(&self, epochs: u64) -> bool {
        let params = &self.job.params;
        let interval = params.checkpoint_interval;
        let is_asked = if epochs == params.epochs || self.is_over() {
            params.keep_checkpoints > 0
        } else {
            interval > 0 && epochs.is_multiple_of(interval as u64)
        };
        is_asked && self.range_test.is_none()
    }

    /// Whether `checkpointSteps` asks for one now; not where the end of the epoch makes one anyway.
    fn is_checkpoint_due_after_step(&self, num_batches: u64) -> bool {
        let at_end = self.position.batch == num_batches
            && self.is_checkpoint_due_after_epoch(self.position.epoch + 1);
        self.job
            .params
            .checkpoint_steps
            .is_some_and(|steps| self.position.step.is_multiple_of(steps))
            && self.range_test.is_none()
            && !at_end
            && !self.is_stopping
    }

    /// Writes a checkpoint, in an epoch or at the end of it, unless there is one after as many steps.
    fn checkpoint(&mut self, epoch: u64) -> Result<(), Cause> {
        if self.checkpoints.has(self.position.step) {
            return Ok(());
        }
        self.stepper.phases.enter(Phase::Checkpoint);
        self.position.traffic.sent_bytes += self.stepper.average_model()?;
        let model = &mut *self.stepper.model;
        replicas::broadcast(model, &self.group, Tensors::Buffers)?;
        let shared = if self.group.rank() == 0 {
            Some(model.save_state().map_err(Cause::Model)?)
        } else {
            None
        };
        let weights = (self.job.params.keep_checkpoints > 0 && self.group.rank() == 0)
            .then(|| self.stepper.with_fitted(LocalWeights::of).map(Arc::new))
            .transpose()?;
        let average = self.stepper.average.as_ref();
        let average = average.filter(|_| self.group.rank() == 0);
        let average = average.map(WeightAverage::to_bytes);
        let model = &mut *self.stepper.model;
        let rank = model.save_rank_state().map_err(Cause::Model)?;
        let world_size = self.group.world_size();
        let state = State::new(
            world_size,
            self.invariants.clone(),
            self.position.clone(),
            self.history.clone(),
            self.stepper.scaler,
            self.is_stopping,
        );
        let (written, warning) = self.checkpoints.write(
            &self.group,
            state,
            Contents {
                shared,
                average,
                rank,
                compression: self.stepper.sync.state().map(|state| state.to_bytes()),
                best: self.best.clone(),
                weights,
            },
        )?;
        self.warnings.extend(warning);
        self.stepper.phases.enter(Phase::Loop);
        let step = self.position.step;
        match written {
            Some(uri) => self.tell(Event::Checkpoint(CheckpointWritten { epoch, step, uri })),
            None => Ok(()),
        }
    }

    fn tell(&mut self, event: Event) -> Result<(), Cause> {
        if self.hooks.on_event.is_some() {
            let hooks = &self.hooks;
            let phases = &mut self.stepper.phases;
            phases.within(Phase::Callback, || hooks.tell(&event))?;
        }
        if let Some(writer) = &self.writer {
            writer.tell(event);
        }
        Ok(())
    }

    /// Whether a step goes to TensorBoard.
    fn is_logged(&self, step: u64) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.logs(step))
    }

    /// Tells of a step that was taken, where somebody is to be told.
    fn report_step(&mut self, plan: &StepPlan, outcome: &StepOutcome) -> Result<(), Cause> {
        let hook = self.hooks.step_hook(plan.step);
        let is_logged = self.is_logged(plan.step);
        if hook.is_none() && !is_logged {
            return Ok(());
        }
        let steps_per_epoch = self.steps_per_epoch();
        let Stepper { model, phases, .. } = &mut self.stepper;
        let mut make_report = || -> Result<StepReport, Cause> {
            Ok(StepReport {
                epoch: plan.epoch,
                step: plan.step,
                steps_per_epoch,
                num_rows: plan.num_rows,
                loss: outcome.loss,
                gradient_norm: outcome.gradient_norm,
                learning_rate: model.learning_rate().map_err(Cause::Model)?,
            })
        };
        let mut report = None;
        if let Some(hook) = hook {
            report = Some(phases.within(Phase::Callback, || {
                let report = make_report()?;
                hook(&report).map_err(Cause::Hook).map(|()| report)
            })?);
        }
        if let Some(writer) = self.writer.as_ref().filter(|_| is_logged) {
            let rows_per_second = self.log_rate.take(self.position.num_rows);
            phases.within(Phase::Log, || {
                let report = report.map_or_else(make_report, Ok)?;
                writer.log(report, rows_per_second);
                Ok::<_, Cause>(())
            })?;
        }
        Ok(())
    }

    fn report_progress(&mut self, totals: &LossTotals, outcome: &StepOutcome) -> Result<(), Cause> {
        let writer = self.writer.as_mut();
        if !writer.is_some_and(Writer::is_progress_due) {
            return Ok(());
        }
        let accumulation = u64::from(self.job.params.gradient_accumulation_steps);
        let progress = Progress {
            epoch: self.position.epoch,
            step: self.position.step,
            epoch_step: self.position.batch.div_ceil(accumulation),
            steps_per_epoch: self.steps_per_epoch(),
            rows_per_second: self.progress_rate.take(self.position.num_rows),
            loss: totals.mean(),
            step_loss: outcome.loss,
            learning_rate: self.stepper.model.learning_rate().map_err(Cause::Model)?,
            gradient_norm: outcome.gradient_norm,
        };
        self.tell(Event::Progress(progress))
    }

    fn steps_per_epoch(&self) -> u64 {
        steps_per_epoch(&self.job, &self.datasets.train)
    }

    fn num_validation_rows(&self) -> u64 {
        let validation = self.datasets.validation.as_ref();
        validation.map_or(0, |dataset| dataset.num_rows)
    }
}

/// How long ranks are waited for before they are told of: as long as Horovod waits before it does, and less where a call may wait for
/// less than ten minutes.
fn stall_time(timeout: Duration) -> Duration {
    (timeout / 10).min(Duration::from_secs(60))
}

/// Optimizer steps in an epoch.
fn steps_per_epoch(job: &TrainingJob, train: &Dataset) -> u64 {
    let batches = train.order.batches_per_epoch();
    batches.div_ceil(u64::from(job.params.gradient_accumulation_steps))
}
