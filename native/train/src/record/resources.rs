//! What a training takes of its machines.

use std::mem::MaybeUninit;

use serde::{Deserialize, Serialize};

/// What an epoch's steps took of the workers' machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// The cores that a worker kept busy, the mean over all workers, in percent of one core.
    pub cpu_percent: f64,
    /// The largest memory that a worker's process has had, over all workers, what it held before the training included.
    pub peak_memory_bytes: u64,
}

/// What a process has taken since it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessUsage {
    /// Seconds that its threads computed, in itself and in the kernel.
    pub(crate) cpu_seconds: f64,
    /// The largest resident memory.
    pub(crate) peak_memory_bytes: u64,
}

impl ProcessUsage {
    /// Of this process.
    pub(crate) fn now() -> ProcessUsage {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the pointer is to memory for one such struct, which is whole as zeros too.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
            usage.assume_init()
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        ProcessUsage {
            cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            // Linux gives KiB: getrusage(2).
            peak_memory_bytes: usage.ru_maxrss as u64 * 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_process_that_computes_takes_cpu_and_memory() {
        let before = ProcessUsage::now();
        let memory = vec![1_u8; before.peak_memory_bytes as usize + (64 << 20)];
        let began = Instant::now();
        while began.elapsed().as_millis() < 50 {
            std::hint::black_box(&memory);
        }
        let after = ProcessUsage::now();
        assert!(after.cpu_seconds > before.cpu_seconds);
        assert!(after.peak_memory_bytes >= before.peak_memory_bytes + (64 << 20));
    }
}
