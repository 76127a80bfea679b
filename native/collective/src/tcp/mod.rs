//! Between hosts: TCP between the hosts' leaders.
//!
//! A call becomes one exchange or more (`exchange`), each of some tasks: runs of buffers, and where their elements lie. The
//! elements are cut into segments, which travel by one of four algorithms:
//!
//! | elements of all ranks | operation | hosts | algorithm |
//! |---|---|---|---|
//! | at most 64 KiB | any | any | [`eager`]: everything with the first frame |
//! | more | all-reduce | of one rank each | [`all_pairs`]: to each segment's owner, and back |
//! | more | all-reduce | some of several ranks | [`chain`]: partial sums up, results down |
//! | more | reduce-scatter | any | [`chain`] |
//! | more | broadcast, all-gather | any | [`ring`] |
//!
//! Each adds every element in rank order, so that results are equal to the bit whichever is chosen.

mod all_pairs;
mod chain;
pub(crate) mod connection;
mod delivery;
mod eager;
mod exchange;
mod ring;
mod segment;
mod tasks;
#[cfg(test)]
mod tests;
pub(crate) mod topology;

use std::sync::Mutex;

use self::all_pairs::AllPairs;
use self::chain::Chain;
use self::connection::Connection;
use self::eager::{EAGER, Eager};
use self::exchange::{Algorithm, Connections, Exchange};
use self::ring::Ring;
use self::topology::Topology;
use crate::buffer::RawBuffer;
use crate::call::{Call, Operation};
use crate::error::Result;
use crate::liveness::wait::Wait;
use crate::lock::lock;
use crate::task::{self, StagedMask, Task};
use crate::transport::Transport;

/// Calls on fewer bytes are staged everywhere without asking.
const SMALL: usize = 16 << 10;

/// The connections to the other hosts' leaders. The transport of a rank that is alone on its host.
pub(crate) struct Tcp {
    topology: Topology,
    connections: Mutex<Connections>,
}

impl Tcp {
    /// `connections[host]` leads to the host's leader, and is `None` for this host, and at ranks that do not lead.
    pub(crate) fn new(topology: Topology, connections: Vec<Option<Connection>>) -> Self {
        Tcp {
            topology,
            connections: Mutex::new(Connections {
                by_host: connections,
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

    /// Works on `tasks` together with the other leaders, who have the same ones up to addresses. Returns the union of the
    /// hosts' masks.
    ///
    /// Blocks for as long as `wait` allows, and is woken by whatever comes over a connection.
    ///
    /// The tasks' memory holds the elements that they describe, and is this exchange's alone until it returns, which
    /// the transports see to.
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
        let mut connections = lock(&self.connections);
        let exchange = Exchange::new(&self.topology, &mut connections, call, staged, tasks, wait);
        let mut algorithm = algorithm(&exchange);
        exchange.run(&mut *algorithm)
    }
}

/// This size and topology, this algorithm. All hosts choose alike, from what is the same on all of them.
fn algorithm(exchange: &Exchange<'_>) -> Box<dyn Algorithm> {
    let topology = exchange.topology;
    let bytes = exchange
        .tasks
        .bytes_per_rank()
        .saturating_mul(topology.world_size());
    match exchange.call.operation {
        _ if bytes <= EAGER => Box::new(Eager),
        Operation::AllReduce if !topology.is_hierarchical() => Box::new(AllPairs::new(exchange)),
        Operation::AllReduce | Operation::ReduceScatter => Box::new(Chain::new(exchange)),
        _ => Box::new(Ring::new(exchange)),
    }
}

impl Transport for Tcp {
    unsafe fn carry_out(
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
}
