//! What the environment says that the library is to do, each process for itself.
//!
//! | variable, after `FLAMBEAU_TEST_NCCL_` | effect |
//! |---|---|
//! | `VERSION` | the version code that is reported; 22907 by default |
//! | `INIT=hang` | no communicator is ever ready |
//! | `POLLS` | how often `ncclInProgress` is the answer after each group, whose work begins only after that |
//! | `HANG` | the number, from 1, of the operation that never ends but by an abort |
//! | `ERROR=code@number` | that operation never ends, and `code` is the communicator's asynchronous error from then on |
//! | `REFUSE=code` | what `ncclCommInitRankConfig` returns |
//! | `LOG` | a file that gets a line for each call |

use std::env;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::str::FromStr;

/// The value of a variable, where it is set and understood.
pub fn value<T: FromStr>(name: &str) -> Option<T> {
    env::var(format!("FLAMBEAU_TEST_NCCL_{name}"))
        .ok()?
        .parse()
        .ok()
}

/// The code and the number of the operation of `ERROR`.
pub(crate) fn error() -> Option<(i32, u64)> {
    let text: String = value("ERROR")?;
    let (code, number) = text.split_once('@')?;
    Some((code.parse().ok()?, number.parse().ok()?))
}

/// Adds a line to the log, if there is one.
pub fn log(line: impl Display) {
    let Some(path) = value::<String>("LOG") else {
        return;
    };
    let file = OpenOptions::new().append(true).create(true).open(path);
    // One write, so that the lines of threads do not mix.
    file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
        .expect("the log can be written");
}
