//! Collectives between hosts, over TCP between the hosts' leaders.
//!
//! **The way of the elements.** A buffer is cut into segments. The ranks of a segment's reduction are visited in rank
//! order: a *stage* is a run of consecutive ranks on one host, whose leader adds their elements to what comes from the
//! stage before and passes it on, so that sums are formed as `((x0 + x1) + x2) + …` wherever the ranks are. The last
//! stage finishes the segment, which then travels along its *route* to the hosts that need it; the last of them tells the
//! first stage's host, which keeps a bounded number of its segments under way. A broadcast and an all-gather are the same
//! with one stage. So each link carries a reduced buffer once in each direction, whatever the number of hosts.
//!
//! **Where each host has one rank**, an all-reduce goes another way, with less to carry for the hosts between the first
//! and the last: see `direct`.
//!
//! **No deadlock.** A leader always reads, and what it reads it works on at once; nothing waits for room in a queue. The
//! windows bound what can be queued.
//!
//! **Small exchanges** travel with the first frame, from everyone to everyone, and each leader computes all of it: one
//! message of latency, and the same sums in the same order.
//!
//! **Agreement.** Every exchange begins with the leader's call, sent to all others, and ends only when all others' have
//! come and are equal. A peer may be one exchange ahead: its frames wait unread.

use std::sync::Mutex;

use crate::buffer::RawBuffer;
use crate::call::{Call, Operation};
use crate::connection::{Bytes, Connection};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::health::{Wait, lock};
use crate::task::{self, StagedMask, Task};
use crate::topology::Topology;

/// Calls on fewer bytes are staged everywhere without asking.
const SMALL: usize = 16 << 10;

/// The connections to the other hosts' leaders.
pub(crate) struct Mesh {
    topology: Topology,
    state: Mutex<State>,
}

/// What one exchange leaves to the next.
pub(crate) struct State {
    /// By host; `None` for this one.
    pub(crate) connections: Vec<Option<Connection>>,
    /// The number of the last exchange.
    pub(crate) exchange: u64,
    /// Used buffers, for the next partial sums.
    pub(crate) pool: Vec<Bytes>,
}

impl Mesh {
    /// `connections[host]` leads to the host's leader, and is `None` for this host.
    pub(crate) fn new(topology: Topology, connections: Vec<Option<Connection>>) -> Self {
        Mesh {
            topology,
            state: Mutex::new(State {
                connections,
                exchange: 0,
                pool: Vec::new(),
            }),
        }
    }

    /// Whether hosts have to agree on what is staged before they cut a call's buffers.
    pub(crate) fn must_agree(&self, call: &Call<'_>) -> bool {
        let bytes: usize = call
            .entries
            .iter()
            .map(|entry| entry.len * entry.dtype.size())
            .sum();
        self.topology.is_hierarchical() && bytes > SMALL
    }

    /// Carries out `call` on `buffers`, one per entry, for a host of one rank.
    ///
    /// # Safety
    /// Each buffer holds its entry's elements, and is this call's alone until it returns.
    pub(crate) unsafe fn run(
        &self,
        call: &Call<'_>,
        buffers: &[RawBuffer],
        wait: &Wait<'_>,
    ) -> Result<()> {
        if matches!(call.operation, Operation::Barrier | Operation::Allocate) {
            return self.exchange(call, 0, &[], wait).map(drop);
        }
        let staged = match self.topology.is_hierarchical() {
            true if self.must_agree(call) => self.exchange(call, 0, &[], wait)?,
            true => task::ALL_STAGED,
            false => 0,
        };
        let task = |entry: usize, range| {
            let address = buffers[entry].ptr.cast::<u8>();
            // SAFETY: the caller's promise.
            unsafe { Task::in_place(entry, range, call.entries[entry].dtype.size(), &[address]) }
        };
        let whole = (0..buffers.len()).filter(|entry| staged >> entry & 1 == 0);
        let mut tasks: Vec<Task> = whole
            .map(|entry| task(entry, 0..call.entries[entry].len))
            .collect();
        let chunks = task::chunks(call, staged);
        for turn in 0..chunks.len().max(1) {
            if let Some(chunk) = chunks.get(turn) {
                tasks.extend(
                    chunk
                        .iter()
                        .map(|part| task(part.entry, part.range.clone())),
                );
            }
            self.exchange(call, staged, &tasks, wait)?;
            tasks.clear();
        }
        Ok(())
    }

    /// Works on `tasks` together with the other leaders, who have the same ones up to addresses. Returns the union of the
    /// hosts' masks.
    ///
    /// The tasks' memory holds the elements that they describe, and is this exchange's alone until it returns, which
    /// `run` and `Host::run_across` see to.
    pub(crate) fn exchange(
        &self,
        call: &Call<'_>,
        staged: StagedMask,
        tasks: &[Task],
        wait: &Wait<'_>,
    ) -> Result<StagedMask> {
        if let Some(error) = wait.health.failure() {
            // What an earlier exchange left in the connections may point to memory that is gone.
            return Err(error);
        }
        let mut state = lock(&self.state);
        state.exchange += 1;
        Exchange::new(&self.topology, &mut state, call, staged, tasks, wait).run()
    }
}
