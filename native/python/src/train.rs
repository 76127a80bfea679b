//! The training of one rank, started from Python.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flambeau_collective::{GroupOptions, ProcessGroup, TransportChoice};
use flambeau_data::Store;
use flambeau_train::{Cause, Gpus, Hooks, TrainError, TrainingJob, Worker};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::callbacks::Callbacks;
use crate::error;
use crate::model::PyModel;
use crate::rendezvous::CallableRendezvous;
use crate::signals::Signals;

/// Trains one rank of a job to its end and returns the result as JSON.
///
/// All ranks call it with the same job. `all_gather` is called once, with bytes, and returns every rank's bytes in rank order.
/// `secret` proves that ranks belong together; `bind_address` is the IP address that the other ranks reach this one at.
/// `adapter` is a `flambeau._module.adapter.ModuleModel`. `callbacks`, a `flambeau._rank.callbacks.RankCallbacks`, is told what the
/// rank comes to, unless it is None. `transport` is "auto", "sharedMemory" or "tcp". `gpu_addresses` are those that the cluster has
/// assigned to the rank, None where it assigns none. Waits at most the job's `collectiveTimeout` in any one operation, and not at
/// all once a signal handler raises.
///
/// Raises `flambeau.errors.RankFailure`, whose cause is the exception itself.
#[pyfunction]
#[pyo3(signature = (job_json, rank, world_size, all_gather, secret, bind_address, adapter, callbacks = None, transport = "auto", gpu_addresses = None))]
#[expect(clippy::too_many_arguments, reason = "named in Python")]
pub(crate) fn train(
    py: Python<'_>,
    job_json: &str,
    rank: usize,
    world_size: usize,
    all_gather: Py<PyAny>,
    secret: Vec<u8>,
    bind_address: &str,
    adapter: &Bound<'_, PyAny>,
    callbacks: Option<&Bound<'_, PyAny>>,
    transport: &str,
    gpu_addresses: Option<Vec<String>>,
) -> PyResult<String> {
    let bind_address: IpAddr = bind_address.parse().map_err(|_| {
        PyValueError::new_err(format!(
            "bind_address is {bind_address:?}, but must be an IP address"
        ))
    })?;
    let transport = match transport {
        "auto" => TransportChoice::Auto,
        "sharedMemory" => TransportChoice::SharedMemory,
        "tcp" => TransportChoice::Tcp,
        _ => {
            let message =
                format!("transport is {transport:?}, but must be auto, sharedMemory or tcp");
            return Err(PyValueError::new_err(message));
        }
    };
    let mut model = PyModel::new(adapter)?;
    let callbacks = callbacks.map(Callbacks::new).transpose()?;
    let signals = Signals::default();
    let raised = Arc::new(Mutex::new(None));
    let mut rendezvous = CallableRendezvous::new(rank, world_size, all_gather, raised.clone());
    let options = GroupOptions {
        secret,
        bind_address,
        transport,
        interrupt: Some(signals.callback()),
        ..GroupOptions::default()
    };
    let gpus = Gpus {
        // A rank trains on one.
        assigned: gpu_addresses.and_then(|addresses| addresses.into_iter().next()),
        ..Gpus::default()
    };
    let outcome = py.detach(|| {
        std::panic::catch_unwind(AssertUnwindSafe(|| {
            run(
                job_json,
                &mut model,
                &mut rendezvous,
                options,
                gpus,
                &signals,
                callbacks,
            )
            .map_err(|cause| locate(cause, rank))
        }))
    });
    match outcome {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(failure)) => {
            let interruption = signals.take();
            let failed = error::from_train(py, failure, interruption);
            // What the rendezvous itself raised says more than that it failed.
            let exception = raised.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let (Some(exception), Some(cause)) = (exception, failed.cause(py)) {
                cause.set_cause(py, Some(exception));
            }
            Err(failed)
        }
        Err(panic) => Err(error::from_panic(py, rank, panic)),
    }
}

/// An error before the loop began, or the loop's own.
enum Failure {
    Early(Cause),
    Late(TrainError),
}

fn locate(failure: Failure, rank: usize) -> TrainError {
    match failure {
        Failure::Late(error) => error,
        Failure::Early(cause) => TrainError {
            rank,
            host: String::new(),
            epoch: None,
            step: None,
            cause: Box::new(cause),
        },
    }
}

fn run(
    job_json: &str,
    model: &mut PyModel,
    rendezvous: &mut CallableRendezvous,
    mut options: GroupOptions,
    gpus: Gpus,
    signals: &Signals,
    callbacks: Option<Callbacks>,
) -> Result<String, Failure> {
    let job = TrainingJob::from_json(job_json).map_err(|error| Failure::Early(error.into()))?;
    let store = Store::new(&job.store).map_err(|error| Failure::Early(error.into()))?;
    options.timeout = Duration::from_secs_f64(job.params.collective_timeout);
    options.terms = job
        .terms(&store)
        .map_err(|error| Failure::Early(error.into()))?;
    options.heartbeat_timeout = Duration::from_secs_f64(job.params.heartbeat_timeout);
    let group =
        ProcessGroup::connect(rendezvous, options).map_err(|error| Failure::Early(error.into()))?;
    model
        .set_num_threads(flambeau_train::num_threads(&job, &group))
        .map_err(|error| Failure::Early(Cause::Model(error)))?;
    let hooks = Hooks {
        cancel: Some(signals.callback()),
        interrupt: Some(signals.callback()),
        ..callbacks.map_or_else(Hooks::default, Callbacks::hooks)
    };
    let result = Worker::new(job, group, model, store, hooks)
        .with_gpus(gpus)
        .run()
        .map_err(Failure::Late)?;
    Ok(serde_json::to_string(&result).expect("a result has string keys"))
}
