//! Training as the child of a launcher, with which it speaks JSON lines on standard input and output (see `lines`).
//!
//! The end of standard input means that the launcher is gone: the process exits at once.

use std::io::{self, BufRead, StdinLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flambeau_collective::{CollectiveError, Rendezvous};
use flambeau_train::TrainingJob;

use crate::failure::Failure;
use crate::lines::{Line, Lines, Message, Start};
use crate::training::{self, Settings};

/// How often a wait for the launcher looks whether the training was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(100);

/// How the meeting of the ranks ended.
enum Meeting {
    Held(Vec<String>),
    Left(usize),
}

/// Trains under a launcher on one of the GPUs that it was assigned, if it was; returns the exit status.
pub(crate) fn main(gpus: Option<Vec<String>>) -> i32 {
    let Some(lines) = Lines::take_stdout() else {
        return 1;
    };
    let lines = Arc::new(lines);
    // What the process exits with when standard input ends.
    let status = Arc::new(AtomicI32::new(1));
    let outcome = match first_line() {
        Ok(start) => {
            let rank = start.rank;
            training::conclude(&lines, rank, || {
                let result = train(*start, gpus, &lines, &status);
                status.store(i32::from(result.is_err()), Ordering::Relaxed);
                result
            })
        }
        Err(reason) => training::conclude(&lines, 0, || Err(Failure::of_environment(0, reason))),
    };
    i32::from(outcome.is_err())
}

fn train(
    start: Start,
    gpus: Option<Vec<String>>,
    lines: &Arc<Lines>,
    status: &Arc<AtomicI32>,
) -> Result<flambeau_train::TrainingResult, Failure> {
    let rank = start.rank;
    let refuse = |reason: String| Failure::of_environment(rank, reason);
    let secret = BASE64
        .decode(&start.secret)
        .map_err(|_| refuse("the launcher's secret is not base64".into()))?;
    let (send_meeting, meeting) = mpsc::channel();
    let cancelled = Arc::new(AtomicBool::new(false));
    let (flag, at_end) = (cancelled.clone(), status.clone());
    thread::Builder::new()
        .name("flambeau-stdin".into())
        .spawn(move || listen(io::stdin().lock(), &send_meeting, &flag, &at_end))
        .map_err(|error| refuse(format!("no thread to read standard input: {error}")))?;
    let job = TrainingJob::from_json(&start.job.to_string())
        .map_err(|error| Failure::early(rank, error))?;
    let mut rendezvous = LineRendezvous {
        rank,
        world_size: start.world_size,
        timeout: Duration::from_secs_f64(job.params.collective_timeout),
        lines: lines.clone(),
        meeting,
        cancelled: cancelled.clone(),
    };
    let settings = Settings {
        rank,
        bind_address: start.bind_address,
        secret,
        transport: start.transport,
        gpus,
        report_steps: start.report_steps,
        cancel: Some(Arc::new(move || cancelled.load(Ordering::Relaxed))),
    };
    training::train(job, settings, &mut rendezvous, lines)
}

/// The message that starts the training. Waits for it as long as the launcher keeps standard input open.
fn first_line() -> Result<Box<Start>, String> {
    let mut text = String::new();
    let read = io::stdin().lock().read_line(&mut text);
    match read {
        Ok(0) => Err("standard input ended before the launcher's first line".into()),
        Err(error) => Err(format!("standard input cannot be read: {error}")),
        // The error of a parser quotes what it read, which holds the secret: only the place is told.
        Ok(_) => match serde_json::from_str(&text) {
            Ok(Message::Start(start)) => Ok(start),
            Ok(_) => Err("the launcher's first line is not a start".into()),
            Err(error) => Err(format!(
                "the launcher's first line is no start that this version understands (column {})",
                error.column()
            )),
        },
    }
}

/// Reads the launcher's further lines to the end of standard input, and with it ends the process: at once, whatever the other
/// threads are in the middle of.
fn listen(
    input: StdinLock<'_>,
    meeting: &Sender<Meeting>,
    cancelled: &AtomicBool,
    status: &AtomicI32,
) {
    for text in input.lines() {
        let Ok(text) = text else { break };
        // A receiver that is gone has what it waited for.
        let _ = match serde_json::from_str(&text) {
            Ok(Message::Gathered(payloads)) => meeting.send(Meeting::Held(payloads)),
            Ok(Message::Left { rank }) => meeting.send(Meeting::Left(rank)),
            Ok(Message::Cancel(cancel)) => {
                cancelled.store(cancel, Ordering::Relaxed);
                Ok(())
            }
            Ok(Message::Start(_)) | Err(_) => {
                eprintln!("flambeau-worker: a line of the launcher's was not understood");
                Ok(())
            }
        };
    }
    // SAFETY: no destructor runs, so none can wait for, or pull memory from under, a thread that computes.
    unsafe { libc::_exit(status.load(Ordering::Relaxed)) }
}

/// Ranks that meet through their launchers.
struct LineRendezvous {
    rank: usize,
    world_size: usize,
    timeout: Duration,
    lines: Arc<Lines>,
    meeting: Receiver<Meeting>,
    cancelled: Arc<AtomicBool>,
}

impl LineRendezvous {
    /// Waits for all ranks, for at most the timeout; a cancelled training ends the wait.
    fn wait(&self) -> Result<Meeting, CollectiveError> {
        let deadline = Instant::now() + self.timeout;
        loop {
            match self.meeting.recv_timeout(CANCEL_INTERVAL) {
                Ok(meeting) => return Ok(meeting),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failed("the launcher's lines are no longer read".into()));
                }
                Err(RecvTimeoutError::Timeout) if self.cancelled.load(Ordering::Relaxed) => {
                    return Err(CollectiveError::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                    let waited = self.timeout;
                    return Err(failed(format!(
                        "the other ranks did not come within {waited:?}"
                    )));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Rendezvous for LineRendezvous {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_gather(&mut self, payload: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.lines.write(&Line::Gather(BASE64.encode(payload)));
        match self.wait()? {
            Meeting::Held(payloads) if payloads.len() == self.world_size => payloads
                .iter()
                .map(|payload| BASE64.decode(payload))
                .collect::<Result<_, _>>()
                .map_err(|_| failed("what the launcher gathered is not base64".into())),
            Meeting::Held(payloads) => Err(failed(format!(
                "the launcher gathered {} payloads of {} ranks",
                payloads.len(),
                self.world_size
            ))),
            Meeting::Left(rank) => Err(CollectiveError::Aborted {
                rank,
                host: "its host".into(),
                reason: "it failed before the ranks met".into(),
            }),
        }
    }
}

fn failed(message: String) -> CollectiveError {
    CollectiveError::Rendezvous {
        message,
        source: None,
    }
}
