//! All ranks of a job, as processes of this machine: the launcher that needs no Spark.
//!
//! It speaks with each as any launcher does (see `lines`), and asks the supervisor what Spark's launchers ask it.

mod lease;
mod output;
mod ranks;

use std::fs;
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use flambeau_supervisor::SupervisorError;
use flambeau_train::{Cause, ErrorKind, TrainingJob, error_chain};
use serde_json::{Value, json};

use crate::arguments::LaunchArguments;
use crate::failure::Failure;
use crate::lines::Line;
use lease::Lease;
use output::Output;
use ranks::Ranks;

/// Trains a job; returns the exit status. A failure is told on standard error too.
pub(crate) fn main(arguments: &LaunchArguments) -> i32 {
    let output = match Output::new() {
        Ok(output) => output,
        Err(error) => {
            tell(&format!("no thread to write lines: {error}"));
            return 1;
        }
    };
    let last = match read(arguments) {
        Ok(job) => launch(arguments, &job, &output),
        Err(reason) => error_line(0, ErrorKind::Job.name(), &reason),
    };
    let mut status = 0;
    if let Some(error) = last.get("error") {
        tell(&format!(
            "rank {}: {}",
            error["rank"],
            text(&error["message"])
        ));
        status = 1;
    }
    if let Err(error) = output.end(&last) {
        tell(&format!("the last line cannot be written: {error}: {last}"));
        status = 1;
    }
    status
}

/// The last line: rank 0's result, or the error of the rank whose failure was the first. Who can go on from a checkpoint after a
/// failure is told which one is the newest.
fn launch(arguments: &LaunchArguments, job: &TrainingJob, output: &Output) -> Value {
    let lease = Lease::hold(job);
    if lease.as_ref().is_some_and(Lease::covers_resume)
        && let Err((_, reason)) = supervise(job, &json!({"ask": "sweep"}))
    {
        tell(&format!("what others left could not be removed: {reason}"));
    }
    let mut attempts: Vec<Value> = vec![];
    let mut last = attempted(arguments, job, output, &mut attempts);
    let has_failed = last.get("error").is_some();
    let failed = &attempts[..attempts.len() - usize::from(!has_failed)];
    let keep =
        |num| json!({"ask": "keepCheckpoints", "attempts": attempts, "failed": failed, "num": num});
    let asked = if has_failed {
        supervise(
            job,
            &json!({"ask": "newestCheckpoint", "attempts": attempts}),
        )
    } else {
        supervise(job, &keep(job.params.keep_checkpoints))
    };
    let ended = match asked {
        Ok(Value::String(newest)) => {
            let message = text(&last["error"]["message"]);
            let more = format!(
                "{message}; the newest checkpoint is {newest}: a launch whose attempt has it as resume goes on from it"
            );
            last["error"]["message"] = more.into();
            Ok(false)
        }
        // There is nothing to go on from.
        Ok(_) if has_failed => supervise(job, &keep(0)).map(|_| true),
        Ok(_) => Ok(true),
        Err(failed) => Err(failed),
    };
    if let Err((_, reason)) = &ended {
        tell(&format!("what the attempts left stays: {reason}"));
    }
    if let Some(lease) = lease {
        lease.end(ended.unwrap_or(false));
    }
    last
}

/// Attempts until one ends well, or is the last.
fn attempted(
    arguments: &LaunchArguments,
    job: &TrainingJob,
    output: &Output,
    attempts: &mut Vec<Value>,
) -> Value {
    let mut restarts = 0u32;
    let mut before = String::new();
    loop {
        let begun = new_id(job, None).and_then(|id| {
            let question =
                json!({"ask": "beginAttempt", "id": id, "attempts": attempts, "run": null});
            supervise(job, &question)
        });
        let lines = match begun {
            Ok(attempt) => {
                attempts.push(attempt["id"].clone());
                match Ranks::start(arguments, job, &attempt, restarts) {
                    Ok(mut ranks) => ranks.attend(output),
                    Err(reason) => vec![error_line(0, "environment", &reason)],
                }
            }
            // A store that cannot be asked now may be a while later.
            Err((kind, reason)) => vec![error_line(0, kind, &format!("{reason}{before}"))],
        };
        let ended: Vec<Value> = lines.iter().map(ended).collect();
        let verdict = json!({"ask": "judge", "ended": ended, "restarts": restarts,
            "maxRestarts": job.params.max_restarts});
        let verdict = match supervise(job, &verdict) {
            Ok(verdict) => verdict,
            // A store that is not to be had, such as one with an option that there is not, answers nothing.
            Err((kind, reason)) => return error_line(0, kind, &reason),
        };
        let Some(cause) = verdict["cause"].as_u64() else {
            return result_of(lines);
        };
        let last = &lines[cause as usize];
        if verdict["again"] == false {
            return json!({"error": last["error"]});
        }
        let reason = text(&last["error"]["message"]);
        before = format!(" (after another failure: {reason})");
        restarts += 1;
        let of = job.params.max_restarts;
        tell(&format!(
            "training is started again ({restarts} of at most {of} restarts): {reason}"
        ));
        thread::sleep(seconds(&verdict["backOffSeconds"]));
    }
}

/// A name for what the launch makes in the work directory, with the time of `since` where that is such a name.
fn new_id(job: &TrainingJob, since: Option<&str>) -> Result<Value, (&'static str, String)> {
    supervise(job, &json!({"ask": "newId", "since": since}))
}

/// The supervisor's answer, or the kind of its failure and the reason.
fn supervise(job: &TrainingJob, question: &Value) -> Result<Value, (&'static str, String)> {
    let work_dir = &job.attempt.work_dir;
    match flambeau_supervisor::answer(work_dir, &question.to_string(), &job.store) {
        Ok(answer) => Ok(serde_json::from_str(&answer).expect("the supervisor answers in JSON")),
        Err(error) => {
            let reason = error_chain(&error);
            let kind = match error {
                SupervisorError::Data(error) => Cause::from(error).kind().name(),
                _ => "environment",
            };
            Err((kind, reason))
        }
    }
}

/// Writes a sentence to standard error. A reader that is gone is no reason to stop.
fn tell(sentence: &str) {
    let _ = writeln!(io::stderr().lock(), "flambeau-worker: {sentence}");
}

/// The job of the file; its attempt needs no id.
fn read(arguments: &LaunchArguments) -> Result<TrainingJob, String> {
    let name = arguments.job.display();
    let unreadable =
        |error: &dyn std::error::Error| format!("the job {name} cannot be read: {error}");
    let bytes = fs::read(&arguments.job).map_err(|error| unreadable(&error))?;
    let mut job: Value = serde_json::from_slice(&bytes).map_err(|error| unreadable(&error))?;
    if let Some(attempt) = job.get_mut("attempt").and_then(Value::as_object_mut) {
        attempt.insert("id".into(), "launch".into());
    }
    let job = TrainingJob::from_json(&job.to_string()).map_err(|error| error.to_string())?;
    match &job.params.run_id {
        None => Ok(job),
        Some(run) => Err(format!(
            "runId is {run:?}, but a launch without Spark keeps no runs: leave it out"
        )),
    }
}

/// Rank 0's result, with the warnings of all ranks.
fn result_of(mut lines: Vec<Value>) -> Value {
    let mut warnings: Vec<Value> = vec![];
    for line in &lines {
        let told = line["result"]["warnings"].as_array().into_iter().flatten();
        let new: Vec<Value> = told
            .filter(|one| !warnings.contains(one))
            .cloned()
            .collect();
        warnings.extend(new);
    }
    lines[0]["result"]["warnings"] = warnings.into();
    lines.swap_remove(0)
}

/// In the last line of a rank that left no word of its own.
const SILENT: &str = "isSilent";

/// What a rank's last line tells the supervisor.
fn ended(line: &Value) -> Value {
    match line.get("error") {
        None => json!({"kind": null, "isCause": true}),
        Some(error) => json!({"kind": error["kind"], "isCause": error["isCause"],
            "isSilent": line.get(SILENT).is_some()}),
    }
}

fn error_line(rank: usize, kind: &'static str, message: &str) -> Value {
    let failure = Failure {
        kind,
        ..Failure::of_environment(rank, message.to_owned())
    };
    serde_json::to_value(Line::Error(&failure)).expect("lines have string keys")
}

fn text(message: &Value) -> &str {
    message.as_str().unwrap_or_default()
}

fn seconds(number: &Value) -> Duration {
    Duration::from_secs(number.as_u64().unwrap_or_default())
}
