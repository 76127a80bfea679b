//! The flat tensors that gradients are reduced in where they lie on a device, and what is done to all of them at once.

use std::ffi::{c_char, c_void};

use flambeau_collective::DType;
use flambeau_train::{BucketInfo, View};
use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use crate::border::check;
use crate::error::TorchError;

unsafe extern "C" {
    fn flambeau_scale(tensors: *const *const C_tensor, count: usize, factor: f64) -> *mut c_char;
    fn flambeau_are_finite(
        tensors: *const *const C_tensor,
        count: usize,
        result: *mut bool,
    ) -> *mut c_char;
    fn flambeau_clip(tensors: *const *const C_tensor, count: usize, max_norm: f64) -> *mut c_char;
}

/// One flat tensor for each bucket. What lies between the gradients in them stays zero.
#[derive(Default)]
pub(crate) struct Buckets(Vec<Tensor>);

impl Buckets {
    /// Tensors of zeros.
    pub(crate) fn new(buckets: &[BucketInfo], device: Device) -> Result<Buckets, TorchError> {
        let tensors = buckets.iter().map(|bucket| {
            Ok(Tensor::f_zeros(
                [bucket.numel as i64],
                (kind_of(bucket.dtype), device),
            )?)
        });
        Ok(Buckets(tensors.collect::<Result<_, TorchError>>()?))
    }

    /// Where each begins.
    pub(crate) fn addresses(&self) -> Vec<*mut c_void> {
        self.0.iter().map(Tensor::data_ptr).collect()
    }

    /// Handles of all of them.
    pub(crate) fn tensors(&self) -> Vec<Tensor> {
        self.0.iter().map(Tensor::shallow_clone).collect()
    }

    /// The gradient of a parameter in its bucket, with the parameter's shape and strides.
    pub(crate) fn view(&self, view: View, parameter: &Tensor) -> Result<Tensor, TorchError> {
        let start = view.byte_offset / parameter.kind().elt_size_in_bytes();
        Ok(self.0[view.bucket].f_as_strided(
            parameter.size(),
            parameter.stride(),
            Some(start as i64),
        )?)
    }

    /// Multiplies all gradients by `factor`; exactly 1 leaves them alone.
    pub(crate) fn scale(&self, factor: f64) -> Result<(), TorchError> {
        if factor == 1.0 {
            return Ok(());
        }
        let handles = self.handles();
        // SAFETY: as many live tensors as said.
        check(unsafe { flambeau_scale(handles.as_ptr(), handles.len(), factor) })
    }

    /// Whether all gradients are finite. Waits for the device.
    pub(crate) fn wait_are_finite(&self) -> Result<bool, TorchError> {
        let (handles, mut result) = (self.handles(), false);
        // SAFETY: as many live tensors as said.
        check(unsafe { flambeau_are_finite(handles.as_ptr(), handles.len(), &mut result) })?;
        Ok(result)
    }

    /// Scales all gradients down so that their 2-norm is at most `max_norm`, by the factor of PyTorch's `clip_grad_norm_`.
    pub(crate) fn clip(&self, max_norm: f64) -> Result<(), TorchError> {
        let handles = self.handles();
        // SAFETY: as many live tensors as said.
        check(unsafe { flambeau_clip(handles.as_ptr(), handles.len(), max_norm) })
    }

    fn handles(&self) -> Vec<*const C_tensor> {
        self.0.iter().map(|tensor| tensor.as_ptr()).collect()
    }
}

/// torch's type of a bucket's elements.
pub(crate) fn kind_of(dtype: DType) -> Kind {
    match dtype {
        DType::Float32 => Kind::Float,
        DType::Float64 => Kind::Double,
        DType::Float16 => Kind::Half,
        DType::BFloat16 => Kind::BFloat16,
        DType::Int64 => Kind::Int64,
        DType::UInt8 => Kind::Uint8,
    }
}
