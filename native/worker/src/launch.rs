//! All ranks of a job, as processes of this machine: the launcher that needs no Spark.
//!
//! It speaks with each as any launcher does (see `launcher`), and asks the supervisor what Spark's launchers ask it.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use flambeau_collective::host_name;
use flambeau_train::{TrainingJob, error_chain};
use serde_json::{Value, json};

use crate::arguments::LaunchArguments;

/// For how long ranks may go on after one of them has failed: as Spark's launchers wait.
const GRACE: Duration = Duration::from_secs(30);

/// Trains a job; returns the exit status. A failure is told on standard error too.
pub(crate) fn main(arguments: &LaunchArguments) -> i32 {
    let last = match read(arguments) {
        Ok(job) => {
            launch(arguments, &job).unwrap_or_else(|reason| error_line(0, "environment", &reason))
        }
        Err(reason) => error_line(0, "job", &reason),
    };
    println!("{last}");
    let Some(error) = last.get("error") else {
        return 0;
    };
    eprintln!(
        "flambeau-worker: rank {}: {}",
        error["rank"],
        text(&error["message"])
    );
    1
}

/// The last line of rank 0, or of the rank whose failure was the first.
fn launch(arguments: &LaunchArguments, job: &TrainingJob) -> Result<Value, String> {
    let supervise = |question: Value| -> Result<Value, String> {
        let work_dir = &job.attempt.work_dir;
        let answer = flambeau_supervisor::answer(work_dir, &question.to_string(), &job.store);
        let answer = answer.map_err(|error| error_chain(&error))?;
        Ok(serde_json::from_str(&answer).expect("the supervisor answers in JSON"))
    };
    let mut attempts: Vec<Value> = vec![];
    loop {
        let attempt = supervise(json!({"ask": "beginAttempt", "attempts": attempts, "run": null}))?;
        attempts.push(attempt["id"].clone());
        let mut ranks = Ranks::start(arguments, job, &attempt)?;
        let lines = ranks.attend();
        let ended: Vec<Value> = lines.iter().map(ended).collect();
        let restarts = attempts.len() - 1;
        let verdict = supervise(json!({"ask": "judge", "ended": ended, "restarts": restarts,
            "maxRestarts": job.params.max_restarts}))?;
        let last = verdict["cause"]
            .as_u64()
            .map(|cause| &lines[cause as usize]);
        match last {
            None => return Ok(result_of(lines)),
            Some(last) if verdict["again"] == false => return Ok(last.clone()),
            Some(last) => eprintln!(
                "flambeau-worker: training is started again ({} of at most {} restarts): {}",
                restarts + 1,
                job.params.max_restarts,
                text(&last["error"]["message"])
            ),
        }
    }
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
        Some(error) => json!({"kind": error["kind"], "isCause": error["isCause"]}),
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
    said: Receiver<Said>,
    /// What each tells the others.
    payloads: Vec<Option<Value>>,
    /// The result or the error of each.
    last: Vec<Option<Value>>,
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
            said,
            payloads: vec![None; world_size],
            last: vec![None; world_size],
        };
        let mut job = serde_json::to_value(job).expect("a job is JSON");
        job["attempt"]["id"] = attempt["id"].clone();
        job["attempt"]["resume"] = attempt["resume"].clone();
        for rank in 0..world_size {
            let mut child = spawn(arguments)
                .map_err(|error| format!("rank {rank} cannot be started: {error}"))?;
            let output = child.stdout.take().expect("standard output is a pipe");
            ranks.children.push(child);
            listen(rank, output, tell.clone())
                .map_err(|error| format!("no thread to listen to rank {rank}: {error}"))?;
            let start = json!({"job": job, "rank": rank, "worldSize": world_size, "bindAddress": "127.0.0.1",
                "secret": attempt["secret"], "transport": arguments.transport,
                "reportSteps": arguments.report_steps});
            ranks.tell(rank, &json!({"start": start}));
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
            self.payloads[rank] = Some(payload.clone());
            if self.payloads.iter().all(Option::is_some) {
                let all = json!({"gathered": self.payloads});
                (0..self.children.len()).for_each(|rank| self.tell(rank, &all));
            }
        } else if line.get("result").is_some() || line.get("error").is_some() {
            self.last[rank] = Some(line);
        } else {
            println!("{line}");
        }
    }

    /// Notes how a rank ended whose output has, and frees those that wait for it.
    fn conclude(&mut self, rank: usize) {
        let status = self.children[rank].wait();
        self.last[rank].get_or_insert_with(|| died(rank, status));
        if self.payloads[rank].is_none() {
            let left = json!({"left": {"rank": rank}});
            (0..self.children.len()).for_each(|other| self.tell(other, &left));
        }
    }

    /// Sends a line; a rank that is gone needs none.
    fn tell(&mut self, rank: usize, message: &Value) {
        if let Some(input) = &mut self.children[rank].stdin {
            let _ = writeln!(input, "{message}");
        }
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

fn spawn(arguments: &LaunchArguments) -> io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["train", "--launcher"]);
    if let Some(libtorch) = &arguments.libtorch {
        command.arg("--libtorch").arg(libtorch);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

/// Passes a rank's lines on from a thread of their own.
fn listen(rank: usize, output: ChildStdout, tell: Sender<Said>) -> io::Result<()> {
    let hear = move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let lines = lines.map_while(|line| serde_json::from_str(&line).ok());
        for line in lines.map(Some).chain([None]) {
            // A launch that is over hears no one.
            let _ = tell.send((rank, line));
        }
    };
    thread::Builder::new()
        .name(format!("flambeau-rank-{rank}"))
        .spawn(hear)
        .map(drop)
}

/// The last line for a rank that left none.
fn died(rank: usize, status: io::Result<ExitStatus>) -> Value {
    match status {
        Ok(status) if status.signal().is_some() => {
            error_line(rank, "lost", &format!("its process ended by {status}"))
        }
        Ok(status) => error_line(
            rank,
            "environment",
            &format!("its process ended without a result, by {status}"),
        ),
        Err(error) => error_line(
            rank,
            "environment",
            &format!("its process cannot be waited for: {error}"),
        ),
    }
}
