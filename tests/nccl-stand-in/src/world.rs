//! The memory that a communicator's ranks share, and their barrier in it.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The most ranks.
pub(crate) const MAX_RANKS: usize = 16;

/// What a rank can show the others at a time, in bytes: small, so that larger buffers take several rounds.
pub(crate) const SLOT: usize = 1 << 16;

/// The counts of arrivals, before the slots.
const HEAD: usize = 4096;

const TOTAL: usize = HEAD + MAX_RANKS * SLOT;

/// `ncclUniqueId`: the path of the file that is the memory, and zeros.
pub(crate) type UniqueId = [u8; 128];

/// Makes the memory of a world.
pub(crate) fn create() -> io::Result<UniqueId> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = env::temp_dir().join(format!("nccl-stand-in-{}-{number}", process::id()));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)?
        .set_len(TOTAL as u64)?;
    let mut id = [0; 128];
    let bytes = path.as_os_str().as_bytes();
    id.get_mut(..bytes.len())
        .ok_or(io::ErrorKind::InvalidFilename)?
        .copy_from_slice(bytes);
    Ok(id)
}

/// The ranks of one communicator, as one of them sees them.
pub(crate) struct World {
    base: *mut u8,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    round: AtomicU64,
}

// SAFETY: the mapping is shared memory, whose counts are atomic and whose slots the barrier guards.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

/// The communicator was aborted.
pub(crate) struct Aborted;

impl World {
    /// Maps the memory of an identity.
    pub(crate) fn attach(id: &UniqueId, rank: usize, size: usize) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path(id))?;
        Ok(World {
            base: map(&file)?,
            rank,
            size,
            round: AtomicU64::new(0),
        })
    }

    /// Nobody else has to find the memory any more.
    pub(crate) fn hide(&self, id: &UniqueId) {
        if self.rank == 0 {
            // Where it cannot be removed, a small file stays in the temporary directory.
            let _ = fs::remove_file(path(id));
        }
    }

    fn arrivals(&self, rank: usize) -> &AtomicU64 {
        // SAFETY: within the head of the mapping, which is page aligned, and zero at first.
        unsafe { &*self.base.add(rank * size_of::<AtomicU64>()).cast() }
    }

    /// Waits for all ranks, or until `aborted`.
    pub(crate) fn barrier(&self, aborted: impl Fn() -> bool) -> Result<(), Aborted> {
        let round = self.round.fetch_add(1, Ordering::Relaxed) + 1;
        self.arrivals(self.rank).store(round, Ordering::Release);
        while (0..self.size).any(|rank| self.arrivals(rank).load(Ordering::Acquire) < round) {
            if aborted() {
                return Err(Aborted);
            }
            thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }

    /// Shows the others these bytes, at most `SLOT`, from the next barrier on.
    pub(crate) fn show(&self, bytes: &[u8]) {
        assert!(bytes.len() <= SLOT);
        // SAFETY: the slot is this rank's, and between a barrier after its last readers and the next one.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.slot(self.rank), bytes.len()) };
    }

    /// The first `len` bytes that `rank` shows, between two barriers.
    pub(crate) fn see(&self, rank: usize, len: usize) -> &[u8] {
        assert!(len <= SLOT);
        // SAFETY: within the mapping, and written before the barrier that is behind us.
        unsafe { std::slice::from_raw_parts(self.slot(rank), len) }
    }

    fn slot(&self, rank: usize) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.base.add(HEAD + rank * SLOT) }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: mapped by `attach`, and used by nobody any more.
        unsafe { libc::munmap(self.base.cast(), TOTAL) };
    }
}

fn path(id: &UniqueId) -> &Path {
    let len = id.iter().position(|byte| *byte == 0).unwrap_or(id.len());
    Path::new(OsStr::from_bytes(&id[..len]))
}

fn map(file: &File) -> io::Result<*mut u8> {
    // SAFETY: a new mapping of a file that is open, at an address that the kernel chooses.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            TOTAL,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    match base {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        base => Ok(base.cast()),
    }
}
