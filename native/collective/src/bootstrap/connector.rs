//! Opening connections to ranks that prove themselves.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use super::handshake::{Proof, Purpose};
use crate::deadline::Deadline;

/// Between two tries to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// Connects to `address` as `rank`, trying again while nobody listens there, for at most `refusals`, and where the other end
/// hangs up: it may have had too many connections at a time.
///
/// # Errors
/// `PermissionDenied` when the two ends' secrets or groups differ; otherwise the connection's last error.
pub(super) fn connect(
    address: SocketAddr,
    proof: &Proof,
    purpose: Purpose,
    rank: usize,
    deadline: &Deadline,
    refusals: Duration,
) -> io::Result<TcpStream> {
    loop {
        deadline.slice()?;
        // Long enough for a slow network's handshake, short enough to hear an interrupt soon after.
        let attempt = deadline
            .remaining()
            .min(Duration::from_secs(1))
            .max(Duration::from_millis(1));
        match open(address, attempt) {
            Ok(mut stream) => {
                stream.set_nodelay(true)?;
                match proof.connect(&mut stream, purpose, rank, deadline) {
                    Ok(()) => return Ok(stream),
                    Err(error) if error.kind() != io::ErrorKind::ConnectionAborted => {
                        return Err(error);
                    }
                    Err(error) if deadline.remaining() < PAUSE => return Err(error),
                    Err(_) => {}
                }
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => continue,
            Err(error) if deadline.waited() > refusals => return Err(error),
            Err(_) => {}
        }
        thread::sleep(deadline.slice()?.min(PAUSE));
    }
}

/// A connection to whoever listens at `address`. Where nobody does, and it is of this machine, the system may give the end here that
/// very address, and connect it to itself: that counts as refused.
fn open(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    match stream.local_addr()? == stream.peer_addr()? {
        true => Err(io::ErrorKind::ConnectionRefused.into()),
        false => Ok(stream),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_connects_to_himself() {
        // More often than there are ports to give. Linux gives `connect` those of the parity of the range's first one, 32,768, as long as
        // there are any.
        let ports = (40_000..60_000).step_by(2);
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let free = ports
            .map(address)
            .find(|free| open(*free, Duration::from_secs(1)).is_err());
        for _ in 0..40_000 {
            let opened = open(free.expect("a free port"), Duration::from_secs(1));
            assert!(opened.is_err());
        }
    }
}
