//! NCCL's C functions, as `nccl.h` declares them.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::arithmetic;
use crate::communicator::{
    Address, Call, Communicator, IN_PROGRESS, INSIDE, INVALID_ARGUMENT, INVALID_USAGE, Kind,
    SUCCESS, SYSTEM_ERROR,
};
use crate::control::{self, log};
use crate::stream::HostStream;
use crate::world::{self, MAX_RANKS, UniqueId};

/// `ncclComm_t`: an `Arc` as a pointer.
type Handle = *const Communicator;

/// The fields of `ncclConfig_t` that all releases have.
#[repr(C)]
pub struct ConfigHead {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// `ncclUniqueId`.
#[repr(C)]
pub struct RawUniqueId(UniqueId);

/// A call that waits for the end of its group.
type Grouped = (Arc<Communicator>, Call, Address<HostStream>);

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static GROUP: RefCell<Vec<Grouped>> = const { RefCell::new(Vec::new()) };
}

/// # Safety
/// The handle is of a communicator that is alive.
unsafe fn borrow(handle: Handle) -> Arc<Communicator> {
    // SAFETY: made by `Arc::into_raw`, and not freed, says the caller.
    unsafe {
        Arc::increment_strong_count(handle);
        Arc::from_raw(handle)
    }
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    log("ncclGetVersion");
    // SAFETY: as C has it.
    unsafe { *version = control::value("VERSION").unwrap_or(22_907) };
    SUCCESS
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut RawUniqueId) -> c_int {
    log("ncclGetUniqueId");
    match world::create() {
        Ok(created) => {
            // SAFETY: as C has it.
            unsafe { (*id).0 = created };
            SUCCESS
        }
        Err(_) => SYSTEM_ERROR,
    }
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    handle: *mut Handle,
    size: c_int,
    id: RawUniqueId,
    rank: c_int,
    config: *const ConfigHead,
) -> c_int {
    log("ncclCommInitRankConfig");
    // SAFETY: as C has it.
    let config = unsafe {
        *handle = ptr::null();
        &*config
    };
    let is_config = config.size >= size_of::<ConfigHead>()
        && config.magic == 0xcafe_beef
        && config.version >= 21_400
        && config.blocking == 0;
    let (Ok(rank), Ok(size)) = (usize::try_from(rank), usize::try_from(size)) else {
        return INVALID_ARGUMENT;
    };
    if !is_config || rank >= size || size > MAX_RANKS {
        return INVALID_ARGUMENT;
    }
    if let Some(code) = control::value("REFUSE") {
        return code;
    }
    match Communicator::begin(id.0, rank, size) {
        Ok(communicator) => {
            // SAFETY: as C has it.
            unsafe { *handle = Arc::into_raw(communicator) };
            IN_PROGRESS
        }
        Err(_) => SYSTEM_ERROR,
    }
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(handle: Handle, state: *mut c_int) -> c_int {
    // SAFETY: as C has it.
    unsafe { *state = borrow(handle).poll() };
    SUCCESS
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(handle: Handle) -> c_int {
    log("ncclCommFinalize");
    // SAFETY: as C has it.
    let communicator = unsafe { borrow(handle) };
    if !communicator.is_ready() {
        return INVALID_ARGUMENT;
    }
    communicator.finalize();
    IN_PROGRESS
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(handle: Handle) -> c_int {
    log("ncclCommDestroy");
    // SAFETY: made by `Arc::into_raw`, and freed once, as C has it.
    let communicator = unsafe { Arc::from_raw(handle) };
    communicator.join();
    SUCCESS
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(handle: Handle) -> c_int {
    log("ncclCommAbort");
    // SAFETY: made by `Arc::into_raw`, and freed once, as C has it.
    let communicator = unsafe { Arc::from_raw(handle) };
    communicator.abort();
    SUCCESS
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text: &CStr = match code {
        1 => c"unhandled cuda error",
        2 => c"unhandled system error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        _ => c"another error",
    };
    text.as_ptr()
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLastError(_handle: Handle) -> *const c_char {
    c"".as_ptr()
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> c_int {
    log("ncclGroupStart");
    DEPTH.set(DEPTH.get() + 1);
    SUCCESS
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> c_int {
    log("ncclGroupEnd");
    match DEPTH.get() {
        0 => return INVALID_USAGE,
        depth => DEPTH.set(depth - 1),
    }
    if DEPTH.get() > 0 {
        return SUCCESS;
    }
    let group = GROUP.with_borrow_mut(mem::take);
    let Some((communicator, ..)) = group.first() else {
        return SUCCESS;
    };
    let communicator = communicator.clone();
    let calls = group
        .into_iter()
        .map(|(_, call, stream)| (call, stream))
        .collect();
    communicator.submit(calls)
}

/// Takes a call into the thread's group.
///
/// # Safety
/// As C has it.
unsafe fn call(
    kind: Kind,
    (send, receive): (*const c_void, *mut c_void),
    count: usize,
    dtype: c_int,
    handle: Handle,
    stream: *const HostStream,
) -> c_int {
    log(format_args!("{kind}"));
    // SAFETY: as C has it.
    let communicator = unsafe { borrow(handle) };
    let (op, root) = match kind {
        Kind::AllReduce { op } | Kind::ReduceScatter { op } => (op, 0),
        Kind::Reduce { op, root } => (op, root),
        Kind::Broadcast { root } => (0, root),
        Kind::AllGather => (0, 0),
    };
    let reduces_bytes = dtype == 1 && !matches!(kind, Kind::Broadcast { .. } | Kind::AllGather);
    let size = arithmetic::size_of_type(dtype).filter(|_| !reduces_bytes);
    let Some(size) = size.filter(|_| arithmetic::is_known(op) && root < communicator.size()) else {
        return INVALID_ARGUMENT;
    };
    if DEPTH.get() == 0 || !communicator.is_ready() {
        return INVALID_USAGE;
    }
    let call = Call {
        kind,
        send: Address(send),
        receive: Address(receive),
        len: count * size,
        dtype,
    };
    GROUP.with_borrow_mut(|group| group.push((communicator, call, Address(stream))));
    SUCCESS
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    handle: Handle,
    stream: *const HostStream,
) -> c_int {
    let kind = Kind::AllReduce { op };
    // SAFETY: as C has it.
    unsafe { call(kind, (send, receive), count, dtype, handle, stream) }
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    handle: Handle,
    stream: *const HostStream,
) -> c_int {
    let kind = Kind::Reduce {
        op,
        root: root as usize,
    };
    // SAFETY: as C has it.
    unsafe { call(kind, (send, receive), count, dtype, handle, stream) }
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    handle: Handle,
    stream: *const HostStream,
) -> c_int {
    let kind = Kind::Broadcast {
        root: root as usize,
    };
    // SAFETY: as C has it.
    unsafe { call(kind, (send, receive), count, dtype, handle, stream) }
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    handle: Handle,
    stream: *const HostStream,
) -> c_int {
    // SAFETY: as C has it.
    unsafe {
        call(
            Kind::AllGather,
            (send, receive),
            count,
            dtype,
            handle,
            stream,
        )
    }
}

/// # Safety
/// As C has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    handle: Handle,
    stream: *const HostStream,
) -> c_int {
    let kind = Kind::ReduceScatter { op };
    // SAFETY: as C has it.
    unsafe { call(kind, (send, receive), count, dtype, handle, stream) }
}

/// How many threads and jobs are at work for communicators of this process. NCCL has nothing like it.
#[unsafe(no_mangle)]
pub extern "C" fn nccl_stand_in_inside() -> u64 {
    INSIDE.load(Ordering::SeqCst)
}
