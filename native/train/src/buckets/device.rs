//! Buckets on a device.

use std::sync::{Arc, Mutex};

use flambeau_collective::{
    DeviceRuntime, NcclWork, ProcessGroup, RawBuffer, ReduceOp, Result, Stream, WeakNcclGroup,
};

use super::lock;
use crate::compression::{CompressionState, DeviceCompressors, Exchange, ParameterState};
use crate::device::Accelerator;
use crate::layout::BucketLayout;
use crate::model::ModelError;

/// Buckets in the model's memory on a device, compressed there on their way if so asked. Nothing here waits for the device, but
/// what saves and restores.
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
    compressors: Option<DeviceCompressors>,
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
        compressors: Option<DeviceCompressors>,
    ) -> Self {
        DeviceBuckets {
            group,
            runtime: accelerator.runtime.clone(),
            stream: accelerator.stream,
            nccl: accelerator.nccl.downgrade(),
            layout,
            addresses,
            compressors,
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

    /// Has NCCL average a bucket, or exchange what its compressor makes of it, once the model's stream has come to here. One call a
    /// bucket, on every rank: NCCL needs all ranks to group their calls alike, and which buckets are full at once is a rank's own
    /// affair.
    pub(crate) fn reduce(&self, bucket: usize, step: u64) -> Result<u64> {
        let compressed = match &self.compressors {
            Some(compressors) => compressors.compress(bucket, step)?,
            None => None,
        };
        let whole_bytes = self.layout.whole_bytes[bucket];
        let (exchange, num_bytes) = Exchange::of_bucket(compressed, self.raw(bucket), whole_bytes);
        // SAFETY: the bucket is full, so that only what comes after `finish` on the model's stream touches it and what was made
        // of it.
        let work = unsafe { exchange.launch(&self.nccl.upgrade()?)? };
        *lock(&self.latest) = Some(work);
        Ok(num_bytes)
    }

    fn raw(&self, bucket: usize) -> RawBuffer {
        let info = &self.layout.buckets[bucket];
        RawBuffer {
            ptr: self.ptr(bucket).cast(),
            len: info.numel,
            dtype: info.dtype,
            device: info.device,
            stream: Some(self.stream),
        }
    }

    /// # Safety
    ///
    /// As of [`Buckets::finish`](super::Buckets::finish).
    pub(crate) unsafe fn finish(&self, step: u64, sums: RawBuffer) -> Result<u64> {
        let mut num_bytes = self.reduce(self.addresses.len() - 1, step)?;
        self.order_latest()?;
        if let Some(compressors) = &self.compressors {
            num_bytes += self.reduce_again(&compressors.compress_again(step)?)?;
            compressors.decompress(step)?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.group.all_reduce(sums, ReduceOp::Sum)? };
        Ok(num_bytes)
    }

    /// The model's error that a failure here came from, if it was one.
    pub(crate) fn take_failure(&self) -> Option<ModelError> {
        self.compressors.as_ref()?.take_failure()
    }

    /// Has NCCL reduce these buffers, and the model's stream wait for that. Returns the bytes that travel.
    fn reduce_again(&self, buffers: &[(RawBuffer, ReduceOp)]) -> Result<u64> {
        if buffers.is_empty() {
            return Ok(0);
        }
        // SAFETY: the buffers are the compressors' own, who touch them after this on the model's stream.
        let work = unsafe { self.nccl.upgrade()?.grouped_all_reduce(buffers)? };
        *lock(&self.latest) = Some(work);
        self.order_latest()?;
        let num_bytes = buffers.iter().map(|(buffer, _)| buffer.bytes() as u64);
        Ok(2 * num_bytes.sum::<u64>())
    }

    /// Has the model's stream wait for what NCCL was asked for.
    fn order_latest(&self) -> Result<()> {
        match lock(&self.latest).take() {
            // SAFETY: the stream is the model's, as above.
            Some(latest) => unsafe { latest.order_before(self.stream) },
            None => Ok(()),
        }
    }

    /// Copies what the compression carries to the next step to the parameters' places. Waits for the device.
    pub(crate) fn save(&self, parameters: &mut [ParameterState]) -> Result<()> {
        match &self.compressors {
            Some(compressors) => compressors.save(parameters),
            None => Ok(()),
        }
    }

    /// Goes on from what [`save`](Self::save) gave, which is of the same lengths.
    pub(crate) fn restore(&self, state: &CompressionState) -> Result<()> {
        match &self.compressors {
            Some(compressors) => compressors.restore(state),
            None => Ok(()),
        }
    }
}
