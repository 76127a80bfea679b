//! Control connections, over which ranks tell each other that they live, leave, or have failed.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Mutex;

use crate::lock::lock;

/// The most that waits to be sent to a peer that does not read.
const MAX_PENDING: usize = 1 << 20;

/// A non-blocking connection that any thread may write to, and the monitor reads.
pub(crate) struct ControlConnection {
    pub(crate) stream: TcpStream,
    pending: Mutex<Vec<u8>>,
}

impl ControlConnection {
    /// Takes over a connection that has proved itself.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(ControlConnection {
            stream,
            pending: Mutex::new(Vec::new()),
        })
    }

    /// Sends what the socket takes at once and keeps the rest for `flush`. A broken connection is the reader's to notice.
    pub(crate) fn send(&self, bytes: &[u8]) {
        let mut pending = lock(&self.pending);
        if pending.len() + bytes.len() <= MAX_PENDING {
            pending.extend_from_slice(bytes);
        }
        Self::write(&self.stream, &mut pending);
    }

    /// Sends what is left; returns whether the socket took all.
    pub(crate) fn flush(&self) -> bool {
        let mut pending = lock(&self.pending);
        Self::write(&self.stream, &mut pending);
        pending.is_empty()
    }

    fn write(mut stream: &TcpStream, pending: &mut Vec<u8>) {
        while !pending.is_empty() {
            match stream.write(pending) {
                Ok(written) => drop(pending.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return pending.clear(),
            }
        }
    }
}
