//! Where gradients go, as Python's hooks see it.

use std::sync::Arc;

use flambeau_train::GradientSink;
use pyo3::prelude::*;

use crate::dlpack;
use crate::error;

/// Where gradients go on their way to the other ranks. Made by the training loop, which gives it to the adapter's `attach`.
#[pyclass(frozen, name = "GradientSink", module = "flambeau._native")]
pub(crate) struct PyGradientSink {
    sink: Arc<dyn GradientSink>,
}

impl PyGradientSink {
    pub(crate) fn new(sink: Arc<dyn GradientSink>) -> Self {
        PyGradientSink { sink }
    }
}

#[pymethods]
impl PyGradientSink {
    /// The buckets in main memory as DLPack capsules of flat tensors. Their memory lives as long as a tensor made of one does.
    fn buckets<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        (0..self.sink.layout().buckets.len())
            .map(|bucket| dlpack::of_bucket(py, &self.sink, bucket))
            .collect()
    }

    /// Where the gradient of parameter `index` lies: bucket and element in it.
    fn view(&self, index: usize) -> PyResult<(usize, usize)> {
        let parameters = self.sink.parameters();
        let Some(info) = parameters.get(index) else {
            return Err(pyo3::exceptions::PyIndexError::new_err(format!(
                "there is no parameter {index} of {}",
                parameters.len()
            )));
        };
        let view = self.sink.view(index);
        Ok((view.bucket, view.byte_offset / info.dtype.size()))
    }

    /// Tells that the gradient of parameter `index` lies in its view. May wait for other ranks, detached from the
    /// interpreter.
    fn mark_ready(&self, py: Python<'_>, index: usize) -> PyResult<()> {
        py.detach(|| self.sink.mark_ready(index))
            .map_err(|failure| error::from_collective(py, &failure))
    }

    /// The same for several parameters at once.
    fn mark_all_ready(&self, py: Python<'_>, indices: Vec<usize>) -> PyResult<()> {
        py.detach(|| {
            indices
                .iter()
                .try_for_each(|&index| self.sink.mark_ready(index))
        })
        .map_err(|failure| error::from_collective(py, &failure))
    }
}
