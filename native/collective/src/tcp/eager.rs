//! Small exchanges, any operation: the elements travel with the first frame, from everyone to everyone, and each leader
//! computes all of it.
//!
//! **Chosen** where the elements of all ranks together have at most `EAGER` bytes. Exchanges without elements (barriers,
//! agreements) are of this kind too.
//!
//! **Cost**, for H hosts of m ranks each and buffers of B bytes: one message of latency. Each leader sends and receives
//! `(H - 1) * m * B` bytes and adds all `H * m` buffers itself, in rank order, so that nothing has to come back. The traffic
//! grows with the square of the hosts, which at this size costs less than a second message.

use std::ops::Range;
use std::slice;

use super::connection::{Body, Head};
use super::exchange::{ABSENT, Algorithm, Exchange};
use super::segment::Segment;
use crate::call::{Piece, Ranks};
use crate::error::Result;

/// The most bytes, over all ranks, that travel with the first frame.
pub(crate) const EAGER: usize = 64 << 10;

/// Elements are padded to this many bytes in a first frame, so that each type is aligned.
const ALIGNMENT: usize = 8;

/// Everything with the first frame.
pub(crate) struct Eager;

impl Algorithm for Eager {
    fn greet(&self, exchange: &Exchange<'_>, greeting: &mut Vec<u8>) {
        for segment in exchange.tasks.cut(EAGER) {
            let bytes = exchange.tasks.num_bytes(&segment);
            for member in local(exchange, &segment.piece) {
                let source = exchange.tasks.source(&segment, member);
                // SAFETY: the task's memory holds the piece.
                greeting.extend_from_slice(unsafe { slice::from_raw_parts(source, bytes) });
                greeting.resize(greeting.len().next_multiple_of(ALIGNMENT), 0);
            }
        }
    }

    fn start(&mut self, _exchange: &mut Exchange<'_>) {}

    fn greeted(&mut self, exchange: &Exchange<'_>) -> Result<()> {
        let num_hosts = exchange.topology.hosts.len();
        let mut rests: Vec<&[u8]> = (0..num_hosts).map(|host| exchange.elements(host)).collect();
        for segment in exchange.tasks.cut(EAGER) {
            let sources = sources(exchange, &segment, &mut rests)?;
            let places = exchange.tasks.places(&segment);
            if places.is_empty() {
                continue;
            }
            // SAFETY: sources and places hold the segment; frames are aligned to 8 bytes; places are local members', which are
            // sources or apart from all.
            unsafe {
                match segment.piece.from {
                    Ranks::All => exchange.tasks.finish(&segment, None, &sources, &places),
                    Ranks::One(_) => exchange.tasks.copy(&segment, sources[0], &places),
                }
            }
        }
        Ok(())
    }

    fn place(
        &self,
        _exchange: &mut Exchange<'_>,
        _host: usize,
        _head: &Head,
    ) -> std::result::Result<Body, &'static str> {
        Err(ABSENT)
    }

    fn take(&mut self, _exchange: &mut Exchange<'_>, _host: usize, _head: &Head, _body: Body) {}

    fn is_done(&self) -> bool {
        true
    }
}

/// This host's members that a piece is made from.
fn local(exchange: &Exchange<'_>, piece: &Piece) -> Range<usize> {
    let topology = exchange.topology;
    match piece.from {
        Ranks::All => 0..topology.members().len(),
        Ranks::One(rank) => match topology.place(rank) {
            (host, index) if host == topology.here => index..index + 1,
            _ => 0..0,
        },
    }
}

/// The elements of all ranks that a segment is made from, in rank order. `rests` are the hosts' elements that were not taken
/// yet.
fn sources(
    exchange: &Exchange<'_>,
    segment: &Segment,
    rests: &mut [&[u8]],
) -> Result<Vec<*const u8>> {
    let topology = exchange.topology;
    let padded = exchange
        .tasks
        .num_bytes(segment)
        .next_multiple_of(ALIGNMENT);
    let mut sources = Vec::with_capacity(topology.world_size());
    for stage in 0..topology.num_stages(&segment.piece) {
        let stage = topology.stage(&segment.piece, stage);
        for member in stage.members {
            if stage.host == topology.here {
                sources.push(exchange.tasks.source(segment, member));
                continue;
            }
            // A host's members are in rank order in its frame too, so each is the next of its host.
            let rest = &mut rests[stage.host];
            let Some((own, after)) = rest.split_at_checked(padded) else {
                return Err(exchange.corrupt(stage.host, "a first frame with too few elements"));
            };
            sources.push(own.as_ptr());
            *rest = after;
        }
    }
    Ok(sources)
}
