//! What `flambeau-worker` does, once libtorch is there.
//!
//! - `training`: one rank of a job, from its meeting with the others to its result.
//! - `launcher` and `standalone`: the two ways to it: under a launcher that speaks JSON lines, and by the command line.
//! - `scoring`: Parquet rows through a model into a Parquet file.
//! - `inspection`: what a model, a program or shards hold.

#[expect(
    dead_code,
    reason = "the program reads the commands that need no libtorch"
)]
mod arguments;
mod failure;
mod launcher;
mod lines;
mod standalone;
mod training;

use arguments::Command;

/// Runs a command line, the program's name first, and returns the exit status: 0 where all went well, 1 after an error that
/// was told, 2 where the command line is wrong.
pub fn main(arguments: Vec<String>) -> i32 {
    let arguments = arguments.get(1..).unwrap_or_default();
    match arguments::parse(arguments).map(|arguments| arguments.command) {
        Ok(Command::Launched) => launcher::main(),
        Ok(Command::Train(arguments)) => standalone::main(&arguments),
        Ok(Command::Score(_) | Command::Inspect { .. }) => 2,
        Ok(Command::Help | Command::Version | Command::Libtorch) => 0,
        Err(sentence) => {
            eprintln!("flambeau-worker: {sentence}");
            2
        }
    }
}
