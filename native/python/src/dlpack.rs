//! Native memory as DLPack capsules.
//!
//! The structs are those of DLPack's `dlpack.h` before versioned capsules, which every torch from 2.4 on reads.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use flambeau_collective::DType as GroupDType;
use flambeau_data::{AlignedBuffer, DType, HostTensor};
use flambeau_train::GradientSink;
use pyo3::ffi;
use pyo3::prelude::*;

const NAME: &CStr = c"dltensor";
const CPU: i32 = 1;

const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const BOOL: u8 = 6;

#[repr(C)]
struct Device {
    kind: i32,
    index: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ElementType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    num_dims: i32,
    dtype: ElementType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct ManagedTensor {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// What keeps the memory of a capsule alive; dropped by whoever consumed the capsule, on whatever thread.
#[expect(dead_code, reason = "held to be dropped")]
enum Owner {
    /// A batch's buffer, which goes back to its pool.
    Batch(AlignedBuffer),
    /// A bucket of gradients.
    Sink(Arc<dyn GradientSink>),
}

/// A managed tensor and all that it points to, in one allocation that the deleter frees.
#[repr(C)]
struct Export {
    managed: ManagedTensor,
    /// Shape, then strides.
    dims: Box<[i64]>,
    owner: Owner,
}

/// A batch's tensor as a capsule, which owns its memory from now on.
pub(crate) fn of_host_tensor<'py>(
    py: Python<'py>,
    tensor: HostTensor,
) -> PyResult<Bound<'py, PyAny>> {
    let (code, bits) = match tensor.dtype() {
        DType::Float32 => (FLOAT, 32),
        DType::Float64 => (FLOAT, 64),
        DType::Int64 => (INT, 64),
        DType::Bool => (BOOL, 8),
        DType::UInt8 => (UINT, 8),
    };
    let shape: Vec<i64> = tensor.shape().iter().map(|&size| size as i64).collect();
    let mut buffer = tensor.into_buffer();
    let data = buffer.as_mut_ptr().cast();
    capsule(
        py,
        data,
        ElementType {
            code,
            bits,
            lanes: 1,
        },
        &shape,
        Owner::Batch(buffer),
    )
}

/// A bucket of a sink as a flat tensor, which keeps the sink alive.
pub(crate) fn of_bucket<'py>(
    py: Python<'py>,
    sink: &Arc<dyn GradientSink>,
    bucket: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let info = &sink.layout().buckets[bucket];
    let (code, bits) = match info.dtype {
        GroupDType::Float32 => (FLOAT, 32),
        GroupDType::Float64 => (FLOAT, 64),
        GroupDType::Float16 => (FLOAT, 16),
        GroupDType::BFloat16 => (BFLOAT, 16),
        GroupDType::Int64 => (INT, 64),
        GroupDType::UInt8 => (UINT, 8),
    };
    let dtype = ElementType {
        code,
        bits,
        lanes: 1,
    };
    capsule(
        py,
        sink.bucket_ptr(bucket),
        dtype,
        &[info.numel as i64],
        Owner::Sink(sink.clone()),
    )
}

fn capsule<'py>(
    py: Python<'py>,
    data: *mut c_void,
    dtype: ElementType,
    shape: &[i64],
    owner: Owner,
) -> PyResult<Bound<'py, PyAny>> {
    let num_dims = shape.len();
    let mut dims: Box<[i64]> = shape
        .iter()
        .copied()
        .chain(std::iter::repeat_n(1, num_dims))
        .collect();
    for dim in (0..num_dims.saturating_sub(1)).rev() {
        dims[num_dims + dim] = dims[num_dims + dim + 1] * dims[dim + 1];
    }
    let mut export = Box::new(Export {
        managed: ManagedTensor {
            tensor: Tensor {
                data,
                device: Device {
                    kind: CPU,
                    index: 0,
                },
                num_dims: num_dims as i32,
                dtype,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            context: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        dims,
        owner,
    });
    let dims = export.dims.as_mut_ptr();
    export.managed.tensor.shape = dims;
    // SAFETY: there are twice `num_dims` entries.
    export.managed.tensor.strides = unsafe { dims.add(num_dims) };
    let export = Box::into_raw(export);
    // SAFETY: the name is static, and the capsule owns the export until it is consumed, which renames the capsule.
    let capsule = unsafe { ffi::PyCapsule_New(export.cast(), NAME.as_ptr(), Some(destroy)) };
    if capsule.is_null() {
        // SAFETY: just made, and nobody else knows of it.
        drop(unsafe { Box::from_raw(export) });
        return Err(PyErr::fetch(py));
    }
    // SAFETY: a new reference to a capsule.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule) })
}

/// Frees an export: called once by the consumer of a capsule, or by the capsule where nobody consumed it.
unsafe extern "C" fn delete(managed: *mut ManagedTensor) {
    // SAFETY: `managed` is the first field of an `Export` that `capsule` boxed, and DLPack calls the deleter once.
    drop(unsafe { Box::from_raw(managed.cast::<Export>()) });
}

/// The capsule's destructor.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with the capsule that is going away; an unconsumed one still has its name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
