//! `flambeau._module.adapter.ModuleModel` as the training loop's model.

use std::any::Any;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flambeau_collective::{DType, Device, Stream};
use flambeau_data::{Batch, HostTensor};
use flambeau_train::{
    BucketInfo, DeviceGradients, DeviceModel, GradientSink, LossSums, MetricNames, MicroBatch,
    Model, ModelError, ParameterInfo, Split, StagedBatch, StagedData, StepContext, TensorRef,
    Tensors,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyTuple};

use crate::arrow::PyArrowBatch;
use crate::device_gradients::PyDeviceGradients;
use crate::dlpack;
use crate::gradient_sink::PyGradientSink;
use crate::sink::ByteSink;

/// What `ModuleModel.tensors` tells of a tensor: name, address, elements, dtype, bytes.
type SharedTensor = (String, usize, usize, Option<String>, usize);

/// A Python object with the methods of [`Model`]. The two that run in every step are looked up once.
pub(crate) struct PyModel {
    adapter: Py<PyAny>,
    train_batch: Py<PyAny>,
    optimizer_step: Py<PyAny>,
    /// Where it computes.
    device: Device,
    /// How many batches its `preprocess` is to be ahead.
    num_ahead: usize,
}

impl PyModel {
    pub(crate) fn new(adapter: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(PyModel {
            train_batch: adapter.getattr("train_batch")?.unbind(),
            optimizer_step: adapter.getattr("optimizer_step")?.unbind(),
            num_ahead: adapter.getattr("batches_ahead")?.extract()?,
            adapter: adapter.clone().unbind(),
            device: Device::Cpu,
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

/// The inverse of [`dtype_of`].
fn name_of(dtype: DType) -> PyResult<&'static str> {
    match dtype {
        DType::Float32 => Ok("float32"),
        DType::Float64 => Ok("float64"),
        DType::Float16 => Ok("float16"),
        DType::BFloat16 => Ok("bfloat16"),
        DType::Int64 => Ok("int64"),
        DType::UInt8 => Err(PyTypeError::new_err(format!(
            "{dtype} is no dtype of numbers"
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

/// What `ModuleModel.stage` gave.
fn rows_of(staged: Box<dyn Any>) -> PyResult<Py<PyAny>> {
    let rows = staged.downcast::<Py<PyAny>>();
    rows.map(|rows| *rows)
        .map_err(|_| PyTypeError::new_err("the batch was staged by another model"))
}

impl DeviceModel for PyModel {
    fn nccl_directories(&mut self) -> Vec<PathBuf> {
        let found: PyResult<Vec<PathBuf>> = Python::attach(|py| {
            self.adapter
                .call_method0(py, "nccl_directories")?
                .extract(py)
        });
        // The system's library may do.
        found.unwrap_or_default()
    }

    fn to_device(&mut self, index: u32) -> Result<Stream, ModelError> {
        self.device = Device::Cuda(index);
        Python::attach(|py| {
            let stream: usize = self
                .adapter
                .call_method1(py, "to_device", (index,))?
                .extract(py)?;
            Ok(Stream(stream))
        })
    }

    fn allocate_gradients(
        &mut self,
        buckets: &[BucketInfo],
        halves: Option<DType>,
    ) -> Result<Arc<dyn DeviceGradients>, ModelError> {
        Python::attach(|py| {
            let wanted = buckets
                .iter()
                .map(|bucket| Ok((name_of(bucket.dtype)?, bucket.numel)))
                .collect::<PyResult<Vec<_>>>()?;
            let halves = halves.map(name_of).transpose()?;
            let made = self
                .adapter
                .bind(py)
                .call_method1("allocate_gradients", (wanted, halves))?;
            Ok(Arc::new(PyDeviceGradients::new(&made)?) as Arc<dyn DeviceGradients>)
        })
    }
}

impl Model for PyModel {
    fn on_cuda(&mut self) -> Result<&mut dyn DeviceModel, String> {
        let obstacle: PyResult<Option<String>> =
            Python::attach(|py| self.adapter.call_method0(py, "cuda_obstacle")?.extract(py));
        match obstacle {
            Ok(None) => Ok(self),
            Ok(Some(obstacle)) => Err(obstacle),
            Err(error) => Err(error.to_string()),
        }
    }

    fn looks_ahead(&self) -> usize {
        match self.device {
            Device::Cpu => self.num_ahead,
            Device::Cuda(_) => 1,
        }
    }

    fn stage(&mut self, mut batch: Batch, is_training: bool) -> Result<StagedBatch, ModelError> {
        let num_rows = batch.num_rows;
        let staged = if let Some(raw) = batch.raw.take() {
            Python::attach(|py| {
                let (epoch, row_ids) = (batch.epoch, std::mem::take(&mut batch.row_ids));
                let (_, labels, weight, num_rows) = arguments(py, batch)?;
                let raw = Bound::new(py, PyArrowBatch(raw))?;
                let arguments = (raw, labels, weight, num_rows, row_ids, epoch, is_training);
                self.adapter.call_method1(py, "prepare", arguments)
            })?
        } else if self.device == Device::Cpu {
            return Ok(batch.into());
        } else {
            Python::attach(|py| {
                self.adapter
                    .call_method1(py, "stage", arguments(py, batch)?)
            })?
        };
        Ok(StagedBatch {
            num_rows,
            data: StagedData::Device(Box::new(staged)),
        })
    }

    fn await_staged(&mut self, batch: &StagedBatch) -> Result<(), ModelError> {
        if let (Device::Cpu, StagedData::Device(staged)) = (self.device, &batch.data)
            && let Some(staged) = staged.downcast_ref::<Py<PyAny>>()
        {
            Python::attach(|py| staged.call_method0(py, "result").map(drop))?;
        }
        Ok(())
    }

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
                        device: self.device,
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

    fn learning_rate(&mut self) -> Result<Option<f64>, ModelError> {
        Python::attach(|py| {
            Ok(self
                .adapter
                .call_method0(py, "learning_rate")?
                .extract(py)?)
        })
    }

    fn attach(&mut self, gradients: Arc<dyn GradientSink>) -> Result<(), ModelError> {
        Python::attach(|py| {
            self.adapter
                .call_method1(py, "attach", (PyGradientSink::new(gradients),))?;
            Ok(())
        })
    }

    fn tensors(&mut self, which: Tensors) -> Result<Vec<TensorRef>, ModelError> {
        Python::attach(|py| {
            let listed = match which {
                Tensors::All => self.adapter.call_method1(py, "tensors", (false,)),
                Tensors::Buffers => self.adapter.call_method1(py, "tensors", (true,)),
                Tensors::Trained => self.adapter.call_method0(py, "trained_tensors"),
                Tensors::Optimizer => self.adapter.call_method0(py, "optimizer_tensors"),
            };
            let listed: Vec<SharedTensor> = listed?.extract(py)?;
            let tensors: PyResult<Vec<_>> = listed
                .into_iter()
                .map(|(name, address, numel, dtype, num_bytes)| {
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
                    })
                })
                .collect();
            Ok(tensors?)
        })
    }

    fn take_tensors(&mut self) -> Result<(), ModelError> {
        if self.device == Device::Cpu {
            return Ok(());
        }
        Python::attach(|py| {
            self.adapter.call_method0(py, "take_tensors")?;
            Ok(())
        })
    }

    fn train_batch(
        &mut self,
        batch: StagedBatch,
        micro: &MicroBatch,
    ) -> Result<LossSums, ModelError> {
        Python::attach(|py| {
            let (reference, loss_scale) = (micro.reference, micro.loss_scale);
            let sums = match batch.data {
                StagedData::Host(batch) => {
                    let (inputs, labels, weight, num_rows) = arguments(py, batch)?;
                    let arguments = (inputs, labels, weight, num_rows, reference, loss_scale);
                    self.train_batch.call1(py, arguments)?
                }
                StagedData::Device(staged) => {
                    let arguments = (rows_of(staged)?, reference, loss_scale);
                    self.adapter.call_method1(py, "train_staged", arguments)?
                }
            };
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
            self.optimizer_step.call1(py, (used, context.rate_factor))?;
            Ok(())
        })
    }

    fn skip_step(&mut self) -> Result<(), ModelError> {
        Python::attach(|py| {
            self.adapter.call_method0(py, "skip_step")?;
            Ok(())
        })
    }

    fn evaluate_batch(&mut self, batch: StagedBatch) -> Result<LossSums, ModelError> {
        Python::attach(|py| {
            let sums = match batch.data {
                StagedData::Host(batch) => {
                    let arguments = arguments(py, batch)?;
                    self.adapter.call_method1(py, "evaluate_batch", arguments)?
                }
                StagedData::Device(staged) => {
                    let arguments = (rows_of(staged)?,);
                    self.adapter
                        .call_method1(py, "evaluate_staged", arguments)?
                }
            };
            Ok(loss_sums(sums.extract(py)?)?)
        })
    }

    fn metric_names(&mut self) -> Result<MetricNames, ModelError> {
        Python::attach(|py| {
            let names = self.adapter.call_method0(py, "metric_names")?;
            let (training, validation): (Vec<String>, Vec<String>) = names.extract(py)?;
            Ok(MetricNames {
                training,
                validation,
            })
        })
    }

    fn finish_metrics(
        &mut self,
        split: Split,
        sums: &[f64],
    ) -> Result<Vec<(String, f64)>, ModelError> {
        Python::attach(|py| {
            let arguments = (split == Split::Training, sums.to_vec());
            Ok(self
                .adapter
                .call_method1(py, "finish_metrics", arguments)?
                .extract(py)?)
        })
    }

    fn take_gathered(&mut self) -> Result<Option<Vec<u8>>, ModelError> {
        Python::attach(|py| {
            let state = self.adapter.call_method0(py, "take_gathered")?;
            let state = state.bind(py);
            if state.is_none() {
                return Ok(None);
            }
            let bytes = state.cast::<PyBytes>().map_err(PyErr::from)?;
            Ok(Some(bytes.as_bytes().to_vec()))
        })
    }

    fn finish_gathered(&mut self, states: &[Vec<u8>]) -> Result<Vec<(String, f64)>, ModelError> {
        Python::attach(|py| {
            let states: Vec<_> = states.iter().map(|state| PyBytes::new(py, state)).collect();
            Ok(self
                .adapter
                .call_method1(py, "finish_gathered", (states,))?
                .extract(py)?)
        })
    }

    fn end_epoch(&mut self, figures: &[(String, Option<f64>)]) -> Result<(), ModelError> {
        Python::attach(|py| {
            let figures = figures.to_vec().into_py_dict(py)?;
            self.adapter.call_method1(py, "end_epoch", (figures,))?;
            Ok(())
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

    fn load_optimizer_state(&mut self, state: &[u8]) -> Result<(), ModelError> {
        Python::attach(|py| {
            let state = PyBytes::new(py, state);
            self.adapter
                .call_method1(py, "load_optimizer_state", (state,))?;
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
