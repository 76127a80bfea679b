//! How a reader uses its process.

use std::sync::Arc;
use std::time::Duration;

/// How a reader uses its process. None of this changes what is read.
#[derive(Clone)]
pub struct ReaderOptions {
    /// Bytes of decoded rows to hold; default 1 GiB. A share that fits is decoded once and kept. Otherwise one window a lane is held even
    /// where that is more: see [`BatchReader::memory_bound`](super::BatchReader::memory_bound).
    pub memory_budget: u64,
    /// Decoding threads; 0 decodes on the caller's thread, within `next`. Where there are several, one of them works only while `next`
    /// waits, so that 2 of them and the caller keep two processors busy. Default 2.
    pub num_threads: usize,
    /// Windows decoded ahead of each lane's current one, as far as the budget lets them, where the share does not fit. Default 1.
    pub prefetch: usize,
    /// How long `next` waits for rows before it gives up. Default 10 min.
    pub timeout: Duration,
    /// Asked at least every 100 ms while `next` waits for other threads; `true` ends the wait with
    /// [`DataError::Interrupted`](crate::DataError::Interrupted). Default none.
    pub interrupt: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        ReaderOptions {
            memory_budget: 1 << 30,
            num_threads: 2,
            prefetch: 1,
            timeout: Duration::from_secs(600),
            interrupt: None,
        }
    }
}

impl std::fmt::Debug for ReaderOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReaderOptions")
            .field("memory_budget", &self.memory_budget)
            .field("num_threads", &self.num_threads)
            .field("prefetch", &self.prefetch)
            .field("timeout", &self.timeout)
            .field("interrupt", &self.interrupt.is_some())
            .finish()
    }
}
