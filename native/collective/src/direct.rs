//! The all-reduce between hosts of one rank each, where no host has several elements to add on the way.
//!
//! Each segment has an owner. The other hosts send it their elements of the segment as they are; it adds all of them to its
//! own in rank order, and sends the result to everyone. So each host sends and receives `2 * (hosts - 1) / hosts` of a
//! buffer, which is the least that an all-reduce can do (Patarasuk and Yuan, 2009), in two steps, and all hosts do the
//! same work. A ring moves as much, but adds each segment in another order.
//!
//! A host has a bounded number of its elements' segments under way: sent, and not come back finished. Every host goes
//! through the segments in the same order, but for those of one round, one for each owner: there it starts with the host
//! after it, so that not all send to one.

use std::cmp::Reverse;

use crate::connection::{Body, Bytes, Head, Kind};
use crate::exchange::{Exchange, SEGMENT, Segment};
use crate::reduce::{self, Output, Reduction};

/// The shortest segment, in bytes, into which a small buffer is cut so that every host owns a part of it.
const SHORTEST: usize = 16 << 10;
/// Segments that each host owns at least of a buffer that is not that small, so that sums travel while others are formed.
const ROUNDS: usize = 2;

impl Exchange<'_> {
    /// Cuts the tasks, of `bytes` bytes in all, into segments.
    pub(crate) fn cut_direct(&mut self, bytes: usize) {
        let (hosts, here) = (self.topology.hosts.len(), self.topology.here);
        let segment = (bytes / (hosts * ROUNDS)).clamp(SHORTEST, SEGMENT);
        for task in 0..self.tasks.len() {
            let len = segment / self.entry(task).dtype.size();
            for piece in self.pieces(task) {
                let segments = piece.runs(len);
                self.segments
                    .extend(segments.map(|piece| Segment::new(task, piece, Vec::new())));
            }
        }
        for index in (here..self.segments.len()).step_by(hosts) {
            self.segments[index].shares.resize_with(hosts, || None);
        }
        self.todo += self.segments.len();
        self.unstarted = (0..self.segments.len())
            .filter(|index| self.owner(*index) != here)
            .collect();
        self.unstarted
            .sort_by_key(|index| Reverse((index / hosts, (index + hosts - here) % hosts)));
    }

    /// The host that adds a segment.
    fn owner(&self, index: usize) -> usize {
        index % self.topology.hosts.len()
    }

    /// Sends this host's elements of a segment to its owner.
    pub(crate) fn share(&mut self, index: usize) {
        let Segment {
            task, ref piece, ..
        } = self.segments[index];
        let bytes = piece.range.len() * self.entry(task).dtype.size();
        let source = self.source(task, 0, piece.range.start).cast_mut();
        self.segments[index].stages_done = 1;
        let body = Body::Borrowed(source, bytes);
        self.send(self.owner(index), Kind::Share, 0, index, body);
    }

    /// Where the body of a frame from `host` goes; `None` for one that cannot come now.
    pub(crate) fn place_direct(&mut self, host: usize, head: &Head) -> Option<Body> {
        let index = head.segment as usize;
        let owner = self.owner(index);
        let segment = &self.segments[index];
        let bytes = segment.piece.range.len() * self.entry(segment.task).dtype.size();
        let fits = !segment.is_finished && head.len == bytes;
        match head.kind {
            Kind::Share
                if fits && owner == self.topology.here && segment.shares[host].is_none() =>
            {
                let bytes = self.state.pool.pop().unwrap_or_default();
                Some(Body::Owned(bytes.resized(head.len)))
            }
            Kind::Finished if fits && owner == host && segment.stages_done == 1 => {
                let places = self.places(segment.task, segment.piece.to, segment.piece.range.start);
                Some(Body::Borrowed(places[0], head.len))
            }
            _ => None,
        }
    }

    /// Keeps what `host` sent for a segment of this host's; with the last of them, adds them all.
    pub(crate) fn take(&mut self, index: usize, host: usize, share: Bytes) {
        let segment = &mut self.segments[index];
        segment.shares[host] = Some(share);
        if segment.shares.iter().flatten().count() + 1 == self.topology.hosts.len() {
            self.add_shares(index);
        }
    }

    /// Adds all hosts' elements of a segment, which is this host's, in rank order, and sends the result to everyone.
    fn add_shares(&mut self, index: usize) {
        let Segment {
            task,
            ref piece,
            ref shares,
            ..
        } = self.segments[index];
        let entry = self.entry(task);
        let own = self.source(task, 0, piece.range.start);
        let sources: Vec<*const u8> = shares
            .iter()
            .map(|share| share.as_ref().map_or(own, Bytes::as_ptr))
            .collect();
        let places = self.places(task, piece.to, piece.range.start);
        let reduction = Reduction {
            dtype: entry.dtype,
            op: entry.op,
            initial: None,
            sources: &sources,
            output: Output::Finished {
                places: &places,
                world_size: self.topology.world_size(),
            },
        };
        let (len, bytes) = (piece.range.len(), piece.range.len() * entry.dtype.size());
        // SAFETY: the shares are ours and as long as the segment; the place is this host's own source of it.
        unsafe { reduce::reduce(&reduction, len) };

        let segment = &mut self.segments[index];
        segment.is_finished = true;
        self.state.pool.extend(segment.shares.drain(..).flatten());
        self.todo -= 1;
        let (hosts, here) = (self.topology.hosts.len(), self.topology.here);
        for host in (1..hosts).map(|step| (here + step) % hosts) {
            let body = Body::Borrowed(places[0], bytes);
            self.send(host, Kind::Finished, 0, index, body);
        }
    }
}
