//! `flambeau-worker`: finds libtorch, loads it and the library that does the work, and runs it.
//!
//! The program itself links no libtorch, so that a missing one is a sentence and not an error of the dynamic linker.

mod arguments;
mod finder;
mod library;

use std::env;
use std::process::exit;

use arguments::Command;

fn main() {
    let all: Vec<String> = env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let arguments = match arguments::parse(all.get(1..).unwrap_or_default()) {
        Ok(arguments) => arguments,
        Err(sentence) => {
            eprintln!("flambeau-worker: {sentence}; --help tells more");
            exit(2);
        }
    };
    match arguments.command {
        Command::Help => return println!("{}", arguments::USAGE),
        Command::Version => return println!("flambeau-worker {}", env!("CARGO_PKG_VERSION")),
        _ => {}
    }
    let found = finder::find(arguments.libtorch.as_deref()).map_err(|error| error.to_string());
    if let (Command::Libtorch, Ok(libtorch)) = (&arguments.command, &found) {
        let json = serde_json::to_string(libtorch).expect("paths that were found are UTF-8");
        return println!("{json}");
    }
    // Threads come from the job. Spark sets this to spark.task.cpus, and OpenMP reads it once, when it is loaded.
    // SAFETY: no other thread runs yet.
    unsafe { env::remove_var("OMP_NUM_THREADS") };
    if let (Command::Launch(_), Ok(libtorch)) = (&arguments.command, &found) {
        // SAFETY: as above. The ranks of a launch, which inherit it, need not look for libtorch themselves.
        unsafe { env::set_var("LIBTORCH", &libtorch.directory) };
    }
    match found.and_then(|libtorch| library::run(&libtorch, &all)) {
        Ok(status) => exit(status),
        Err(sentence) => {
            if matches!(
                arguments.command,
                Command::Child { .. } | Command::Launch(_)
            ) {
                println!("{}", environment_error(&sentence));
            }
            eprintln!("flambeau-worker: {sentence}");
            exit(1);
        }
    }
}

/// The line that tells a launcher of what is missing. It knows the rank.
fn environment_error(message: &str) -> serde_json::Value {
    serde_json::json!({"error": {"kind": "environment", "message": message, "rank": null, "host": null,
        "epoch": null, "step": null, "isCause": true}})
}
