//! Broadcasts and all-gathers: finished elements go from host to host around the ring, in segments.
//!
//! **Chosen** for broadcasts and all-gathers that are not small (`eager`).
//!
//! **Cost**, for H hosts and buffers of B bytes: `H - 1` messages of latency to the first segment's last host, after which
//! segments follow each other at the speed of a link. Of a broadcast each host receives B bytes once, and all but the last
//! send them once; of an all-gather each sends and receives `(H - 1) / H * B`.
//!
//! Of an all-gather all hosts' segments are under way at the same time, so they share the window.

use super::connection::{Body, Head};
use super::delivery::{Delivery, Parcel};
use super::exchange::{Algorithm, Exchange};
use super::segment::{SEGMENT, WINDOW};
use crate::call::Operation;

/// Segments that travel from their host to all others.
pub(crate) struct Ring {
    delivery: Delivery,
}

impl Ring {
    pub(crate) fn new(exchange: &Exchange<'_>) -> Self {
        let topology = exchange.topology;
        let parcels = exchange.tasks.cut(SEGMENT).map(|segment| {
            let route = topology.route(&segment.piece);
            let starter = route[0];
            Parcel::new(segment, route, starter)
        });
        let sources = match exchange.call.operation {
            Operation::AllGather => topology.hosts.len(),
            _ => 1,
        };
        let limit = (WINDOW / sources).max(2);
        Ring {
            delivery: Delivery::new(parcels.collect(), topology.here, limit),
        }
    }
}

impl Algorithm for Ring {
    fn start(&mut self, exchange: &mut Exchange<'_>) {
        while let Some(index) = self.delivery.next() {
            let segment = self.delivery.segment(index);
            let member = exchange.topology.stage(&segment.piece, 0).members.start;
            let source = exchange.tasks.source(segment, member);
            // SAFETY: source and places hold the segment, and are members' memory of their own.
            unsafe {
                exchange
                    .tasks
                    .copy(segment, source, &exchange.tasks.places(segment))
            };
            let body = Body::Borrowed(source.cast_mut(), exchange.tasks.num_bytes(segment));
            self.delivery.forward(exchange, index, 0, body);
        }
    }

    fn place(
        &self,
        exchange: &mut Exchange<'_>,
        host: usize,
        head: &Head,
    ) -> Result<Body, &'static str> {
        self.delivery.find(head)?;
        self.delivery.place(exchange, host, head)
    }

    fn take(&mut self, exchange: &mut Exchange<'_>, _host: usize, head: &Head, body: Body) {
        self.delivery.take(exchange, head, body);
        self.start(exchange);
    }

    fn is_done(&self) -> bool {
        self.delivery.is_done()
    }
}
