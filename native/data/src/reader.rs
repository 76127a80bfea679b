//! One rank's batches.

use std::sync::Arc;
use std::time::Duration;

use crate::batch::Batch;
use crate::error::DataError;
use crate::manifest::Manifest;
use crate::order::SampleOrder;
use crate::store::Store;

/// How a reader uses its process. None of this changes what is read.
#[derive(Clone)]
pub struct ReaderOptions {
    /// Bytes of decoded rows to hold. A share that fits is decoded once and kept; default 1 GiB.
    pub memory_budget: u64,
    /// Decoding threads; 0 decodes on the caller's thread. Default 1.
    pub num_threads: usize,
    /// Windows decoded ahead of each lane's current one, where the share does not fit. Default 1.
    pub prefetch: usize,
    /// How long `next` waits for rows before it gives up. Default 10 min.
    pub timeout: Duration,
    /// Asked at least every 100 ms of waiting; `true` ends the wait with [`DataError::Interrupted`].
    pub interrupt: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        ReaderOptions {
            memory_budget: 1 << 30,
            num_threads: 1,
            prefetch: 1,
            timeout: Duration::from_secs(600),
            interrupt: None,
        }
    }
}

/// Reads the batches of one rank.
pub struct BatchReader {}

impl BatchReader {
    /// A reader for the lanes `l` with `l % world_size == rank`. Touches no file yet.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] where there are more ranks than lanes.
    pub fn new(
        store: Store,
        manifest: Arc<Manifest>,
        order: Arc<SampleOrder>,
        rank: usize,
        world_size: usize,
        options: ReaderOptions,
    ) -> Result<Self, DataError> {
        let _ = (store, manifest, order, rank, world_size, options);
        todo!()
    }

    /// Goes to a step of an epoch. Returns at once; decoding begins in the background.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for a step past the epoch's end.
    pub fn start(&mut self, epoch: u64, step: u64) -> Result<(), DataError> {
        let _ = (epoch, step);
        todo!()
    }

    /// The next batch; `None` at the epoch's end.
    ///
    /// # Errors
    /// [`DataError`] for the first bad value, naming column, shard and row.
    #[allow(clippy::should_implement_trait)] // an iterator's item would have to be a Result, and would go on after an error
    pub fn next(&mut self) -> Result<Option<Batch>, DataError> {
        todo!()
    }
}
