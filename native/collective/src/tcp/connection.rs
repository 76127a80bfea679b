//! One data connection between two hosts' leaders: frames out of a queue, frames into their places.
//!
//! A frame is a head of 24 bytes and a body: `exchange u64 | kind u8 | 0 u8 | stage u16 | segment u32 | length u64`.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::slice;
use std::time::Instant;

pub(crate) const HEAD: usize = 24;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The sender's call; the first frame of an exchange. Small exchanges carry the elements along.
    Hello = 1,
    /// What the lower ranks of a segment have come to.
    Partial = 2,
    /// A finished segment.
    Finished = 3,
    /// A segment has come to the end of its route.
    Done = 4,
    /// The sender's elements of a segment, for its owner to add.
    Share = 5,
}

const KINDS: [Kind; 5] = [
    Kind::Hello,
    Kind::Partial,
    Kind::Finished,
    Kind::Done,
    Kind::Share,
];

/// A frame's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// The number of the exchange, from 1.
    pub(crate) exchange: u64,
    pub(crate) kind: Kind,
    /// The stage or the place on the route that the body is meant for.
    pub(crate) stage: u16,
    pub(crate) segment: u32,
    /// Bytes of the body.
    pub(crate) len: usize,
}

impl Head {
    pub(crate) fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&self.exchange.to_le_bytes());
        bytes[8] = self.kind as u8;
        bytes[10..12].copy_from_slice(&self.stage.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.segment.to_le_bytes());
        bytes[16..].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEAD]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let kind = KINDS.into_iter().find(|kind| *kind as u8 == bytes[8])?;
        Some(Head {
            exchange: word(0),
            kind,
            stage: u16::from_le_bytes([bytes[10], bytes[11]]),
            segment: u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
            len: usize::try_from(word(16)).ok()?,
        })
    }
}

/// Bytes aligned for any element type.
#[derive(Default)]
pub(crate) struct Bytes {
    words: Vec<u64>,
    len: usize,
}

impl Bytes {
    /// `len` bytes in reused memory; what was in it may show.
    pub(crate) fn resized(mut self, len: usize) -> Self {
        self.words.resize(len.div_ceil(8), 0);
        self.len = len;
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.words.as_ptr().cast()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the words hold at least `len` initialised bytes.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

/// What is sent, or where what is received goes.
pub(crate) enum Body {
    Owned(Bytes),
    /// Memory that is not ours; it outlives the exchange, which ends only when its frames have passed or the group has failed.
    Borrowed(*mut u8, usize),
}

// SAFETY: the pointer is used by the thread that runs the exchange only.
unsafe impl Send for Body {}

impl Body {
    pub(crate) fn len(&self) -> usize {
        match self {
            Body::Owned(bytes) => bytes.len(),
            Body::Borrowed(_, len) => *len,
        }
    }

    /// # Safety
    /// Borrowed memory is alive and nobody writes it.
    unsafe fn as_slice(&self) -> &[u8] {
        match self {
            Body::Owned(bytes) => bytes.as_slice(),
            // SAFETY: the caller's promise.
            Body::Borrowed(start, len) => unsafe { slice::from_raw_parts(*start, *len) },
        }
    }

    /// # Safety
    /// Borrowed memory is alive and nobody else uses it.
    unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        let (start, len) = match self {
            Body::Owned(bytes) => (bytes.as_mut_ptr(), bytes.len()),
            Body::Borrowed(start, len) => (*start, *len),
        };
        // SAFETY: our own bytes, or the caller's promise.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }
}

/// A frame on its way out.
struct Outgoing {
    head: [u8; HEAD],
    body: Body,
    sent: usize,
}

/// What a read came to.
pub(crate) enum Received {
    /// A head, whose body has to be given a place with `accept`.
    Head(Head),
    /// A whole frame.
    Frame(Head, Body),
    /// Nothing more for now.
    Pending,
}

/// One connection, non-blocking.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    /// When it ended; what was queued then is dropped.
    pub(crate) ended: Option<Instant>,
    /// A head of a later exchange, kept until that begins.
    pub(crate) held: Option<Head>,
    queue: VecDeque<Outgoing>,
    head: [u8; HEAD],
    body: Option<(Head, Body)>,
    received: usize,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream,
            ended: None,
            held: None,
            queue: VecDeque::new(),
            head: [0; HEAD],
            body: None,
            received: 0,
        })
    }

    pub(crate) fn send(&mut self, head: Head, body: Body) {
        debug_assert_eq!(head.len, body.len());
        if self.ended.is_none() {
            self.queue.push_back(Outgoing {
                head: head.encode(),
                body,
                sent: 0,
            });
        }
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }

    /// Sends what the socket takes.
    ///
    /// # Safety
    /// Borrowed bodies in the queue are alive and nobody writes them.
    pub(crate) unsafe fn flush(&mut self) {
        while let Some(frame) = self.queue.front_mut() {
            // SAFETY: the caller's promise.
            let body = unsafe { frame.body.as_slice() };
            let result = match frame.head.get(frame.sent..) {
                Some(head) if !head.is_empty() => {
                    (&self.stream).write_vectored(&[IoSlice::new(head), IoSlice::new(body)])
                }
                _ => (&self.stream).write(&body[frame.sent - HEAD..]),
            };
            match result {
                Ok(written) => frame.sent += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // The reason, if any, is still to be read; the end shows there.
                    self.queue.clear();
                    return;
                }
            }
            if frame.sent == HEAD + body.len() {
                self.queue.pop_front();
            }
        }
    }

    /// Gives the body of the last head its place.
    pub(crate) fn accept(&mut self, head: Head, place: Body) {
        debug_assert_eq!(head.len, place.len());
        self.body = Some((head, place));
        self.received = 0;
    }

    /// Reads on: to the end of a head, of a frame, or of what is there.
    ///
    /// # Errors
    /// `InvalidData` for a head that no peer sends; the end of the connection is in `ended`.
    ///
    /// # Safety
    /// The place given to `accept` is alive and nobody else uses it.
    pub(crate) unsafe fn read(&mut self) -> io::Result<Received> {
        loop {
            let place = match &mut self.body {
                // SAFETY: the caller's promise.
                Some((_, body)) => unsafe { body.as_mut_slice() },
                None => &mut self.head[..],
            };
            if self.received == place.len() {
                self.received = 0;
                return match self.body.take() {
                    Some((head, body)) => Ok(Received::Frame(head, body)),
                    None => Head::decode(&self.head).map(Received::Head).ok_or_else(|| {
                        io::Error::new(io::ErrorKind::InvalidData, "a malformed frame")
                    }),
                };
            }
            match (&self.stream).read(&mut place[self.received..]) {
                Ok(0) => {}
                Ok(read) => {
                    self.received += read;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Received::Pending);
                }
                Err(_) => {}
            }
            self.ended = Some(Instant::now());
            self.queue.clear();
            return Ok(Received::Pending);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn heads_arrive_as_they_were_sent(exchange: u64, stage: u16, segment: u32, len: usize) {
            for kind in KINDS {
                let head = Head { exchange, kind, stage, segment, len };
                prop_assert_eq!(Head::decode(&head.encode()), Some(head));
            }
        }

        #[test]
        fn other_kinds_are_refused(mut bytes: [u8; HEAD], kind in 6u8..) {
            bytes[8] = kind;
            prop_assert_eq!(Head::decode(&bytes), None);
        }
    }
}
