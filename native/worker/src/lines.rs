//! The JSON lines that the program writes to its standard output, and those that a launcher sends to its standard input.
//!
//! ```text
//! launcher -> worker  {"start": {"job": {...}, "rank": 0, "worldSize": 2, "bindAddress": "127.0.0.1",
//!                                "secret": "<base64>", "transport": "auto", "reportSteps": false}}
//! worker -> launcher  {"gather": "<base64>"}
//! launcher -> worker  {"gathered": ["<base64>", ...]}  or  {"left": {"rank": 3}}
//! worker -> launcher  {"progress": {...}}  {"epoch": {...}}  {"step": {...}}
//! launcher -> worker  {"cancel": true}
//! worker -> launcher  {"result": {...}}  or  {"error": {...}}
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Mutex, PoisonError};

use flambeau_torch::JobCheck;
use flambeau_train::{EpochRecord, Progress, TrainingResult};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// One line.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Line<'a> {
    /// What this rank tells the others, in base64; the launcher answers with those of all ranks.
    Gather(String),
    /// How far training is; from rank 0, about one a second.
    Progress(&'a Progress),
    /// An epoch ended; from rank 0.
    Epoch(&'a EpochRecord),
    /// A step ended; from rank 0, where it was asked for.
    Step(Step),
    /// Training ended well.
    Result(&'a TrainingResult),
    /// The program of a job can be trained, as far as two rows tell.
    Check(&'a JobCheck),
    /// What was asked for failed.
    Error(&'a Failure),
}

impl<'a> From<&'a TrainingResult> for Line<'a> {
    fn from(result: &'a TrainingResult) -> Self {
        Line::Result(result)
    }
}

impl<'a> From<&'a JobCheck> for Line<'a> {
    fn from(check: &'a JobCheck) -> Self {
        Line::Check(check)
    }
}

/// A line of the launcher's.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Message {
    /// Begins a rank; the first line.
    Start(Box<Start>),
    /// What each rank tells the others, in base64, by rank.
    Gathered(Vec<String>),
    /// A rank that will not tell.
    Left { rank: usize },
    /// Whether all ranks are to stop after the same step.
    Cancel(bool),
}

/// What a rank is to do.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Start {
    pub(crate) job: serde_json::Value,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// The address that the other ranks reach this one at.
    pub(crate) bind_address: IpAddr,
    /// In base64.
    pub(crate) secret: String,
    /// `auto`, `sharedMemory` or `tcp`.
    #[serde(default = "auto")]
    pub(crate) transport: String,
    /// Whether rank 0 tells of each step.
    #[serde(default)]
    pub(crate) report_steps: bool,
}

fn auto() -> String {
    "auto".into()
}

/// What a step came to, over all ranks.
#[derive(Serialize)]
pub(crate) struct Step {
    /// The epoch, counted from 0.
    pub(crate) epoch: u64,
    /// The optimizer step, counted from 0 over all epochs.
    pub(crate) step: u64,
    /// The mean loss; none where nothing counted.
    pub(crate) loss: Option<f64>,
}

/// The program's standard output, which carries lines and nothing else.
pub(crate) struct Lines {
    output: Mutex<File>,
}

impl Lines {
    /// Takes standard output for lines alone: what else writes to file descriptor 1 from here on, such as a native library
    /// that prints, goes to standard error. `None` where that cannot be done, which is told there.
    pub(crate) fn take_stdout() -> Option<Lines> {
        let told = |error: &io::Error| {
            eprintln!("flambeau-worker: standard output cannot be used: {error}");
        };
        Lines::try_take_stdout().inspect_err(told).ok()
    }

    fn try_take_stdout() -> io::Result<Lines> {
        let (stdout, stderr) = (io::stdout().as_raw_fd(), io::stderr().as_raw_fd());
        // SAFETY: duplicating a descriptor touches no memory.
        let kept = unsafe { libc::fcntl(stdout, libc::F_DUPFD_CLOEXEC, 3) };
        if kept < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was made above and is no one else's.
        let output = unsafe { File::from_raw_fd(kept) };
        // SAFETY: both descriptors are the process's own for as long as it lives.
        if unsafe { libc::dup2(stderr, stdout) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Lines {
            output: Mutex::new(output),
        })
    }

    /// Writes a line, whole, from whatever thread.
    pub(crate) fn write(&self, line: &Line<'_>) {
        let mut text = serde_json::to_vec(line).expect("lines have string keys");
        text.push(b'\n');
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        // A reader that is gone is no reason to stop: a launcher that wants that closes standard input.
        let _ = output.write_all(&text);
    }
}
