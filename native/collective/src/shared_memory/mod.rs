//! The ranks of one host, through memory that they share.
//!
//! Buffers in the group's memory (`memory`) are worked on where they lie, between two barriers (`slices`). Other buffers pass
//! through the staging areas in chunks (`staging`): copy in, barrier, work, barrier, copy out.

pub(crate) mod allocation;
pub(crate) mod board;
pub(crate) mod descriptor;
mod futex;
pub(crate) mod host;
mod slices;
pub(crate) mod staging;

use self::host::{Host, in_place, mask};
use self::staging::Staging;
use crate::buffer::RawBuffer;
use crate::call::{Call, Operation, Piece, Ranks};
use crate::error::Result;
use crate::liveness::wait::Wait;
use crate::memory::region::Region;
use crate::task::{self, Part, Places, Task};
use crate::transport::Transport;

/// The transport of a group that is on one host.
pub(crate) struct SharedMemory {
    host: Host,
}

impl SharedMemory {
    pub(crate) fn new(host: Host) -> Self {
        SharedMemory { host }
    }

    /// The work on a part of a staged buffer: this member takes its own elements of what it reduces from its
    /// buffer, and puts the result there too.
    ///
    /// # Safety
    /// The buffer holds the part.
    unsafe fn staged(&self, call: &Call<'_>, part: &Part, buffers: &[RawBuffer]) -> Task {
        let mut task = self.host.staged(part);
        if let (Operation::AllReduce, &Places::Shared(result)) = (call.operation, &task.places) {
            let offset = part.range.start * call.entries[part.entry].dtype.size();
            // SAFETY: the caller's promise.
            let own = unsafe { buffers[part.entry].ptr.cast::<u8>().add(offset) };
            task.sources[self.host.board.me] = own;
            task.places = Places::Each(vec![result, own]);
        }
        task
    }
}

impl Transport for SharedMemory {
    unsafe fn carry_out(
        &self,
        call: &Call<'_>,
        buffers: &[RawBuffer],
        wait: &Wait<'_>,
    ) -> Result<()> {
        let host = &self.host;
        let staging = Staging {
            host,
            call,
            buffers,
            skips_own_slice: true,
        };
        let found = host.find(buffers);
        // As this member sees it; most often all see the same, and then the first chunk is staged with the first barrier.
        let foreseen = mask(found.iter().map(Option::is_none));
        let mut chunks = task::chunks(call, foreseen);
        if let Some(chunk) = chunks.first() {
            // SAFETY: the caller's promise; nobody reads this member's staging area before the next barrier.
            unsafe { staging.copy_in(chunk) };
        }
        host.meet(call, &found, wait)?;
        if matches!(call.operation, Operation::Barrier | Operation::Allocate) {
            return Ok(());
        }
        let direct = host.all_addresses(call, &found);
        let staged = mask(direct.iter().map(Option::is_none));
        if (0..host.num_members()).any(|member| host.foreseen(member, call) != staged) {
            chunks = task::chunks(call, staged);
            if let Some(chunk) = chunks.first() {
                // SAFETY: as above: every read of this area lies behind the next barrier.
                unsafe { staging.copy_in(chunk) };
            }
            host.board.barrier(wait)?;
        }

        // What goes to all from all; the rest each member fetches for itself.
        let is_shared = |piece: &Piece| piece.from == Ranks::All && piece.to == Ranks::All;
        let mut tasks = in_place(call, direct);
        for turn in 0..chunks.len().max(1) {
            let chunk = chunks.get(turn).map_or(&[][..], Vec::as_slice);
            if turn > 0 {
                // SAFETY: the barrier that ended the last turn lies behind every member's reads of this area.
                unsafe { staging.copy_in(chunk) };
                host.board.barrier(wait)?;
            }
            // SAFETY: the caller's promise.
            tasks.extend(
                chunk
                    .iter()
                    .map(|part| unsafe { self.staged(call, part, buffers) }),
            );
            // SAFETY: all members are behind the barrier, and each writes its own slices and its own buffers.
            unsafe {
                tasks
                    .iter()
                    .for_each(|task| slices::share(host, call, task, buffers))
            };
            host.board.barrier(wait)?;
            // SAFETY: the results are behind the barrier, and are written again behind the next one only.
            unsafe { staging.copy_out(chunk, is_shared) };
            tasks.clear();
        }
        Ok(())
    }

    fn allocate(&self, id: u32, bytes: usize, wait: &Wait<'_>) -> Result<Option<Region>> {
        allocation::allocate(&self.host, id, bytes, wait)
    }
}
