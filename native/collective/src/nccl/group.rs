//! The group of GPUs: what ranks do together through NCCL.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use super::abi;
use super::communicator::{Function, NcclCall};
use super::device::DeviceRuntime;
use super::engine::{Engine, NcclWork, closed};
use super::meeting::NcclMeeting;
use super::version::NcclVersion;
use crate::buffer::{RawBuffer, ReduceOp, Stream};
use crate::call::{Operation, part_of};
use crate::error::{CollectiveError, Result};
use crate::group::ProcessGroup;

/// What an NCCL group is made with. Its time limits are those of the process group.
#[derive(Clone)]
pub struct NcclOptions {
    /// Where `libnccl.so.2` may lie, in order; see `NcclLibrary::open`.
    pub directories: Vec<PathBuf>,
    /// The rank's device. Which one is the caller's choice, one for each rank.
    pub runtime: Arc<dyn DeviceRuntime>,
}

/// The ranks of a process group, each with a device, connected through NCCL. Cheap to clone; the last clone to be dropped waits
/// for what is in flight and frees the communicator together with the other ranks.
///
/// **Order.** Its calls take their place in the order of the process group's: all ranks make the same calls of both in the same
/// order.
///
/// **Streams.** An operation begins when the work that its buffers' streams have at the call is done, and runs on a stream of
/// the group's own. Whoever uses the result waits for the `NcclWork`, on the host or on a stream.
///
/// **Results** are the same on all ranks but, other than a process group's, need not be so from run to run: NCCL chooses the
/// order of additions. An average is the sum of the ranks' elements times 1/n, a factor that is rounded to the elements' type
/// (`hostToDevRedOp` in NCCL's `src/enqueue.cc`): of bfloat16 it is off by up to 0.4 %, of float16 by 0.05 %, alike for all
/// elements, unless n is a power of two.
///
/// **Failures.** What fails the process group (a rank that dies, freezes, leaves or aborts) fails this one, and the other way
/// round: every rank gets one error, with the rank and the operation. A thread of the group's own looks for them, for
/// asynchronous errors of NCCL's and for operations that outlast the timeout, every 50 ms; it aborts the communicator,
/// which ends what is in flight on the device. After a failure no thread is inside NCCL.
#[derive(Clone)]
pub struct NcclGroup {
    shared: Arc<NcclShared>,
}

/// What the clones share.
struct NcclShared {
    engine: Arc<Engine>,
    version: NcclVersion,
    /// Dropped to end the watching thread.
    closing: Option<Sender<()>>,
    watcher: Option<JoinHandle<()>>,
}

impl fmt::Debug for NcclGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclGroup")
            .field("group", self.shared.engine.group())
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}

/// A group that others hold, for whoever must not keep it open.
#[derive(Clone)]
pub struct WeakNcclGroup {
    shared: Weak<NcclShared>,
}

impl WeakNcclGroup {
    /// The group.
    ///
    /// # Errors
    /// `InvalidArgument` once nobody holds it any more.
    pub fn upgrade(&self) -> Result<NcclGroup> {
        let shared = self.shared.upgrade();
        Ok(NcclGroup {
            shared: shared.ok_or_else(closed)?,
        })
    }
}

impl NcclGroup {
    /// The group without keeping it open.
    pub fn downgrade(&self) -> WeakNcclGroup {
        WeakNcclGroup {
            shared: Arc::downgrade(&self.shared),
        }
    }

    /// Connects the devices of all ranks of `group`. All of them call it; it waits for them for at most the group's `timeout`.
    ///
    /// # Errors
    /// `NcclVersions` where the ranks do not have the same NCCL, which leaves `group` as it was. `Nccl`, `Device` and
    /// `Timeout`, which fail it; what fails it otherwise.
    pub fn connect(group: &ProcessGroup, options: NcclOptions) -> Result<Self> {
        let meeting = NcclMeeting::hold(group, &options.directories)?;
        let engine = Arc::new(Engine::start(group, &meeting, options.runtime)?);
        let (closing, closed) = mpsc::channel();
        let watched = engine.clone();
        let mut shared = NcclShared {
            engine,
            version: meeting.library().version(),
            closing: Some(closing),
            watcher: None,
        };
        let watcher = thread::Builder::new()
            .name("flambeau-nccl".into())
            .spawn(move || watched.watch(&closed))
            .map_err(|error| {
                let error = CollectiveError::io("start the thread that watches NCCL", error);
                group.health().fail(error)
            })?;
        shared.watcher = Some(watcher);
        Ok(NcclGroup {
            shared: Arc::new(shared),
        })
    }

    /// The ranks' version of NCCL.
    pub fn version(&self) -> NcclVersion {
        self.shared.version
    }

    /// Reduces `buffer` over all ranks, in place, with the result on all of them. All pass the same length, dtype and `op`.
    ///
    /// # Errors
    /// `InvalidArgument` for a buffer on another device, without a stream, of bytes, or an `op` other than sum and average;
    /// else what fails the group.
    ///
    /// # Safety
    /// `buffer` describes memory of the device that nobody else uses between the work that its stream has now and the end of
    /// the operation, as an `NcclWork` tells it. The stream is alive.
    pub unsafe fn all_reduce(&self, buffer: RawBuffer, op: ReduceOp) -> Result<NcclWork> {
        // SAFETY: the caller's promise.
        unsafe { self.grouped_all_reduce(&[(buffer, op)]) }
    }

    /// `all_reduce` of several buffers as one group of NCCL's.
    ///
    /// # Errors
    /// As `all_reduce`.
    ///
    /// # Safety
    /// As `all_reduce`, for every buffer, and no two overlap.
    pub unsafe fn grouped_all_reduce(&self, buffers: &[(RawBuffer, ReduceOp)]) -> Result<NcclWork> {
        let world_size = self.shared.engine.group().world_size();
        let calls = buffers
            .iter()
            .map(|(buffer, op)| {
                let function = Function::AllReduce {
                    op: reduction(buffer, *op, world_size)?,
                };
                Ok(in_place(function, buffer, 0, buffer.len))
            })
            .collect::<Result<_>>()?;
        let buffers: Vec<_> = buffers.iter().map(|(buffer, _)| *buffer).collect();
        // SAFETY: the caller's promise.
        unsafe { self.launch(Operation::AllReduce, &buffers, calls) }
    }

    /// Reduces `buffer` over all ranks, in place: afterwards this rank's part of it (`part_of`) holds the result, and the
    /// rest is as it was or unspecified. All pass the whole length. Parts of unequal length cost one reduction each.
    ///
    /// # Errors
    /// As `all_reduce`.
    ///
    /// # Safety
    /// As `all_reduce`.
    pub unsafe fn reduce_scatter(&self, buffer: RawBuffer, op: ReduceOp) -> Result<NcclWork> {
        let group = self.shared.engine.group();
        let op = reduction(&buffer, op, group.world_size())?;
        let calls = match self.equal_part(&buffer) {
            Some(count) => vec![NcclCall {
                receive: element(&buffer, group.rank() * count),
                ..in_place(Function::ReduceScatter { op }, &buffer, 0, count)
            }],
            None => self.each_part(&buffer, |root| Function::Reduce { op, root }),
        };
        // SAFETY: the caller's promise.
        unsafe { self.launch(Operation::ReduceScatter, &[buffer], calls) }
    }

    /// Fills `buffer` with every rank's part of it (`part_of`), of which each brings its own. All pass the whole length. Parts
    /// of unequal length cost one broadcast each.
    ///
    /// # Errors
    /// As `all_reduce`, but bytes travel too.
    ///
    /// # Safety
    /// As `all_reduce`.
    pub unsafe fn all_gather(&self, buffer: RawBuffer) -> Result<NcclWork> {
        let group = self.shared.engine.group();
        let calls = match self.equal_part(&buffer) {
            Some(count) => vec![NcclCall {
                send: element(&buffer, group.rank() * count),
                ..in_place(Function::AllGather, &buffer, 0, count)
            }],
            None => self.each_part(&buffer, |root| Function::Broadcast { root }),
        };
        // SAFETY: the caller's promise.
        unsafe { self.launch(Operation::AllGather, &[buffer], calls) }
    }

    /// Overwrites `buffer` with that of rank `root`.
    ///
    /// # Errors
    /// As `all_gather`; `InvalidArgument` for a root outside the group.
    ///
    /// # Safety
    /// As `all_reduce`.
    pub unsafe fn broadcast(&self, buffer: RawBuffer, root: usize) -> Result<NcclWork> {
        self.shared.engine.group().check_root(root)?;
        let call = in_place(Function::Broadcast { root }, &buffer, 0, buffer.len);
        // SAFETY: the caller's promise.
        unsafe { self.launch(Operation::Broadcast, &[buffer], vec![call]) }
    }

    /// The length of every rank's part, where they are equal.
    fn equal_part(&self, buffer: &RawBuffer) -> Option<usize> {
        let world_size = self.shared.engine.group().world_size();
        (buffer.len.is_multiple_of(world_size)).then_some(buffer.len / world_size)
    }

    /// A call for each rank's part.
    fn each_part(&self, buffer: &RawBuffer, function: impl Fn(usize) -> Function) -> Vec<NcclCall> {
        let world_size = self.shared.engine.group().world_size();
        (0..world_size)
            .map(|rank| {
                let part = part_of(buffer.len, rank, world_size);
                in_place(function(rank), buffer, part.start, part.len())
            })
            .collect()
    }

    /// # Safety
    /// As `all_reduce`, for every buffer; the calls are on their memory.
    unsafe fn launch(
        &self,
        operation: Operation,
        buffers: &[RawBuffer],
        mut calls: Vec<NcclCall>,
    ) -> Result<NcclWork> {
        let engine = &self.shared.engine;
        let mut streams = buffers
            .iter()
            .map(|buffer| stream_of(buffer, engine.runtime()))
            .collect::<Result<Vec<_>>>()?;
        streams.dedup();
        calls.retain(|call| call.count > 0);
        // SAFETY: the caller's promise.
        unsafe { engine.launch(operation, &streams, &calls) }
    }
}

impl Drop for NcclShared {
    fn drop(&mut self) {
        self.closing = None;
        if let Some(watcher) = self.watcher.take() {
            // It has ended, or does so within its next look.
            let _ = watcher.join();
        }
        self.engine.close();
    }
}

/// Checks a buffer, and says what orders access to it.
fn stream_of(buffer: &RawBuffer, runtime: &dyn DeviceRuntime) -> Result<Stream> {
    if buffer.device != runtime.device() {
        return Err(CollectiveError::invalid(format!(
            "a buffer on {}: this group's device is {}",
            buffer.device,
            runtime.device()
        )));
    }
    buffer.check_extent()?;
    buffer.stream.ok_or_else(|| {
        CollectiveError::invalid(format!(
            "a buffer on {} without the stream that orders access to it",
            buffer.device
        ))
    })
}

/// Checks that the elements can be reduced so, and names NCCL's operation.
fn reduction(buffer: &RawBuffer, op: ReduceOp, world_size: usize) -> Result<c_int> {
    buffer.check_arithmetic()?;
    let op = match op {
        // NCCL would multiply every element by 1 (`ncclLaunchOneRank` in `src/device/onerank.cu`).
        ReduceOp::Average if world_size == 1 => ReduceOp::Sum,
        op => op,
    };
    abi::reduction(op).ok_or_else(|| {
        CollectiveError::invalid(format!(
            "{op} of a buffer on {}: NCCL reduces by sum or average here",
            buffer.device
        ))
    })
}

/// A call on `count` elements from `start` on, which are both what is sent and where the result goes.
fn in_place(function: Function, buffer: &RawBuffer, start: usize, count: usize) -> NcclCall {
    let place = element(buffer, start);
    NcclCall {
        function,
        send: place,
        receive: place,
        count,
        dtype: buffer.dtype,
    }
}

/// The address of an element of the buffer, whose extent is checked before the address is used.
fn element(buffer: &RawBuffer, index: usize) -> *mut c_void {
    let offset = index.wrapping_mul(buffer.dtype.size());
    buffer.ptr.wrapping_byte_add(offset)
}
