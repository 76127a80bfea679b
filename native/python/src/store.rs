//! The store as Python sees it.

use std::collections::HashMap;
use std::path::PathBuf;

use flambeau_data::Store;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error;

/// Whole files under paths and URIs (local, `/Volumes`, `dbfs:`, `s3`, `s3a`, `abfss`, `gs`). `options` are `object_store`'s, such
/// as credentials and endpoints. Every call runs detached from the interpreter. Raises `flambeau.errors.StoreError`.
#[pyclass(frozen, name = "Store", module = "flambeau._native")]
pub(crate) struct PyStore {
    store: Store,
}

#[pymethods]
impl PyStore {
    #[new]
    #[pyo3(signature = (options = None))]
    fn new(py: Python<'_>, options: Option<HashMap<String, String>>) -> PyResult<Self> {
        let options = options.unwrap_or_default();
        let store = py
            .detach(|| Store::shared(&options))
            .map_err(|failure| error::from_data(py, &failure))?;
        Ok(PyStore { store })
    }

    /// The bytes of a file.
    fn get<'py>(&self, py: Python<'py>, uri: &str) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py
            .detach(|| self.store.get(uri))
            .map_err(|failure| error::from_data(py, &failure))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Bytes `start` to `end` (not included) of a file.
    fn get_range<'py>(
        &self,
        py: Python<'py>,
        uri: &str,
        start: u64,
        end: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let read = py.detach(|| self.store.get_range(uri, start..end));
        let bytes = read.map_err(|failure| error::from_data(py, &failure))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Writes a whole file.
    fn put(&self, py: Python<'_>, uri: &str, data: Vec<u8>) -> PyResult<()> {
        py.detach(|| self.store.put(uri, data.into()))
            .map_err(|failure| error::from_data(py, &failure))
    }

    /// Writes a whole file from a local one, in parts where it is large.
    fn put_file(&self, py: Python<'_>, uri: &str, local: PathBuf) -> PyResult<()> {
        py.detach(|| self.store.put_file(uri, &local))
            .map_err(|failure| error::from_data(py, &failure))
    }

    /// Copies a file to a local one.
    fn get_to_file(&self, py: Python<'_>, uri: &str, local: PathBuf) -> PyResult<()> {
        py.detach(|| self.store.get_to_file(uri, &local))
            .map_err(|failure| error::from_data(py, &failure))
    }

    /// The size of a file in bytes; None where there is none.
    fn size(&self, py: Python<'_>, uri: &str) -> PyResult<Option<u64>> {
        py.detach(|| self.store.size(uri))
            .map_err(|failure| error::from_data(py, &failure))
    }

    /// The URIs of all files under a directory.
    fn list(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<String>> {
        py.detach(|| self.store.list(prefix))
            .map_err(|failure| error::from_data(py, &failure))
    }

    /// Removes a file.
    fn delete(&self, py: Python<'_>, uri: &str) -> PyResult<()> {
        py.detach(|| self.store.delete(uri))
            .map_err(|failure| error::from_data(py, &failure))
    }

    /// Removes all files under a directory.
    fn delete_prefix(&self, py: Python<'_>, prefix: &str) -> PyResult<()> {
        py.detach(|| self.store.delete_prefix(prefix))
            .map_err(|failure| error::from_data(py, &failure))
    }
}
