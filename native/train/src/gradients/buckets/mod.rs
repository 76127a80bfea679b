//! The buckets' memory, and its way from rank to rank: through the process group where it is main memory, through NCCL
//! where it is a device's.

mod device;
mod host;

use std::sync::{Mutex, MutexGuard, PoisonError};

use flambeau_collective::{RawBuffer, Result};

pub(crate) use device::DeviceBuckets;
pub(crate) use host::HostBuckets;

use crate::error::ModelError;
use crate::gradients::compression::{CompressionState, ParameterState};

/// All buckets of a reducer. A bucket is touched by nobody else from when it is reduced until `finish` has returned.
pub(crate) enum Buckets {
    /// In main memory that the group owns.
    Host(HostBuckets),
    /// On a device, in memory of the model's.
    Device(DeviceBuckets),
}

impl Buckets {
    /// The first byte of a bucket, 64-byte aligned.
    pub(crate) fn ptr(&self, bucket: usize) -> *mut u8 {
        match self {
            Buckets::Host(buckets) => buckets.ptr(bucket),
            Buckets::Device(buckets) => buckets.ptr(bucket),
        }
    }

    /// Sets bytes to 0.
    ///
    /// # Safety
    ///
    /// They lie in a bucket that is not full.
    pub(crate) unsafe fn zero(&self, ptr: *mut u8, num_bytes: usize) -> Result<()> {
        match self {
            Buckets::Host(_) => {
                // SAFETY: the caller's promise.
                unsafe { ptr.write_bytes(0, num_bytes) };
                Ok(())
            }
            // SAFETY: the caller's promise.
            Buckets::Device(buckets) => unsafe { buckets.zero(ptr, num_bytes) },
        }
    }

    /// Reduces a full bucket of a step, counted from 0, or begins to. Returns the bytes that travel.
    pub(crate) fn reduce(&self, bucket: usize, step: u64) -> Result<u64> {
        match self {
            Buckets::Host(buckets) => buckets.reduce(bucket, step),
            Buckets::Device(buckets) => buckets.reduce(bucket),
        }
    }

    /// Reduces the last bucket of a step, adds `sums` up over the ranks, and sees to it that whoever reads the buckets next
    /// finds the averages. Returns the bytes that travel, the sums left out.
    ///
    /// # Safety
    ///
    /// `sums` is valid, and nobody else's until the call returns.
    pub(crate) unsafe fn finish(&self, step: u64, sums: RawBuffer) -> Result<u64> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Buckets::Host(buckets) => buckets.finish(step, sums),
                Buckets::Device(buckets) => buckets.finish(sums),
            }
        }
    }

    /// The model's error that a failure on a device came from, if it was one.
    pub(crate) fn take_failure(&self) -> Option<ModelError> {
        match self {
            Buckets::Host(_) => None,
            Buckets::Device(buckets) => buckets.take_failure(),
        }
    }

    /// Copies what the compression carries to the next step to the parameters' places. Between devices nothing is carried.
    pub(crate) fn save(&self, parameters: &mut [ParameterState]) {
        if let Buckets::Host(buckets) = self {
            buckets.save(parameters);
        }
    }

    /// Goes on from what [`save`](Self::save) gave, which is of the same lengths.
    pub(crate) fn restore(&self, state: &CompressionState) {
        if let Buckets::Host(buckets) = self {
            buckets.restore(state);
        }
    }
}

/// What the mutexes guard stays whole even where a thread panicked, since nothing is done under them that could.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
