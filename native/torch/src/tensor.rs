//! Tensors: over memory of ours, their types and their modes.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::ptr;

use flambeau_collective::DType as CollectiveDType;
use flambeau_data::{DType, HostTensor};
use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use crate::border::check;
use crate::error::TorchError;

unsafe extern "C" {
    fn flambeau_tensor_over(
        data: *mut c_void,
        sizes: *const i64,
        strides: *const i64,
        num_dims: usize,
        scalar_type: i32,
        drop: unsafe extern "C" fn(*mut c_void),
        context: *mut c_void,
        result: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn flambeau_identity(tensor: *const C_tensor) -> usize;
    fn flambeau_set_data(tensor: *const C_tensor, data: *const C_tensor) -> *mut c_char;
    fn flambeau_enter_inference_mode() -> *mut c_void;
    fn flambeau_leave_inference_mode(guard: *mut c_void);
}

/// A tensor over the memory that `owner` keeps, which is dropped, on whatever thread, once no tensor over it is left.
/// Without strides it is contiguous.
///
/// # Safety
///
/// `data` points to the tensor's elements as long as `owner` lives, and nobody else writes to them while a tensor does
/// anything with them.
pub(crate) unsafe fn over<Owner: Send + 'static>(
    data: *mut c_void,
    kind: Kind,
    sizes: &[i64],
    strides: Option<&[i64]>,
    owner: Owner,
) -> Result<Tensor, TorchError> {
    unsafe extern "C" fn give_back<Owner>(context: *mut c_void) {
        // SAFETY: the context is the box made below, and torch calls its deleter once.
        drop(unsafe { Box::from_raw(context.cast::<Owner>()) });
    }
    let mut result = ptr::null_mut();
    let context = Box::into_raw(Box::new(owner));
    // SAFETY: sizes and strides are read during the call only; the caller vouches for the data.
    let failure = unsafe {
        flambeau_tensor_over(
            data,
            sizes.as_ptr(),
            strides.map_or(ptr::null(), <[i64]>::as_ptr),
            sizes.len(),
            scalar_type(kind),
            give_back::<Owner>,
            context.cast(),
            &mut result,
        )
    };
    check(failure)?;
    // SAFETY: a new tensor, owned by nobody yet.
    Ok(unsafe { Tensor::from_ptr(result) })
}

/// A batch's tensor without a copy; its buffer goes back to its pool when the last tensor over it dies.
pub(crate) fn of_host(tensor: HostTensor) -> Result<Tensor, TorchError> {
    let kind = kind_of(tensor.dtype());
    let sizes: Vec<i64> = tensor.shape().iter().map(|&size| size as i64).collect();
    let data = tensor.as_ptr().cast_mut().cast();
    // SAFETY: the host tensor owns its memory alone and travels with the tensor.
    unsafe { over(data, kind, &sizes, None, tensor) }
}

/// torch's type for one of the reader's.
pub(crate) fn kind_of(dtype: DType) -> Kind {
    match dtype {
        DType::Float32 => Kind::Float,
        DType::Float64 => Kind::Double,
        DType::Int64 => Kind::Int64,
        DType::Bool => Kind::Bool,
        DType::UInt8 => Kind::Uint8,
    }
}

/// torch's number of a type that memory of ours may have.
pub(crate) fn scalar_type(kind: Kind) -> i32 {
    match kind {
        Kind::Uint8 => 0,
        Kind::Int64 => 4,
        Kind::Half => 5,
        Kind::Float => 6,
        Kind::Double => 7,
        Kind::Bool => 11,
        Kind::BFloat16 => 15,
        other => unreachable!("no memory of ours holds {other:?}"),
    }
}

/// The collective's type for one of torch's; `None` where collectives don't know it.
pub(crate) fn collective_dtype(kind: Kind) -> Option<CollectiveDType> {
    match kind {
        Kind::Float => Some(CollectiveDType::Float32),
        Kind::Double => Some(CollectiveDType::Float64),
        Kind::Half => Some(CollectiveDType::Float16),
        Kind::BFloat16 => Some(CollectiveDType::BFloat16),
        Kind::Int64 => Some(CollectiveDType::Int64),
        _ => None,
    }
}

/// torch's name of a type, such as `float32`.
pub(crate) fn kind_name(kind: Kind) -> String {
    let name = match kind {
        Kind::Uint8 => "uint8",
        Kind::Int8 => "int8",
        Kind::Int16 => "int16",
        Kind::Int => "int32",
        Kind::Int64 => "int64",
        Kind::Half => "float16",
        Kind::Float => "float32",
        Kind::Double => "float64",
        Kind::ComplexHalf => "complex32",
        Kind::ComplexFloat => "complex64",
        Kind::ComplexDouble => "complex128",
        Kind::Bool => "bool",
        Kind::BFloat16 => "bfloat16",
        other => return format!("{other:?}").to_lowercase(),
    };
    name.to_string()
}

/// Whether it holds floating-point numbers.
pub(crate) fn is_floating(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Half | Kind::Float | Kind::Double | Kind::BFloat16
    )
}

/// Shape and type, for messages.
pub(crate) fn brief(tensor: &Tensor) -> String {
    format!("{:?} {}", tensor.size(), kind_name(tensor.kind()))
}

/// Whether the elements fill one piece of memory, in any order of dimensions.
pub(crate) fn is_dense(tensor: &Tensor) -> bool {
    let mut dims: Vec<(i64, i64)> = tensor
        .stride()
        .into_iter()
        .zip(tensor.size())
        .filter(|&(_, size)| size > 1)
        .collect();
    dims.sort_unstable();
    let mut expected = 1;
    dims.iter().all(|&(stride, size)| {
        let fits = stride == expected;
        expected *= size;
        fits
    })
}

/// The same number for handles of one object, so that the data set on one is the other's.
pub(crate) fn identity(tensor: &Tensor) -> usize {
    // SAFETY: a live tensor, which is only looked at.
    unsafe { flambeau_identity(tensor.as_ptr()) }
}

/// Gives a tensor the data of another, of the same shape and type; it stays the object that it is.
pub(crate) fn set_data(tensor: &Tensor, data: &Tensor) -> Result<(), TorchError> {
    // SAFETY: both are live tensors.
    check(unsafe { flambeau_set_data(tensor.as_ptr(), data.as_ptr()) })
}

/// Gives a tensor its data on another device; it stays the object that it is.
pub(crate) fn move_data(tensor: &Tensor, device: Device) -> Result<(), TorchError> {
    let moved = tch::no_grad(|| tensor.f_to_device(device))?;
    set_data(tensor, &moved)
}

/// The number of a GPU; -1 for the CPU.
pub(crate) fn gpu_of(device: Device) -> i32 {
    match device {
        Device::Cuda(index) => index as i32,
        _ => -1,
    }
}

/// The bytes of a contiguous tensor on the CPU.
pub(crate) fn bytes_of(tensor: &Tensor) -> &[u8] {
    debug_assert!(tensor.is_contiguous());
    let num_bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
    if num_bytes == 0 {
        return &[];
    }
    // SAFETY: a contiguous tensor's elements lie one after another, and live as long as the borrowed tensor.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast(), num_bytes) }
}

/// A new tensor of torch's own memory with the given bytes.
pub(crate) fn of_bytes(bytes: &[u8], kind: Kind, sizes: &[i64]) -> Result<Tensor, TorchError> {
    filled(Tensor::f_empty(sizes, (kind, Device::Cpu))?, bytes)
}

/// A new tensor in main memory, which nobody else knows of, with the given bytes.
pub(crate) fn filled(tensor: Tensor, bytes: &[u8]) -> Result<Tensor, TorchError> {
    let kind = tensor.kind();
    let wanted = tensor.numel() * kind.elt_size_in_bytes();
    if bytes.len() != wanted {
        return Err(TorchError::Data(format!(
            "{} bytes were given for a tensor {:?} of {}, which takes {wanted}",
            bytes.len(),
            tensor.size(),
            kind_name(kind)
        )));
    }
    if wanted > 0 {
        // SAFETY: a new tensor is contiguous and holds that many bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), tensor.data_ptr().cast(), wanted) };
    }
    Ok(tensor)
}

/// Inference mode on this thread as long as it lives.
pub(crate) struct InferenceMode {
    guard: *mut c_void,
    /// It ends on the thread that it began on.
    not_send: PhantomData<*const ()>,
}

impl InferenceMode {
    pub(crate) fn enter() -> InferenceMode {
        InferenceMode {
            // SAFETY: it sets a flag of this thread.
            guard: unsafe { flambeau_enter_inference_mode() },
            not_send: PhantomData,
        }
    }
}

impl Drop for InferenceMode {
    fn drop(&mut self) {
        // SAFETY: made by `enter` on this thread, and given back once.
        unsafe { flambeau_leave_inference_mode(self.guard) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_over_foreign_memory_gives_its_owner_back() {
        let owner = std::sync::Arc::new([1.0f32, 2.0, 3.0, 4.0]);
        let data = owner.as_ptr().cast_mut().cast();
        // SAFETY: the array travels with the tensor, and is read only.
        let tensor =
            unsafe { over(data, Kind::Float, &[2, 2], Some(&[1, 2]), owner.clone()) }.unwrap();
        assert_eq!(
            Vec::<f32>::try_from(tensor.reshape([-1])).unwrap(),
            [1.0, 3.0, 2.0, 4.0]
        );
        assert!(is_dense(&tensor));
        assert!(!is_dense(&tensor.narrow(0, 0, 1).expand([2, 2], false)));
        drop(tensor);
        assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    }
}
