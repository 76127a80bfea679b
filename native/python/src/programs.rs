//! `flambeau._module.device_programs.DevicePrograms`: what the adapter computes for the compression of gradients on a device.

use std::ffi::c_void;

use flambeau_train::{
    DeviceOperation, DevicePlan, DevicePrograms, Matrices, ModelError, TensorPart,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

/// A plan that the adapter has made ready.
pub(crate) struct PyPrograms {
    programs: Py<PyAny>,
    run: Py<PyAny>,
    /// Of the buckets, then of the plan's tensors.
    addresses: Vec<usize>,
}

impl PyPrograms {
    pub(crate) fn new(programs: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(PyPrograms {
            run: programs.getattr("run")?.unbind(),
            addresses: programs.call_method0("addresses")?.extract()?,
            programs: programs.clone().unbind(),
        })
    }
}

impl DevicePrograms for PyPrograms {
    fn address(&self, tensor: usize) -> *mut c_void {
        self.addresses[tensor] as *mut c_void
    }

    fn run(&self, program: usize) -> Result<(), ModelError> {
        Python::attach(|py| {
            self.run.call1(py, (program,))?;
            Ok(())
        })
    }

    fn read(&self, tensor: usize) -> Result<Vec<f32>, ModelError> {
        Python::attach(|py| {
            let bytes = self.programs.call_method1(py, "read", (tensor,))?;
            let bytes = bytes.bind(py).cast::<PyBytes>().map_err(PyErr::from)?;
            let number =
                |bytes: &[u8]| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            Ok(bytes.as_bytes().chunks_exact(4).map(number).collect())
        })
    }

    fn write(&self, tensor: usize, values: &[f32]) -> Result<(), ModelError> {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_ne_bytes())
            .collect();
        Python::attach(|py| {
            let arguments = (tensor, PyBytes::new(py, &bytes));
            self.programs.call_method1(py, "write", arguments)?;
            Ok(())
        })
    }
}

/// A plan's programs as the adapter takes them: each operation a name and its arguments.
pub(crate) fn as_tuples<'py>(
    py: Python<'py>,
    plan: &DevicePlan,
) -> PyResult<Vec<Bound<'py, PyList>>> {
    let of_program = |program: &Vec<DeviceOperation>| {
        let operations: PyResult<Vec<_>> = program
            .iter()
            .map(|operation| as_tuple(py, operation))
            .collect();
        PyList::new(py, operations?)
    };
    plan.programs.iter().map(of_program).collect()
}

fn as_tuple<'py>(py: Python<'py>, operation: &DeviceOperation) -> PyResult<Bound<'py, PyTuple>> {
    match operation {
        DeviceOperation::Copy { sources, targets } => {
            ("copy", parts(sources), parts(targets)).into_pyobject(py)
        }
        DeviceOperation::Add { sources, targets } => {
            ("add", parts(sources), parts(targets)).into_pyobject(py)
        }
        DeviceOperation::Orthonormalize(of) => ("orthonormalize", matrices(of)).into_pyobject(py),
        DeviceOperation::Multiply {
            vectors,
            matrices: right,
            is_transposed,
            products,
        } => (
            "multiply",
            matrices(vectors),
            matrices(right),
            *is_transposed,
            matrices(products),
        )
            .into_pyobject(py),
        DeviceOperation::Expand {
            left,
            right,
            unsent,
            gradients,
        } => (
            "expand",
            matrices(left),
            matrices(right),
            matrices(unsent),
            parts(gradients),
        )
            .into_pyobject(py),
        DeviceOperation::TakeLargest { unsent, entries } => {
            ("take_largest", part(unsent), part(entries)).into_pyobject(py)
        }
        DeviceOperation::Average {
            entries,
            num_ranks,
            gradients,
        } => ("average", part(entries), *num_ranks, part(gradients)).into_pyobject(py),
    }
}

type Part = (usize, usize, usize);

fn part(part: &TensorPart) -> Part {
    (part.tensor, part.range.start, part.range.end)
}

fn parts(parts: &[TensorPart]) -> Vec<Part> {
    parts.iter().map(part).collect()
}

fn matrices(matrices: &Matrices) -> (usize, usize, usize, usize, usize) {
    let (tensor, start, end) = part(&matrices.part);
    (tensor, start, end, matrices.num_rows, matrices.num_columns)
}
