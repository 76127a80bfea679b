//! Progress as rank 0 tells it: numbered files in the attempt's directory.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use flambeau_data::Store;
use serde::{Deserialize, Serialize};

use crate::record::history::EpochRecord;

/// The least time between two files, and between two reports of progress.
const INTERVAL: Duration = Duration::from_secs(1);

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Event {
    /// Training began, or went on from a checkpoint.
    Start(Start),
    /// Training is under way.
    Progress(Progress),
    /// An epoch and its evaluation ended.
    Epoch(EpochRecord),
    /// Training ended well, weights written.
    End,
}

/// What is known when training starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// The epoch that begins or goes on, counted from 0.
    pub epoch: u64,
    /// Optimizer steps taken before.
    pub step: u64,
    /// Epochs in all.
    pub epochs: u64,
    /// Optimizer steps in an epoch.
    pub steps_per_epoch: u64,
    /// Training rows.
    pub num_rows: u64,
    /// Number of ranks.
    pub world_size: usize,
}

/// How far training is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The running epoch, counted from 0.
    pub epoch: u64,
    /// Optimizer steps taken since the training began.
    pub step: u64,
    /// Optimizer steps taken in this epoch.
    pub epoch_step: u64,
    /// Optimizer steps in an epoch.
    pub steps_per_epoch: u64,
    /// Rows per second over all ranks, since the last report.
    pub rows_per_second: f64,
    /// The mean loss of the epoch so far.
    pub loss: Option<f64>,
}

/// Writes events as `00000001.json`, `00000002.json`, … each a JSON array of the events since the file before, at most
/// one file a second. A thread does the writing, so that a slow store does not slow the steps.
pub(crate) struct EventWriter {
    sender: Option<Sender<Event>>,
    written: Option<Receiver<Result<(), String>>>,
    /// How long the last write may take.
    limit: Duration,
    last_progress: Option<Instant>,
}

impl EventWriter {
    /// A writer into `directory`, which is waited for no longer than `limit` in the end. Nothing is written before the first
    /// event.
    pub(crate) fn new(store: Store, directory: String, limit: Duration) -> EventWriter {
        let (sender, receiver) = mpsc::channel();
        let (done, written) = mpsc::channel();
        let spawned = thread::Builder::new()
            .name("flambeau-events".into())
            .spawn(move || drop(done.send(write_all(&store, &directory, &receiver))));
        // Without the thread there is no progress to see, which is no reason not to train.
        let (sender, written) = match spawned {
            Ok(_) => (Some(sender), Some(written)),
            Err(_) => (None, None),
        };
        EventWriter {
            sender,
            written,
            limit,
            last_progress: None,
        }
    }

    pub(crate) fn send(&self, event: Event) {
        if let Some(sender) = &self.sender {
            // The thread is gone after a failed write, which `close` tells.
            let _ = sender.send(event);
        }
    }

    /// Whether a second has gone by since this last said so.
    pub(crate) fn is_due(&mut self) -> bool {
        let due = self
            .last_progress
            .is_none_or(|last| last.elapsed() >= INTERVAL);
        if due {
            self.last_progress = Some(Instant::now());
        }
        due
    }

    /// Waits for the events to be written, for no longer than the writer's limit.
    ///
    /// # Errors
    ///
    /// Why events could not be written; training is none the worse for it.
    pub(crate) fn close(&mut self) -> Result<(), String> {
        self.sender = None;
        let Some(written) = self.written.take() else {
            return Ok(());
        };
        written
            .recv_timeout(self.limit)
            .unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => Err(format!(
                    "progress could not be written: the store has not ended a write in {:.1?}",
                    self.limit
                )),
                RecvTimeoutError::Disconnected => {
                    Err("the thread that writes events panicked".into())
                }
            })
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

fn write_all(store: &Store, directory: &str, receiver: &Receiver<Event>) -> Result<(), String> {
    let mut next_write = Instant::now();
    let mut number = 0u32;
    while let Ok(first) = receiver.recv() {
        let mut events = vec![first];
        while let Ok(event) =
            receiver.recv_timeout(next_write.saturating_duration_since(Instant::now()))
        {
            events.push(event);
        }
        number += 1;
        let uri = format!("{directory}/{number:08}.json");
        let json = serde_json::to_vec(&events).map_err(|error| error.to_string())?;
        store
            .put(&uri, json.into())
            .map_err(|error| format!("progress could not be written: {error}"))?;
        next_write = Instant::now() + INTERVAL;
    }
    Ok(())
}
