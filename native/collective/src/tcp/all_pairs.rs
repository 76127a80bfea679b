//! The all-reduce between hosts of one rank each, where no host has several elements to add on the way.
//!
//! Each segment has an owner. The other hosts send it their elements of the segment as they are; it adds all of them to its
//! own in rank order, and sends the result to everyone.
//!
//! **Chosen** for an all-reduce where every host has one rank and the buffers are not small (`eager`).
//!
//! **Cost**, for H hosts and buffers of B bytes: two messages of latency. Each host sends and receives
//! `2 * (H - 1) / H * B` bytes, which is the least that an all-reduce can do (Patarasuk and Yuan, 2009), and adds
//! `(H - 1) / H * B` of them: all hosts do the same work. A ring moves as much in `2 * (H - 1)` messages of latency, and adds
//! each segment in another order.
//!
//! A host has a bounded number of its elements' segments under way: sent, and not come back finished. Every host goes
//! through the segments in the same order, but for those of one round, one for each owner: there it starts with the host
//! after it, so that not all send to one.

use super::connection::{Body, Bytes, Head, Kind};
use super::exchange::{ABSENT, Algorithm, Exchange, UNEXPECTED};
use super::segment::{SEGMENT, Segment, WINDOW, Window};

/// The shortest segment, in bytes, into which a small buffer is cut so that every host owns a part of it.
const SHORTEST: usize = 16 << 10;
/// Segments that each host owns at least of a buffer that is not that small, so that sums travel while others are formed.
const ROUNDS: usize = 2;

/// Every segment by way of its owner.
pub(crate) struct AllPairs {
    segments: Vec<Owned>,
    window: Window,
    /// Segments that are not finished here.
    todo: usize,
}

/// A segment, and how far it is.
struct Owned {
    segment: Segment,
    owner: usize,
    /// Whether this host's elements are on their way to the owner.
    is_sent: bool,
    is_finished: bool,
    /// What each other host has sent to this one, the owner.
    shares: Vec<Option<Bytes>>,
}

impl AllPairs {
    pub(crate) fn new(exchange: &Exchange<'_>) -> Self {
        let (hosts, here) = (exchange.topology.hosts.len(), exchange.topology.here);
        let bytes = (exchange.tasks.bytes_per_rank() / (hosts * ROUNDS)).clamp(SHORTEST, SEGMENT);
        let owned = |(index, segment): (usize, Segment)| {
            let owner = index % hosts;
            let num_shares = if owner == here { hosts } else { 0 };
            Owned {
                segment,
                owner,
                is_sent: false,
                is_finished: false,
                shares: (0..num_shares).map(|_| None).collect(),
            }
        };
        let segments: Vec<Owned> = exchange.tasks.cut(bytes).enumerate().map(owned).collect();
        let mut unstarted: Vec<usize> = (0..segments.len())
            .filter(|index| segments[*index].owner != here)
            .collect();
        unstarted.sort_by_key(|index| (index / hosts, (index + hosts - here) % hosts));
        AllPairs {
            todo: segments.len(),
            segments,
            window: Window::new(unstarted.into(), WINDOW),
        }
    }

    /// Adds all hosts' elements of a segment, which is this host's, in rank order, and sends the result to everyone.
    fn add_shares(&mut self, exchange: &mut Exchange<'_>, index: usize) {
        let owned = &mut self.segments[index];
        let own = exchange.tasks.source(&owned.segment, 0);
        let sources: Vec<*const u8> = owned
            .shares
            .iter()
            .map(|share| share.as_ref().map_or(own, Bytes::as_ptr))
            .collect();
        let places = exchange.tasks.places(&owned.segment);
        // SAFETY: the shares are ours and as long as the segment; the place is this host's own source of it.
        unsafe {
            exchange
                .tasks
                .finish(&owned.segment, None, &sources, &places)
        };

        owned.is_finished = true;
        self.todo -= 1;
        exchange.reuse(owned.shares.drain(..).flatten());
        let bytes = exchange.tasks.num_bytes(&owned.segment);
        let (hosts, here) = (exchange.topology.hosts.len(), exchange.topology.here);
        for host in (1..hosts).map(|step| (here + step) % hosts) {
            let body = Body::Borrowed(places[0], bytes);
            exchange.send(host, Kind::Finished, 0, index, body);
        }
    }
}

impl Algorithm for AllPairs {
    /// Sends this host's elements to the owners, as far as the window allows.
    fn start(&mut self, exchange: &mut Exchange<'_>) {
        while let Some(index) = self.window.next() {
            let owned = &mut self.segments[index];
            owned.is_sent = true;
            let source = exchange.tasks.source(&owned.segment, 0).cast_mut();
            let body = Body::Borrowed(source, exchange.tasks.num_bytes(&owned.segment));
            exchange.send(owned.owner, Kind::Share, 0, index, body);
        }
    }

    fn place(
        &self,
        exchange: &mut Exchange<'_>,
        host: usize,
        head: &Head,
    ) -> std::result::Result<Body, &'static str> {
        let owned = self.segments.get(head.segment as usize).ok_or(ABSENT)?;
        if owned.is_finished || head.len != exchange.tasks.num_bytes(&owned.segment) {
            return Err(UNEXPECTED);
        }
        match head.kind {
            Kind::Share
                if owned.owner == exchange.topology.here && owned.shares[host].is_none() =>
            {
                Ok(Body::Owned(exchange.spare(head.len)))
            }
            Kind::Finished if owned.owner == host && owned.is_sent => {
                let places = exchange.tasks.places(&owned.segment);
                Ok(Body::Borrowed(places[0], head.len))
            }
            _ => Err(UNEXPECTED),
        }
    }

    fn take(&mut self, exchange: &mut Exchange<'_>, host: usize, head: &Head, body: Body) {
        let index = head.segment as usize;
        let owned = &mut self.segments[index];
        if let (Kind::Share, Body::Owned(share)) = (head.kind, body) {
            owned.shares[host] = Some(share);
            if owned.shares.iter().flatten().count() + 1 == owned.shares.len() {
                self.add_shares(exchange, index);
            }
            return;
        }
        owned.is_finished = true;
        self.todo -= 1;
        self.window.end_one();
        self.start(exchange);
    }

    fn is_done(&self) -> bool {
        self.todo == 0
    }
}
