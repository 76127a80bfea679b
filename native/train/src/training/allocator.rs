//! The C allocator while a rank trains, and where rows are scored.
//!
//! glibc gives each block of more than 32 MiB pages of its own and hands them back when it is freed. A module allocates the
//! same gradients in every backward, so each step has them faulted in and zeroed anew: with layers of 40 MB, more than half
//! of its backward. What is said here holds for allocations of the main thread, where Python's and libtorch's models train.

use std::sync::{Mutex, PoisonError};

/// While one lives, freed memory stays with the process for the next allocation. The last one to go hands it back.
pub(crate) struct KeepFreed(());

static NUM_KEEPING: Mutex<usize> = Mutex::new(0);

impl KeepFreed {
    pub(crate) fn new() -> Self {
        let mut keeping = NUM_KEEPING.lock().unwrap_or_else(PoisonError::into_inner);
        if *keeping == 0 {
            keep_freed();
        }
        *keeping += 1;
        KeepFreed(())
    }
}

impl Drop for KeepFreed {
    fn drop(&mut self) {
        let mut keeping = NUM_KEEPING.lock().unwrap_or_else(PoisonError::into_inner);
        *keeping -= 1;
        if *keeping == 0 {
            hand_back();
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep_freed() {
    // SAFETY: mallopt takes numbers alone. A value that this glibc refuses leaves it as it was.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
        libc::mallopt(libc::M_TOP_PAD, 64 << 20);
    }
}

/// Has a process that scores keep what one batch has freed for the next: blocks of up to 32 MiB, and 64 MiB at the end of each of the
/// allocator's heaps. That is where glibc's own adaptation ends (mallopt(3)). Before it has come there, each batch has its
/// activations faulted in and zeroed anew: a third of the time of an MLP with layers of 256.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn keep_freed_batches() {
    // SAFETY: as above.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 20);
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn hand_back() {
    keep_freed_batches();
    // SAFETY: as above, with glibc's defaults; malloc_trim may be called at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 65536);
        libc::mallopt(libc::M_TOP_PAD, 128 << 10);
        libc::malloc_trim(0);
    }
}

/// Does nothing: only glibc has such settings.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn keep_freed_batches() {}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn keep_freed() {}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn hand_back() {}
