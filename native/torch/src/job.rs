//! From a job to a model, and what is wrong with a job before any worker starts.

use flambeau_data::{DatasetSpec, Store, TensorSpec};
use flambeau_train::{DeviceChoice, NativeProgram, TrainingJob};
use serde::Serialize;
use tch::{Device, Tensor};

use crate::error::TorchError;
use crate::loss::{self, Loss};
use crate::metrics::{self, Metric};
use crate::model::{ModelTensors, TorchModel, detached};
use crate::optimizer::Optimizer;
use crate::output::{OutputTensor, output_spec};
use crate::program::Program;
use crate::rows::Targets;
use crate::tensor::{kind_name, kind_of};
use crate::{cuda, load, random};

/// Rows that a program is tried on.
const NUM_ROWS: i64 = 2;

/// What a job's program is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobCheck {
    /// The names of forward's arguments, in their order.
    pub arguments: Vec<String>,
    /// What the program returns; empty where the shape of an input is known to the data alone.
    pub output: Vec<OutputTensor>,
    /// Elements of all parameters, frozen ones included, tied ones once.
    pub num_parameters: usize,
    /// The dtype of the first trained parameter.
    pub parameter_dtype: String,
    /// The version of torch that this build is made for.
    pub torch: &'static str,
}

/// The parts of a model, each checked by itself.
struct Parts {
    program: Box<dyn Program>,
    loss: Box<dyn Loss>,
    optimizer: Optimizer,
    metrics: Vec<Metric>,
    tensors: ModelTensors,
}

/// The model of a job, with its weights as training starts.
///
/// # Errors
///
/// [`TorchError::Param`] for a job without a program, a program that cannot be loaded or trained, an unknown loss,
/// optimizer, metric or option; [`TorchError::Store`] and [`TorchError::Data`] where a file is missing or another one.
pub fn build(job: &TrainingJob, store: &Store) -> Result<TorchModel, TorchError> {
    if job.params.device != DeviceChoice::Cpu {
        // Before a program is there, or libtorch goes on without it. Why it may be missing is told where it is needed.
        let _ = cuda::load_cuda();
    }
    let Parts {
        program,
        loss,
        optimizer,
        metrics,
        tensors,
    } = parts(job, store)?;
    Ok(TorchModel::new(
        program,
        loss,
        optimizer,
        metrics,
        tensors,
        job.params.precision,
    ))
}

/// Loads a job's program, runs it on two rows of zeros (of ones where zeros fail) in evaluation mode, and takes its
/// loss and one backward of it in training mode. Nothing of the job is changed, nor the random generator. Nothing is
/// run where the shape of an input is known to the data alone.
///
/// # Errors
///
/// As [`build`]; and what fails on those rows, such as inputs of other shapes than `forward` takes.
pub fn check_job(job: &TrainingJob, store: &Store) -> Result<JobCheck, TorchError> {
    let parts = parts(job, store)?;
    let trained = parts.tensors.trained.iter();
    job.check_parameters(&trained.map(|entry| &*entry.name).collect::<Vec<_>>())
        .map_err(|error| TorchError::Param(error.to_string()))?;
    let spec = &job.data.spec;
    let output = random::forked(|| {
        if !spec.inputs.iter().all(is_known) {
            return Ok(vec![]);
        }
        let (inputs, output) = probe(&*parts.program, spec)?;
        check_training(&parts, spec, &inputs)?;
        Ok(output)
    })?;
    let ModelTensors { all, trained } = &parts.tensors;
    let parameters = all.iter().filter(|entry| !entry.is_buffer);
    Ok(JobCheck {
        arguments: parts.program.arguments()?,
        output,
        num_parameters: parameters.map(|entry| entry.tensor.numel()).sum(),
        parameter_dtype: trained
            .first()
            .map_or_else(String::new, |entry| kind_name(entry.tensor.kind())),
        torch: "2.13.0",
    })
}

fn parts(job: &TrainingJob, store: &Store) -> Result<Parts, TorchError> {
    let spec: &NativeProgram = job.program.as_ref().ok_or_else(|| {
        TorchError::Param(
            "model: the job has no program; give a TorchScript file or an exported graph".into(),
        )
    })?;
    // What costs nothing to check comes first.
    let mut optimizer = Optimizer::new(&spec.optimizer)?;
    let loss = loss::build(&spec.loss, store)?;
    let metrics = metrics::build(&spec.metrics, loss.threshold(), loss.ignore_index())?;
    let program = load::of_job(spec, store)?;
    let tensors = ModelTensors::of(&*program);
    load::check_trainable(&*program, &tensors)?;
    if let Some(learning_rate) = job.params.learning_rate {
        optimizer.set_learning_rate(learning_rate);
    }
    Ok(Parts {
        program,
        loss,
        optimizer,
        metrics,
        tensors,
    })
}

/// Two rows that the program takes, and what it returns for them.
pub(crate) fn probe(
    program: &dyn Program,
    spec: &DatasetSpec,
) -> Result<(Vec<Tensor>, Vec<OutputTensor>), TorchError> {
    let mut first_error = None;
    for value in [0, 1] {
        let inputs = constant(&spec.inputs, value)?;
        match tch::no_grad(|| program.forward(&inputs, false)) {
            Ok(output) => return Ok((inputs, output_spec(&output, NUM_ROWS)?)),
            Err(error @ TorchError::Param(_)) => return Err(error),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    let reason = first_error.map_or_else(String::new, |error| error.to_string());
    Err(TorchError::Param(format!(
        "model: forward fails on inputs of the columns' shapes ({}): {reason}",
        shapes(&spec.inputs)
    )))
}

/// One step without the optimizer. Skipped where the shape of a label is known to the data alone.
fn check_training(parts: &Parts, spec: &DatasetSpec, inputs: &[Tensor]) -> Result<(), TorchError> {
    if !spec.labels.iter().all(is_known) {
        return Ok(());
    }
    let labels = constant(&spec.labels, 0)?;
    let weight = spec
        .weight
        .as_ref()
        .map(|weight| constant(std::slice::from_ref(weight), 1));
    let weight = weight.transpose()?.map(|mut weights| weights.remove(0));
    let output = parts.program.forward(inputs, true).map_err(|error| {
        TorchError::Param(format!(
            "model: forward fails in training mode on inputs of the columns' shapes ({}): {error}",
            shapes(&spec.inputs)
        ))
    })?;
    let targets = Targets::on_cpu(labels, weight, NUM_ROWS as usize);
    let loss = parts.loss.evaluate(&output, &targets)?;
    for metric in &parts.metrics {
        metric.update(&output, &targets, &mut vec![])?;
    }
    if loss.denominator == 0.0 {
        return Ok(());
    }
    if !loss.value.requires_grad() {
        return Err(detached(parts.loss.name()));
    }
    Ok(loss.value.f_backward()?)
}

/// Whether the shape of a row is known without the data.
fn is_known(tensor: &TensorSpec) -> bool {
    tensor.shape.is_some() || tensor.columns.len() > 1
}

fn row_shape(tensor: &TensorSpec) -> Vec<usize> {
    match (&tensor.shape, tensor.columns.len()) {
        (Some(shape), _) => shape.clone(),
        (None, 1) => vec![],
        (None, num_columns) => vec![num_columns],
    }
}

fn constant(specs: &[TensorSpec], value: i64) -> Result<Vec<Tensor>, TorchError> {
    let tensor = |spec: &TensorSpec| {
        let shape: Vec<i64> = [NUM_ROWS as usize]
            .into_iter()
            .chain(row_shape(spec))
            .map(|size| size as i64)
            .collect();
        Ok(Tensor::f_full(
            shape.as_slice(),
            value,
            (kind_of(spec.dtype), Device::Cpu),
        )?)
    };
    specs.iter().map(tensor).collect()
}

fn shapes(specs: &[TensorSpec]) -> String {
    let shape = |spec: &TensorSpec| {
        let sizes: Vec<usize> = [NUM_ROWS as usize]
            .into_iter()
            .chain(row_shape(spec))
            .collect();
        format!("{}: {sizes:?} {}", spec.name, spec.dtype)
    };
    specs.iter().map(shape).collect::<Vec<_>>().join(", ")
}
