//! The batch reader as Python sees it: one rank's batches without a training.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flambeau_data::{
    Batch, BatchReader, DataError, HostTensor, Manifest, OrderConfig, ReaderOptions, SampleOrder,
    Store,
};
use flambeau_train::TrainingJob;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arrow::PyArrowBatch;
use crate::dlpack;
use crate::error;
use crate::signals::Signals;

/// The batches of training rows that one rank of a job sees. Iterating gives batches with the items `index` (its number within the epoch), `num_rows`, `inputs` and `labels` (lists of
/// DLPack capsules), `weight` (a capsule or None), `raw` (an Arrow batch or None) and `row_ids` (a list of ints), to the end of the epoch that `start` chose.
#[pyclass(frozen, name = "BatchReader", module = "flambeau._native")]
pub(crate) struct PyBatchReader {
    reader: Mutex<BatchReader>,
    signals: Signals,
    batches_per_epoch: u64,
}

#[pymethods]
impl PyBatchReader {
    /// Reads the footers of the job's training shards.
    #[new]
    fn new(py: Python<'_>, job_json: &str, rank: usize, world_size: usize) -> PyResult<Self> {
        let job =
            TrainingJob::from_json(job_json).map_err(|failure| error::from_job(py, &failure))?;
        let signals = Signals::default();
        let made = py.detach(|| open(&job, rank, world_size, &signals));
        let (reader, batches_per_epoch) = made.map_err(|failure| error::from_data(py, &failure))?;
        Ok(PyBatchReader {
            reader: Mutex::new(reader),
            signals,
            batches_per_epoch,
        })
    }

    /// Batches of an epoch.
    #[getter]
    fn batches_per_epoch(&self) -> u64 {
        self.batches_per_epoch
    }

    /// Goes to a batch of an epoch, both counted from 0.
    #[pyo3(signature = (epoch, batch = 0))]
    fn start(&self, py: Python<'_>, epoch: u64, batch: u64) -> PyResult<()> {
        let started = py.detach(|| {
            self.reader
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .start(epoch, batch)
        });
        started.map_err(|failure| error::from_data(py, &failure))
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyBatch>> {
        // Locked only while detached: whoever holds it needs the interpreter for signals alone.
        let read = py.detach(|| {
            self.reader
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .next()
        });
        match read {
            Ok(batch) => batch.map(|batch| PyBatch::new(py, batch)).transpose(),
            Err(failure) => Err(self
                .signals
                .take()
                .unwrap_or_else(|| error::from_data(py, &failure))),
        }
    }
}

fn open(
    job: &TrainingJob,
    rank: usize,
    world_size: usize,
    signals: &Signals,
) -> Result<(BatchReader, u64), DataError> {
    let store = Store::new(&job.store)?;
    let manifest = Arc::new(Manifest::read(&store, &job.data.train, &job.data.spec)?);
    let config = OrderConfig {
        num_lanes: job.params.lanes(),
        rows_per_lane: job.params.rows_per_lane(),
        seed: job.params.seed as u64,
        shuffle: job.params.shuffle,
        drop_last: job.params.drop_last,
        window_rows: job.params.window_rows(manifest.bytes_per_row()),
        dealt_rows: job.params.dealt_rows(manifest.bytes_per_row()),
    };
    let order = Arc::new(SampleOrder::new(&manifest, config)?);
    let batches_per_epoch = order.batches_per_epoch();
    let options = ReaderOptions {
        memory_budget: job.params.memory_budget,
        timeout: Duration::from_secs_f64(job.params.collective_timeout),
        interrupt: Some(signals.callback()),
        ..ReaderOptions::default()
    };
    Ok((
        BatchReader::new(store, manifest, order, rank, world_size, options)?,
        batches_per_epoch,
    ))
}

/// A batch as Python sees it. Asked by name, as a dict would be; the list of row ids is only made where somebody asks for it, since
/// hundreds of Python's integers cost more than all else about a batch.
#[pyclass(frozen, mapping, name = "Batch", module = "flambeau._native")]
pub(crate) struct PyBatch {
    index: u64,
    num_rows: usize,
    inputs: Py<PyList>,
    labels: Py<PyList>,
    weight: Option<Py<PyAny>>,
    row_ids: Vec<u64>,
    raw: Option<Py<PyArrowBatch>>,
}

impl PyBatch {
    fn new(py: Python<'_>, batch: Batch) -> PyResult<Self> {
        let capsules = |tensors: Vec<HostTensor>| -> PyResult<Py<PyList>> {
            let list = PyList::empty(py);
            for tensor in tensors {
                list.append(dlpack::of_host_tensor(py, tensor)?)?;
            }
            Ok(list.unbind())
        };
        let weight = batch
            .weight
            .map(|weight| dlpack::of_host_tensor(py, weight).map(Bound::unbind));
        Ok(PyBatch {
            index: batch.index,
            num_rows: batch.num_rows,
            inputs: capsules(batch.inputs)?,
            labels: capsules(batch.labels)?,
            weight: weight.transpose()?,
            row_ids: batch.row_ids,
            raw: batch
                .raw
                .map(|raw| Py::new(py, PyArrowBatch(raw)))
                .transpose()?,
        })
    }
}

#[pymethods]
impl PyBatch {
    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        match name {
            "index" => self.index.into_bound_py_any(py),
            "num_rows" => self.num_rows.into_bound_py_any(py),
            "inputs" => Ok(self.inputs.bind(py).clone().into_any()),
            "labels" => Ok(self.labels.bind(py).clone().into_any()),
            "weight" => self.weight.as_ref().into_bound_py_any(py),
            "raw" => self.raw.as_ref().into_bound_py_any(py),
            "row_ids" => self.row_ids.as_slice().into_bound_py_any(py),
            _ => Err(PyKeyError::new_err(name.to_owned())),
        }
    }
}
