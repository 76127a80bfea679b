//! What front ends ask before and between trainings.

use std::collections::HashMap;

use flambeau_supervisor::SupervisorError;
use flambeau_train::{MetricNames, TrainingJob};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error;

/// Checks a training job, with the names of the metrics that training rows have and of those that validation rows have, where
/// they are known and the job does not hold them, and with those of the parameters that are trained. Raises
/// `flambeau.errors.ParamError` (a ValueError) that names the param, its value and what is allowed.
#[pyfunction]
#[pyo3(signature = (job_json, training_metrics = None, validation_metrics = None, parameters = None))]
pub(crate) fn validate_job(
    py: Python<'_>,
    job_json: &str,
    training_metrics: Option<Vec<String>>,
    validation_metrics: Option<Vec<String>>,
    parameters: Option<Vec<String>>,
) -> PyResult<()> {
    let names = training_metrics.map(|training| MetricNames {
        training,
        validation: validation_metrics.unwrap_or_default(),
    });
    TrainingJob::from_json(job_json)
        .and_then(|job| {
            names.map_or(Ok(()), |names| job.check_metrics(&names))?;
            let parameters = parameters.map(|all| job.check_parameters(&all));
            parameters.unwrap_or(Ok(()))
        })
        .map_err(|failure| error::from_job(py, &failure))
}

/// The JSON Schema of a training job.
#[pyfunction]
pub(crate) fn job_schema() -> String {
    TrainingJob::schema_json()
}

/// Asks the supervisor a question about a work directory, and returns its answer; both are JSON. `store_options` are those
/// of the stores.
///
/// Raises `flambeau.errors.StoreError`, `ParamError` for what the user asked for that does not go with what is there, and
/// `RunInUseError`.
#[pyfunction]
pub(crate) fn supervise(
    py: Python<'_>,
    work_dir: &str,
    question: &str,
    store_options: HashMap<String, String>,
) -> PyResult<String> {
    let answer = py.detach(|| flambeau_supervisor::answer(work_dir, question, &store_options));
    answer.map_err(|failure| match failure {
        SupervisorError::Data(failure) => error::from_data(py, &failure),
        SupervisorError::Refused(reason) => error::raise(py, "ParamError", &reason, &[]),
        SupervisorError::RunInUse(reason) => error::raise(py, "RunInUseError", &reason, &[]),
        SupervisorError::Malformed(_) => PyValueError::new_err(failure.to_string()),
    })
}

/// Those of the operators, such as `aten::from_file`, that may do more than compute.
#[pyfunction]
pub(crate) fn impure_operators(names: Vec<String>) -> Vec<String> {
    let mut names = names;
    names.retain(|name| !flambeau_train::is_pure_operator(name));
    names
}

/// Refuses a file of a TorchScript archive that has code for the load itself to run, or storages that are larger than what
/// the archive holds of them; `sizes` has the bytes of each of its files by its name in lower case. Raises
/// `flambeau.errors.DataError`.
#[pyfunction]
pub(crate) fn check_script_file(
    py: Python<'_>,
    name: &str,
    data: &[u8],
    sizes: HashMap<String, u64>,
) -> PyResult<()> {
    flambeau_train::check_script_file(name, data, &sizes)
        .map_err(|reason| error::raise(py, "DataError", &reason, &[]))
}
