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
        match TcpStream::connect_timeout(&address, attempt) {
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
