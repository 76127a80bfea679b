//! What rank 0 writes of a running training: its events, and TensorBoard's files.
//!
//! One thread writes whole files, and looks for the file that asks for a stop, so that a slow store does not slow the steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use flambeau_data::{DataError, Store};

use crate::error::Cause;
use crate::job::TrainingJob;
use crate::training::events::Event;
use crate::training::hooks::StepReport;
use crate::training::tensorboard::{self, TensorBoard};

/// The least time between two files of events, two reports of progress, and two looks for the file that asks for a stop.
const INTERVAL: Duration = Duration::from_secs(1);

/// What waits for the thread, at most; while a store hangs, more is dropped.
const MOST_WAITING: usize = 4096;

/// What the thread is told.
enum Told {
    Event(Event),
    Step {
        report: StepReport,
        rows_per_second: f64,
    },
}

/// Hands on what is to be written.
pub(crate) struct Writer {
    /// Each with its seconds since 1970.
    sender: Option<SyncSender<(f64, Told)>>,
    warnings: Receiver<Vec<String>>,
    /// How long the last write may take.
    limit: Duration,
    last_progress: Option<Instant>,
    /// Steps from one that is written for TensorBoard to the next.
    log_interval: Option<u64>,
    stop: Arc<AtomicBool>,
}

impl Writer {
    /// A writer for a job that has taken so many steps. It is waited for no longer than `limit` in the end.
    ///
    /// # Errors
    ///
    /// [`Cause::TensorBoard`] where the first of TensorBoard's files can't be written.
    pub(crate) fn new(
        store: Store,
        job: &TrainingJob,
        num_steps: u64,
        limit: Duration,
    ) -> Result<Writer, Cause> {
        let directory = job.params.tensor_board_dir.as_ref();
        let board = directory
            .map(|directory| TensorBoard::begin(&store, directory, num_steps))
            .transpose()
            .map_err(|source| Cause::TensorBoard {
                directory: directory.cloned().unwrap_or_default(),
                source: Box::new(source),
            })?;
        let stop = Arc::new(AtomicBool::new(false));
        let files = Files {
            store,
            events: Some(EventFiles {
                directory: format!("{}/events", job.attempt.directory()),
                number: 0,
                next: Instant::now(),
                events: vec![],
            }),
            board,
            board_failed: false,
            stop_file: job.attempt.stop_file.clone(),
            next_look: Instant::now(),
            stop: stop.clone(),
            warnings: vec![],
        };
        let (sender, receiver) = mpsc::sync_channel(MOST_WAITING);
        let (done, warnings) = mpsc::channel();
        // Without the thread there is no progress to see, which is no reason not to train, but is told in the end.
        let _ = thread::Builder::new()
            .name("flambeau-writer".into())
            .spawn(move || drop(done.send(files.write_all(&receiver))));
        Ok(Writer {
            sender: Some(sender),
            warnings,
            limit,
            last_progress: None,
            log_interval: directory.map(|_| u64::from(job.params.log_every_n_steps)),
            stop,
        })
    }

    /// Set once the attempt's `stopFile` is there.
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    pub(crate) fn tell(&self, event: Event) {
        self.send(Told::Event(event));
    }

    /// Whether [`log`](Self::log) is to be told of a step.
    pub(crate) fn logs(&self, step: u64) -> bool {
        self.log_interval
            .is_some_and(|interval| (step + 1).is_multiple_of(interval))
    }

    pub(crate) fn log(&self, report: StepReport, rows_per_second: f64) {
        self.send(Told::Step {
            report,
            rows_per_second,
        });
    }

    fn send(&self, told: Told) {
        if let Some(sender) = &self.sender {
            // A store that hangs is what `close` tells.
            let _ = sender.try_send((tensorboard::now(), told));
        }
    }

    /// Whether a second has gone by since this last said so.
    pub(crate) fn is_progress_due(&mut self) -> bool {
        let due = self
            .last_progress
            .is_none_or(|last| last.elapsed() >= INTERVAL);
        if due {
            self.last_progress = Some(Instant::now());
        }
        due
    }

    /// Waits for all to be written, for no longer than the writer's limit, and returns what could not be, none of which has
    /// harmed the training.
    pub(crate) fn close(&mut self) -> Vec<String> {
        if self.sender.take().is_none() {
            return vec![];
        }
        self.warnings
            .recv_timeout(self.limit)
            .unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => vec![format!(
                    "progress could not be written: the store has not ended a write in {:.1?}",
                    self.limit
                )],
                RecvTimeoutError::Disconnected => {
                    vec!["progress could not be written: its thread has ended".into()]
                }
            })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

/// Events as `00000001.json`, `00000002.json`, … each a JSON array of those since the file before, at most one file a second.
struct EventFiles {
    directory: String,
    number: u32,
    next: Instant,
    events: Vec<Event>,
}

impl EventFiles {
    fn due(&self) -> Option<Instant> {
        (!self.events.is_empty()).then_some(self.next)
    }

    fn write(&mut self, store: &Store) -> Result<(), DataError> {
        if self.events.is_empty() {
            return Ok(());
        }
        self.number += 1;
        let uri = format!("{}/{:08}.json", self.directory, self.number);
        let json = serde_json::to_vec(&self.events).expect("events have string keys");
        store.put(&uri, json.into())?;
        self.events.clear();
        self.next = Instant::now() + INTERVAL;
        Ok(())
    }
}

/// What the thread writes and looks for.
struct Files {
    store: Store,
    /// None after a file that could not be written.
    events: Option<EventFiles>,
    board: Option<TensorBoard>,
    /// Whether that is a warning already.
    board_failed: bool,
    /// None once it is there.
    stop_file: Option<String>,
    next_look: Instant,
    stop: Arc<AtomicBool>,
    warnings: Vec<String>,
}

impl Files {
    /// Writes what is told, until nobody is left to tell, and returns what went wrong.
    fn write_all(mut self, receiver: &Receiver<(f64, Told)>) -> Vec<String> {
        loop {
            let wait = self
                .due()
                .map(|due| due.saturating_duration_since(Instant::now()));
            let told = match wait {
                Some(Duration::ZERO) => Err(RecvTimeoutError::Timeout),
                Some(wait) => receiver.recv_timeout(wait),
                None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match told {
                Ok((time, told)) => self.take(time, told),
                Err(RecvTimeoutError::Timeout) => self.act(Some(Instant::now())),
                Err(RecvTimeoutError::Disconnected) => {
                    self.act(None);
                    return self.warnings;
                }
            }
        }
    }

    /// When there is something to do next, if there is.
    fn due(&self) -> Option<Instant> {
        let events = self.events.as_ref().and_then(EventFiles::due);
        let board = self.board.as_ref().and_then(TensorBoard::due);
        let look = self.stop_file.as_ref().map(|_| self.next_look);
        [events, board, look].into_iter().flatten().min()
    }

    fn take(&mut self, time: f64, told: Told) {
        if let Some(board) = &mut self.board {
            match &told {
                Told::Event(Event::Epoch(record)) => board.add_epoch(time, record),
                Told::Step {
                    report,
                    rows_per_second,
                } => board.add_step(time, report, *rows_per_second),
                Told::Event(_) => {}
            }
        }
        if let (Some(files), Told::Event(event)) = (&mut self.events, told) {
            files.events.push(event);
        }
    }

    /// Does what is due by then, or in the end all that is left.
    fn act(&mut self, by: Option<Instant>) {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| by.is_none_or(|by| due <= by));
        if let Some(files) = &mut self.events
            && is_due(files.due())
            && let Err(error) = files.write(&self.store)
        {
            self.events = None;
            self.warnings
                .push(format!("progress could not be written: {error}"));
        }
        if let Some(board) = &mut self.board
            && is_due(board.due())
            && let Err(error) = board.write(&self.store)
            && !std::mem::replace(&mut self.board_failed, true)
        {
            self.warnings
                .push(format!("TensorBoard's files could not be written: {error}"));
        }
        if let Some(uri) = &self.stop_file
            && by.is_some_and(|by| self.next_look <= by)
        {
            // A store that can't be asked now is asked again.
            if let Ok(Some(_)) = self.store.size(uri) {
                self.stop.store(true, Ordering::Relaxed);
                self.stop_file = None;
            }
            self.next_look = Instant::now() + INTERVAL;
        }
    }
}
