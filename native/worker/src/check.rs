//! What is wrong with a job's program, before any worker starts. A program that crashes takes this process with it, and not the
//! one that asked.

use std::fs;
use std::io;
use std::thread;

use flambeau_data::Store;
use flambeau_torch::JobCheck;
use flambeau_train::{Cause, TrainingJob};

use crate::failure::Failure;
use crate::lines::Lines;
use crate::training;

/// Tries the program of the job in that file, or in the first line of standard input where it is `-`, and prints what came of
/// it in one JSON line; returns the exit status.
pub(crate) fn main(job: &str) -> i32 {
    let Some(lines) = Lines::take_stdout() else {
        return 1;
    };
    i32::from(training::conclude(&lines, 0, || check(job)).is_err())
}

fn check(job: &str) -> Result<JobCheck, Failure> {
    let refuse = |error: io::Error| {
        Failure::of_environment(0, format!("the job {job} cannot be read: {error}"))
    };
    let text = match job {
        "-" => first_line(),
        file => fs::read_to_string(file),
    };
    let job =
        TrainingJob::from_json(&text.map_err(refuse)?).map_err(|error| Failure::early(0, error))?;
    let store = Store::new(&job.store).map_err(|error| Failure::early(0, error))?;
    // A program that names GPUs loads where libtorch has them. Why it may have none is told where they are needed.
    let _ = flambeau_torch::load_cuda();
    flambeau_torch::check_job(&job, &store)
        .map_err(|error| Failure::early(0, Cause::Model(Box::new(error))))
}

/// The first line of standard input. From there on, the end of standard input ends the process: who asked is gone.
fn first_line() -> io::Result<String> {
    let mut first = String::new();
    io::stdin().read_line(&mut first)?;
    thread::Builder::new()
        .name("flambeau-stdin".into())
        .spawn(move || {
            io::stdin().lines().for_each(drop);
            // SAFETY: no destructor runs, so none can wait for, or pull memory from under, a thread that computes.
            unsafe { libc::_exit(1) }
        })?;
    Ok(first)
}
