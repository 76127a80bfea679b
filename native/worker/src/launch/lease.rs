//! What keeps the sweeps of others from what a launch has in its work directory.

use std::fmt::Display;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use flambeau_train::TrainingJob;
use serde_json::json;

use super::{new_id, supervise, tell};

/// How often a lease is written anew.
const LEASE: Duration = Duration::from_secs(3600);

/// For how long a launch that is over waits for its lease to be dropped.
const LAST_BEAT: Duration = Duration::from_secs(60);

/// A lease of a work directory. A failure to write it is told.
pub(super) struct Lease {
    /// Whether it is dropped; at the end.
    end: Sender<bool>,
    ended: Receiver<()>,
    covers_resume: bool,
}

impl Lease {
    /// None where there is no name for it, which is told.
    pub(super) fn hold(job: &TrainingJob) -> Option<Lease> {
        // What a launch goes on from is as old as the attempt that left it.
        let work_dir = job.attempt.work_dir.trim_end_matches('/');
        let resume = job.attempt.resume.as_deref().unwrap_or_default();
        let below = resume.strip_prefix(&format!("{work_dir}/attempts/"));
        let name = new_id(job, below.and_then(|path| path.split('/').next()));
        let name = name.map_err(|(_, reason)| untold(&reason)).ok()?;
        let is_known = resume.is_empty() || below.is_some();
        let job = job.clone();
        let ask = move |question: &str| {
            let asked = supervise(&job, &json!({"ask": question, "lease": name}));
            asked.map_err(|(_, reason)| untold(&reason)).is_ok()
        };
        let covers_resume = ask("holdLease") && is_known;
        let (end, asked) = mpsc::channel();
        let (tell_end, ended) = mpsc::channel();
        // It drops the lease too, so that no beat comes after that.
        let beats = move || {
            let _tells_end: Sender<()> = tell_end;
            loop {
                match asked.recv_timeout(LEASE) {
                    Err(RecvTimeoutError::Timeout) => ask("holdLease"),
                    Ok(true) => return ask("dropLease"),
                    _ => return false,
                };
            }
        };
        let thread = thread::Builder::new().name("flambeau-lease".into());
        if let Err(error) = thread.spawn(beats) {
            untold(&error);
        }
        Some(Lease {
            end,
            ended,
            covers_resume,
        })
    }

    /// Whether it keeps a sweep from what the launch goes on from.
    pub(super) fn covers_resume(&self) -> bool {
        self.covers_resume
    }

    /// Writes it no more. One that is not dropped counts for a week.
    pub(super) fn end(self, is_dropped: bool) {
        let _ = self.end.send(is_dropped);
        let _ = self.ended.recv_timeout(LAST_BEAT);
    }
}

fn untold(reason: &dyn Display) {
    tell(&format!(
        "the lease of a launch could not be written: {reason}"
    ));
}
