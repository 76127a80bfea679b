//! The lines that a launch writes.

use std::io::{self, Write};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};

use serde_json::Value;

/// Lines that a reader may be behind.
const MAX_BEHIND: usize = 1024;

/// Standard output, written by a thread of its own: a reader that pauses holds up no rank, and misses lines.
pub(super) struct Output {
    lines: SyncSender<String>,
    thread: JoinHandle<io::Result<()>>,
}

impl Output {
    pub(super) fn new() -> io::Result<Output> {
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

    pub(super) fn write(&self, line: &Value) {
        let _ = self.lines.try_send(line.to_string());
    }

    /// Writes the last line. A reader that is gone is no failure.
    pub(super) fn end(self, last: &Value) -> io::Result<()> {
        let _ = self.lines.send(last.to_string());
        drop(self.lines);
        match self.thread.join().expect("writing does not panic") {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }
}
