//! Columns as Python's Arrow takes them: by the C data interface, without a copy.

use std::ffi::CStr;

use arrow_array::ffi::{FFI_ArrowArray, to_ffi};
use arrow_array::{Array, RecordBatch, StructArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";

/// Columns of a batch, for whatever takes an object with `__arrow_c_array__`, such as `pyarrow.record_batch`.
#[pyclass(frozen, name = "ArrowBatch", module = "flambeau._native")]
pub(crate) struct PyArrowBatch(pub(crate) RecordBatch);

#[pymethods]
impl PyArrowBatch {
    /// The capsules of schema and array; these share the batch's memory, which lives as long as one of them. A
    /// `requested_schema` is not looked at, as the protocol allows.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        drop(requested_schema);
        let columns = StructArray::from(self.0.clone()).to_data();
        let (array, schema): (FFI_ArrowArray, _) =
            to_ffi(&columns).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((
            PyCapsule::new_with_value(py, schema, SCHEMA)?,
            PyCapsule::new_with_value(py, array, ARRAY)?,
        ))
    }
}
