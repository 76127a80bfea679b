//! How ranks that know nothing of each other exchange their first bytes.

use crate::error::Result;

/// A slow but certain way to tell all ranks something: Spark's barrier `allGather`, lines on a pipe, a TCP store.
///
/// `ProcessGroup::connect` calls `all_gather` once (it costs about a second under Spark) and uses sockets from then on.
pub trait Rendezvous: Send {
    /// This process's rank, `0..world_size`.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn world_size(&self) -> usize;

    /// Gives every rank the payloads of all ranks, in rank order. All ranks call it equally often. Payloads may differ in length.
    ///
    /// # Errors
    /// When a rank does not come within the implementation's own deadline.
    fn all_gather(&mut self, payload: &[u8]) -> Result<Vec<Vec<u8>>>;
}
