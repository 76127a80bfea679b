//! Ends a wait on sockets from another thread.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// A descriptor that becomes readable when it is rung. All that hold it hold both of its ends, so that nobody rings into a pipe whose
/// reader is gone.
#[derive(Clone)]
pub(crate) struct Bell(Arc<(PipeReader, PipeWriter)>);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        io::pipe().map(|ends| Bell(Arc::new(ends)))
    }

    /// Makes it readable.
    pub(crate) fn ring(&self) {
        // Best effort: whoever waits looks by itself at the end of its wait.
        let _ = (&self.0.1).write(&[0]);
    }

    /// Makes it silent again, but for what is beyond a thousand rings. Only where it is readable: else this waits.
    pub(crate) fn hush(&self) -> io::Result<()> {
        (&self.0.0).read(&mut [0; 1024]).map(drop)
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.0.as_raw_fd()
    }
}
