//! Finished segments on their way along routes of hosts: all of the ring, and the second half of the chain.
//!
//! A host that a segment comes to keeps it, passes it on to the next of the route at once, and the last one tells the host
//! that started the segment, which then may start another.

use std::collections::VecDeque;
use std::ptr;

use super::connection::{Body, Bytes, Head, Kind};
use super::exchange::{ABSENT, Exchange, UNEXPECTED};
use super::segment::{Segment, Window};

/// The segments of an exchange on their routes.
pub(crate) struct Delivery {
    parcels: Vec<Parcel>,
    window: Window,
    /// Segments that are still to come here.
    to_come: usize,
}

/// A segment and the way that it goes once it is finished.
pub(crate) struct Parcel {
    segment: Segment,
    /// The hosts that it comes to, in order; each at most once.
    route: Vec<usize>,
    /// The host that starts it, and is told when it has come to the end.
    starter: usize,
    is_here: bool,
    /// Whether this host has started it, and not heard of its end.
    is_under_way: bool,
}

impl Parcel {
    pub(crate) fn new(segment: Segment, route: Vec<usize>, starter: usize) -> Self {
        Parcel {
            segment,
            route,
            starter,
            is_here: false,
            is_under_way: false,
        }
    }
}

impl Delivery {
    /// `limit` is the most segments of this host's under way at a time.
    pub(crate) fn new(parcels: Vec<Parcel>, here: usize, limit: usize) -> Self {
        let started_here: VecDeque<usize> = (0..parcels.len())
            .filter(|index| parcels[*index].starter == here)
            .collect();
        let to_come = parcels
            .iter()
            .filter(|parcel| parcel.route.contains(&here))
            .count();
        Delivery {
            parcels,
            window: Window::new(started_here, limit),
            to_come,
        }
    }

    pub(crate) fn segment(&self, index: usize) -> &Segment {
        &self.parcels[index].segment
    }

    /// The segment that a frame is of.
    pub(crate) fn find(&self, head: &Head) -> Result<&Segment, &'static str> {
        let parcel = self.parcels.get(head.segment as usize).ok_or(ABSENT)?;
        Ok(&parcel.segment)
    }

    /// The next segment for this host to start, if there is one and the window has room.
    pub(crate) fn next(&mut self) -> Option<usize> {
        let next = self.window.next()?;
        self.parcels[next].is_under_way = true;
        Some(next)
    }

    /// Passes a segment that is whole here, the host of this `position` of its route, to the next.
    pub(crate) fn forward(
        &mut self,
        exchange: &mut Exchange<'_>,
        index: usize,
        position: usize,
        body: Body,
    ) {
        let parcel = &mut self.parcels[index];
        parcel.is_here = true;
        self.to_come -= 1;
        let starter = parcel.starter;
        match parcel.route.get(position + 1).copied() {
            Some(host) => exchange.send(host, Kind::Finished, position + 1, index, body),
            None if starter == exchange.topology.here => self.end(index),
            None => {
                let nothing = Body::Owned(Bytes::default());
                exchange.send(starter, Kind::Done, 0, index, nothing);
            }
        }
    }

    /// One of this host's segments has come to the end of its way.
    fn end(&mut self, index: usize) {
        self.parcels[index].is_under_way = false;
        self.window.end_one();
    }

    /// Where the body of a frame goes: a finished segment into the first of its places here.
    pub(crate) fn place(
        &self,
        exchange: &Exchange<'_>,
        host: usize,
        head: &Head,
    ) -> Result<Body, &'static str> {
        let parcel = &self.parcels[head.segment as usize];
        let (route, position) = (&parcel.route, usize::from(head.stage));
        match head.kind {
            Kind::Finished
                if position > 0
                    && route.get(position) == Some(&exchange.topology.here)
                    && route[position - 1] == host
                    && !parcel.is_here
                    && head.len == exchange.tasks.num_bytes(&parcel.segment) =>
            {
                let places = exchange.tasks.places(&parcel.segment);
                Ok(Body::Borrowed(places[0], head.len))
            }
            Kind::Done if head.len == 0 && parcel.is_under_way && route.last() == Some(&host) => {
                Ok(Body::Owned(Bytes::default()))
            }
            _ => Err(UNEXPECTED),
        }
    }

    /// A frame has come to the place that it was given.
    pub(crate) fn take(&mut self, exchange: &mut Exchange<'_>, head: &Head, body: Body) {
        let index = head.segment as usize;
        let Body::Borrowed(start, len) = body else {
            return self.end(index);
        };
        let places = exchange.tasks.places(&self.parcels[index].segment);
        for place in places.into_iter().skip(1) {
            // SAFETY: both hold the segment, and are different members' memory.
            unsafe { ptr::copy_nonoverlapping(start, place, len) };
        }
        self.forward(exchange, index, usize::from(head.stage), body);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.to_come == 0 && self.window.is_empty()
    }
}
