//! What `flambeau-worker` does, once libtorch is there.
//!
//! - `training`: one rank of a job, from its meeting with the others to its result.
//! - `child` and `standalone`: the two ways to it: as the child of a launcher, and by the command line.
//! - `launch`: the launcher that needs no Spark: all ranks of a job, as child processes.
//! - `lines`: what a launcher and a rank say to each other.
//! - `check`: what is wrong with a job's program.
//! - `scoring`: Parquet rows through a model into a Parquet file.
//! - `inspection`: what a model, a program, shards, a checkpoint or a run hold.

#[expect(
    dead_code,
    reason = "the program reads the commands that need no libtorch"
)]
mod arguments;
mod check;
mod child;
mod failure;
mod inspection;
mod launch;
mod lines;
mod saved;
mod scoring;
mod standalone;
mod training;

use arguments::Command;
use flambeau_train::error_chain;

/// Runs a command line, the program's name first, and returns the exit status: 0 where all went well, 1 after an error that
/// was told, 2 where the command line is wrong.
pub fn main(arguments: Vec<String>) -> i32 {
    let arguments = arguments.get(1..).unwrap_or_default();
    match arguments::parse(arguments).map(|arguments| arguments.command) {
        Ok(Command::Child { gpus }) => child::main(gpus),
        Ok(Command::Train(arguments)) => standalone::main(&arguments),
        Ok(Command::Launch(arguments)) => launch::main(&arguments),
        Ok(Command::Check { job }) => check::main(&job),
        Ok(Command::Score(arguments)) => told(scoring::score(&arguments)),
        Ok(Command::Inspect { paths }) => told(inspection::inspect(&paths)),
        Ok(Command::Help | Command::Version | Command::Libtorch) => 0,
        Err(sentence) => {
            eprintln!("flambeau-worker: {sentence}");
            2
        }
    }
}

/// The exit status of a command; its error is told on standard error.
fn told(outcome: Result<(), Box<dyn std::error::Error>>) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("flambeau-worker: {}", error_chain(&*error));
            1
        }
    }
}
