//! Buckets in main memory.

use std::slice;
use std::sync::{Arc, Mutex};

use flambeau_collective::{DType, GroupBuffer, ProcessGroup, RawBuffer, ReduceOp, Result, Work};

use super::lock;
use crate::gradients::compression::{
    BucketView, CompressionState, Compressor, Exchange, ParameterState,
};
use crate::job::compression::Compression;
use crate::model::layout::{BucketLayout, ParameterInfo};

/// Buckets in memory that the group owns, compressed on their way if so asked.
pub(crate) struct HostBuckets {
    group: ProcessGroup,
    layout: Arc<BucketLayout>,
    buffers: Vec<GroupBuffer>,
    /// What makes less of each bucket; none where it travels as it is.
    compressors: Vec<Option<Mutex<Box<dyn Compressor>>>>,
    /// Whether full buckets are reduced on the group's communication thread rather than the caller's.
    overlaps: bool,
    /// Reductions on the communication thread that `finish` waits for.
    in_flight: Mutex<Vec<Work>>,
}

impl HostBuckets {
    /// Allocates the buckets, of zeros. A collective call: all ranks make it with the same arguments.
    ///
    /// # Errors
    ///
    /// What [`ProcessGroup::allocate`] says.
    pub(crate) fn new(
        group: ProcessGroup,
        parameters: &[ParameterInfo],
        layout: Arc<BucketLayout>,
        compression: Compression,
        overlaps: bool,
    ) -> Result<HostBuckets> {
        let mut buffers = Vec::with_capacity(layout.buckets.len());
        for bucket in &layout.buckets {
            let buffer = group.allocate(bucket.num_bytes())?;
            // SAFETY: the buffer has that many bytes, and nobody else knows of it yet.
            unsafe {
                buffer
                    .as_ptr()
                    .cast::<u8>()
                    .write_bytes(0, bucket.num_bytes())
            };
            buffers.push(buffer);
        }
        let mut compressors = Vec::with_capacity(buffers.len());
        let views = BucketView::of_buckets(parameters, &layout);
        for (bucket, views) in layout.buckets.iter().zip(&views) {
            let compressor = compression.of_bucket(&group, bucket, views)?;
            compressors.push(compressor.map(Mutex::new));
        }
        // A rank may reach into another's buffer as soon as that one reduces.
        group.barrier()?;
        Ok(HostBuckets {
            group,
            layout,
            buffers,
            compressors,
            overlaps,
            in_flight: Mutex::new(vec![]),
        })
    }

    pub(crate) fn ptr(&self, bucket: usize) -> *mut u8 {
        self.buffers[bucket].as_ptr().cast()
    }

    /// Reduces a bucket, or hands it to the communication thread.
    pub(crate) fn reduce(&self, bucket: usize, step: u64) -> Result<u64> {
        let (exchange, num_bytes) = self.exchange(bucket, step);
        // SAFETY: nobody touches the exchange's memory until `finish` has waited for it.
        unsafe {
            if self.overlaps {
                let work = exchange.start(&self.group)?;
                lock(&self.in_flight).push(work);
            } else {
                exchange.run(&self.group)?;
            }
        }
        Ok(num_bytes)
    }

    /// # Safety
    ///
    /// As of [`Buckets::finish`](super::Buckets::finish).
    pub(crate) unsafe fn finish(&self, step: u64, sums: RawBuffer) -> Result<u64> {
        self.wait_in_flight()?;
        let (exchange, num_bytes) = self.exchange(self.buffers.len() - 1, step);
        // SAFETY: the bucket is nobody else's, and the sums are the caller's promise.
        unsafe { exchange.run_with_sum(&self.group, sums)? };
        let further_bytes = self.exchange_again()?;
        self.decompress();
        Ok(num_bytes + further_bytes)
    }

    /// What is to be exchanged of a bucket, which is full or has its missing views zeroed: the bucket itself, or what its
    /// compressor makes of it; and the bytes that travel.
    fn exchange(&self, bucket: usize, step: u64) -> (Exchange, u64) {
        let compressed = self.compressors[bucket].as_ref().and_then(|compressor| {
            // SAFETY: the bucket is full, so nobody touches it until `finish` has returned.
            lock(compressor).compress(step, unsafe { self.gradients(bucket) })
        });
        Exchange::of_bucket(
            compressed,
            self.raw(bucket),
            self.layout.whole_bytes[bucket],
        )
    }

    /// The second exchange of the buckets whose compressors have one, all at once. Returns the bytes that travel.
    fn exchange_again(&self) -> Result<u64> {
        let buffers: Vec<_> = self
            .compressors
            .iter()
            .flatten()
            .filter_map(|compressor| Some((lock(compressor).compress_again()?, ReduceOp::Average)))
            .collect();
        if buffers.is_empty() {
            return Ok(0);
        }
        // SAFETY: the buffers are the compressors' own, and nobody asks for another before the call returns.
        unsafe { self.group.grouped_all_reduce(&buffers)? };
        Ok(buffers
            .iter()
            .map(|(buffer, _)| 2 * buffer.bytes() as u64)
            .sum())
    }

    /// Writes what came of the exchanges over the buckets that were compressed.
    fn decompress(&self) {
        for (bucket, compressor) in self.compressors.iter().enumerate() {
            if let Some(compressor) = compressor {
                // SAFETY: no exchange is under way, and this is the loop's thread.
                lock(compressor).decompress(unsafe { self.gradients(bucket) });
            }
        }
    }

    /// The elements of a bucket of float32.
    ///
    /// # Safety
    ///
    /// Nobody else uses the bucket while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the memory is not the buckets' own")]
    unsafe fn gradients(&self, bucket: usize) -> &mut [f32] {
        let info = &self.layout.buckets[bucket];
        debug_assert_eq!(info.dtype, DType::Float32);
        // SAFETY: the bucket has that many elements, and the rest is the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.ptr(bucket).cast(), info.numel) }
    }

    fn raw(&self, bucket: usize) -> RawBuffer {
        let info = &self.layout.buckets[bucket];
        RawBuffer::cpu(self.ptr(bucket).cast(), info.numel, info.dtype)
    }

    /// Waits for every reduction on the communication thread, also after one has failed: it works on the buckets.
    fn wait_in_flight(&self) -> Result<()> {
        let works = std::mem::take(&mut *lock(&self.in_flight));
        let results: Vec<Result<()>> = works.into_iter().map(Work::wait).collect();
        results.into_iter().collect()
    }

    /// Copies what the compression carries to the next step to the parameters' places.
    pub(crate) fn save(&self, parameters: &mut [ParameterState]) {
        for compressor in self.compressors.iter().flatten() {
            lock(compressor).save(parameters);
        }
    }

    /// Goes on from what [`save`](Self::save) gave, which is of the same lengths.
    pub(crate) fn restore(&self, state: &CompressionState) {
        for compressor in self.compressors.iter().flatten() {
            lock(compressor).restore(&state.parameters);
        }
    }
}

impl Drop for HostBuckets {
    fn drop(&mut self) {
        // The buffers go next. Who took the failed step knows its failure.
        let _ = self.wait_in_flight();
    }
}
