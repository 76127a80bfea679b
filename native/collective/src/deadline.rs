//! A wait that ends: its deadline, and the caller's wish to stop it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::options::Interrupt;

/// The longest that a wait goes without looking at its deadline, the interrupt and the group's health.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// How long a wait may last, and who may end it.
#[derive(Clone)]
pub(crate) struct Deadline {
    started: Instant,
    limit: Duration,
    interrupt: Option<Interrupt>,
}

impl Deadline {
    pub(crate) fn new(limit: Duration, interrupt: Option<Interrupt>) -> Self {
        Deadline {
            started: Instant::now(),
            limit,
            interrupt,
        }
    }

    /// The same deadline under another interrupt.
    pub(crate) fn with_interrupt(&self, interrupt: Option<Interrupt>) -> Self {
        Deadline {
            interrupt,
            ..self.clone()
        }
    }

    /// The same, but from now on for at most `limit`, and with nobody to end it early.
    pub(crate) fn at_most(&self, limit: Duration) -> Self {
        Deadline::new(limit.min(self.remaining()), None)
    }

    pub(crate) fn interrupt(&self) -> Option<&Interrupt> {
        self.interrupt.as_ref()
    }

    pub(crate) fn waited(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.limit.saturating_sub(self.waited())
    }

    pub(crate) fn interrupted(&self) -> bool {
        self.interrupt.as_ref().is_some_and(|interrupt| interrupt())
    }

    /// The next slice to wait for, or why not to: `TimedOut` or `Interrupted`.
    pub(crate) fn slice(&self) -> io::Result<Duration> {
        if self.interrupted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let remaining = self.remaining();
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(remaining.min(SLICE))
    }

    /// `read_exact` on a blocking stream, within this deadline.
    pub(crate) fn read_exact(
        &self,
        stream: &mut impl Timed,
        mut buffer: &mut [u8],
    ) -> io::Result<()> {
        while !buffer.is_empty() {
            stream.set_slice(self.slice()?)?;
            match stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => buffer = &mut buffer[read..],
                Err(error) if is_retry(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// `write_all` on a blocking stream, within this deadline.
    pub(crate) fn write_all(&self, stream: &mut impl Timed, mut buffer: &[u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            stream.set_slice(self.slice()?)?;
            match stream.write(buffer) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => buffer = &buffer[written..],
                Err(error) if is_retry(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_retry(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// A blocking stream whose reads and writes can be bounded, and ended from another thread.
pub(crate) trait Timed: Read + Write + Sized {
    fn set_slice(&self, slice: Duration) -> io::Result<()>;

    /// Another handle of the same stream.
    fn duplicate(&self) -> io::Result<Self>;

    /// Ends the stream for all its handles, and for the other end.
    fn hang_up(&self);
}

macro_rules! timed {
    ($stream:ty) => {
        impl Timed for $stream {
            fn set_slice(&self, slice: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(slice))?;
                self.set_write_timeout(Some(slice))
            }

            fn duplicate(&self) -> io::Result<Self> {
                self.try_clone()
            }

            fn hang_up(&self) {
                // One that has ended already is what is wanted.
                let _ = self.shutdown(Shutdown::Both);
            }
        }
    };
}

timed!(TcpStream);
timed!(UnixStream);
