//! What gradients travel as, where that is less than themselves.
//!
//! Each bucket of float32 gradients has a [`Compressor`]. It makes something shorter of the bucket, the group adds that up
//! over the ranks, and the compressor writes what came of it over the bucket: the same bits on every rank, whatever the
//! transport. Buckets of other types travel as they are.
//!
//! On a device the model's framework makes 16-bit floats of a bucket (`buckets/device`); the other ways are the CPU's.

mod halves;
mod largest;
mod matrix;
mod memory;
mod plan;
mod power_sgd;
mod state;
mod top_k;
mod wire;

use std::ops::Range;

use flambeau_collective::{DType, ProcessGroup, RawBuffer, ReduceOp, Result, Work};
use half::{bf16, f16};

use crate::job::compression::Compression;
use crate::model::layout::{BucketInfo, BucketLayout, ParameterInfo};
use halves::Halves;
use power_sgd::PowerSgd;
pub use state::{CompressionState, ParameterState};
use top_k::TopK;

impl Compression {
    /// The compressor of a bucket with these views; none where its gradients travel as they are. A collective call: all
    /// ranks make it with the same arguments.
    ///
    /// # Errors
    ///
    /// What [`ProcessGroup::allocate`] says.
    pub(crate) fn of_bucket(
        self,
        group: &ProcessGroup,
        bucket: &BucketInfo,
        views: &[BucketView],
    ) -> Result<Option<Box<dyn Compressor>>> {
        if !is_compressible(bucket) {
            return Ok(None);
        }
        Ok(match self {
            Compression::None => None,
            Compression::Fp16 => Some(Box::new(Halves::<f16>::new(group, views)?)),
            Compression::Bf16 => Some(Box::new(Halves::<bf16>::new(group, views)?)),
            Compression::PowerSgd { rank, start_step } => {
                Some(Box::new(PowerSgd::new(group, views, rank, start_step)?))
            }
            Compression::TopK { ratio } => {
                Some(Box::new(TopK::new(group, bucket.numel, views, ratio)?))
            }
        })
    }
}

/// Whether a bucket's gradients can be compressed. An index of 32 bits tells the elements of a bucket apart, as long as no single
/// parameter is beyond that.
pub(crate) fn is_compressible(bucket: &BucketInfo) -> bool {
    bucket.dtype == DType::Float32 && u32::try_from(bucket.numel).is_ok()
}

/// Where the gradient of one parameter lies in its bucket.
#[derive(Clone, Debug)]
pub(crate) struct BucketView {
    /// The parameter, in registration order.
    pub(crate) index: usize,
    /// The rows of the matrix that it counts as; they divide its elements.
    pub(crate) num_rows: usize,
    /// Its elements.
    pub(crate) range: Range<usize>,
}

impl BucketView {
    /// Those of each bucket.
    pub(crate) fn of_buckets(
        parameters: &[ParameterInfo],
        layout: &BucketLayout,
    ) -> Vec<Vec<BucketView>> {
        let of_bucket = |bucket: &BucketInfo| {
            let view = |&index: &usize| BucketView {
                index,
                num_rows: parameters[index].num_rows,
                range: layout.views[index].elements(bucket.dtype),
            };
            bucket.parameters.iter().map(view).collect()
        };
        layout.buckets.iter().map(of_bucket).collect()
    }
}

/// Compresses one bucket, step after step: [`compress`](Self::compress), the exchange that it gives, likewise
/// [`compress_again`](Self::compress_again), then [`decompress`](Self::decompress).
pub(crate) trait Compressor: Send {
    /// Makes what is to travel of this rank's gradients in a step, counted from 0; none where the bucket itself is. The
    /// exchange's memory is the compressor's, and nobody else's until the exchange has ended.
    fn compress(&mut self, step: u64, gradients: &mut [f32]) -> Option<Exchange>;

    /// Makes what is to be averaged after that, if anything.
    fn compress_again(&mut self) -> Option<RawBuffer> {
        None
    }

    /// Writes the average over the ranks, as far as it came through, over the gradients.
    fn decompress(&mut self, gradients: &mut [f32]);

    /// Copies what is carried to the next step to the parameters' places.
    fn save(&mut self, parameters: &mut [ParameterState]) {
        let _ = parameters;
    }

    /// Goes on from what was saved, which is of as many numbers as this compressor saves.
    fn restore(&mut self, parameters: &[ParameterState]) {
        let _ = parameters;
    }
}

/// What the ranks do together with a bucket's gradients, or what was made of them.
pub(crate) enum Exchange {
    /// An all-reduce.
    Reduce(RawBuffer, ReduceOp),
    /// An all-gather.
    Gather(RawBuffer),
}

impl Exchange {
    /// The exchange for a full bucket: of what its compressor made of it, else of the bucket itself, which is averaged. With it
    /// the bytes that travel, `bucket_bytes` for the bucket.
    pub(crate) fn of_bucket(
        compressed: Option<Exchange>,
        bucket: RawBuffer,
        bucket_bytes: u64,
    ) -> (Exchange, u64) {
        match compressed {
            None => (Exchange::Reduce(bucket, ReduceOp::Average), bucket_bytes),
            Some(exchange) => {
                let num_bytes = exchange.num_bytes();
                (exchange, num_bytes)
            }
        }
    }

    /// The bytes that travel: those of a buffer to be reduced count twice, once on their way to be summed, and once on
    /// the way back.
    fn num_bytes(&self) -> u64 {
        match self {
            Exchange::Reduce(buffer, _) => 2 * buffer.bytes() as u64,
            Exchange::Gather(buffer) => buffer.bytes() as u64,
        }
    }

    /// Carries the exchange out.
    ///
    /// # Safety
    ///
    /// Its memory is valid, and nobody else's until the call returns.
    pub(crate) unsafe fn run(&self, group: &ProcessGroup) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match *self {
                Exchange::Reduce(buffer, op) => group.all_reduce(buffer, op),
                Exchange::Gather(buffer) => group.all_gather(buffer),
            }
        }
    }

    /// The same on the group's communication thread.
    ///
    /// # Safety
    ///
    /// Its memory is valid, and nobody else's until the exchange has ended.
    pub(crate) unsafe fn start(&self, group: &ProcessGroup) -> Result<Work> {
        // SAFETY: the caller's promise.
        unsafe {
            match *self {
                Exchange::Reduce(buffer, op) => group.all_reduce_async(buffer, op),
                Exchange::Gather(buffer) => group.all_gather_async(buffer),
            }
        }
    }

    /// The same as [`run`](Self::run), together with a sum over the ranks.
    ///
    /// # Safety
    ///
    /// As for [`run`](Self::run), also of the sum's memory.
    pub(crate) unsafe fn run_with_sum(&self, group: &ProcessGroup, sum: RawBuffer) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match *self {
                Exchange::Reduce(buffer, op) => {
                    group.grouped_all_reduce(&[(buffer, op), (sum, ReduceOp::Sum)])
                }
                Exchange::Gather(buffer) => {
                    group.all_reduce(sum, ReduceOp::Sum)?;
                    group.all_gather(buffer)
                }
            }
        }
    }
}

/// Bytes that each rank sends at least where `num_bytes` travel: all but its own part's, which it has.
pub(crate) fn sent_by_each(num_bytes: u64, world_size: usize) -> u64 {
    let world_size = world_size as u64;
    num_bytes * (world_size - 1) / world_size
}
