//! A file object that gathers bytes on the native side.

use std::sync::{Mutex, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

/// A binary file to write to, so that what torch saves is copied once.
#[pyclass(frozen, name = "ByteSink", module = "flambeau._native")]
#[derive(Default)]
pub(crate) struct ByteSink {
    bytes: Mutex<Vec<u8>>,
}

impl ByteSink {
    /// All that was written.
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl ByteSink {
    /// Appends the bytes of a buffer; returns how many.
    fn write(&self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<usize> {
        let num = data.item_count();
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let start = bytes.len();
        bytes.resize(start + num, 0);
        data.copy_to_slice(py, &mut bytes[start..])?;
        Ok(num)
    }

    /// Does nothing: what is written is there.
    fn flush(&self) {}
}
