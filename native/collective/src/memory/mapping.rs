//! Memory that the processes of one host can map, and memory that only looks like it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

/// A mapping; unmapped when dropped. The pages live until the last process has unmapped them.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// The memory file, kept by who created it to pass on.
    file: Option<OwnedFd>,
}

// SAFETY: a Mapping is an address range of its own; who reads and writes it when is the business of its users.
unsafe impl Send for Mapping {}
// SAFETY: as above; the Mapping itself is never changed after it was made.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory of `len` zero bytes behind a file that can be passed to other processes. Every page is reserved here, so
    /// that a lack of memory shows as an error now and not as a fault later; the size is sealed, so that no process
    /// can take pages away from another.
    pub(crate) fn create(len: usize) -> io::Result<Self> {
        let name = CString::new("flambeau").map_err(io::Error::other)?;
        // SAFETY: the name is a live C string.
        let file = unsafe {
            libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        loop {
            // SAFETY: the descriptor is open.
            if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) } == 0 {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the descriptor is open.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let start = map(len, libc::MAP_SHARED | libc::MAP_POPULATE, file.as_raw_fd())?;
        Ok(Mapping {
            start,
            len,
            file: Some(file),
        })
    }

    /// Maps memory that another process created. A file that is shorter, or whose size may still change, is refused:
    /// reading past its end would kill this process.
    pub(crate) fn attach(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        // SAFETY: an all-zero stat is a valid value to be overwritten.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open and `status` is a live value.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut status) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || (status.st_size as u64) < len as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the memory is too short or not sealed",
            ));
        }
        let start = map(len, libc::MAP_SHARED | libc::MAP_POPULATE, file.as_raw_fd())?;
        Ok(Mapping {
            start,
            len,
            file: None,
        })
    }

    /// Zeroed memory of this process alone.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        let start = map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        Ok(Mapping {
            start,
            len,
            file: None,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }

    /// The address `offset` bytes in. Panics outside the mapping: offsets from peers are checked before.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(
            offset <= self.len,
            "offset {offset} in shared memory of {} bytes",
            self.len
        );
        // SAFETY: within the mapping or one past its end.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody can hold a pointer into it past this value's life by its users' contract.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn map(len: usize, flags: libc::c_int, file: libc::c_int) -> io::Result<NonNull<u8>> {
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            file,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap gave the null address"))
}
