//! The one place where errors become Python exceptions.

use flambeau_collective::CollectiveError;
use flambeau_data::DataError;
use flambeau_train::{Cause, JobError, TrainError, error_chain};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

/// An exception of `flambeau.errors` with keyword arguments.
pub(crate) fn raise(
    py: Python<'_>,
    class: &str,
    message: &str,
    fields: &[(&str, Bound<'_, PyAny>)],
) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let class = py.import("flambeau.errors")?.getattr(class)?;
        let keywords = PyDict::new(py);
        for (name, value) in fields {
            keywords.set_item(name, value)?;
        }
        Ok(PyErr::from_value(class.call((message,), Some(&keywords))?))
    };
    make().unwrap_or_else(|error| {
        let fallback = PyRuntimeError::new_err(message.to_owned());
        fallback.set_cause(py, Some(error));
        fallback
    })
}

/// `ParamError`.
pub(crate) fn from_job(py: Python<'_>, error: &JobError) -> PyErr {
    raise(py, "ParamError", &error_chain(error), &[])
}

/// The field of a `StoreError`.
fn is_transient<'py>(py: Python<'py>, error: &DataError) -> (&'static str, Bound<'py, PyAny>) {
    let transient = PyBool::new(py, error.is_transient());
    ("is_transient", transient.to_owned().into_any())
}

/// `StoreError` for a store, `DataError` for what lies in its files.
pub(crate) fn from_data(py: Python<'_>, error: &DataError) -> PyErr {
    let transient = [is_transient(py, error)];
    let (class, fields) = match error {
        DataError::Interrupted => ("CancelledError", &[][..]),
        error if error.is_of_store() => ("StoreError", &transient[..]),
        _ => ("DataError", &[][..]),
    };
    raise(py, class, &error_chain(error), fields)
}

/// The subclass of `CollectiveError` that fits.
pub(crate) fn from_collective(py: Python<'_>, error: &CollectiveError) -> PyErr {
    let message = error_chain(error);
    match error {
        CollectiveError::Timeout { .. } => raise(py, "CollectiveTimeout", &message, &[]),
        CollectiveError::PeerLost { rank, host, .. } => {
            let fields = rank
                .into_pyobject(py)
                .map(Bound::into_any)
                .and_then(|rank| {
                    let host = host.into_pyobject(py)?.into_any();
                    Ok([("rank", rank), ("host", host)])
                });
            match fields {
                Ok(fields) => raise(py, "WorkerLost", &message, &fields),
                Err(never) => match never {},
            }
        }
        CollectiveError::Mismatch { .. } => raise(py, "CollectiveMismatch", &message, &[]),
        CollectiveError::Interrupted => raise(py, "CancelledError", &message, &[]),
        _ => raise(py, "CollectiveError", &message, &[]),
    }
}

/// How a training ended on a rank that failed: `RankFailure`, with the exception itself as its cause. `interruption` is the
/// exception of a signal, which goes before the error that it led to.
pub(crate) fn from_train(py: Python<'_>, error: TrainError, interruption: Option<PyErr>) -> PyErr {
    let message = error.to_string();
    let is_cause = error.is_cause();
    let TrainError {
        rank,
        host,
        epoch,
        step,
        cause,
    } = error;
    let kind = cause.kind().name();
    let (kind, exception) = match (interruption, *cause) {
        (Some(signal), _) => ("cancelled", signal),
        (None, Cause::Model(error) | Cause::Hook(error)) => match error.downcast::<PyErr>() {
            Ok(exception) => (kind, *exception),
            Err(other) => (
                "internal",
                raise(py, "FlambeauError", &other.to_string(), &[]),
            ),
        },
        (None, Cause::Job(error)) => (kind, from_job(py, &error)),
        (None, Cause::Data(error)) => (kind, from_data(py, &error)),
        (None, ref cause @ Cause::TensorBoard { ref source, .. }) => {
            let fields = [is_transient(py, source)];
            (kind, raise(py, "StoreError", &error_chain(cause), &fields))
        }
        (None, Cause::Collective(error)) => (kind, from_collective(py, &error)),
        (None, cause) => {
            let class = match &cause {
                Cause::Diverged { .. } | Cause::Overflow { .. } => "DivergedError",
                Cause::Cancelled => "CancelledError",
                Cause::Io { .. } => "StoreError",
                Cause::Checkpoint { .. } => "FlambeauError",
                _ => "WorkerError",
            };
            let place = |value: Option<u64>| value.into_pyobject(py);
            let exception = match (class, place(epoch), place(step)) {
                ("DivergedError", Ok(epoch), Ok(step)) => raise(
                    py,
                    class,
                    &error_chain(&cause),
                    &[("epoch", epoch), ("step", step)],
                ),
                _ => raise(py, class, &error_chain(&cause), &[]),
            };
            (kind, exception)
        }
    };
    failure(
        py, &message, kind, rank, &host, epoch, step, is_cause, exception,
    )
}

/// A panic of a rank, as `RankFailure` of kind `internal`.
pub(crate) fn from_panic(
    py: Python<'_>,
    rank: usize,
    panic: Box<dyn std::any::Any + Send>,
) -> PyErr {
    let text = match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic
            .downcast::<&str>()
            .map_or_else(|_| "panic".into(), |text| (*text).into()),
    };
    let message = format!("rank {rank}: a defect in Flambeau: {text}");
    let exception = raise(py, "FlambeauError", &message, &[]);
    failure(
        py, &message, "internal", rank, "", None, None, true, exception,
    )
}

#[expect(clippy::too_many_arguments, reason = "the fields of one exception")]
fn failure(
    py: Python<'_>,
    message: &str,
    kind: &str,
    rank: usize,
    host: &str,
    epoch: Option<u64>,
    step: Option<u64>,
    is_cause: bool,
    exception: PyErr,
) -> PyErr {
    let host = (!host.is_empty()).then_some(host);
    let made = py
        .import("flambeau.errors")
        .and_then(|module| module.getattr("RankFailure"))
        .and_then(|class| class.call1((message, kind, rank, host, epoch, step, is_cause)));
    match made {
        Ok(value) => {
            let error = PyErr::from_value(value);
            error.set_cause(py, Some(exception));
            error
        }
        Err(_) => exception,
    }
}
