//! What rank 0 writes of a running training: its events, and TensorBoard's files.
//!
//! One thread writes whole files, and looks for the file that asks for a stop, so that a slow store does not slow the steps.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flambeau_collective::Stall;
use flambeau_data::{DataError, Store};

use crate::error::Cause;
use crate::job::TrainingJob;
use crate::training::events::Event;
use crate::training::hooks::StepReport;
use crate::training::tensorboard::{self, TensorBoard};

/// The least time between two files of events, two reports of progress, and two looks for the file that asks for a stop.
const INTERVAL: Duration = Duration::from_secs(1);

/// How much waits for the thread before steps and progress are dropped, as while a store hangs; other events never are.
const MOST_WAITING: usize = 4096;

/// What the thread is told.
enum Told {
    Event(Event),
    Step {
        report: StepReport,
        rows_per_second: f64,
    },
}

impl Told {
    fn may_be_dropped(&self) -> bool {
        matches!(self, Told::Step { .. } | Told::Event(Event::Progress(_)))
    }
}

/// Hands on what is to be written.
pub(crate) struct Writer {
    /// Each with its seconds since 1970.
    sender: Option<Arc<Sender<(f64, Told)>>>,
    num_waiting: Arc<AtomicUsize>,
    warnings: Receiver<Vec<String>>,
    /// How long the last write may take.
    limit: Duration,
    last_progress: Option<Instant>,
    /// Steps from one that is written for TensorBoard to the next.
    log_interval: Option<u64>,
    /// The first and the last step that TensorBoard's files lack, since too much was waiting.
    dropped: Cell<Option<(u64, u64)>>,
    stop: Arc<AtomicBool>,
}

impl Writer {
    /// A writer for a job that has taken so many steps. It is waited for no longer than `limit` in the end.
    ///
    /// # Errors
    ///
    /// [`Cause::TensorBoard`] where the first of TensorBoard's files can't be written, in a fit's first attempt. Later that is a
    /// warning: a directory that is lost costs no training.
    pub(crate) fn new(
        store: Store,
        job: &TrainingJob,
        num_steps: u64,
        limit: Duration,
    ) -> Result<Writer, Cause> {
        let directory = job.params.tensor_board_dir.as_ref();
        let mut board = directory.map(|directory| TensorBoard::new(directory, num_steps));
        if let Some(Err(source)) = board.as_mut().map(|board| board.write(&store))
            && job.attempt.restarts == 0
        {
            return Err(Cause::TensorBoard {
                directory: directory.cloned().unwrap_or_default(),
                source: Box::new(source),
            });
        }
        let stop = Arc::new(AtomicBool::new(false));
        let num_waiting = Arc::new(AtomicUsize::new(0));
        let files = Files {
            store,
            events: EventFiles::new(format!("{}/events", job.attempt.directory())),
            num_waiting: num_waiting.clone(),
            board,
            stop_file: job.attempt.stop_file.clone(),
            next_look: Instant::now(),
            stop: stop.clone(),
            warnings: vec![],
        };
        let (sender, receiver) = mpsc::channel();
        let (done, warnings) = mpsc::channel();
        // Without the thread there is no progress to see, which is no reason not to train, but is told in the end.
        let _ = thread::Builder::new()
            .name("flambeau-writer".into())
            .spawn(move || drop(done.send(files.write_all(&receiver))));
        Ok(Writer {
            sender: Some(Arc::new(sender)),
            num_waiting,
            warnings,
            limit,
            last_progress: None,
            log_interval: directory.map(|_| u64::from(job.params.log_every_n_steps)),
            dropped: Cell::new(None),
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

    /// Writes what it is told as an event, and to standard error, until the writer is closed.
    pub(crate) fn stall_listener(&self) -> impl Fn(Stall) + Send + Sync + use<> {
        // Weak, so that a group that lives on keeps no thread waiting.
        let sender = self.sender.as_ref().map(Arc::downgrade).unwrap_or_default();
        let num_waiting = self.num_waiting.clone();
        move |stall| {
            let Some(sender) = sender.upgrade() else {
                return;
            };
            eprintln!("flambeau: {stall}");
            num_waiting.fetch_add(1, Ordering::Relaxed);
            let told = Told::Event(Event::Stall(stall.into()));
            let _ = sender.send((tensorboard::now(), told));
        }
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
        let Some(sender) = &self.sender else { return };
        let is_full = self.num_waiting.load(Ordering::Relaxed) >= MOST_WAITING;
        if is_full && told.may_be_dropped() {
            if let Told::Step { report, .. } = told {
                let first = self.dropped.get().map_or(report.step, |(first, _)| first);
                self.dropped.set(Some((first, report.step)));
            }
            return;
        }
        self.num_waiting.fetch_add(1, Ordering::Relaxed);
        // A thread that has ended is what `close` tells.
        let _ = sender.send((tensorboard::now(), told));
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
        let mut warnings =
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
                });
        if let Some((first, last)) = self.dropped.get() {
            warnings.push(format!(
                "TensorBoard's files could not be written as fast as steps were taken: some between {first} and {last} are missing"
            ));
        }
        warnings
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
    /// Of the last file that was written.
    number: u32,
    next: Instant,
    /// The file after it, where it could not be written. It stays as it is: it may be there all the same, and be read.
    unwritten: Option<Bytes>,
    events: Vec<Event>,
}

impl EventFiles {
    fn new(directory: String) -> EventFiles {
        EventFiles {
            directory,
            number: 0,
            next: Instant::now(),
            unwritten: None,
            events: vec![],
        }
    }

    /// Of progress on progress only the newest waits, so that a store that fails for long is no matter of memory.
    fn push(&mut self, event: Event) {
        let is_progress = |event: &Event| matches!(event, Event::Progress(_));
        if is_progress(&event) && self.events.last().is_some_and(is_progress) {
            self.events.pop();
        }
        self.events.push(event);
    }

    fn due(&self) -> Option<Instant> {
        (self.unwritten.is_some() || !self.events.is_empty()).then_some(self.next)
    }

    /// Writes the next file. One that can't be written is the next again.
    fn write(&mut self, store: &Store) -> Result<(), DataError> {
        let file = self.unwritten.take().unwrap_or_else(|| {
            let json = serde_json::to_vec(&self.events).expect("events have string keys");
            self.events.clear();
            json.into()
        });
        let uri = format!("{}/{:08}.json", self.directory, self.number + 1);
        let written = store.put(&uri, file.clone());
        match &written {
            Ok(()) => self.number += 1,
            Err(_) => self.unwritten = Some(file),
        }
        self.next = Instant::now() + INTERVAL;
        written
    }
}

/// What the thread writes and looks for.
struct Files {
    store: Store,
    events: EventFiles,
    num_waiting: Arc<AtomicUsize>,
    board: Option<TensorBoard>,
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
                Ok((time, told)) => {
                    self.num_waiting.fetch_sub(1, Ordering::Relaxed);
                    self.take(time, told);
                }
                Err(RecvTimeoutError::Timeout) => self.act(Some(Instant::now())),
                Err(RecvTimeoutError::Disconnected) => {
                    self.act(None);
                    let board = self.board.as_ref().and_then(TensorBoard::warning);
                    self.warnings.extend(board);
                    return self.warnings;
                }
            }
        }
    }

    /// When there is something to do next, if there is.
    fn due(&self) -> Option<Instant> {
        let events = self.events.due();
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
        if let Told::Event(event) = told {
            self.events.push(event);
        }
    }

    /// Does what is due by then, or in the end all that is left.
    fn act(&mut self, by: Option<Instant>) {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| by.is_none_or(|by| due <= by));
        while is_due(self.events.due()) {
            if let Err(error) = self.events.write(&self.store) {
                // Before the end it is tried again.
                if by.is_none() {
                    self.warnings
                        .push(format!("progress could not be written: {error}"));
                }
                break;
            }
        }
        if let Some(board) = &mut self.board
            && is_due(board.due())
        {
            // It keeps what fails for its warning.
            let _ = board.write(&self.store);
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;

    use super::*;
    use crate::training::events::{EpochBegin, Progress};

    fn progress(step: u64) -> Event {
        Event::Progress(Progress {
            epoch: 0,
            step,
            epoch_step: step,
            steps_per_epoch: 9,
            rows_per_second: 1.0,
            loss: None,
            step_loss: None,
            learning_rate: None,
            gradient_norm: None,
        })
    }

    #[test]
    fn a_file_that_cannot_be_written_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let events = directory.path().join("events");
        let read = |name: &str| -> Vec<Event> {
            serde_json::from_slice(&fs::read(events.join(name)).unwrap()).unwrap()
        };
        let store = Store::new(&HashMap::new()).unwrap();
        let mut files = EventFiles::new(events.to_str().unwrap().into());
        fs::write(&events, "in the way").unwrap();
        let begin = Event::EpochBegin(EpochBegin { epoch: 0, step: 0 });
        files.push(begin.clone());
        assert!(files.write(&store).is_err());
        for step in 1..4 {
            files.push(progress(step));
        }
        files.push(Event::End);
        assert!(files.write(&store).is_err());
        fs::remove_file(&events).unwrap();
        while files.due().is_some() {
            files.write(&store).unwrap();
        }
        assert_eq!(read("00000001.json"), [begin]);
        assert_eq!(read("00000002.json"), [progress(3), Event::End]);
        assert_eq!(fs::read_dir(&events).unwrap().count(), 2);
    }

    #[test]
    fn only_steps_and_progress_are_dropped_while_the_thread_hangs_and_steps_are_told() {
        let (sender, receiver) = mpsc::channel();
        let mut writer = Writer {
            sender: Some(Arc::new(sender)),
            num_waiting: Arc::default(),
            warnings: mpsc::channel().1,
            limit: Duration::ZERO,
            last_progress: None,
            log_interval: None,
            stop: Arc::default(),
            dropped: Cell::new(None),
        };
        for step in 0..=MOST_WAITING as u64 {
            writer.tell(progress(step));
        }
        for step in [7, 8, 9] {
            let report = StepReport {
                epoch: 0,
                step,
                steps_per_epoch: 10,
                num_rows: 1,
                loss: None,
                gradient_norm: None,
                learning_rate: None,
            };
            writer.log(report, 1.0);
        }
        writer.tell(Event::End);
        let warnings = writer.close();
        assert!(
            warnings
                .iter()
                .any(|warning| warning.ends_with("some between 7 and 9 are missing")),
            "{warnings:?}"
        );
        let told: Vec<_> = receiver.iter().collect();
        assert_eq!(told.len(), MOST_WAITING + 1);
        assert!(matches!(told[MOST_WAITING].1, Told::Event(Event::End)));
    }
}
