//! The process group: what ranks do together.

mod call_log;
mod core;
mod messages;
mod sequencer;
mod work;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

pub use self::call_log::CallRecord;
pub use self::work::Work;

use self::core::Core;
use self::work::CommunicationThread;
use crate::bootstrap::{self, Rendezvous};
use crate::buffer::{RawBuffer, ReduceOp};
use crate::call::{MAX_ENTRIES, Operation};
use crate::error::{CollectiveError, Result};
use crate::liveness::health::Health;
use crate::liveness::wait::Wait;
use crate::lock::lock;
use crate::memory::GroupBuffer;
use crate::options::GroupOptions;
use crate::peer::Connections;
use crate::phase::Stall;

/// The ranks of a job, connected. Cheap to clone; the last clone to be dropped leaves the group in good order.
///
/// **Order.** All ranks make the same collective calls in the same order. Calls from several threads of a rank are carried
/// out one after the other, in the order in which they were made; a rank whose threads race has to see to the order
/// itself. Blocking and asynchronous calls share one order.
///
/// **Results** are bitwise equal on all ranks, and do not depend on the transport or the placement of ranks: every element is
/// reduced in rank order (see `ReduceOp`). What crosses the network does depend on it: a partial sum does wherever the host
/// changes along the ranks, so those of a host should be numbered one after another.
///
/// **Waits** last at most `GroupOptions::timeout` and end early when a rank dies (at once), freezes (after
/// `heartbeat_timeout`), leaves, aborts, or calls something else, and when the interrupt fires. Any of these fails the
/// group on all ranks, for good: contents of buffers in the failed call are unspecified, and every later call returns the
/// first cause. So does a panic of a thread that is in a call or holds a clone, even where it is caught.
///
/// **Blocking calls** run on the caller's thread. Each `*_async` call is carried out on a communication thread that the
/// first of them starts.
#[derive(Clone)]
pub struct ProcessGroup {
    shared: Arc<Shared>,
}

/// What the clones share.
struct Shared {
    // In this order: the thread ends first, then the group says goodbye.
    communication: Mutex<Option<CommunicationThread>>,
    core: Arc<Core>,
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessGroup")
            .field("rank", &self.rank())
            .field("world_size", &self.world_size())
            .finish()
    }
}

impl ProcessGroup {
    /// Connects the ranks that meet at `rendezvous`, which is called once. Waits for at most the rendezvous' own deadline
    /// and then `connect_timeout`.
    ///
    /// # Errors
    /// The rendezvous' own; `Rendezvous` where ranks do not fit together, cannot reach each other or do not hold the same
    /// secret; `Timeout` naming those who did not connect; `Interrupted`.
    pub fn connect(rendezvous: &mut dyn Rendezvous, options: GroupOptions) -> Result<Self> {
        let connected = bootstrap::connect(rendezvous, options)?;
        Ok(ProcessGroup {
            shared: Arc::new(Shared {
                communication: Mutex::new(None),
                core: Arc::new(Core::new(connected)),
            }),
        })
    }

    fn core(&self) -> &Arc<Core> {
        &self.shared.core
    }

    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.core().health
    }

    /// Does `body` as this group's next call, in its place in the order of all: for operations that carry no host memory.
    ///
    /// # Errors
    /// The group's failure; what `body` returns.
    pub(crate) fn in_turn<T>(
        &self,
        operation: Operation,
        body: impl FnOnce(&Wait<'_>) -> Result<T>,
    ) -> Result<T> {
        let core = self.core();
        core.in_turn(core.sequencer.take(), operation, || 0, true, body)
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.core().health.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.core().health.members.len()
    }

    /// The name of the host that `rank` runs on. Panics when `rank` is outside the group.
    pub fn host_of(&self, rank: usize) -> &str {
        &self.core().health.members[rank].peer.host
    }

    /// The ranks that this one is connected to, which take part in each collective with it.
    pub fn connections(&self) -> &Connections {
        &self.core().connections
    }

    /// The first cause of the group's failure, if it has failed. Never blocks.
    pub fn failure(&self) -> Option<CollectiveError> {
        self.core().health.failure()
    }

    /// Says what this rank is in from now on, in up to 100 bytes. The others are told at the next heartbeat, and name it with the
    /// rank where they wait for it in vain. Never waits.
    pub fn enter_phase(&self, name: &str) {
        self.health().enter_phase(name);
    }

    /// From now on `listener` is told, once for each collective, of ranks that have kept the others waiting in it for `after`,
    /// this rank among them. It is called on the thread that watches the peers, and must be quick. A second listener of a group
    /// is not heard.
    pub fn watch_stalls(&self, after: Duration, listener: impl Fn(Stall) + Send + Sync + 'static) {
        self.health().set_stall_listener(after, Box::new(listener));
    }

    /// Records this rank's calls from now on, up to so many.
    pub fn start_call_log(&self, most: usize) {
        self.core().calls.start(most);
    }

    /// Ends the record of calls, and returns those that have ended, in the order of their ends, and how many more there were.
    pub fn take_call_log(&self) -> (Vec<CallRecord>, u64) {
        self.core().calls.take()
    }

    /// Says what the next call is of, where calls are recorded. The caller sees to it that no other thread makes one before.
    pub fn label_next_call(&self, label: impl FnOnce() -> String) {
        let core = self.core();
        if core.calls.is_on() {
            core.calls.label(core.sequencer.next(), label());
        }
    }

    /// Frees all ranks from whatever they wait for: they get `Aborted` with this rank and `reason`, unless the group has
    /// failed before. Never blocks, and may be called from any thread.
    pub fn abort(&self, reason: &str) {
        self.core().health.abort(reason);
    }

    /// Reduces `buffer` over all ranks, in place, with the result on all of them. All pass the same length, dtype and `op`.
    ///
    /// # Errors
    /// `InvalidArgument` for a buffer that cannot be reduced; else what fails the group.
    ///
    /// # Safety
    /// `buffer` describes memory that is valid for reads and writes, and that nobody else uses until the call returns.
    pub unsafe fn all_reduce(&self, buffer: RawBuffer, op: ReduceOp) -> Result<()> {
        buffer.check_reducible()?;
        // SAFETY: the caller's promise.
        unsafe { self.core().call(Operation::AllReduce, 0, &[buffer], &[op]) }
    }

    /// `all_reduce` of several buffers as one call: one header, one pair of barriers. Up to 64 buffers travel together.
    ///
    /// # Errors
    /// As `all_reduce`.
    ///
    /// # Safety
    /// As `all_reduce`, for every buffer, and no two overlap.
    pub unsafe fn grouped_all_reduce(&self, buffers: &[(RawBuffer, ReduceOp)]) -> Result<()> {
        buffers
            .iter()
            .try_for_each(|(buffer, _)| buffer.check_reducible())?;
        for group in buffers.chunks(MAX_ENTRIES) {
            let (buffers, ops): (Vec<_>, Vec<_>) = group.iter().copied().unzip();
            // SAFETY: the caller's promise.
            unsafe { self.core().call(Operation::AllReduce, 0, &buffers, &ops)? };
        }
        Ok(())
    }

    /// Reduces `buffer` over all ranks, in place: afterwards this rank's part of it (`part_of`) holds the result, and the
    /// rest is as it was or unspecified. All pass the whole length.
    ///
    /// # Errors
    /// As `all_reduce`.
    ///
    /// # Safety
    /// As `all_reduce`.
    pub unsafe fn reduce_scatter(&self, buffer: RawBuffer, op: ReduceOp) -> Result<()> {
        buffer.check_reducible()?;
        // SAFETY: the caller's promise.
        unsafe {
            self.core()
                .call(Operation::ReduceScatter, 0, &[buffer], &[op])
        }
    }

    /// Fills `buffer` with every rank's part of it (`part_of`), of which each brings its own. All pass the whole length.
    ///
    /// # Errors
    /// `InvalidArgument` for a buffer that cannot be sent; else what fails the group.
    ///
    /// # Safety
    /// As `all_reduce`.
    pub unsafe fn all_gather(&self, buffer: RawBuffer) -> Result<()> {
        buffer.check()?;
        // SAFETY: the caller's promise.
        unsafe {
            self.core()
                .call(Operation::AllGather, 0, &[buffer], &[ReduceOp::Sum])
        }
    }

    /// Overwrites `buffer` with that of rank `root`.
    ///
    /// # Errors
    /// `InvalidArgument` for a root outside the group or a buffer that cannot be sent; else what fails the group.
    ///
    /// # Safety
    /// As `all_reduce`.
    pub unsafe fn broadcast(&self, buffer: RawBuffer, root: usize) -> Result<()> {
        self.check_root(root)?;
        buffer.check()?;
        // SAFETY: the caller's promise.
        unsafe {
            self.core()
                .call(Operation::Broadcast, root, &[buffer], &[ReduceOp::Sum])
        }
    }

    /// `all_reduce` on the communication thread.
    ///
    /// # Errors
    /// As `all_reduce`, for what is known at once; the rest comes from the handle.
    ///
    /// # Safety
    /// As `all_reduce`, until the handle says that the operation has ended.
    pub unsafe fn all_reduce_async(&self, buffer: RawBuffer, op: ReduceOp) -> Result<Work> {
        buffer.check_reducible()?;
        // SAFETY: the caller's promise.
        unsafe { self.submit(Operation::AllReduce, 0, vec![buffer], vec![op]) }
    }

    /// `reduce_scatter` on the communication thread.
    ///
    /// # Errors
    /// As `all_reduce_async`.
    ///
    /// # Safety
    /// As `all_reduce_async`.
    pub unsafe fn reduce_scatter_async(&self, buffer: RawBuffer, op: ReduceOp) -> Result<Work> {
        buffer.check_reducible()?;
        // SAFETY: the caller's promise.
        unsafe { self.submit(Operation::ReduceScatter, 0, vec![buffer], vec![op]) }
    }

    /// `all_gather` on the communication thread.
    ///
    /// # Errors
    /// As `all_gather`, for what is known at once; the rest comes from the handle.
    ///
    /// # Safety
    /// As `all_reduce_async`.
    pub unsafe fn all_gather_async(&self, buffer: RawBuffer) -> Result<Work> {
        buffer.check()?;
        // SAFETY: the caller's promise.
        unsafe { self.submit(Operation::AllGather, 0, vec![buffer], vec![ReduceOp::Sum]) }
    }

    /// Waits until all ranks have called it.
    ///
    /// # Errors
    /// What fails the group.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: there is no buffer to promise anything of.
        unsafe { self.core().call(Operation::Barrier, 0, &[], &[]) }
    }

    /// Every rank's `payload`, in rank order. Payloads may differ in length. Two collectives. The longest payload times the
    /// number of ranks is at most 1 GiB.
    ///
    /// # Errors
    /// `InvalidArgument` for a longer payload; what fails the group; `Io`, which fails it, when there is no memory for what
    /// the others send.
    pub fn all_gather_bytes(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>> {
        messages::all_gather(self, payload)
    }

    /// Rank `root`'s `payload`, of at most 1 GiB; the others' is not looked at. Two collectives.
    ///
    /// # Errors
    /// As `broadcast`; `InvalidArgument` for a longer payload; `Io`, which fails the group, when there is no memory for what
    /// comes.
    pub fn broadcast_bytes(&self, payload: &[u8], root: usize) -> Result<Vec<u8>> {
        messages::broadcast(self, payload, root)
    }

    /// Memory of `bytes` zero bytes that the other ranks of this host reach too, so that collectives on it need no copy. A
    /// collective call: all ranks make it with the same size. Where the system refuses to share that much, every rank of the
    /// host gets memory of its own instead, and collectives on it are staged.
    ///
    /// # Errors
    /// What fails the group; `Io` when there is no memory at all.
    pub fn allocate(&self, bytes: usize) -> Result<GroupBuffer> {
        if bytes > isize::MAX as usize / 2 / self.world_size() {
            return Err(CollectiveError::invalid(format!(
                "a group buffer of {bytes} bytes"
            )));
        }
        self.core().allocate(bytes)
    }

    pub(crate) fn check_root(&self, root: usize) -> Result<()> {
        if root < self.world_size() {
            return Ok(());
        }
        Err(CollectiveError::invalid(format!(
            "root {root} is outside a world of {}",
            self.world_size()
        )))
    }

    /// # Safety
    /// The buffers are the operation's until it has ended.
    unsafe fn submit(
        &self,
        operation: Operation,
        root: usize,
        buffers: Vec<RawBuffer>,
        ops: Vec<ReduceOp>,
    ) -> Result<Work> {
        let mut thread = lock(&self.shared.communication);
        if thread.is_none() {
            *thread = Some(CommunicationThread::start(self.health().clone())?);
        }
        let Some(thread) = &*thread else {
            unreachable!("the thread was just started")
        };
        let core = self.core().clone();
        // Taken here and not on the thread, so that the order is that of the calls.
        let number = core.sequencer.take();
        // SAFETY: the caller's promise.
        let job = move || unsafe { core.numbered(number, operation, root, &buffers, &ops, false) };
        Ok(thread.submit(Box::new(job)))
    }
}

impl Drop for ProcessGroup {
    /// A thread that unwinds leaves its rank's work undone, whoever else still holds the group.
    fn drop(&mut self) {
        if thread::panicking() {
            self.abort("a thread of this rank panicked");
        }
    }
}
