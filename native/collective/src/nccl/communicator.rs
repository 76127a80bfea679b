//! A non-blocking NCCL communicator.
//!
//! "It is safe to operate a communicator from multiple threads as long as users can guarantee only one thread operates the
//! communicator at a time" (NCCL's user guide, Thread Safety): whoever holds one holds the lock that it lies under. No call
//! here waits for other ranks, but `abort` and `destroy` wait for NCCL's own threads to leave.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::abi::{self, Code, Config, Handle, IN_PROGRESS, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR};
use super::library::NcclLibrary;
use super::meeting::UniqueId;
use crate::buffer::{DType, Stream};

/// How far NCCL is with what it was last asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Ready,
    InProgress,
}

/// NCCL's refusal.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// A peer or the network may be the cause, of which another channel may know more.
    pub(crate) blames_peer: bool,
    pub(crate) message: String,
}

/// One call of a group.
pub(crate) struct NcclCall {
    pub(crate) function: Function,
    pub(crate) send: *const c_void,
    pub(crate) receive: *mut c_void,
    /// In elements: what NCCL's function of this kind counts.
    pub(crate) count: usize,
    pub(crate) dtype: DType,
}

/// NCCL's function, with the `ncclRedOp_t` of those that reduce.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Function {
    AllReduce { op: c_int },
    Reduce { op: c_int, root: usize },
    Broadcast { root: usize },
    AllGather,
    ReduceScatter { op: c_int },
}

/// The communicator. Whoever drops it has finished or aborted it before.
pub(crate) struct Communicator {
    library: NcclLibrary,
    handle: Handle,
}

// SAFETY: used by one thread at a time, whichever it is.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Begins to make it on the thread's current device. It is there once `progress` is `Ready`.
    pub(crate) fn begin(
        library: NcclLibrary,
        unique_id: UniqueId,
        rank: usize,
        world_size: usize,
    ) -> Result<Self, Fault> {
        let mut config = Config::non_blocking();
        let mut handle = ptr::null_mut();
        // SAFETY: the handle's place and the config are alive, and NCCL copies what it keeps.
        let code = unsafe {
            (library.functions().comm_init_rank_config)(
                &raw mut handle,
                world_size as c_int,
                unique_id.0,
                rank as c_int,
                &raw mut config,
            )
        };
        let begun = Communicator { library, handle };
        match begun.judge("ncclCommInitRankConfig", code) {
            Ok(_) => Ok(begun),
            Err(fault) => {
                begun.abort();
                Err(fault)
            }
        }
    }

    /// How far the last call is; its failure, or that of anything that NCCL does in the background.
    pub(crate) fn progress(&self) -> Result<Progress, Fault> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive, and used by nobody else now.
        let code =
            unsafe { (self.library.functions().comm_get_async_error)(self.handle, &raw mut state) };
        self.judge("ncclCommGetAsyncError", code)?;
        self.judge("asynchronous error", state)
    }

    /// Issues the calls as one group.
    ///
    /// # Safety
    /// The calls' memory is the device's, and theirs until their work on `stream` is done. The last call is `Ready`.
    pub(crate) unsafe fn issue(
        &self,
        calls: &[NcclCall],
        stream: Stream,
    ) -> Result<Progress, Fault> {
        let functions = self.library.functions();
        // SAFETY: opens a group, which is closed below.
        self.judge("ncclGroupStart", unsafe { (functions.group_start)() })?;
        let mut first = Ok(Progress::Ready);
        for call in calls {
            // SAFETY: the caller's promise.
            first = unsafe { self.call(call, stream) };
            if first.is_err() {
                break;
            }
        }
        // SAFETY: the group is open. It is closed in any case, or the thread's next calls were part of it.
        let ended = self.judge("ncclGroupEnd", unsafe { (functions.group_end)() });
        first.and(ended)
    }

    /// # Safety
    /// As `issue`.
    unsafe fn call(&self, call: &NcclCall, stream: Stream) -> Result<Progress, Fault> {
        let functions = self.library.functions();
        let NcclCall {
            function,
            send,
            receive,
            count,
            dtype,
        } = *call;
        let (dtype, comm) = (abi::data_type(dtype), self.handle);
        // SAFETY: the caller's promise.
        let (name, code) = unsafe {
            match function {
                Function::AllReduce { op } => (
                    "ncclAllReduce",
                    (functions.all_reduce)(send, receive, count, dtype, op, comm, stream),
                ),
                Function::Reduce { op, root } => (
                    "ncclReduce",
                    (functions.reduce)(
                        send,
                        receive,
                        count,
                        dtype,
                        op,
                        root as c_int,
                        comm,
                        stream,
                    ),
                ),
                Function::Broadcast { root } => (
                    "ncclBroadcast",
                    (functions.broadcast)(send, receive, count, dtype, root as c_int, comm, stream),
                ),
                Function::AllGather => (
                    "ncclAllGather",
                    (functions.all_gather)(send, receive, count, dtype, comm, stream),
                ),
                Function::ReduceScatter { op } => (
                    "ncclReduceScatter",
                    (functions.reduce_scatter)(send, receive, count, dtype, op, comm, stream),
                ),
            }
        };
        self.judge(name, code)
    }

    /// Begins to complete all work together with the other ranks. `destroy` may follow once `progress` is `Ready`.
    pub(crate) fn finalize(&self) -> Result<Progress, Fault> {
        // SAFETY: the communicator is alive, and used by nobody else now.
        let code = unsafe { (self.library.functions().comm_finalize)(self.handle) };
        self.judge("ncclCommFinalize", code)
    }

    /// Frees a finalised communicator.
    pub(crate) fn destroy(self) {
        // SAFETY: the communicator is alive, and used by nobody else, now or later. There is nothing to be done about a
        // failure.
        unsafe { (self.library.functions().comm_destroy)(self.handle) };
    }

    /// Ends all work, here and on the device, and frees the communicator. Returns once no thread of NCCL's works for it.
    pub(crate) fn abort(self) {
        if !self.handle.is_null() {
            // SAFETY: as in `destroy`.
            unsafe { (self.library.functions().comm_abort)(self.handle) };
        }
    }

    fn judge(&self, call: &str, code: Code) -> Result<Progress, Fault> {
        match code {
            SUCCESS => Ok(Progress::Ready),
            IN_PROGRESS => Ok(Progress::InProgress),
            code => Err(Fault {
                blames_peer: matches!(code, REMOTE_ERROR | SYSTEM_ERROR),
                message: self.library.describe(call, code),
            }),
        }
    }
}
