//! How a rank failed, as its launcher is told.

use std::any::Any;

use flambeau_collective::host_name;
use flambeau_torch::TorchError;
use flambeau_train::{Cause, ErrorKind, TrainError, error_chain};
use serde::Serialize;

/// How a rank failed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Failure {
    /// The name of an `ErrorKind`, `environment`, or of a process that was killed `lost`.
    pub(crate) kind: &'static str,
    /// What happened, with its causes.
    pub(crate) message: String,
    /// The rank that failed.
    pub(crate) rank: usize,
    /// Its host.
    pub(crate) host: String,
    /// The epoch it was in, counted from 0; none before the first.
    pub(crate) epoch: Option<u64>,
    /// The step it was in, counted from 0 over all epochs; none before the first.
    pub(crate) step: Option<u64>,
    /// Whether it began here; false where this rank only learnt of another's failure.
    pub(crate) is_cause: bool,
}

impl Failure {
    /// A failure before the loop began.
    pub(crate) fn early(rank: usize, cause: impl Into<Cause>) -> Failure {
        let cause = cause.into();
        Failure::from(TrainError {
            rank,
            host: host_name(),
            epoch: None,
            step: None,
            cause: Box::new(cause),
        })
    }

    /// A failure of what surrounds the training: its launcher, its machine.
    pub(crate) fn of_environment(rank: usize, message: String) -> Failure {
        Failure {
            kind: "environment",
            message,
            rank,
            host: host_name(),
            epoch: None,
            step: None,
            is_cause: true,
        }
    }

    /// A panic.
    pub(crate) fn of_panic(rank: usize, panic: Box<dyn Any + Send>) -> Failure {
        let text = match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic
                .downcast::<&str>()
                .map_or_else(|_| "panic".into(), |text| (*text).into()),
        };
        Failure {
            kind: ErrorKind::Internal.name(),
            message: format!("a defect in Flambeau: {text}"),
            ..Failure::of_environment(rank, String::new())
        }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        Failure {
            kind: kind_of(&error.cause),
            message: error_chain(&*error.cause),
            is_cause: error.is_cause(),
            rank: error.rank,
            host: error.host,
            epoch: error.epoch,
            step: error.step,
        }
    }
}

fn kind_of(cause: &Cause) -> &'static str {
    if let Cause::Model(error) = cause {
        match error.downcast_ref() {
            Some(TorchError::Param(_)) => return "job",
            Some(TorchError::Store(error)) if error.is_transient() => return "store",
            Some(TorchError::Data(_) | TorchError::Store(_) | TorchError::Io { .. }) => {
                return "data";
            }
            _ => {}
        }
    }
    cause.kind().name()
}
