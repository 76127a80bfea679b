//! The gradients of a model: the flat memory that they are written to, and who is told when they are there.

use std::ffi::c_void;

use super::layout::{BucketLayout, ParameterInfo, View};
use crate::error::{ModelError, ReduceError};

/// Where a model's gradients go: the flat memory that they are written to, and who is told when they are there.
pub trait GradientSink: Send + Sync {
    /// The parameters, in registration order.
    fn parameters(&self) -> &[ParameterInfo];

    /// The buckets and the views in them.
    fn layout(&self) -> &BucketLayout;

    /// Where the gradient of parameter `index` lies.
    fn view(&self, index: usize) -> View {
        self.layout().views[index]
    }

    /// The first byte of a bucket, 64-byte aligned. Valid as long as this, or as long as the model keeps it on its device.
    fn bucket_ptr(&self, bucket: usize) -> *mut c_void;

    /// The first byte of the gradient of parameter `index`, 64-byte aligned. Valid as the bucket is.
    fn view_ptr(&self, index: usize) -> *mut c_void {
        let view = self.view(index);
        self.bucket_ptr(view.bucket)
            .wrapping_byte_add(view.byte_offset)
    }

    /// Whether the view of parameter `index` holds a gradient of this step already, to be added to; otherwise it is
    /// to be written over.
    fn is_filled(&self, index: usize) -> bool;

    /// Tells that the view of parameter `index` holds its gradient of this micro-batch, or will once the model's stream has
    /// come to here. In the last one this may reduce buckets and so wait for other ranks, up to the group's timeout; the
    /// caller holds no lock that another thread of its process may need.
    ///
    /// # Errors
    ///
    /// The failure of a reduction, of this call or an earlier one.
    fn mark_ready(&self, index: usize) -> Result<(), ReduceError>;
}

/// The gradients of a model on a device: one flat tensor for each bucket, with zeros between the gradients in it.
///
/// Called in the loop, and in backward by whoever tells that gradients are ready. What is done is queued on the model's stream;
/// only [`are_finite`](Self::are_finite) waits for the device.
pub trait DeviceGradients: Send + Sync {
    /// The first byte of a bucket, 64-byte aligned.
    fn bucket(&self, bucket: usize) -> *mut c_void;

    /// The first byte of as many 16-bit floats beside a bucket of float32. Asked for where such were allocated.
    fn halves(&self, bucket: usize) -> *mut c_void;

    /// Copies a bucket to its 16-bit floats.
    fn narrow(&self, bucket: usize) -> Result<(), ModelError>;

    /// Copies a bucket's 16-bit floats back.
    fn widen(&self, bucket: usize) -> Result<(), ModelError>;

    /// Multiplies all gradients by `factor`; exactly 1 leaves them alone.
    fn scale(&self, factor: f64) -> Result<(), ModelError>;

    /// Whether all gradients are finite.
    fn are_finite(&self) -> Result<bool, ModelError>;

    /// Scales all gradients down so that their 2-norm is at most `max_norm`, as PyTorch's `clip_grad_norm_` does.
    fn clip(&self, max_norm: f64) -> Result<(), ModelError>;
}
