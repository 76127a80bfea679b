//! NCCL's C interface, as far as it is used here: `nccl.h` of the releases 2.17.1 to 2.30.7.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use super::symbols::symbols;
use super::version::NcclVersion;
use crate::buffer::{DType, ReduceOp, Stream};

/// `ncclComm_t`.
pub(crate) type Handle = *mut c_void;

/// `ncclResult_t`. Later releases may return codes that this one does not know.
pub(crate) type Code = c_int;

/// `ncclSuccess`.
pub(crate) const SUCCESS: Code = 0;
/// `ncclSystemError`: a system call failed, such as one on the connection to a peer.
pub(crate) const SYSTEM_ERROR: Code = 2;
/// `ncclRemoteError`: "may be caused by a network error or a remote process exiting prematurely".
pub(crate) const REMOTE_ERROR: Code = 6;
/// `ncclInProgress`: a non-blocking communicator is still at it.
pub(crate) const IN_PROGRESS: Code = 7;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawUniqueId(pub(crate) [u8; 128]);

/// The release whose `Config` is passed, and the oldest that is accepted.
pub(crate) const OLDEST: NcclVersion = NcclVersion {
    major: 2,
    minor: 17,
    patch: 0,
};

/// `NCCL_CONFIG_UNDEF_INT`: NCCL's default.
const UNDEFINED: c_int = c_int::MIN;

/// `ncclConfig_t` as release 2.17 declares it (`ncclConfig_v21700`).
///
/// Later releases append fields. They copy `size` bytes over a struct of their own defaults, and take their defaults for
/// every field that is newer than `version` (`parseCommConfig` in `src/init.cc`), so that this one fits them all. It is the
/// first without padding at its end, which such a copy would take for a field.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
}

impl Config {
    /// `NCCL_CONFIG_INITIALIZER` with `blocking = 0`.
    pub(crate) fn non_blocking() -> Self {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST.code(),
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: ptr::null(),
        }
    }
}

/// `ncclDataType_t`.
pub(crate) fn data_type(dtype: DType) -> c_int {
    match dtype {
        DType::UInt8 => 1,
        DType::Int64 => 4,
        DType::Float16 => 6,
        DType::Float32 => 7,
        DType::Float64 => 8,
        DType::BFloat16 => 9,
    }
}

/// `ncclRedOp_t`; `None` for what differs from this crate's operation: NCCL's minimum and maximum lose a NaN.
pub(crate) fn reduction(op: ReduceOp) -> Option<c_int> {
    match op {
        ReduceOp::Sum => Some(0),
        ReduceOp::Average => Some(4),
        ReduceOp::Min | ReduceOp::Max => None,
    }
}

symbols! {
    /// The functions of libnccl that are used.
    NcclFunctions {
        get_version = "ncclGetVersion" fn(*mut c_int) -> Code;
        get_unique_id = "ncclGetUniqueId" fn(*mut RawUniqueId) -> Code;
        comm_init_rank_config = "ncclCommInitRankConfig" fn(*mut Handle, c_int, RawUniqueId, c_int, *mut Config) -> Code;
        comm_get_async_error = "ncclCommGetAsyncError" fn(Handle, *mut Code) -> Code;
        comm_finalize = "ncclCommFinalize" fn(Handle) -> Code;
        comm_destroy = "ncclCommDestroy" fn(Handle) -> Code;
        comm_abort = "ncclCommAbort" fn(Handle) -> Code;
        get_error_string = "ncclGetErrorString" fn(Code) -> *const c_char;
        get_last_error = "ncclGetLastError" fn(Handle) -> *const c_char;
        group_start = "ncclGroupStart" fn() -> Code;
        group_end = "ncclGroupEnd" fn() -> Code;
        all_reduce = "ncclAllReduce" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> Code;
        reduce = "ncclReduce" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Handle, Stream) -> Code;
        broadcast = "ncclBroadcast" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> Code;
        all_gather = "ncclAllGather" fn(*const c_void, *mut c_void, usize, c_int, Handle, Stream) -> Code;
        reduce_scatter = "ncclReduceScatter" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> Code;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout of `nccl.h` 2.17.1 on 64-bit Linux: no gap, and nothing after the last field.
    #[test]
    fn the_config_is_that_of_the_header() {
        assert_eq!(size_of::<Config>(), 40);
        assert_eq!(std::mem::offset_of!(Config, blocking), 16);
        assert_eq!(std::mem::offset_of!(Config, net_name), 32);
        assert_eq!(Config::non_blocking().version, 21_700);
    }
}
