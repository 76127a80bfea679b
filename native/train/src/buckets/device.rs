//! Buckets on a device.

use std::sync::{Arc, Mutex};

use flambeau_collective::{
    DeviceRuntime, NcclWork, ProcessGroup, RawBuffer, ReduceOp, Result, Stream, WeakNcclGroup,
};

use super::lock;
use crate::device::Accelerator;
use crate::layout::BucketLayout;

/// Buckets in the model's memory on a device. Nothing here waits for the device.
pub(crate) struct DeviceBuckets {
    group: ProcessGroup,
    runtime: Arc<dyn DeviceRuntime>,
    /// The model's.
    stream: Stream,
    // A model may outlive its training, and with it this: the communicator is to end when all ranks end it.
    nccl: WeakNcclGroup,
    layout: Arc<BucketLayout>,
    /// The addresses of the buckets, on the device.
    addresses: Vec<usize>,
    /// What NCCL was last asked for. It does one thing after the other.
    latest: Mutex<Option<NcclWork>>,
}

impl DeviceBuckets {
    /// Buckets at these addresses, which the model keeps alive and has set to zeros.
    pub(crate) fn new(
        group: ProcessGroup,
        accelerator: &Accelerator,
        layout: Arc<BucketLayout>,
        addresses: Vec<usize>,
    ) -> Self {
        DeviceBuckets {
            group,
            runtime: accelerator.runtime.clone(),
            stream: accelerator.stream,
            nccl: accelerator.nccl.downgrade(),
            layout,
            addresses,
            latest: Mutex::new(None),
        }
    }

    pub(crate) fn ptr(&self, bucket: usize) -> *mut u8 {
        self.addresses[bucket] as *mut u8
    }

    /// # Safety
    ///
    /// As of [`Buckets::zero`](super::Buckets::zero).
    pub(crate) unsafe fn zero(&self, ptr: *mut u8, num_bytes: usize) -> Result<()> {
        self.runtime.make_current()?;
        // SAFETY: the caller's promise; the stream is the model's, which outlives the reducer's steps.
        unsafe { self.runtime.zero(ptr.cast(), num_bytes, self.stream) }
    }

    /// Has NCCL average a bucket once the model's stream has come to here. One call a bucket, on every rank: NCCL needs all
    /// ranks to group their calls alike, and which buckets are full at once is a rank's own affair.
    pub(crate) fn reduce(&self, bucket: usize) -> Result<u64> {
        let info = &self.layout.buckets[bucket];
        let buffer = RawBuffer {
            ptr: self.ptr(bucket).cast(),
            len: info.numel,
            dtype: info.dtype,
            device: info.device,
            stream: Some(self.stream),
        };
        // SAFETY: the bucket is full, so that only what comes after `finish` on the model's stream touches it.
        let work = unsafe { self.nccl.upgrade()?.all_reduce(buffer, ReduceOp::Average)? };
        *lock(&self.latest) = Some(work);
        Ok(self.layout.whole_bytes[bucket])
    }

    /// # Safety
    ///
    /// As of [`Buckets::finish`](super::Buckets::finish).
    pub(crate) unsafe fn finish(&self, sums: RawBuffer) -> Result<u64> {
        let num_bytes = self.reduce(self.addresses.len() - 1)?;
        if let Some(latest) = lock(&self.latest).take() {
            // SAFETY: the stream is the model's, as above.
            unsafe { latest.order_before(self.stream)? };
        }
        // SAFETY: the caller's promise.
        unsafe { self.group.all_reduce(sums, ReduceOp::Sum)? };
        Ok(num_bytes)
    }
}
