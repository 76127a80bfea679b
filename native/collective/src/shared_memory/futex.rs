//! Waiting on a word of shared memory.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` holds `expected`, for at most `limit`; may also return for no reason.
///
/// The word may be another process's: the futex is keyed by the page, not by the address.
pub(crate) fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
    let timeout = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word and the timeout are live for the call; FUTEX_WAIT reads both and writes neither.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const timeout,
            0usize,
            0u32,
        );
    }
}

/// Wakes everyone who sleeps on `word`.
pub(crate) fn wake_all(word: &AtomicU32) {
    // SAFETY: the word is live for the call, which does not write it.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE,
            i32::MAX,
            0usize,
            0usize,
            0u32,
        );
    }
}
