//! How a call gets from rank to rank.
//!
//! | this rank's host | the other hosts | transport |
//! |---|---|---|
//! | several ranks | none | [`SharedMemory`](crate::shared_memory::SharedMemory) |
//! | this rank alone | some | [`Tcp`](crate::tcp::Tcp) |
//! | several ranks | some | [`Hierarchical`](crate::hierarchical::Hierarchical): shared memory, and TCP between the hosts' leaders |
//!
//! A host here is a set of ranks that share memory. `bootstrap` chooses; a group of one rank has no transport. All ranks of a group
//! cut a call alike and add in rank order, whichever transport each of them has. NCCL is none: its operations run on a
//! device's streams, behind handles of their own.

use crate::buffer::RawBuffer;
use crate::call::Call;
use crate::error::Result;
use crate::liveness::wait::Wait;
use crate::memory::region::Region;

/// A way to carry out calls together with the other ranks. Used by one thread at a time, which the group's sequencer sees to.
pub(crate) trait Transport: Send + Sync {
    /// Carries out `call` on `buffers`, one per entry; of an `Allocate` there are entries alone.
    ///
    /// Blocks the calling thread until this rank's part is done, for as long as `wait` allows. The arrival of other ranks
    /// wakes it, and so does the group's failure.
    ///
    /// # Errors
    /// What fails the group; the buffers' contents are unspecified then.
    ///
    /// # Safety
    /// Each buffer holds its entry's elements, and is this call's alone until it returns.
    unsafe fn carry_out(
        &self,
        call: &Call<'_>,
        buffers: &[RawBuffer],
        wait: &Wait<'_>,
    ) -> Result<()>;

    /// Makes memory that all members of this host reach, after an `Allocate` call that all agreed on; its owner frees it. `None`
    /// where there are no other members, and where the system refuses it to any of them. Blocks as `carry_out` does.
    ///
    /// # Errors
    /// What fails the group.
    fn allocate(&self, _id: u32, _bytes: usize, _wait: &Wait<'_>) -> Result<Option<Region>> {
        Ok(None)
    }
}
