//! The flat tensors that gradients are reduced in where they lie on a device, and what is done to all of them at once.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flambeau_collective::DType;
use flambeau_train::{BucketInfo, DeviceGradients, ModelError, View};
use tch::{Kind, Tensor};
use torch_sys::C_tensor;

use crate::border::check;
use crate::device::{Placement, Stream};
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
pub(crate) struct Buckets {
    /// Where each begins, and the 16-bit floats beside it.
    addresses: Vec<(usize, Option<usize>)>,
    /// What orders the work on a GPU.
    stream: Option<Stream>,
    // A tensor is one thread's at a time.
    tensors: Mutex<Vec<Bucket>>,
}

struct Bucket {
    whole: Tensor,
    halves: Option<Tensor>,
}

impl Buckets {
    /// Tensors of zeros on a device, and of `halves` beside those of float32.
    pub(crate) fn new(
        buckets: &[BucketInfo],
        halves: Option<DType>,
        placement: &Placement,
    ) -> Result<Buckets, TorchError> {
        let zeros = |bucket: &BucketInfo, dtype| {
            Tensor::f_zeros([bucket.numel as i64], (kind_of(dtype), placement.device()))
        };
        let tensors = buckets.iter().map(|bucket| {
            let halves = halves.filter(|_| bucket.dtype == DType::Float32);
            Ok(Bucket {
                whole: zeros(bucket, bucket.dtype)?,
                halves: halves.map(|dtype| zeros(bucket, dtype)).transpose()?,
            })
        });
        let tensors = tensors.collect::<Result<Vec<_>, TorchError>>()?;
        let address = |tensor: &Tensor| tensor.data_ptr() as usize;
        let of_bucket =
            |bucket: &Bucket| (address(&bucket.whole), bucket.halves.as_ref().map(address));
        Ok(Buckets {
            addresses: tensors.iter().map(of_bucket).collect(),
            stream: placement.present_stream()?,
            tensors: Mutex::new(tensors),
        })
    }

    /// The gradient of a parameter in its bucket, with the parameter's shape and strides.
    pub(crate) fn view(&self, view: View, parameter: &Tensor) -> Result<Tensor, TorchError> {
        let start = view.byte_offset / parameter.kind().elt_size_in_bytes();
        Ok(self.tensors()[view.bucket].whole.f_as_strided(
            parameter.size(),
            parameter.stride(),
            Some(start as i64),
        )?)
    }

    fn tensors(&self) -> MutexGuard<'_, Vec<Bucket>> {
        self.tensors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls C++ with all buckets.
    fn on_all(
        &self,
        call: impl FnOnce(*const *const C_tensor, usize) -> *mut c_char,
    ) -> Result<(), ModelError> {
        let tensors = self.tensors();
        let handles: Vec<_> = tensors.iter().map(|bucket| bucket.whole.as_ptr()).collect();
        Ok(check(call(handles.as_ptr(), handles.len()))?)
    }

    /// Copies between a bucket and its halves. In backward the present stream may be another one.
    fn copy(&self, bucket: usize, narrows: bool) -> Result<(), ModelError> {
        let _entered = self.stream.as_ref().map(Stream::enter).transpose()?;
        if let Bucket {
            whole,
            halves: Some(halves),
        } = &mut self.tensors()[bucket]
        {
            let copied = tch::no_grad(|| match narrows {
                true => halves.f_copy_(whole),
                false => whole.f_copy_(halves),
            });
            copied.map_err(TorchError::from)?;
        }
        Ok(())
    }
}

impl DeviceGradients for Buckets {
    fn bucket(&self, bucket: usize) -> *mut c_void {
        self.addresses[bucket].0 as *mut c_void
    }

    fn halves(&self, bucket: usize) -> *mut c_void {
        self.addresses[bucket].1.unwrap_or_default() as *mut c_void
    }

    fn narrow(&self, bucket: usize) -> Result<(), ModelError> {
        self.copy(bucket, true)
    }

    fn widen(&self, bucket: usize) -> Result<(), ModelError> {
        self.copy(bucket, false)
    }

    fn scale(&self, factor: f64) -> Result<(), ModelError> {
        if factor == 1.0 {
            return Ok(());
        }
        // SAFETY: as many live tensors as said.
        self.on_all(|tensors, count| unsafe { flambeau_scale(tensors, count, factor) })
    }

    fn are_finite(&self) -> Result<bool, ModelError> {
        let mut result = false;
        // SAFETY: as many live tensors as said.
        self.on_all(|tensors, count| unsafe { flambeau_are_finite(tensors, count, &mut result) })?;
        Ok(result)
    }

    fn clip(&self, max_norm: f64) -> Result<(), ModelError> {
        // SAFETY: as many live tensors as said.
        self.on_all(|tensors, count| unsafe { flambeau_clip(tensors, count, max_norm) })
    }
}

/// torch's type of a bucket's elements.
fn kind_of(dtype: DType) -> Kind {
    match dtype {
        DType::Float32 => Kind::Float,
        DType::Float64 => Kind::Double,
        DType::Float16 => Kind::Half,
        DType::BFloat16 => Kind::BFloat16,
        DType::Int64 => Kind::Int64,
        DType::UInt8 => Kind::Uint8,
    }
}
