//! Waiting on several sockets at once.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// A descriptor to wait on.
pub(crate) fn interest(socket: &impl AsRawFd, readable: bool, writable: bool) -> libc::pollfd {
    let events = if readable { libc::POLLIN } else { 0 } | if writable { libc::POLLOUT } else { 0 };
    libc::pollfd {
        fd: socket.as_raw_fd(),
        events,
        revents: 0,
    }
}

/// A place in the list that waits for nothing.
pub(crate) const NOTHING: libc::pollfd = libc::pollfd {
    fd: -1 as RawFd,
    events: 0,
    revents: 0,
};

/// Waits until one of them is ready, for at most `limit`; a signal ends the wait like its limit does.
pub(crate) fn poll(interests: &mut [libc::pollfd], limit: Duration) -> io::Result<()> {
    let milliseconds = i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: the pointer and the length are those of a live slice.
    let ready = unsafe {
        libc::poll(
            interests.as_mut_ptr(),
            interests.len() as libc::nfds_t,
            milliseconds,
        )
    };
    if ready < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        interests
            .iter_mut()
            .for_each(|interest| interest.revents = 0);
    }
    Ok(())
}
