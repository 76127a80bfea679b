//! The process group: what ranks do together.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use crate::bootstrap;
use crate::buffer::{DType, RawBuffer, ReduceOp};
use crate::call::{Call, Entry, MAX_ENTRIES, Operation};
use crate::error::{CollectiveError, Result};
use crate::health::{Health, Wait, lock};
use crate::host::Host;
use crate::mesh::Mesh;
use crate::monitor::Monitor;
use crate::options::GroupOptions;
use crate::region::{GroupBuffer, Region, Registry};
use crate::rendezvous::Rendezvous;
use crate::segment::Segment;
use crate::turn::Turn;
use crate::work::{Work, Worker};

/// The most bytes that `broadcast_bytes` and `all_gather_bytes` carry, all ranks' together: they are for descriptions, not for
/// data.
const MAX_MESSAGE: usize = 1 << 30;

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
    worker: Mutex<Option<Worker>>,
    core: Arc<Core>,
}

/// What the callers' threads and the communication thread share.
struct Core {
    // First, so that the goodbye is said before the data connections end.
    _monitor: Option<Monitor>,
    health: Arc<Health>,
    turn: Turn,
    host: Option<Host>,
    mesh: Option<Mesh>,
    registry: Arc<Registry>,
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
        let registry = Arc::new(Registry::default());
        let world_size = connected.health.members.len();
        let host = connected.attachment.map(|attachment| {
            Host::new(
                attachment.board,
                attachment.links,
                registry.clone(),
                world_size,
            )
        });
        let core = Core {
            _monitor: connected.monitor,
            health: connected.health,
            turn: Turn::default(),
            host,
            mesh: connected.mesh,
            registry,
        };
        Ok(ProcessGroup {
            shared: Arc::new(Shared {
                worker: Mutex::new(None),
                core: Arc::new(core),
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
        core.in_turn(core.turn.take(), operation, true, body)
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

    /// The first cause of the group's failure, if it has failed. Never blocks.
    pub fn failure(&self) -> Option<CollectiveError> {
        self.core().health.failure()
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

    /// `grouped_all_reduce` on the communication thread, of at most 64 buffers.
    ///
    /// # Errors
    /// As `all_reduce_async`; `InvalidArgument` for more buffers.
    ///
    /// # Safety
    /// As `grouped_all_reduce`, until the handle says that the operation has ended.
    pub unsafe fn grouped_all_reduce_async(
        &self,
        buffers: &[(RawBuffer, ReduceOp)],
    ) -> Result<Work> {
        if buffers.len() > MAX_ENTRIES {
            return Err(CollectiveError::invalid(format!(
                "{} buffers in one asynchronous call: at most {MAX_ENTRIES} travel together",
                buffers.len()
            )));
        }
        buffers
            .iter()
            .try_for_each(|(buffer, _)| buffer.check_reducible())?;
        let (buffers, ops) = buffers.iter().copied().unzip();
        // SAFETY: the caller's promise.
        unsafe { self.submit(Operation::AllReduce, 0, buffers, ops) }
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

    /// `broadcast` on the communication thread.
    ///
    /// # Errors
    /// As `broadcast`, for what is known at once; the rest comes from the handle.
    ///
    /// # Safety
    /// As `all_reduce_async`.
    pub unsafe fn broadcast_async(&self, buffer: RawBuffer, root: usize) -> Result<Work> {
        self.check_root(root)?;
        buffer.check()?;
        // SAFETY: the caller's promise.
        unsafe {
            self.submit(
                Operation::Broadcast,
                root,
                vec![buffer],
                vec![ReduceOp::Sum],
            )
        }
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
        let (rank, world_size) = (self.rank(), self.world_size());
        check_message(payload, world_size)?;
        let mut lens = vec![0i64; world_size];
        lens[rank] = payload.len() as i64;
        // SAFETY: the vector is alive and nobody else's.
        unsafe {
            self.all_gather(RawBuffer::cpu(
                lens.as_mut_ptr().cast(),
                world_size,
                DType::Int64,
            ))?
        };
        // All ranks see the same lengths, and so make the same second call, or none.
        let lens = self.lengths(&lens)?;
        let longest = lens.iter().copied().max().unwrap_or(0);
        let mut bytes = self.zeroed(longest * world_size)?;
        bytes[rank * longest..][..payload.len()].copy_from_slice(payload);
        // SAFETY: the vector is alive and nobody else's.
        unsafe {
            self.all_gather(RawBuffer::cpu(
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                DType::UInt8,
            ))?
        };
        Ok(lens
            .iter()
            .enumerate()
            .map(|(rank, len)| bytes[rank * longest..][..*len].to_vec())
            .collect())
    }

    /// Rank `root`'s `payload`, of at most 1 GiB; the others' is not looked at. Two collectives.
    ///
    /// # Errors
    /// As `broadcast`; `InvalidArgument` for a longer payload; `Io`, which fails the group, when there is no memory for what
    /// comes.
    pub fn broadcast_bytes(&self, payload: &[u8], root: usize) -> Result<Vec<u8>> {
        check_message(payload, 1)?;
        let mut len = payload.len() as i64;
        // SAFETY: the number is alive and nobody else's.
        unsafe { self.broadcast(RawBuffer::cpu((&raw mut len).cast(), 1, DType::Int64), root)? };
        let mut bytes = if self.rank() == root {
            payload.to_vec()
        } else {
            self.zeroed(self.lengths(&[len])?[0])?
        };
        // SAFETY: the vector is alive and nobody else's.
        unsafe {
            self.broadcast(
                RawBuffer::cpu(bytes.as_mut_ptr().cast(), bytes.len(), DType::UInt8),
                root,
            )?
        };
        Ok(bytes)
    }

    /// Lengths that came from peers, once they are found to be such as peers can send.
    fn lengths(&self, lens: &[i64]) -> Result<Vec<usize>> {
        let most = MAX_MESSAGE / lens.len();
        let known = |len: &i64| usize::try_from(*len).ok().filter(|len| *len <= most);
        let wrong = lens
            .iter()
            .enumerate()
            .find(|(_, len)| known(len).is_none());
        if let Some((index, len)) = wrong {
            return Err(self.health().fail(CollectiveError::io(
                format!("message {index} is of {len} bytes, where {most} are allowed"),
                std::io::ErrorKind::InvalidData.into(),
            )));
        }
        Ok(lens.iter().filter_map(known).collect())
    }

    /// Room for what comes from peers.
    fn zeroed(&self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| {
            self.health().fail(CollectiveError::io(
                format!("make room for messages of {len} bytes"),
                std::io::ErrorKind::OutOfMemory.into(),
            ))
        })?;
        bytes.resize(len, 0);
        Ok(bytes)
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
        let core = self.core();
        let entries = [Entry {
            dtype: DType::UInt8,
            op: ReduceOp::Sum,
            len: bytes,
        }];
        let number = core.turn.take();
        let region = core.in_turn(number, Operation::Allocate, true, |wait| {
            // The number is unique in the group and the same on all ranks.
            let id = number as u32;
            if self.world_size() > 1 {
                let call = Call {
                    sequence: number,
                    operation: Operation::Allocate,
                    root: 0,
                    entries: &entries,
                };
                // SAFETY: there is no buffer to promise anything of.
                unsafe { core.carry_out(&call, &[], wait)? };
                if let Some(host) = &core.host
                    && let Some(region) = host.allocate(id, bytes, wait)?
                {
                    return Ok(region);
                }
            }
            let segment = Segment::private(bytes.max(1)).map_err(|error| {
                core.health.fail(CollectiveError::io(
                    format!("allocate {bytes} bytes"),
                    error,
                ))
            })?;
            Ok(Region::private(id, segment, bytes))
        })?;
        Ok(GroupBuffer::new(region, core.registry.clone()))
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
        let mut worker = lock(&self.shared.worker);
        if worker.is_none() {
            *worker = Some(Worker::start(self.health().clone())?);
        }
        let Some(worker) = &*worker else {
            unreachable!("the worker was just started")
        };
        let core = self.core().clone();
        // Taken here and not on the thread, so that the order is that of the calls.
        let number = core.turn.take();
        // SAFETY: the caller's promise.
        let job = move || unsafe { core.numbered(number, operation, root, &buffers, &ops, false) };
        Ok(worker.submit(Box::new(job)))
    }
}

impl Core {
    /// # Safety
    /// The buffers are valid, checked, and this call's alone until it returns.
    unsafe fn call(
        &self,
        operation: Operation,
        root: usize,
        buffers: &[RawBuffer],
        ops: &[ReduceOp],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.numbered(self.turn.take(), operation, root, buffers, ops, true) }
    }

    /// # Safety
    /// As `call`.
    unsafe fn numbered(
        &self,
        number: u64,
        operation: Operation,
        root: usize,
        buffers: &[RawBuffer],
        ops: &[ReduceOp],
        interruptible: bool,
    ) -> Result<()> {
        self.in_turn(number, operation, interruptible, |wait| {
            if self.health.members.len() == 1 {
                return Ok(());
            }
            let mut entries = [Entry {
                dtype: DType::UInt8,
                op: ReduceOp::Sum,
                len: 0,
            }; MAX_ENTRIES];
            let entries = &mut entries[..buffers.len()];
            for ((entry, buffer), op) in entries.iter_mut().zip(buffers).zip(ops) {
                *entry = Entry {
                    dtype: buffer.dtype,
                    op: *op,
                    len: buffer.len,
                };
            }
            let call = Call {
                sequence: number,
                operation,
                root,
                entries,
            };
            // SAFETY: the caller's promise.
            unsafe { self.carry_out(&call, buffers, wait) }
        })
    }

    /// Waits for the turn of `number` and does `body` in it, unless the group has failed.
    fn in_turn<T>(
        &self,
        number: u64,
        operation: Operation,
        interruptible: bool,
        body: impl FnOnce(&Wait<'_>) -> Result<T>,
    ) -> Result<T> {
        let health = &*self.health;
        let _unwinding = InCall { health };
        let _turn = self.turn.wait(number, || {
            // A call before this one may be on the communication thread, which asks nobody.
            if interruptible
                && health.failure().is_none()
                && health
                    .options
                    .interrupt
                    .as_ref()
                    .is_some_and(|interrupt| interrupt())
            {
                health.fail(CollectiveError::Interrupted);
            }
            health.failure().is_some()
        });
        if let Some(error) = health.failure() {
            return Err(error);
        }
        health.enter(number, operation);
        let wait = Wait {
            health,
            operation,
            sequence: number,
            started: Instant::now(),
            timeout: health.options.timeout,
            interruptible,
        };
        let result = body(&wait);
        health.leave();
        result
    }

    /// # Safety
    /// As `call`.
    unsafe fn carry_out(
        &self,
        call: &Call<'_>,
        buffers: &[RawBuffer],
        wait: &Wait<'_>,
    ) -> Result<()> {
        // SAFETY: the caller's promise, in each case.
        unsafe {
            match (&self.host, &self.mesh) {
                (Some(host), Some(mesh)) => host.run_across(call, buffers, wait, mesh),
                (Some(host), None) => host.run(call, buffers, wait),
                (None, Some(mesh)) => mesh.run(call, buffers, wait),
                (None, None) => Ok(()),
            }
        }
    }
}

/// Refuses what no rank would take for true, before anything is sent.
fn check_message(payload: &[u8], count: usize) -> Result<()> {
    let most = MAX_MESSAGE / count;
    if payload.len() <= most {
        return Ok(());
    }
    Err(CollectiveError::invalid(format!(
        "a message of {} bytes: {count} such messages may have at most {most} each",
        payload.len()
    )))
}

/// A call of this rank's, from before its turn to its end.
struct InCall<'a> {
    health: &'a Health,
}

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // Whoever catches the panic may keep the group, and no rank can go on from within a call.
            self.health.abort("a thread of this rank panicked");
        }
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
