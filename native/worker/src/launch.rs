//! All ranks of a job, as processes of this machine: the launcher that needs no Spark.
//!
//! It speaks with each as any launcher does (see `lines`), and asks the supervisor what Spark's launchers ask it.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use flambeau_collective::host_name;
use flambeau_supervisor::SupervisorError;
use flambeau_train::{TrainingJob, error_chain};
use serde_json::{Value, json};

use crate::arguments::LaunchArguments;
use crate::lines::{Message, Start};

/// For how long ranks may go on after one of them has failed: as Spark's launchers wait.
const GRACE: Duration = Duration::from_secs(30);

/// How often a lease is written anew.
const LEASE: Duration = Duration::from_secs(3600);

/// Trains a job; returns the exit status. A failure is told on standard error too.
pub(crate) fn main(arguments: &LaunchArguments) -> i32 {
    let last = match read(arguments) {
        Ok(job) => launch(arguments, &job),
        Err(reason) => error_line(0, "job", &reason),
    };
    write(&last);
    let Some(error) = last.get("error") else {
        return 0;
    };
    tell(&format!(
        "rank {}: {}",
        error["rank"],
        text(&error["message"])
    ));
    1
}

/// The last line: rank 0's result, or the error of the rank whose failure was the first. Who can go on from a checkpoint after a
/// failure is told which one is the newest.
fn launch(arguments: &LaunchArguments, job: &TrainingJob) -> Value {
    let mut attempts: Vec<Value> = vec![];
    let mut last = attempted(arguments, job, &mut attempts);
    let asked = if last.get("error").is_none() {
        json!({"ask": "keepCheckpoints", "attempts": attempts, "num": job.params.keep_checkpoints})
    } else {
        json!({"ask": "newestCheckpoint", "attempts": attempts})
    };
    match supervise(job, &asked) {
        Ok(Value::String(newest)) => {
            let message = text(&last["error"]["message"]);
            let more = format!(
                "{message}; the newest checkpoint is {newest}: a launch whose attempt has it as resume goes on from it"
            );
            last["error"]["message"] = more.into();
        }
        Ok(_) => {}
        Err((_, reason)) => tell(&format!("what the attempts left stays: {reason}")),
    }
    last
}

/// Attempts until one ends well, or is the last.
fn attempted(arguments: &LaunchArguments, job: &TrainingJob, attempts: &mut Vec<Value>) -> Value {
    let mut lease = None;
    let mut before = String::new();
    loop {
        let begun = supervise(job, &json!({"ask": "newId"})).and_then(|id| {
            let question =
                json!({"ask": "beginAttempt", "id": id, "attempts": attempts, "run": null});
            supervise(job, &question)
        });
        let attempt = match begun {
            Ok(attempt) => attempt,
            Err((kind, reason)) => return error_line(0, kind, &format!("{reason}{before}")),
        };
        attempts.push(attempt["id"].clone());
        lease.get_or_insert_with(|| Lease::hold(job, text(&attempt["id"])));
        let lines = match Ranks::start(arguments, job, &attempt) {
            Ok(mut ranks) => ranks.attend(),
            Err(reason) => return error_line(0, "environment", &reason),
        };
        let ended: Vec<Value> = lines.iter().map(ended).collect();
        let restarts = attempts.len() - 1;
        let verdict = json!({"ask": "judge", "ended": ended, "restarts": restarts,
            "maxRestarts": job.params.max_restarts});
        let verdict = supervise(job, &verdict).expect("a verdict needs no store");
        let Some(cause) = verdict["cause"].as_u64() else {
            return result_of(lines);
        };
        let last = &lines[cause as usize];
        if verdict["again"] == false {
            return last.clone();
        }
        let reason = text(&last["error"]["message"]);
        before = format!(" (after another failure: {reason})");
        tell(&format!(
            "training is started again ({} of at most {} restarts): {reason}",
            restarts + 1,
            job.params.max_restarts,
        ));
    }
}

/// The supervisor's answer, or the kind of its failure and the reason.
fn supervise(job: &TrainingJob, question: &Value) -> Result<Value, (&'static str, String)> {
    let work_dir = &job.attempt.work_dir;
    match flambeau_supervisor::answer(work_dir, &question.to_string(), &job.store) {
        Ok(answer) => Ok(serde_json::from_str(&answer).expect("the supervisor answers in JSON")),
        Err(error) => {
            let kind = match &error {
                SupervisorError::Data(error) if error.is_transient() => "store",
                SupervisorError::Data(_) => "data",
                _ => "environment",
            };
            Err((kind, error_chain(&error)))
        }
    }
}

/// A lease, which keeps the sweeps of fits from what a launch has in the work directory. A failure to write it is told.
struct Lease {
    job: TrainingJob,
    name: String,
    end: Option<Sender<()>>,
}

impl Lease {
    fn hold(job: &TrainingJob, name: &str) -> Lease {
        let (end, ended) = mpsc::channel();
        let question = json!({"ask": "holdLease", "lease": name});
        let held = job.clone();
        let beat = move || {
            if let Err((_, reason)) = supervise(&held, &question) {
                tell(&format!(
                    "the lease of a launch could not be written: {reason}"
                ));
            }
        };
        beat();
        let beats = move || {
            while ended.recv_timeout(LEASE) == Err(RecvTimeoutError::Timeout) {
                beat();
            }
        };
        let thread = thread::Builder::new().name("flambeau-lease".into());
        if let Err(error) = thread.spawn(beats) {
            tell(&format!("no thread to hold a lease: {error}"));
        }
        Lease {
            job: job.clone(),
            name: name.to_owned(),
            end: Some(end),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end.take();
        // One that stays counts for a week.
        let _ = supervise(&self.job, &json!({"ask": "dropLease", "lease": self.name}));
    }
}

/// Writes a line to standard output. A reader that is gone is no reason to stop.
fn write(line: &Value) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// The same for a sentence and standard error.
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

/// What a rank's last line tells the supervisor.
fn ended(line: &Value) -> Value {
    match line.get("error") {
        None => json!({"kind": null, "isCause": true}),
        Some(error) => json!({"kind": error["kind"], "isCause": error["isCause"],
            "isSilent": error.get("isSilent").is_some()}),
    }
}

fn error_line(rank: usize, kind: &str, message: &str) -> Value {
    json!({"error": {"kind": kind, "message": message, "rank": rank, "host": host_name(), "epoch": null,
        "step": null, "isCause": true}})
}

fn text(message: &Value) -> &str {
    message.as_str().unwrap_or_default()
}

/// What comes from a rank: its lines, and then none.
type Said = (usize, Option<Value>);

/// The ranks of an attempt. Those that run are killed when this is dropped.
struct Ranks {
    children: Vec<Child>,
    /// What is sent to each; its standard input is closed with this.
    inputs: Vec<Option<Sender<String>>>,
    said: Receiver<Said>,
    /// What each tells the others.
    payloads: Vec<Option<String>>,
    /// The result or the error of each.
    last: Vec<Option<Value>>,
    /// Whether those without one were killed, since they did not end after a failure.
    is_given_up: bool,
}

impl Ranks {
    fn start(
        arguments: &LaunchArguments,
        job: &TrainingJob,
        attempt: &Value,
    ) -> Result<Ranks, String> {
        let world_size = job.params.num_workers;
        let (tell, said) = mpsc::channel();
        let mut ranks = Ranks {
            children: vec![],
            inputs: vec![],
            said,
            payloads: vec![None; world_size],
            last: vec![None; world_size],
            is_given_up: false,
        };
        let mut job = serde_json::to_value(job).expect("a job is JSON");
        job["attempt"]["id"] = attempt["id"].clone();
        // What the job itself goes on from counts until there is something newer.
        if !attempt["resume"].is_null() {
            job["attempt"]["resume"] = attempt["resume"].clone();
        }
        for rank in 0..world_size {
            let mut child =
                spawn().map_err(|error| format!("rank {rank} cannot be started: {error}"))?;
            let output = child.stdout.take().expect("standard output is a pipe");
            let input = child.stdin.take().expect("standard input is a pipe");
            ranks.children.push(child);
            let deaf = |error| format!("no thread to speak with rank {rank}: {error}");
            ranks.inputs.push(Some(speak(rank, input).map_err(deaf)?));
            listen(rank, output, tell.clone()).map_err(deaf)?;
            let start = Start {
                job: job.clone(),
                rank,
                world_size,
                bind_address: Ipv4Addr::LOCALHOST.into(),
                secret: text(&attempt["secret"]).into(),
                transport: arguments.transport.clone(),
                report_steps: arguments.report_steps,
            };
            ranks.send(rank, &Message::Start(Box::new(start)));
        }
        Ok(ranks)
    }

    /// Speaks with the ranks until all have ended, and gives the last line of each. Those that do not end within the
    /// grace after a failure are killed.
    fn attend(&mut self) -> Vec<Value> {
        let mut running = self.children.len();
        let mut deadline = None;
        while running > 0 {
            match self.hear(deadline) {
                None => {
                    deadline = None;
                    self.is_given_up = true;
                    self.kill();
                }
                Some((rank, Some(line))) => self.take(rank, line),
                Some((rank, None)) => {
                    running -= 1;
                    self.conclude(rank);
                }
            }
            let has_failed = |last: &Option<Value>| {
                last.as_ref()
                    .is_some_and(|last| last.get("error").is_some())
            };
            if deadline.is_none() && self.last.iter().any(has_failed) {
                deadline = Some(Instant::now() + GRACE);
            }
        }
        self.last
            .iter_mut()
            .map(|last| last.take().unwrap_or_default())
            .collect()
    }

    /// The next that comes from a rank; none where the deadline is over.
    fn hear(&self, deadline: Option<Instant>) -> Option<Said> {
        let Some(deadline) = deadline else {
            return self.said.recv().ok();
        };
        let left = deadline.saturating_duration_since(Instant::now());
        self.said.recv_timeout(left).ok()
    }

    fn take(&mut self, rank: usize, line: Value) {
        if let Some(payload) = line.get("gather") {
            self.payloads[rank] = Some(text(payload).into());
            if let Some(payloads) = self.payloads.iter().cloned().collect() {
                self.send_all(&Message::Gathered(payloads));
            }
        } else if line.get("result").is_some() || line.get("error").is_some() {
            self.last[rank] = Some(of_rank(rank, line));
        } else {
            write(&line);
        }
    }

    /// Notes how a rank ended whose output has, and frees those that wait for it.
    fn conclude(&mut self, rank: usize) {
        self.inputs[rank] = None;
        let status = self.children[rank].wait();
        let is_given_up = self.is_given_up;
        self.last[rank].get_or_insert_with(|| died(rank, status, is_given_up));
        if self.payloads[rank].is_none() {
            self.send_all(&Message::Left { rank });
        }
    }

    /// Sends a line; a rank that is gone needs none.
    fn send(&self, rank: usize, message: &Message) {
        if let Some(input) = &self.inputs[rank] {
            let line = serde_json::to_string(message).expect("messages have string keys");
            let _ = input.send(line);
        }
    }

    fn send_all(&self, message: &Message) {
        (0..self.inputs.len()).for_each(|rank| self.send(rank, message));
    }

    fn kill(&mut self) {
        for child in &mut self.children {
            // One that has ended cannot be.
            let _ = child.kill();
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill();
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

fn spawn() -> io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["train", "--launcher"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

/// Writes lines to a rank from a thread of their own: a pipe holds 64 KiB, and a rank that is stuck reads nothing.
fn speak(rank: usize, mut input: ChildStdin) -> io::Result<Sender<String>> {
    let (send, lines) = mpsc::channel::<String>();
    let write = move || {
        for line in lines {
            if writeln!(input, "{line}").is_err() {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name(format!("flambeau-to-rank-{rank}"));
    thread.spawn(write)?;
    Ok(send)
}

/// Passes a rank's lines on from a thread of their own.
fn listen(rank: usize, output: ChildStdout, tell: Sender<Said>) -> io::Result<()> {
    let hear = move || {
        for line in BufReader::new(output).lines() {
            let line = line.unwrap_or_else(|error| error.to_string());
            let said = serde_json::from_str(&line).unwrap_or_else(|_| {
                let message = format!("its process said what is no message: {line}");
                error_line(rank, "environment", &message)
            });
            // A launch that is over hears no one.
            let _ = tell.send((rank, Some(said)));
        }
        let _ = tell.send((rank, None));
    };
    let thread = thread::Builder::new().name(format!("flambeau-of-rank-{rank}"));
    thread.spawn(hear).map(drop)
}

/// A last line with what its process did not know of itself.
fn of_rank(rank: usize, mut line: Value) -> Value {
    if let Some(error) = line.get_mut("error") {
        for (name, known) in [("rank", json!(rank)), ("host", json!(host_name()))] {
            if error[name].is_null() {
                error[name] = known;
            }
        }
    }
    line
}

/// The last line for a rank that left none. One that was given up is no cause, and says less than those that noticed it.
fn died(rank: usize, status: io::Result<ExitStatus>, is_given_up: bool) -> Value {
    if is_given_up {
        let seconds = GRACE.as_secs();
        let message = format!("it did not end within {seconds} s after another one had failed");
        let mut line = error_line(rank, "lost", &message);
        line["error"]["isCause"] = false.into();
        line["error"]["isSilent"] = true.into();
        return line;
    }
    match status {
        Ok(status) if status.signal().is_some() => {
            error_line(rank, "lost", &format!("its process ended by {status}"))
        }
        Ok(status) => {
            let message = format!("its process ended without a result, by {status}");
            error_line(rank, "environment", &message)
        }
        Err(error) => {
            let message = format!("its process cannot be waited for: {error}");
            error_line(rank, "environment", &message)
        }
    }
}
