//! Memory for tensors: 64-byte aligned, always initialised, returned to a pool when dropped.

use std::alloc::{self, Layout};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

/// The alignment of every buffer: a cache line, and what vector instructions and DLPack consumers like best.
pub(crate) const ALIGNMENT: usize = 64;

/// The size of the pages that large buffers ask for: filling one faults 512 times less, and rows gathered from all over it miss the
/// processor's table of pages less often.
const HUGE_PAGE: usize = 2 << 20;

/// Buffers from this size on are mapped from the system in whole huge pages, which it zeroes when they are first touched.
const MAPPED: usize = HUGE_PAGE / 2;

/// An owned block of bytes, aligned to 64. Dropping it frees the memory, or hands it back to the pool it came from.
#[derive(Debug)]
pub struct AlignedBuffer {
    ptr: NonNull<u8>,
    len: usize,
    capacity: usize,
    pool: Option<BufferPool>,
}

// SAFETY: the buffer owns its memory alone and has no interior mutability.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `len` zero bytes.
    ///
    /// Aborts the process when memory is out, as `Vec` does.
    pub fn zeroed(len: usize) -> Self {
        let capacity = len.max(1).next_multiple_of(ALIGNMENT);
        let ptr = if capacity >= MAPPED {
            map(capacity)
        } else {
            // SAFETY: the layout's size is at least ALIGNMENT, so not zero.
            NonNull::new(unsafe { alloc::alloc_zeroed(Self::layout(capacity)) })
        };
        let Some(ptr) = ptr else {
            alloc::handle_alloc_error(Self::layout(capacity))
        };
        AlignedBuffer {
            ptr,
            len,
            capacity,
            pool: None,
        }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT)
            .expect("a buffer is smaller than the address space")
    }

    /// Where the bytes begin; aligned to 64, valid for reads of `len` bytes as long as the buffer lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// The same for writing.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: ptr is valid and initialised for len <= capacity bytes, which nobody writes while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_bytes`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            let owned = AlignedBuffer {
                ptr: self.ptr,
                len: self.capacity,
                capacity: self.capacity,
                pool: None,
            };
            pool.give(owned);
        } else if self.capacity >= MAPPED {
            // SAFETY: mapped in `zeroed` with this capacity, and unmapped here only: a pooled buffer's memory moved on above.
            unsafe { libc::munmap(self.ptr.as_ptr().cast(), mapped_bytes(self.capacity)) };
        } else {
            // SAFETY: allocated in `zeroed` with the same layout, and freed here only, as above.
            unsafe { alloc::dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)) }
        }
    }
}

/// Bytes mapped for a buffer: whole huge pages.
fn mapped_bytes(capacity: usize) -> usize {
    capacity.next_multiple_of(HUGE_PAGE)
}

/// Zeroed memory of the system's own, in huge pages where it has them; `None` where memory is out.
fn map(capacity: usize) -> Option<NonNull<u8>> {
    let bytes = mapped_bytes(capacity);
    // One page more than is needed holds an aligned block somewhere; the rest goes back.
    // SAFETY: an anonymous mapping at an address of the system's choice touches no memory that is in use.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes + HUGE_PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start.cast::<u8>();
    let before = start.align_offset(HUGE_PAGE);
    // SAFETY: `before` is at most HUGE_PAGE, so both ends and the block between them lie in the mapping, which nobody else knows.
    let block = unsafe {
        let block = start.add(before);
        for (end, length) in [(start, before), (block.add(bytes), HUGE_PAGE - before)] {
            if length > 0 {
                libc::munmap(end.cast(), length);
            }
        }
        #[cfg(target_os = "linux")]
        libc::madvise(block.cast(), bytes, libc::MADV_HUGEPAGE);
        block
    };
    NonNull::new(block)
}

/// Free buffers of about one size, for tensors that come and go with every batch.
#[derive(Debug, Clone)]
pub(crate) struct BufferPool {
    free: Arc<Mutex<Vec<AlignedBuffer>>>,
    max_free: usize,
}

impl BufferPool {
    /// A pool that keeps at most `max_free` unused buffers.
    pub(crate) fn new(max_free: usize) -> Self {
        BufferPool {
            free: Arc::default(),
            max_free,
        }
    }

    /// A buffer of `len` bytes with any content. It goes back to the pool when dropped, on whatever thread.
    pub(crate) fn take(&self, len: usize) -> AlignedBuffer {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |buffer: &AlignedBuffer| {
            buffer.capacity >= len && buffer.capacity / 2 <= len.max(ALIGNMENT)
        };
        let found = free
            .iter()
            .rposition(fits)
            .map(|index| free.swap_remove(index));
        drop(free);
        let mut buffer = found.unwrap_or_else(|| AlignedBuffer::zeroed(len));
        buffer.len = len;
        buffer.pool = Some(self.clone());
        buffer
    }

    fn give(&self, buffer: AlignedBuffer) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.max_free {
            free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_zeroed_and_aligned() {
        for len in [MAPPED - 1, MAPPED, 3 * HUGE_PAGE + 5] {
            let mut buffer = AlignedBuffer::zeroed(len);
            assert_eq!(buffer.as_ptr() as usize % ALIGNMENT, 0);
            assert!(buffer.as_bytes().iter().all(|byte| *byte == 0));
            buffer.as_bytes_mut().fill(7);
            assert_eq!(buffer.as_bytes()[len - 1], 7);
        }
    }

    #[test]
    fn a_dropped_buffer_is_taken_again() {
        let pool = BufferPool::new(2);
        let first = pool.take(1000);
        let address = first.as_ptr();
        assert_eq!(address as usize % ALIGNMENT, 0);
        drop(first);
        let second = pool.take(990);
        assert_eq!(second.as_ptr(), address);
        assert_eq!(second.len(), 990);
        drop((pool.take(10), second));
        assert_ne!(
            pool.take(100_000).as_ptr(),
            address,
            "too small to serve again"
        );
    }
}
