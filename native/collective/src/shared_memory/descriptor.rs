//! Passing a file descriptor over a Unix socket.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;

/// Room for one descriptor's control message, aligned as `cmsghdr` needs.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Lets `work` have a message of one byte, with room for a descriptor beside it.
fn with_message<T>(byte: &mut u8, work: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let mut part = libc::iovec {
        iov_base: ptr::from_mut(byte).cast(),
        iov_len: 1,
    };
    let mut control = Control([0; 64]);
    // SAFETY: an all-zero msghdr is a valid value to be filled in.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    work(&mut message)
}

/// Sends one byte, with a descriptor beside it if there is one. Never blocks: the socket holds nothing else.
pub(crate) fn send(
    stream: &UnixStream,
    mut byte: u8,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let sent = with_message(&mut byte, |message| {
        // SAFETY: CMSG_* compute with sizes, and the header they point to lies within the message's room for it; the
        // message and all it points to are live for the call.
        unsafe {
            message.msg_controllen = 0;
            if let Some(file) = file {
                message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
                let header = libc::CMSG_FIRSTHDR(message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
                ptr::write_unaligned(libc::CMSG_DATA(header).cast::<RawFd>(), file.as_raw_fd());
            }
            libc::sendmsg(stream.as_raw_fd(), message, libc::MSG_NOSIGNAL)
        }
    });
    if sent == 1 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Receives what `send` sent. Waits as long as the stream's read timeout.
///
/// # Errors
/// `UnexpectedEof` when the other end is gone; the socket's error, `WouldBlock` at the timeout.
pub(crate) fn receive(stream: &UnixStream) -> io::Result<(u8, Option<OwnedFd>)> {
    let mut byte = 0;
    let file = with_message(&mut byte, |message| {
        // SAFETY: the message and all it points to are live for the call.
        match unsafe { libc::recvmsg(stream.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) } {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            1 => {}
            _ => return Err(io::Error::last_os_error()),
        }
        // SAFETY: the kernel has filled in the message; the header, if any, lies within the room for it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            let is_file = !header.is_null()
                && (*header).cmsg_level == libc::SOL_SOCKET
                && (*header).cmsg_type == libc::SCM_RIGHTS
                && (*header).cmsg_len as usize
                    >= libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            // The descriptor was opened for this process by the call above, and is nobody else's.
            Ok(is_file.then(|| {
                OwnedFd::from_raw_fd(ptr::read_unaligned(libc::CMSG_DATA(header).cast::<RawFd>()))
            }))
        }
    })?;
    Ok((byte, file))
}
