//! The C allocator of a JVM that scores.
//!
//! By default glibc hands large blocks back to the system when they are freed, so that each batch has its activations
//! faulted in and zeroed anew: a third of the time of an MLP with layers of 256.

use std::sync::Once;

/// From here on, freed memory stays with the process for the next batch: blocks of up to 32 MiB, and 64 MiB at the end of
/// each of the allocator's heaps. Both are where glibc's own adaptation ends (mallopt(3)).
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn keep_freed() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: mallopt takes numbers alone. A value that this glibc refuses leaves it as it was.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 20);
        }
    });
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn keep_freed() {}
