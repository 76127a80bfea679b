//! Buckets on a device.

use std::sync::{Arc, Mutex};

use flambeau_collective::{
    CollectiveError, DType, DeviceRuntime, NcclWork, ProcessGroup, RawBuffer, ReduceOp, Result,
    Stream, WeakNcclGroup,
};

use super::lock;
use crate::device::Accelerator;
use crate::error::ModelError;
use crate::gradients::compression::is_compressible;
use crate::model::layout::BucketLayout;
use crate::model::sink::DeviceGradients;

/// Buckets in the model's memory on a device, which travel as 16-bit floats if so asked. Nothing here waits for the device.
pub(crate) struct DeviceBuckets {
    group: ProcessGroup,
    runtime: Arc<dyn DeviceRuntime>,
    /// The model's.
    stream: Stream,
    // A model may outlive its training, and with it this: the communicator is to end when all ranks end it.
    nccl: WeakNcclGroup,
    layout: Arc<BucketLayout>,
    gradients: Arc<dyn DeviceGradients>,
    /// What buckets of float32 travel as, if not as they are.
    halves: Option<DType>,
    /// The model's own error, where it could not compute.
    failure: Mutex<Option<ModelError>>,
    /// What NCCL was last asked for. It does one thing after the other.
    latest: Mutex<Option<NcclWork>>,
}

impl DeviceBuckets {
    /// Buckets that the model has set to zeros, with 16-bit floats of this type beside them if there is one.
    pub(crate) fn new(
        group: ProcessGroup,
        accelerator: &Accelerator,
        layout: Arc<BucketLayout>,
        gradients: Arc<dyn DeviceGradients>,
        halves: Option<DType>,
    ) -> Self {
        DeviceBuckets {
            group,
            runtime: accelerator.runtime.clone(),
            stream: accelerator.stream,
            nccl: accelerator.nccl.downgrade(),
            layout,
            gradients,
            halves,
            failure: Mutex::new(None),
            latest: Mutex::new(None),
        }
    }

    pub(crate) fn ptr(&self, bucket: usize) -> *mut u8 {
        self.gradients.bucket(bucket).cast()
    }

    /// # Safety
    ///
    /// As of [`Buckets::zero`](super::Buckets::zero).
    pub(crate) unsafe fn zero(&self, ptr: *mut u8, num_bytes: usize) -> Result<()> {
        self.runtime.make_current()?;
        // SAFETY: the caller's promise; the stream is the model's, which outlives the reducer's steps.
        unsafe { self.runtime.zero(ptr.cast(), num_bytes, self.stream) }
    }

    /// Has NCCL average a bucket once the model's stream has come to here. One call a bucket, on every rank: NCCL needs all ranks to
    /// group their calls alike, and which buckets are full at once is a rank's own affair. Returns the bytes that travel.
    pub(crate) fn reduce(&self, bucket: usize) -> Result<u64> {
        let halves = self.halves_of(bucket);
        let narrowed = halves.map_or(Ok(()), |_| self.gradients.narrow(bucket));
        narrowed.map_err(|error| self.keep(error))?;
        let info = &self.layout.buckets[bucket];
        let buffer = RawBuffer {
            ptr: match halves {
                Some(_) => self.gradients.halves(bucket),
                None => self.gradients.bucket(bucket),
            },
            len: info.numel,
            dtype: halves.unwrap_or(info.dtype),
            device: info.device,
            stream: Some(self.stream),
        };
        // Halves have half the bytes of float32.
        let num_bytes = self.layout.whole_bytes[bucket] / if halves.is_some() { 2 } else { 1 };
        // SAFETY: the bucket is full, so that only what comes after `finish` on the model's stream touches it and what was made
        // of it.
        let work = unsafe { self.nccl.upgrade()?.all_reduce(buffer, ReduceOp::Average)? };
        *lock(&self.latest) = Some(work);
        Ok(num_bytes)
    }

    /// What a bucket travels as, if not as it is.
    fn halves_of(&self, bucket: usize) -> Option<DType> {
        self.halves
            .filter(|_| is_compressible(&self.layout.buckets[bucket]))
    }

    /// # Safety
    ///
    /// As of [`Buckets::finish`](super::Buckets::finish).
    pub(crate) unsafe fn finish(&self, sums: RawBuffer) -> Result<u64> {
        let num_buckets = self.layout.buckets.len();
        let num_bytes = self.reduce(num_buckets - 1)?;
        self.order_latest()?;
        for bucket in (0..num_buckets).filter(|&bucket| self.halves_of(bucket).is_some()) {
            let widened = self.gradients.widen(bucket);
            widened.map_err(|error| self.keep(error))?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.group.all_reduce(sums, ReduceOp::Sum)? };
        Ok(num_bytes)
    }

    /// What the model computes of the gradients after the reduction.
    pub(crate) fn gradients(&self) -> &dyn DeviceGradients {
        &*self.gradients
    }

    /// The model's error that a failure here came from, if it was one.
    pub(crate) fn take_failure(&self) -> Option<ModelError> {
        lock(&self.failure).take()
    }

    fn keep(&self, error: ModelError) -> CollectiveError {
        let message = error.to_string();
        lock(&self.failure).get_or_insert(error);
        CollectiveError::Device {
            call: "the compression of gradients".into(),
            message,
        }
    }

    /// Has the model's stream wait for what NCCL was asked for.
    fn order_latest(&self) -> Result<()> {
        match lock(&self.latest).take() {
            // SAFETY: the stream is the model's, as above.
            Some(latest) => unsafe { latest.order_before(self.stream) },
            None => Ok(()),
        }
    }
}
