//! All ranks of a job, as processes of this machine: the launcher that needs no Spark.
//!
//! It speaks with each as any launcher does (see `lines`), and asks the supervisor what Spark's launchers ask it.

use std::env;
use std::fmt::Display;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flambeau_collective::host_name;
use flambeau_supervisor::SupervisorError;
use flambeau_train::{TrainingJob, error_chain};
use serde_json::{Value, json};

use crate::arguments::LaunchArguments;
use crate::lines::{Message, Start};

/// How often a lease is written anew.
const LEASE: Duration = Duration::from_secs(3600);

/// For how long a launch that is over waits for its lease to be dropped.
const LAST_BEAT: Duration = Duration::from_secs(60);

/// Lines that a reader may be behind.
const MAX_BEHIND: usize = 1024;

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
        Err(reason) => error_line(0, "job", &reason),
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
    if let Err((_, reason)) = supervise(job, &json!({"ask": "sweep"})) {
        tell(&format!("what others left could not be removed: {reason}"));
    }
    let mut attempts: Vec<Value> = vec![];
    let mut last = attempted(arguments, job, output, &mut attempts);
    let has_failed = last.get("error").is_some();
    let keep = |num| json!({"ask": "keepCheckpoints", "attempts": attempts, "num": num});
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
    let mut restarts = 0;
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
                match Ranks::start(arguments, job, &attempt) {
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
    /// Whether it is dropped; at the end.
    end: Sender<bool>,
    ended: Receiver<()>,
}

impl Lease {
    /// None where there is no name for it, which is told.
    fn hold(job: &TrainingJob) -> Option<Lease> {
        // What a launch goes on from is as old as the attempt that left it.
        let work_dir = job.attempt.work_dir.trim_end_matches('/');
        let resume = job.attempt.resume.as_deref().unwrap_or_default();
        let below = resume.strip_prefix(&format!("{work_dir}/attempts/"));
        let name = new_id(job, below.and_then(|path| path.split('/').next()));
        let name = name.map_err(|(_, reason)| untold(&reason)).ok()?;
        let job = job.clone();
        let ask = move |question: &str| {
            if let Err((_, reason)) = supervise(&job, &json!({"ask": question, "lease": name})) {
                untold(&reason);
            }
        };
        ask("holdLease");
        let (end, asked) = mpsc::channel();
        let (tell_end, ended) = mpsc::channel();
        // It drops the lease too, so that no beat comes after that.
        let beats = move || {
            let _tells_end: Sender<()> = tell_end;
            loop {
                match asked.recv_timeout(LEASE) {
                    Err(RecvTimeoutError::Timeout) => ask("holdLease"),
                    Ok(true) => return ask("dropLease"),
                    _ => return,
                }
            }
        };
        let thread = thread::Builder::new().name("flambeau-lease".into());
        if let Err(error) = thread.spawn(beats) {
            untold(&error);
        }
        Some(Lease { end, ended })
    }

    /// Writes it no more. One that is not dropped counts for a week.
    fn end(self, is_dropped: bool) {
        let _ = self.end.send(is_dropped);
        let _ = self.ended.recv_timeout(LAST_BEAT);
    }
}

fn untold(reason: &dyn Display) {
    tell(&format!(
        "the lease of a launch could not be written: {reason}"
    ));
}

/// Standard output, written by a thread of its own: a reader that pauses holds up no rank, and misses lines.
struct Output {
    lines: SyncSender<String>,
    thread: JoinHandle<io::Result<()>>,
}

impl Output {
    fn new() -> io::Result<Output> {
        let (lines, given) = mpsc::sync_channel::<String>(MAX_BEHIND);
        // Whether the last one was written.
        let write = move || {
            let mut written = Ok(());
            for line in given {
                written = writeln!(io::stdout().lock(), "{line}");
            }
            written
        };
        let thread = thread::Builder::new().name("flambeau-output".into());
        let thread = thread.spawn(write)?;
        Ok(Output { lines, thread })
    }

    fn write(&self, line: &Value) {
        let _ = self.lines.try_send(line.to_string());
    }

    /// Writes the last line. A reader that is gone is no failure.
    fn end(self, last: &Value) -> io::Result<()> {
        let _ = self.lines.send(last.to_string());
        drop(self.lines);
        match self.thread.join().expect("writing does not panic") {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
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

fn seconds(number: &Value) -> Duration {
    Duration::from_secs(number.as_u64().unwrap_or_default())
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
    /// For how long they may go on after one of them has failed.
    grace: Duration,
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
            grace: seconds(&attempt["graceSeconds"]),
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
    fn attend(&mut self, output: &Output) -> Vec<Value> {
        let mut running = self.children.len();
        let mut deadline = None;
        while running > 0 {
            match self.hear(deadline) {
                None => {
                    deadline = None;
                    self.is_given_up = true;
                    self.kill();
                }
                Some((rank, Some(line))) => self.take(rank, line, output),
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
                deadline = Some(Instant::now() + self.grace);
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

    fn take(&mut self, rank: usize, line: Value, output: &Output) {
        if let Some(payload) = line.get("gather") {
            self.payloads[rank] = Some(text(payload).into());
            if let Some(payloads) = self.payloads.iter().cloned().collect() {
                self.send_all(&Message::Gathered(payloads));
            }
        } else if line.get("result").is_some() || line.get("error").is_some() {
            self.last[rank] = Some(of_rank(rank, line));
        } else {
            output.write(&line);
        }
    }

    /// Notes how a rank ended whose output has, and frees those that wait for it.
    fn conclude(&mut self, rank: usize) {
        self.inputs[rank] = None;
        let status = self.children[rank].wait();
        let given_up = self.is_given_up.then_some(self.grace);
        self.last[rank].get_or_insert_with(|| died(rank, status, given_up));
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
        let (mut output, mut line) = (BufReader::new(output), vec![]);
        // Of a process that was killed while it wrote, the last line has no end: how it died says more.
        while output.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
            let said = serde_json::from_slice(&line).unwrap_or_else(|_| {
                let line = String::from_utf8_lossy(&line);
                let message = format!("its process said what is no message: {}", line.trim_end());
                error_line(rank, "environment", &message)
            });
            line.clear();
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

/// The last line for a rank that left none. One that was given up after a grace is no cause, and says less than those that noticed it.
fn died(rank: usize, status: io::Result<ExitStatus>, given_up: Option<Duration>) -> Value {
    if let Some(grace) = given_up {
        let seconds = grace.as_secs();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_is_no_word_of_a_rank() {
        let mut printf = Command::new("printf");
        printf.arg("{\"step\": {}}\nno message\n{\"res");
        let mut child = printf.stdout(Stdio::piped()).spawn().unwrap();
        let (tell, said) = mpsc::channel();
        listen(3, child.stdout.take().unwrap(), tell).unwrap();
        let said: Vec<Said> = said.iter().collect();
        child.wait().unwrap();
        assert_eq!(said[0], (3, Some(json!({"step": {}}))));
        let error = &said[1].1.as_ref().unwrap()["error"];
        assert_eq!(
            error["message"],
            "its process said what is no message: no message"
        );
        assert_eq!(said[2..], [(3, None)]);
    }
}
