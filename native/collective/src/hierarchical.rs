//! Hosts of several ranks: shared memory within a host, TCP between the hosts' leaders.
//!
//! The members of a host meet at their board as they do alone; then the leader, the first of them, works with the other
//! hosts' leaders on all members' memory at once, while the others wait at the next barrier.
//!
//! **Chosen** where this rank's host has several ranks and there are other hosts.
//!
//! **Cost**: the leaders' exchange (see `tcp`), on each host between two barriers. Above 16 KiB one barrier and one small exchange more,
//! by which the hosts agree which buffers lie in the group's memory: where one host has to stage a buffer, all do, so that all cut
//! it alike. Staged buffers cost one copy in, one copy out, and an exchange for each 512 KiB.

use std::sync::atomic::Ordering;

use crate::buffer::RawBuffer;
use crate::call::{Call, Operation, Piece, Ranks};
use crate::error::Result;
use crate::liveness::wait::Wait;
use crate::memory::region::Region;
use crate::shared_memory::allocation;
use crate::shared_memory::host::{Host, in_place, mask};
use crate::shared_memory::staging::Staging;
use crate::task;
use crate::tcp::Tcp;
use crate::transport::Transport;

/// The transport of a rank that shares its host with some ranks, and not with all.
pub(crate) struct Hierarchical {
    host: Host,
    /// Only the host's leader has connections.
    leaders: Tcp,
}

impl Hierarchical {
    pub(crate) fn new(host: Host, leaders: Tcp) -> Self {
        Hierarchical { host, leaders }
    }
}

impl Transport for Hierarchical {
    unsafe fn carry_out(
        &self,
        call: &Call<'_>,
        buffers: &[RawBuffer],
        wait: &Wait<'_>,
    ) -> Result<()> {
        let (host, leaders) = (&self.host, &self.leaders);
        let staging = Staging {
            host,
            call,
            buffers,
            skips_own_slice: false,
        };
        let found = host.find(buffers);
        host.meet(call, &found, wait)?;
        if matches!(call.operation, Operation::Barrier | Operation::Allocate) {
            if host.leads() {
                leaders.exchange(call, 0, &[], wait)?;
            }
            return host.board.barrier(wait);
        }
        let direct = host.all_addresses(call, &found);
        let mut staged = mask(direct.iter().map(Option::is_none));
        if leaders.must_agree(call) {
            // What is staged on one host is staged on all, so that all cut alike.
            let note = host.board.vote(0);
            if host.leads() {
                staged = leaders.exchange(call, staged, &[], wait)?;
                note.store(staged, Ordering::Relaxed);
            }
            host.board.barrier(wait)?;
            staged = note.load(Ordering::Relaxed);
        } else {
            staged = task::ALL_STAGED;
        }
        let chunks = task::chunks(call, staged);
        let direct = direct
            .into_iter()
            .enumerate()
            .map(|(entry, direct)| direct.filter(|_| staged >> entry & 1 == 0));
        // What goes to this member, and did not come from it.
        let rank = Ranks::One(host.rank());
        let is_mine =
            |piece: &Piece| (piece.to == Ranks::All || piece.to == rank) && piece.from != rank;
        let mut tasks = in_place(call, direct.collect());
        for turn in 0..chunks.len().max(1) {
            let chunk = chunks.get(turn).map_or(&[][..], Vec::as_slice);
            if !chunk.is_empty() {
                // SAFETY: the caller's promise; the barrier that ended the last turn lies behind every read of this area.
                unsafe { staging.copy_in(chunk) };
                host.board.barrier(wait)?;
            }
            tasks.extend(chunk.iter().map(|part| host.staged(part)));
            if host.leads() {
                leaders.exchange(call, staged, &tasks, wait)?;
            }
            host.board.barrier(wait)?;
            // SAFETY: the results are behind the barrier, and are written again behind the next one only.
            unsafe { staging.copy_out(chunk, is_mine) };
            tasks.clear();
        }
        Ok(())
    }

    fn allocate(&self, id: u32, bytes: usize, wait: &Wait<'_>) -> Result<Option<Region>> {
        allocation::allocate(&self.host, id, bytes, wait)
    }
}
