//! The C allocator of a Python worker that scores.

use pyo3::prelude::*;

/// Has this process keep the memory that one batch has freed for the next.
#[pyfunction]
pub(crate) fn keep_freed_batches() {
    flambeau_train::keep_freed_batches();
}
