//! Reductions between hosts of several ranks: partial sums go along a pipelined chain in rank order, results come back.
//!
//! A *stage* is a run of consecutive ranks on one host, whose leader adds their elements to what comes from the stage before
//! and passes it on, so that sums are formed as `((x0 + x1) + x2) + …` wherever the ranks are. The last stage finishes the
//! segment, which then goes along its route (`delivery`): of an all-reduce to all hosts, in the other direction; of a
//! reduce-scatter to the host of the rank that it is for.
//!
//! **Chosen** for reduce-scatters that are not small (`eager`), and for all-reduces where some host has several ranks.
//!
//! **Cost**, for S stages on H hosts and buffers of B bytes: to the first segment's end `(S - 1) + (H - 1)` messages of latency for an
//! all-reduce, and `(S - 1) + 1` for a reduce-scatter, after which segments follow each other at the speed of a link. An all-reduce carries B bytes once in each direction of
//! each link between neighbours, whatever the number of hosts; partial sums of 16-bit types are of 32 bits, so twice that on
//! the way up. A reduce-scatter carries B bytes up the chain and each part once to its host. There are as many stages as hosts
//! where the ranks of a host are numbered one after another, and more otherwise.

use super::connection::{Body, Bytes, Head, Kind};
use super::delivery::{Delivery, Parcel};
use super::exchange::{Algorithm, Exchange, UNEXPECTED};
use super::segment::{SEGMENT, WINDOW};
use crate::reduce::{self, Output};

/// Segments that travel through the stages of their reduction, and then along their routes.
pub(crate) struct Chain {
    delivery: Delivery,
    /// How many of this host's stages each segment has passed.
    stages_done: Vec<usize>,
    /// The stages that are this host's, ascending.
    stages_here: Vec<usize>,
    num_stages: usize,
    /// Stages of segments that are still to be passed here.
    todo: usize,
}

impl Chain {
    pub(crate) fn new(exchange: &Exchange<'_>) -> Self {
        let topology = exchange.topology;
        let stages = topology.stages();
        let stages_here: Vec<usize> = (0..stages.len())
            .filter(|stage| stages[*stage].host == topology.here)
            .collect();
        let parcels: Vec<Parcel> = exchange
            .tasks
            .cut(SEGMENT)
            .map(|segment| {
                let route = topology.route(&segment.piece);
                Parcel::new(segment, route, stages[0].host)
            })
            .collect();
        Chain {
            stages_done: vec![0; parcels.len()],
            todo: parcels.len() * stages_here.len(),
            stages_here,
            num_stages: stages.len(),
            delivery: Delivery::new(parcels, topology.here, WINDOW),
        }
    }

    /// Adds the local ranks of a stage to what the stages before have come to, and passes it on.
    fn add(
        &mut self,
        exchange: &mut Exchange<'_>,
        index: usize,
        stage: usize,
        partial: Option<Bytes>,
    ) {
        let segment = self.delivery.segment(index);
        let members = exchange.topology.stages()[stage].members.clone();
        let sources: Vec<_> = members
            .map(|member| exchange.tasks.source(segment, member))
            .collect();
        self.stages_done[index] += 1;
        self.todo -= 1;
        if stage + 1 == self.num_stages {
            return self.finish(exchange, index, &sources, partial);
        }

        let dtype = exchange.tasks.entry(segment).dtype;
        let bytes = segment.piece.range.len() * reduce::partial_size(dtype);
        let body = match (partial, &sources[..]) {
            (None, [source]) if reduce::is_own_partial(dtype) => {
                Body::Borrowed(source.cast_mut(), bytes)
            }
            (partial, _) => {
                let initial = partial.as_ref().map(Bytes::as_ptr);
                // The sum goes where the partial came, if it came.
                let mut sum = partial.unwrap_or_else(|| exchange.spare(bytes));
                let output = Output::Partial(sum.as_mut_ptr());
                // SAFETY: the sources hold the piece; the sum and the partial are ours, aligned and as long.
                unsafe { exchange.tasks.reduce(segment, initial, &sources, output) };
                Body::Owned(sum)
            }
        };
        let next = exchange.topology.stages()[stage + 1].host;
        exchange.send(next, Kind::Partial, stage + 1, index, body);
    }

    /// The last stage: the segment is whole, goes to its places here and on its way.
    fn finish(
        &mut self,
        exchange: &mut Exchange<'_>,
        index: usize,
        sources: &[*const u8],
        partial: Option<Bytes>,
    ) {
        let segment = self.delivery.segment(index);
        let bytes = exchange.tasks.num_bytes(segment);
        let mut places = exchange.tasks.places(segment);
        let mut sum = None;
        if places.is_empty() {
            let buffer: &mut Bytes = sum.insert(exchange.spare(bytes));
            places.push(buffer.as_mut_ptr());
        }
        let initial = partial.as_ref().map(Bytes::as_ptr);
        // SAFETY: sources and places hold the piece, and a place is either a source or apart from all.
        unsafe { exchange.tasks.finish(segment, initial, sources, &places) };
        exchange.reuse(partial);
        let body = sum.map_or(Body::Borrowed(places[0], bytes), Body::Owned);
        self.delivery.forward(exchange, index, 0, body);
    }
}

impl Algorithm for Chain {
    fn start(&mut self, exchange: &mut Exchange<'_>) {
        while let Some(index) = self.delivery.next() {
            self.add(exchange, index, 0, None);
        }
    }

    fn place(
        &self,
        exchange: &mut Exchange<'_>,
        host: usize,
        head: &Head,
    ) -> Result<Body, &'static str> {
        let index = head.segment as usize;
        let segment = self.delivery.find(head)?;
        // The first stage starts by itself.
        let stage = usize::from(head.stage);
        let is_next = stage > 0 && self.stages_here.get(self.stages_done[index]) == Some(&stage);
        let dtype = exchange.tasks.entry(segment).dtype;
        match head.kind {
            Kind::Partial
                if is_next
                    && exchange.topology.stages()[stage - 1].host == host
                    && head.len == segment.piece.range.len() * reduce::partial_size(dtype) =>
            {
                Ok(Body::Owned(exchange.spare(head.len)))
            }
            Kind::Finished if self.stages_done[index] < self.stages_here.len() => Err(UNEXPECTED),
            _ => self.delivery.place(exchange, host, head),
        }
    }

    fn take(&mut self, exchange: &mut Exchange<'_>, _host: usize, head: &Head, body: Body) {
        match (head.kind, body) {
            (Kind::Partial, Body::Owned(partial)) => {
                let stage = usize::from(head.stage);
                self.add(exchange, head.segment as usize, stage, Some(partial));
            }
            (_, body) => self.delivery.take(exchange, head, body),
        }
        self.start(exchange);
    }

    fn is_done(&self) -> bool {
        self.todo == 0 && self.delivery.is_done()
    }
}
