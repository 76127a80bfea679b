//! Counting the bytes that a reader holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes held now and at most so far. Clones count together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Meter {
    /// Counts `bytes` until the result is dropped.
    pub(crate) fn charge(&self, bytes: u64) -> Charge {
        let now = self.counts.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.counts.peak.fetch_max(now, Ordering::Relaxed);
        Charge {
            meter: self.clone(),
            bytes,
        }
    }

    /// The most bytes held at any time.
    pub(crate) fn peak(&self) -> u64 {
        self.counts.peak.load(Ordering::Relaxed)
    }
}

/// Bytes that are held as long as this lives.
#[derive(Debug)]
pub(crate) struct Charge {
    meter: Meter,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.meter
            .counts
            .now
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
