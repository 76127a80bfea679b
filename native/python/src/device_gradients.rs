//! `flambeau._module.device_gradients.DeviceGradients`: the adapter's gradients on its device.

use std::ffi::c_void;

use flambeau_train::{DeviceGradients, ModelError};
use pyo3::prelude::*;

/// Buckets that the adapter has allocated.
pub(crate) struct PyDeviceGradients {
    buckets: Py<PyAny>,
    /// Where each begins, and the 16-bit floats beside it, 0 where there are none.
    addresses: Vec<(usize, usize)>,
}

impl PyDeviceGradients {
    pub(crate) fn new(buckets: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(PyDeviceGradients {
            addresses: buckets.call_method0("addresses")?.extract()?,
            buckets: buckets.clone().unbind(),
        })
    }

    fn call(&self, method: &str, bucket: usize) -> Result<(), ModelError> {
        Python::attach(|py| {
            self.buckets.call_method1(py, method, (bucket,))?;
            Ok(())
        })
    }
}

impl DeviceGradients for PyDeviceGradients {
    fn bucket(&self, bucket: usize) -> *mut c_void {
        self.addresses[bucket].0 as *mut c_void
    }

    fn halves(&self, bucket: usize) -> *mut c_void {
        self.addresses[bucket].1 as *mut c_void
    }

    fn narrow(&self, bucket: usize) -> Result<(), ModelError> {
        self.call("narrow", bucket)
    }

    fn widen(&self, bucket: usize) -> Result<(), ModelError> {
        self.call("widen", bucket)
    }

    fn scale(&self, factor: f64) -> Result<(), ModelError> {
        Python::attach(|py| {
            self.buckets.call_method1(py, "scale", (factor,))?;
            Ok(())
        })
    }

    fn are_finite(&self) -> Result<bool, ModelError> {
        Python::attach(|py| Ok(self.buckets.call_method0(py, "are_finite")?.extract(py)?))
    }

    fn clip(&self, max_norm: f64) -> Result<(), ModelError> {
        Python::attach(|py| {
            self.buckets.call_method1(py, "clip", (max_norm,))?;
            Ok(())
        })
    }
}
