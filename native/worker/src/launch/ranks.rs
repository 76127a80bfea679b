//! The ranks of an attempt, as processes of this machine.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use flambeau_collective::host_name;
use flambeau_train::TrainingJob;
use serde_json::{Value, json};

use super::output::Output;
use super::{SILENT, error_line, seconds, text};
use crate::arguments::LaunchArguments;
use crate::lines::{Message, Start};

/// What comes from a rank: its lines, and then none.
type Said = (usize, Option<Value>);

/// The ranks of an attempt. Those that run are killed when this is dropped.
pub(super) struct Ranks {
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
    pub(super) fn start(
        arguments: &LaunchArguments,
        job: &TrainingJob,
        attempt: &Value,
        restarts: u32,
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
        job["attempt"]["restarts"] = restarts.into();
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
    pub(super) fn attend(&mut self, output: &Output) -> Vec<Value> {
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
        line[SILENT] = true.into();
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
