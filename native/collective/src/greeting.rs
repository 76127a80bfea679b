//! The first frames of an exchange: the leaders' calls, and the elements of small exchanges.

use std::ops::Range;
use std::{ptr, slice};

use crate::call::{OwnedCall, Piece, Ranks};
use crate::connection::{Body, Bytes, Head, Kind};
use crate::error::{CollectiveError, Result};
use crate::exchange::Exchange;
use crate::reduce::{self, Output, Reduction};
use crate::task::StagedMask;
use crate::wire::Reader;

impl Exchange<'_> {
    /// Sends the call, and a small exchange's elements, to all.
    pub(crate) fn greet(&mut self) {
        let call = self.call.encode();
        let mut hello = (call.len() as u32).to_le_bytes().to_vec();
        hello.extend_from_slice(&call);
        hello.extend_from_slice(&self.staged.to_le_bytes());
        hello.resize(hello.len().next_multiple_of(8), 0);
        if self.is_eager {
            for task in 0..self.tasks.len() {
                let size = self.entry(task).dtype.size();
                for piece in self.pieces(task) {
                    for member in self.local(&piece, self.topology.here) {
                        let source = self.source(task, member, piece.range.start);
                        // SAFETY: the task's memory holds the piece.
                        hello.extend_from_slice(unsafe {
                            slice::from_raw_parts(source, piece.range.len() * size)
                        });
                        hello.resize(hello.len().next_multiple_of(8), 0);
                    }
                }
            }
        }
        let head = Head {
            exchange: self.state.exchange,
            kind: Kind::Hello,
            stage: 0,
            segment: 0,
            len: hello.len(),
        };
        for connection in self.connections() {
            let mut body = Bytes::default().resized(hello.len());
            // SAFETY: the body has just been made this long.
            unsafe { ptr::copy_nonoverlapping(hello.as_ptr(), body.as_mut_ptr(), hello.len()) };
            connection.send(head, Body::Owned(body));
        }
    }

    /// A host's members that a piece is made from.
    fn local(&self, piece: &Piece, host: usize) -> Range<usize> {
        match piece.from {
            Ranks::All => 0..self.topology.hosts[host].len(),
            Ranks::One(rank) => match self.topology.place(rank) {
                (place, index) if place == host => index..index + 1,
                _ => 0..0,
            },
        }
    }

    /// Where in a first frame the elements begin: behind the call and the mask.
    fn split<'b>(
        &self,
        host: usize,
        hello: &'b Bytes,
    ) -> Result<(OwnedCall, StagedMask, &'b [u8])> {
        let mut reader = Reader::new(hello.as_slice());
        let read = reader.bytes().and_then(|call| {
            let decoded = OwnedCall::decode(&mut Reader::new(call))?;
            Some((
                decoded,
                reader.u64()?,
                (4 + call.len() + 8).next_multiple_of(8),
            ))
        });
        let (call, mask, start) =
            read.ok_or_else(|| self.corrupt(host, "a call that cannot be read"))?;
        let elements = hello
            .as_slice()
            .get(start..)
            .ok_or_else(|| self.corrupt(host, "a short first frame"))?;
        Ok((call, mask, elements))
    }

    pub(crate) fn compare(&mut self, host: usize, hello: &Bytes) -> Result<()> {
        let (theirs, mask, _) = self.split(host, hello)?;
        if theirs.borrow() == *self.call {
            self.staged |= mask;
            return Ok(());
        }
        let health = self.wait.health;
        let own = OwnedCall::decode(&mut Reader::new(&self.call.encode()));
        let own = own.map_or_else(
            || self.call.operation.to_string(),
            |own| own.describe(&theirs.borrow()),
        );
        let calls = vec![
            (health.peer(health.rank), own),
            (
                health.peer(self.topology.leader(host)),
                theirs.describe(self.call),
            ),
        ];
        Err(health.fail(CollectiveError::Mismatch {
            sequence: self.call.sequence,
            calls,
        }))
    }

    /// A small exchange, once all elements are here.
    pub(crate) fn compute(&mut self) -> Result<()> {
        let num_hosts = self.topology.hosts.len();
        let world_size = self.topology.world_size();
        let mut rests: Vec<&[u8]> = vec![&[]; num_hosts];
        for (host, hello) in self.hellos.iter().enumerate() {
            if let Some(hello) = hello {
                rests[host] = self.split(host, hello)?.2;
            }
        }
        for task in 0..self.tasks.len() {
            let entry = self.entry(task);
            for piece in self.pieces(task) {
                let len = piece.range.len();
                let bytes = len * entry.dtype.size();
                let mut sources = Vec::with_capacity(world_size);
                for stage in 0..self.topology.num_stages(&piece) {
                    let run = self.topology.stage(&piece, stage);
                    for member in run.members {
                        if run.host == self.topology.here {
                            sources.push(self.source(task, member, piece.range.start));
                            continue;
                        }
                        // A host's members are in rank order in its frame too, so each is the next of its host.
                        let rest = &mut rests[run.host];
                        let padded = bytes.next_multiple_of(8);
                        let Some((own, after)) = rest.split_at_checked(padded) else {
                            return Err(
                                self.corrupt(run.host, "a first frame with too few elements")
                            );
                        };
                        sources.push(own.as_ptr());
                        *rest = after;
                    }
                }
                let places = self.places(task, piece.to, piece.range.start);
                if places.is_empty() {
                    continue;
                }
                if piece.from == Ranks::All {
                    let output = Output::Finished {
                        places: &places,
                        world_size,
                    };
                    let reduction = Reduction {
                        dtype: entry.dtype,
                        op: entry.op,
                        initial: None,
                        sources: &sources,
                        output,
                    };
                    // SAFETY: sources and places hold the piece; frames are aligned to 8 bytes; places are local members'.
                    unsafe { reduce::reduce(&reduction, len) };
                } else {
                    for place in places
                        .iter()
                        .filter(|place| !ptr::eq(place.cast_const(), sources[0]))
                    {
                        // SAFETY: source and place hold the piece, and are different memory.
                        unsafe { ptr::copy_nonoverlapping(sources[0], *place, bytes) };
                    }
                }
            }
        }
        Ok(())
    }
}
