//! `flambeau._adapter.ModuleModel` as the training loop's model.

use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use flambeau_collective::{DType, Device};
use flambeau_data::{Batch, HostTensor};
use flambeau_train::{
    GradientReducer, LossSums, MicroBatch, Model, ModelError, ParameterInfo, StepContext, TensorRef,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::dlpack;
use crate::reducer::PyGradientReducer;
use crate::sink::ByteSink;

/// What `ModuleModel.tensors` tells of a tensor: name, address, elements, dtype, bytes, whether it is a buffer.
type SharedTensor = (String, usize, usize, Option<String>, usize, bool);

/// A Python object with the methods of [`Model`]. The two that run in every step are looked up once.
pub(crate) struct PyModel {
    adapter: Py<PyAny>,
    train_batch: Py<PyAny>,
    optimizer_step: Py<PyAny>,
}

impl PyModel {
    pub(crate) fn new(adapter: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(PyModel {
            train_batch: adapter.getattr("train_batch")?.unbind(),
            optimizer_step: adapter.getattr("optimizer_step")?.unbind(),
            adapter: adapter.clone().unbind(),
        })
    }

    /// Sets the number of threads that torch computes with.
    pub(crate) fn set_num_threads(&self, num_threads: usize) -> Result<(), ModelError> {
        Python::attach(|py| {
            self.adapter
                .call_method1(py, "set_num_threads", (num_threads,))?;
            Ok(())
        })
    }
}

fn dtype_of(name: &str) -> PyResult<DType> {
    match name {
        "float32" => Ok(DType::Float32),
        "float64" => Ok(DType::Float64),
        "float16" => Ok(DType::Float16),
        "bfloat16" => Ok(DType::BFloat16),
        "int64" => Ok(DType::Int64),
        _ => Err(PyTypeError::new_err(format!(
            "{name} is no dtype of a collective"
        ))),
    }
}

fn capsules<'py>(py: Python<'py>, tensors: Vec<HostTensor>) -> PyResult<Bound<'py, PyTuple>> {
    let tensors: PyResult<Vec<_>> = tensors
        .into_iter()
        .map(|tensor| dlpack::of_host_tensor(py, tensor))
        .collect();
    PyTuple::new(py, tensors?)
}

type Capsules<'py> = (
    Bound<'py, PyTuple>,
    Bound<'py, PyTuple>,
    Option<Bound<'py, PyAny>>,
    usize,
);

fn arguments<'py>(py: Python<'py>, batch: Batch) -> PyResult<Capsules<'py>> {
    let weight = batch
        .weight
        .map(|weight| dlpack::of_host_tensor(py, weight))
        .transpose()?;
    Ok((
        capsules(py, batch.inputs)?,
        capsules(py, batch.labels)?,
        weight,
        batch.num_rows,
    ))
}

fn loss_sums(sums: Vec<f64>) -> PyResult<LossSums> {
    match sums[..] {
        [numerator, denominator, ref metrics @ ..] => Ok(LossSums {
            numerator,
            denominator,
            metrics: metrics.to_vec(),
        }),
        _ => Err(PyTypeError::new_err(
            "the adapter returned no numerator and denominator",
        )),
    }
}

impl Model for PyModel {
    fn parameters(&mut self) -> Result<Vec<ParameterInfo>, ModelError> {
        Python::attach(|py| {
            let listed: Vec<(String, usize, usize, String)> =
                self.adapter.call_method0(py, "parameters")?.extract(py)?;
            let infos: PyResult<Vec<_>> = listed
                .into_iter()
                .map(|(name, numel, num_rows, dtype)| {
                    Ok(ParameterInfo {
                        name,
                        numel,
                        num_rows,
                        dtype: dtype_of(&dtype)?,
                        device: Device::Cpu,
                    })
                })
                .collect();
            Ok(infos?)
        })
    }

    fn num_metric_sums(&mut self) -> Result<usize, ModelError> {
        Python::attach(|py| {
            Ok(self
                .adapter
                .call_method0(py, "num_metric_sums")?
                .extract(py)?)
        })
    }

    fn attach(&mut self, reducer: Arc<GradientReducer>) -> Result<(), ModelError> {
        Python::attach(|py| {
            self.adapter
                .call_method1(py, "attach", (PyGradientReducer::new(reducer),))?;
            Ok(())
        })
    }

    fn tensors(&mut self) -> Result<Vec<TensorRef>, ModelError> {
        Python::attach(|py| {
            let listed: Vec<SharedTensor> =
                self.adapter.call_method0(py, "tensors")?.extract(py)?;
            let tensors: PyResult<Vec<_>> = listed
                .into_iter()
                .map(|(name, address, numel, dtype, num_bytes, is_buffer)| {
                    let ptr = address as *mut c_void;
                    let (dtype, numel) = match dtype {
                        Some(dtype) => (dtype_of(&dtype)?, numel),
                        None => (DType::UInt8, num_bytes),
                    };
                    Ok(TensorRef {
                        name,
                        ptr,
                        numel,
                        dtype,
                        device: Device::Cpu,
                        is_buffer,
                    })
                })
                .collect();
            Ok(tensors?)
        })
    }

    fn train_batch(&mut self, batch: Batch, micro: &MicroBatch) -> Result<LossSums, ModelError> {
        Python::attach(|py| {
            let (inputs, labels, weight, num_rows) = arguments(py, batch)?;
            let (reference, loss_scale) = (micro.reference, micro.loss_scale);
            let sums = self.train_batch.call1(
                py,
                (inputs, labels, weight, num_rows, reference, loss_scale),
            )?;
            Ok(loss_sums(sums.extract(py)?)?)
        })
    }

    fn optimizer_step(&mut self, context: &StepContext<'_>) -> Result<(), ModelError> {
        Python::attach(|py| {
            let used = if context.used.iter().all(|&used| used) {
                None
            } else {
                Some(context.used.to_vec())
            };
            self.optimizer_step
                .call1(py, (used, context.learning_rate))?;
            Ok(())
        })
    }

    fn skip_step(&mut self) -> Result<(), ModelError> {
        Python::attach(|py| {
            self.adapter.call_method0(py, "skip_step")?;
            Ok(())
        })
    }

    fn evaluate_batch(&mut self, batch: Batch) -> Result<LossSums, ModelError> {
        Python::attach(|py| {
            let sums = self
                .adapter
                .call_method1(py, "evaluate_batch", arguments(py, batch)?)?;
            Ok(loss_sums(sums.extract(py)?)?)
        })
    }

    fn finish_metrics(&mut self, sums: &[f64]) -> Result<Vec<(String, f64)>, ModelError> {
        Python::attach(|py| {
            Ok(self
                .adapter
                .call_method1(py, "finish_metrics", (sums.to_vec(),))?
                .extract(py)?)
        })
    }

    fn save_state(&mut self) -> Result<Vec<u8>, ModelError> {
        Python::attach(|py| {
            let sink = Bound::new(py, ByteSink::default())?;
            self.adapter.call_method1(py, "save_state", (&sink,))?;
            Ok(sink.get().take())
        })
    }

    fn load_state(&mut self, state: &[u8]) -> Result<(), ModelError> {
        Python::attach(|py| {
            self.adapter
                .call_method1(py, "load_state", (PyBytes::new(py, state),))?;
            Ok(())
        })
    }

    fn save_rank_state(&mut self) -> Result<Vec<u8>, ModelError> {
        Python::attach(|py| {
            let state = self.adapter.call_method0(py, "save_rank_state")?;
            Ok(state
                .bind(py)
                .cast::<PyBytes>()
                .map_err(PyErr::from)?
                .as_bytes()
                .to_vec())
        })
    }

    fn load_rank_state(&mut self, state: &[u8]) -> Result<(), ModelError> {
        Python::attach(|py| {
            self.adapter
                .call_method1(py, "load_rank_state", (PyBytes::new(py, state),))?;
            Ok(())
        })
    }

    fn seed(&mut self, seed: u64, step: u64, rank: usize) -> Result<(), ModelError> {
        Python::attach(|py| {
            self.adapter.call_method1(py, "seed", (seed, step, rank))?;
            Ok(())
        })
    }

    fn warnings(&mut self) -> Result<Vec<String>, ModelError> {
        Python::attach(|py| Ok(self.adapter.call_method0(py, "warnings")?.extract(py)?))
    }

    fn write_weights(&mut self, directory: &Path) -> Result<Vec<String>, ModelError> {
        Python::attach(|py| {
            Ok(self
                .adapter
                .call_method1(py, "write_weights", (directory,))?
                .extract(py)?)
        })
    }
}
