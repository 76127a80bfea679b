//! One exchange between the hosts' leaders: segments on their way through stages and routes. See `mesh` for the whole.

use std::ptr;
use std::time::{Duration, Instant};

use crate::call::{self, Call, Operation, Piece, Ranks};
use crate::connection::{Body, Bytes, Connection, Event, Head, Kind};
use crate::error::{CollectiveError, Result};
use crate::health::Wait;
use crate::mesh::State;
use crate::patience::SLICE;
use crate::poll::{self, NOTHING};
use crate::reduce::{self, Output, Reduction};
use crate::task::{Places, StagedMask, Task};
use crate::topology::{Run, Topology};

/// Bytes of a segment: enough that a system call costs little beside it, and several fit in a cache.
pub(crate) const SEGMENT: usize = 256 << 10;
/// Segments that a host has under way at a time.
const WINDOW: usize = 16;
/// The most bytes, over all ranks, that travel with the first frame.
const EAGER: usize = 64 << 10;
/// The longest first frame: a call, and a small exchange's elements with their padding.
const MAX_HELLO: usize = 1 << 20;
/// Frames that are worked on before others get their turn.
const FRAMES_PER_TURN: usize = 4;

/// A run of a piece that travels as one.
pub(crate) struct Segment {
    pub(crate) task: usize,
    pub(crate) piece: Piece,
    /// Empty where the exchange is direct.
    route: Vec<usize>,
    /// How many of this host's stages are done.
    pub(crate) stages_done: usize,
    pub(crate) is_finished: bool,
    /// What each other host has sent for it to this one, its owner, where the exchange is direct.
    pub(crate) shares: Vec<Option<Bytes>>,
}

impl Segment {
    pub(crate) fn new(task: usize, piece: Piece, route: Vec<usize>) -> Self {
        Segment {
            task,
            piece,
            route,
            stages_done: 0,
            is_finished: false,
            shares: Vec::new(),
        }
    }
}

/// One exchange in progress.
pub(crate) struct Exchange<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) state: &'a mut State,
    pub(crate) call: &'a Call<'a>,
    pub(crate) staged: StagedMask,
    pub(crate) tasks: &'a [Task],
    pub(crate) wait: &'a Wait<'a>,
    pub(crate) segments: Vec<Segment>,
    /// Segments that start here and have not been started, last first.
    pub(crate) unstarted: Vec<usize>,
    under_way: usize,
    /// Steps that are still to be done here.
    pub(crate) todo: usize,
    /// The first frames of the other hosts.
    pub(crate) hellos: Vec<Option<Bytes>>,
    pub(crate) is_eager: bool,
    /// Whether segments go by way of their owners; see `direct`.
    is_direct: bool,
    /// The most segments of this host's under way at a time.
    window: usize,
    checked: Instant,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(
        topology: &'a Topology,
        state: &'a mut State,
        call: &'a Call<'a>,
        staged: StagedMask,
        tasks: &'a [Task],
        wait: &'a Wait<'a>,
    ) -> Self {
        let world_size = topology.world_size();
        let bytes: usize = tasks
            .iter()
            .map(|task| task.range.len() * call.entries[task.entry].dtype.size())
            .sum();
        let is_eager = bytes.saturating_mul(world_size) <= EAGER;
        // Where every host's segments are under way at the same time, they share the window.
        let sources = if call.operation == Operation::AllGather {
            topology.hosts.len()
        } else {
            1
        };
        let window = (WINDOW / sources).max(2);
        let hellos = topology.hosts.iter().map(|_| None).collect();
        let mut exchange = Exchange {
            topology,
            state,
            call,
            staged,
            tasks,
            wait,
            segments: Vec::new(),
            unstarted: Vec::new(),
            under_way: 0,
            todo: topology.hosts.len() - 1,
            hellos,
            is_eager,
            is_direct: call.operation == Operation::AllReduce && !topology.is_hierarchical(),
            window,
            checked: Instant::now(),
        };
        if exchange.is_direct && !is_eager {
            exchange.cut_direct(bytes);
        } else if !is_eager {
            exchange.cut();
        }
        exchange
    }

    fn cut(&mut self) {
        let here = self.topology.here;
        for task in 0..self.tasks.len() {
            let size = self.entry(task).dtype.size();
            for piece in self.pieces(task) {
                let route = self.topology.route(&piece);
                let num_stages = self.topology.num_stages(&piece);
                let stages_here = (0..num_stages)
                    .filter(|stage| self.topology.stage(&piece, *stage).host == here)
                    .count();
                let starts_here = self.topology.stage(&piece, 0).host == here;
                let steps =
                    stages_here + usize::from(route.contains(&here)) + usize::from(starts_here);
                for piece in piece.runs(SEGMENT / size) {
                    if starts_here {
                        self.unstarted.push(self.segments.len());
                    }
                    self.todo += steps;
                    self.segments.push(Segment::new(task, piece, route.clone()));
                }
            }
        }
        self.unstarted.reverse();
    }

    pub(crate) fn entry(&self, task: usize) -> &'a call::Entry {
        &self.call.entries[self.tasks[task].entry]
    }

    pub(crate) fn pieces(&self, task: usize) -> Vec<Piece> {
        let world_size = self.topology.world_size();
        let (task, entry) = (&self.tasks[task], self.entry(task));
        call::pieces(
            self.call.operation,
            self.call.root,
            world_size,
            entry.len,
            task.range.clone(),
        )
        .collect()
    }

    /// Carries the exchange out. Returns the union of the hosts' masks.
    pub(crate) fn run(mut self) -> Result<StagedMask> {
        self.greet();
        self.start();
        loop {
            self.flush();
            let progress = self.read()?;
            self.flush();
            if self.todo == 0 && self.connections().all(|connection| connection.is_flushed()) {
                return Ok(self.staged);
            }
            if let Err(error) = self.check(progress) {
                // What has come before the group failed still counts: this exchange may be whole.
                if self.read()? {
                    continue;
                } else {
                    return Err(error);
                }
            }
            if !progress {
                self.sleep()?;
            }
        }
    }

    pub(crate) fn connections(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.state.connections.iter_mut().flatten()
    }

    fn flush(&mut self) {
        for connection in self.connections() {
            // SAFETY: what is queued is the tasks' memory or our own; the tasks' is the exchange's alone, and a run that was
            // queued is written again only when its segment comes back finished, which needs the whole of it received.
            unsafe { connection.flush() };
        }
    }

    /// The address of a local member's element.
    pub(crate) fn source(&self, task: usize, member: usize, element: usize) -> *const u8 {
        let offset = (element - self.tasks[task].range.start) * self.entry(task).dtype.size();
        // SAFETY: the element lies in the task's range.
        unsafe { self.tasks[task].sources[member].add(offset) }
    }

    /// The addresses where this host wants a finished run that starts at `element`.
    pub(crate) fn places(&self, task: usize, to: Ranks, element: usize) -> Vec<*mut u8> {
        let wanted = match to {
            Ranks::All => None,
            Ranks::One(rank) => match self.topology.place(rank) {
                (host, index) if host == self.topology.here => Some(index),
                _ => return Vec::new(),
            },
        };
        let offset = (element - self.tasks[task].range.start) * self.entry(task).dtype.size();
        // SAFETY: the element lies in the task's range.
        let at = |place: &*mut u8| unsafe { place.add(offset) };
        match (&self.tasks[task].places, wanted) {
            (Places::Each(places), None) => places.iter().map(at).collect(),
            (Places::Each(places), Some(index)) => vec![at(&places[index])],
            (Places::Shared(place), _) => vec![at(place)],
        }
    }

    /// Starts segments that begin here, as far as the window allows.
    fn start(&mut self) {
        while self.under_way < self.window {
            let Some(segment) = self.unstarted.pop() else {
                return;
            };
            self.under_way += 1;
            match self.is_direct {
                true => self.share(segment),
                false => self.add(segment, 0, None),
            }
        }
    }

    /// Adds the local ranks of a stage to what the stages before have come to, and passes it on.
    fn add(&mut self, index: usize, stage: usize, partial: Option<Bytes>) {
        let Segment {
            task, ref piece, ..
        } = self.segments[index];
        let piece = piece.clone();
        let run = self.topology.stage(&piece, stage);
        let entry = self.entry(task);
        let len = piece.range.len();
        let sources: Vec<_> = run
            .members
            .clone()
            .map(|member| self.source(task, member, piece.range.start))
            .collect();
        self.segments[index].stages_done += 1;
        self.todo -= 1;

        if stage + 1 == self.topology.num_stages(&piece) {
            return self.finish(index, &run, &sources, partial);
        }
        let next = self.topology.stage(&piece, stage + 1).host;
        let bytes = len * reduce::partial_size(entry.dtype);
        let body = match (partial, &sources[..]) {
            (None, [source]) if reduce::is_own_partial(entry.dtype) => {
                Body::Borrowed(source.cast_mut(), bytes)
            }
            (partial, _) => {
                let initial = partial.as_ref().map(Bytes::as_ptr);
                // The sum goes where the partial came, if it came.
                let mut sum = match partial {
                    Some(bytes) => bytes,
                    None => self.state.pool.pop().unwrap_or_default().resized(bytes),
                };
                let output = Output::Partial(sum.as_mut_ptr());
                let reduction = Reduction {
                    dtype: entry.dtype,
                    op: entry.op,
                    initial,
                    sources: &sources,
                    output,
                };
                // SAFETY: the sources hold the piece; the sum and the partial are ours, aligned and as long.
                unsafe { reduce::reduce(&reduction, len) };
                Body::Owned(sum)
            }
        };
        self.send(next, Kind::Partial, stage + 1, index, body);
    }

    /// The last stage: the segment is whole, goes to its places here and on its way.
    fn finish(&mut self, index: usize, run: &Run, sources: &[*const u8], partial: Option<Bytes>) {
        let Segment {
            task, ref piece, ..
        } = self.segments[index];
        let piece = piece.clone();
        let entry = self.entry(task);
        let len = piece.range.len();
        let bytes = len * entry.dtype.size();
        let mut places = self.places(task, piece.to, piece.range.start);
        let body = if piece.from == Ranks::All {
            let mut sum = None;
            if places.is_empty() {
                let buffer = sum.insert(self.state.pool.pop().unwrap_or_default().resized(bytes));
                places.push(buffer.as_mut_ptr());
            }
            let world_size = self.topology.world_size();
            let initial = partial.as_ref().map(Bytes::as_ptr);
            let output = Output::Finished {
                places: &places,
                world_size,
            };
            let reduction = Reduction {
                dtype: entry.dtype,
                op: entry.op,
                initial,
                sources,
                output,
            };
            // SAFETY: sources and places hold the piece, and a place is either a source or apart from all.
            unsafe { reduce::reduce(&reduction, len) };
            self.state.pool.extend(partial);
            sum.map_or(Body::Borrowed(places[0], bytes), Body::Owned)
        } else {
            debug_assert_eq!(run.members.len(), 1);
            for place in places
                .iter()
                .filter(|place| !ptr::eq(place.cast_const(), sources[0]))
            {
                // SAFETY: source and place hold the piece, and are different members' memory.
                unsafe { ptr::copy_nonoverlapping(sources[0], *place, bytes) };
            }
            Body::Borrowed(sources[0].cast_mut(), bytes)
        };
        self.deliver(index, 0, body);
    }

    /// Passes a segment that is whole here to the next host of its route, or ends its way.
    fn deliver(&mut self, index: usize, position: usize, body: Body) {
        let segment = &mut self.segments[index];
        segment.is_finished = true;
        self.todo -= 1;
        let next = segment.route.get(position + 1).copied();
        let first = self.topology.stage(&self.segments[index].piece, 0).host;
        match next {
            Some(host) => self.send(host, Kind::Finished, position + 1, index, body),
            None if first == self.topology.here => self.done(),
            None => self.send(first, Kind::Done, 0, index, Body::Owned(Bytes::default())),
        }
    }

    /// One of this host's segments has come to the end of its way.
    pub(crate) fn done(&mut self) {
        self.todo -= 1;
        self.under_way -= 1;
        self.start();
    }

    pub(crate) fn send(
        &mut self,
        host: usize,
        kind: Kind,
        stage: usize,
        segment: usize,
        body: Body,
    ) {
        if host == self.topology.here {
            // Two stages in a row are on different hosts, and a route names a host once.
            unreachable!("a frame from a host to itself");
        }
        let len = match &body {
            Body::Owned(bytes) => bytes.len(),
            Body::Borrowed(_, len) => *len,
        };
        let head = Head {
            exchange: self.state.exchange,
            kind,
            stage: stage as u16,
            segment: segment as u32,
            len,
        };
        if let Some(connection) = &mut self.state.connections[host] {
            connection.send(head, body);
        }
    }

    /// Reads from all connections; returns whether any had a frame.
    fn read(&mut self) -> Result<bool> {
        let mut progress = false;
        for host in 0..self.state.connections.len() {
            for _ in 0..FRAMES_PER_TURN {
                let exchange = self.state.exchange;
                let Some(connection) = &mut self.state.connections[host] else {
                    break;
                };
                if connection.ended.is_some() {
                    break;
                }
                let event = match connection.held.take() {
                    Some(head) => Event::Head(head),
                    // SAFETY: a body's place is our own memory, or one that `place` has checked.
                    None => unsafe { connection.read() }
                        .map_err(|error| self.corrupt(host, &error.to_string()))?,
                };
                match event {
                    Event::Pending => break,
                    Event::Head(head) if head.exchange > exchange => {
                        if let Some(connection) = &mut self.state.connections[host] {
                            connection.held = Some(head);
                        }
                        break;
                    }
                    Event::Head(head) => {
                        let body = self.place(host, &head)?;
                        if let Some(connection) = &mut self.state.connections[host] {
                            connection.accept(head, body);
                        }
                    }
                    Event::Frame(head, body) => {
                        progress = true;
                        self.handle(host, &head, body)?;
                    }
                }
            }
            // What was computed leaves while more comes in.
            if let Some(connection) = &mut self.state.connections[host] {
                // SAFETY: as in `flush`.
                unsafe { connection.flush() };
            }
        }
        Ok(progress)
    }

    /// Checks a head against what can come from `host` now, and says where the body goes.
    fn place(&mut self, host: usize, head: &Head) -> Result<Body> {
        let fail = |what: &str| Err(self.corrupt(host, what));
        if head.exchange != self.state.exchange {
            return fail("a frame of a past exchange");
        }
        if head.kind == Kind::Hello {
            return match self.hellos[host].is_none() && head.len <= MAX_HELLO {
                true => Ok(Body::Owned(Bytes::default().resized(head.len))),
                false => fail("an unexpected first frame"),
            };
        }
        if self.hellos[host].is_none() {
            return fail("a frame before the first frame");
        }
        let Some(segment) = self.segments.get(head.segment as usize) else {
            return fail("a segment that is not there");
        };
        if self.is_direct {
            return self
                .place_direct(host, head)
                .ok_or_else(|| self.corrupt(host, "a frame that is not expected"));
        }
        let (here, stage) = (self.topology.here, usize::from(head.stage));
        let (len, dtype) = (segment.piece.range.len(), self.entry(segment.task).dtype);
        let stage_host = |stage: usize| self.topology.stage(&segment.piece, stage).host;
        let num_stages = self.topology.num_stages(&segment.piece);
        let stages_before = |stage: usize| {
            (0..stage)
                .filter(|stage| stage_host(*stage) == here)
                .count()
        };
        match head.kind {
            Kind::Partial
                if stage > 0
                    && stage < num_stages
                    && stage_host(stage) == here
                    && stage_host(stage - 1) == host
                    && segment.stages_done == stages_before(stage)
                    && head.len == len * reduce::partial_size(dtype) =>
            {
                Ok(Body::Owned(
                    self.state.pool.pop().unwrap_or_default().resized(head.len),
                ))
            }
            Kind::Finished
                if stage > 0
                    && segment.route.get(stage) == Some(&here)
                    && segment.route[stage - 1] == host
                    && !segment.is_finished
                    && segment.stages_done == stages_before(num_stages)
                    && head.len == len * dtype.size() =>
            {
                let places = self.places(segment.task, segment.piece.to, segment.piece.range.start);
                Ok(Body::Borrowed(places[0], head.len))
            }
            Kind::Done
                if head.len == 0
                    && self.under_way > 0
                    && stage_host(0) == here
                    && segment.route.last() == Some(&host) =>
            {
                Ok(Body::Owned(Bytes::default()))
            }
            _ => fail("a frame that is not expected"),
        }
    }

    fn handle(&mut self, host: usize, head: &Head, body: Body) -> Result<()> {
        let index = head.segment as usize;
        match (head.kind, body) {
            (Kind::Hello, Body::Owned(hello)) => {
                self.compare(host, &hello)?;
                self.hellos[host] = Some(hello);
                self.todo -= 1;
                if self.is_eager && self.todo == 0 {
                    self.compute()?;
                }
            }
            (Kind::Partial, Body::Owned(partial)) => {
                self.add(index, usize::from(head.stage), Some(partial))
            }
            (Kind::Share, Body::Owned(share)) => self.take(index, host, share),
            (Kind::Finished, Body::Borrowed(..)) if self.is_direct => {
                self.segments[index].is_finished = true;
                self.done();
            }
            (Kind::Finished, Body::Borrowed(start, len)) => {
                let Segment {
                    task, ref piece, ..
                } = self.segments[index];
                for place in self
                    .places(task, piece.to, piece.range.start)
                    .into_iter()
                    .skip(1)
                {
                    // SAFETY: both hold the segment, and are different members' memory.
                    unsafe { ptr::copy_nonoverlapping(start, place, len) };
                }
                self.deliver(index, usize::from(head.stage), Body::Borrowed(start, len));
            }
            (Kind::Done, _) => self.done(),
            _ => return Err(self.corrupt(host, "a frame that is not expected")),
        }
        Ok(())
    }

    pub(crate) fn corrupt(&self, host: usize, what: &str) -> CollectiveError {
        let health = self.wait.health;
        let peer = health.peer(self.topology.leader(host));
        health.fail(CollectiveError::io(
            format!(
                "{} #{}: {peer} sent {what}",
                self.call.operation, self.call.sequence
            ),
            std::io::ErrorKind::InvalidData.into(),
        ))
    }

    /// Waits until a connection has something, for at most a slice.
    fn sleep(&mut self) -> Result<()> {
        let mut interests = Vec::with_capacity(self.state.connections.len());
        let mut limit = self.wait.slice().min(SLICE);
        for (host, connection) in self.state.connections.iter().enumerate() {
            interests.push(match connection {
                Some(connection) if connection.ended.is_none() => poll::interest(
                    &connection.stream,
                    connection.held.is_none(),
                    !connection.is_flushed(),
                ),
                _ => NOTHING,
            });
            if let Some(ended) = connection.as_ref().and_then(|connection| connection.ended) {
                limit = limit.min(Duration::from_millis(10));
                self.wait.verdict(self.topology.leader(host), ended)?;
            }
        }
        poll::poll(&mut interests, limit).map_err(|error| {
            self.wait
                .health
                .fail(CollectiveError::io("wait for the other hosts", error))
        })
    }

    /// Looks at the group's health: at once when nothing comes in, and now and then in any case.
    fn check(&mut self, progress: bool) -> Result<()> {
        let now = Instant::now();
        if now.duration_since(self.checked) >= SLICE.min(self.wait.slice()) {
            self.checked = now;
            return self.wait.check(|| self.suspects());
        }
        match self.wait.health.failure() {
            Some(error) if !progress => Err(error),
            _ => Ok(()),
        }
    }

    /// The ranks that this exchange waits for: those of hosts that have not begun it, or else the other leaders.
    fn suspects(&self) -> Vec<usize> {
        let others = (0..self.topology.hosts.len()).filter(|host| *host != self.topology.here);
        let silent: Vec<usize> = others
            .clone()
            .filter(|host| self.hellos[*host].is_none())
            .collect();
        match silent.is_empty() {
            true => others.map(|host| self.topology.leader(host)).collect(),
            false => silent
                .into_iter()
                .flat_map(|host| self.topology.hosts[host].clone())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::thread;

    use proptest::prelude::*;

    use super::*;
    use crate::buffer::{DType, ReduceOp};
    use crate::call::Entry;
    use crate::connection::HEAD;
    use crate::corpus::mutations;
    use crate::error::Peer;
    use crate::health::Health;
    use crate::mesh::Mesh;
    use crate::options::GroupOptions;

    /// Elements of a buffer that is cut into segments, and of one that travels with the first frame.
    const LENS: [usize; 2] = [200_000, 100];
    /// Elements on either side of a buffer, which nobody may touch.
    const MARGIN: usize = 1024;
    const UNTOUCHED: f32 = -7.0;

    /// How many members this rank's host has; the last rank is on the other host.
    fn topology(members: usize) -> Topology {
        let mut labels = vec![0; members];
        labels.push(1);
        Topology::new(&labels, 0)
    }

    fn entry(len: usize) -> [Entry; 1] {
        [Entry {
            dtype: DType::Float32,
            op: ReduceOp::Sum,
            len,
        }]
    }

    /// The outcome of an exchange whose peer sends these bytes and no more.
    fn against(
        call: &Call<'_>,
        members: usize,
        bytes: Vec<u8>,
        timeout: Duration,
    ) -> Result<StagedMask> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        let sender = thread::spawn(move || {
            // Who is not read to the end is hung up on.
            let _ = theirs.write_all(&bytes);
            let _ = theirs.shutdown(Shutdown::Write);
            theirs
        });
        let peers = (0..=members).map(|rank| Peer {
            rank,
            host: "a host".into(),
        });
        let lines = (0..=members).map(|_| None).collect();
        let health = Health::new(0, peers.collect(), lines, GroupOptions::default());
        let wait = Wait {
            health: &health,
            operation: call.operation,
            sequence: call.sequence,
            started: Instant::now(),
            timeout,
            interruptible: false,
        };
        let len = call.entries[0].len;
        let mut memory = vec![vec![UNTOUCHED; len + 2 * MARGIN]; members];
        let addresses: Vec<*mut u8> = memory
            .iter_mut()
            .map(|memory| memory[MARGIN..].as_mut_ptr().cast())
            .collect();
        // SAFETY: each address is that of `len` elements, which outlive the exchange.
        let tasks = [unsafe { Task::in_place(0, 0..len, 4, &addresses) }];
        let connection = Connection::new(ours).unwrap();
        let mesh = Mesh::new(topology(members), vec![None, Some(connection)]);
        let outcome = mesh.exchange(call, 0, &tasks, &wait);
        drop(mesh);
        sender.join().unwrap();
        for memory in &memory {
            let margins = [&memory[..MARGIN], &memory[MARGIN + len..]];
            assert!(margins.concat().iter().all(|value| *value == UNTOUCHED));
        }
        outcome
    }

    fn frame(kind: Kind, exchange: u64, stage: u16, segment: u32, body: &[u8]) -> Vec<u8> {
        let head = Head {
            exchange,
            kind,
            stage,
            segment,
            len: body.len(),
        };
        [&head.encode()[..], body].concat()
    }

    fn hello(call: &Call<'_>, elements: usize) -> Vec<u8> {
        let encoded = call.encode();
        let mut body = (encoded.len() as u32).to_le_bytes().to_vec();
        body.extend_from_slice(&encoded);
        body.extend_from_slice(&0u64.to_le_bytes());
        body.resize(body.len().next_multiple_of(8) + elements * 4, 0);
        frame(Kind::Hello, 1, 0, 0, &body)
    }

    /// Frames of every kind that may, or may not, come in an exchange: with the sizes that segments have, and others.
    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let kind = prop::sample::select(vec![
            Kind::Hello,
            Kind::Partial,
            Kind::Finished,
            Kind::Done,
            Kind::Share,
        ]);
        let len = prop::sample::select(vec![0, 4, 400, 200_000, SEGMENT, SEGMENT + 8]);
        let frame = (kind, 0u64..3, 0u16..4, 0u32..8, len);
        prop::collection::vec(frame, 0..6).prop_map(|frames| {
            let bytes = frames
                .into_iter()
                .map(|(kind, exchange, stage, segment, len)| {
                    let body = vec![0; len];
                    self::frame(kind, exchange, stage, segment, &body)
                });
            bytes.collect::<Vec<_>>().concat()
        })
    }

    /// A first frame as it should be, or nearly, then frames as they may come, or not.
    fn stream() -> impl Strategy<Value = (u8, usize, usize, Vec<u8>)> {
        let shape = (1u8..=4, 1usize..=2, prop::sample::select(&LENS[..]));
        shape.prop_flat_map(|(operation, members, len)| {
            let entries = entry(len);
            let call = Call {
                sequence: 1,
                operation: Operation::from_code(operation).unwrap(),
                root: 0,
                entries: &entries,
            };
            let first = hello(&call, if len < 1000 { len } else { 0 });
            let first = prop_oneof![Just(first.clone()), mutations(first)];
            (first, frames()).prop_map(move |(first, rest)| {
                let bytes = [first, rest].concat();
                (operation, members, len, bytes)
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            // Each waits for its deadline.
            cases: ProptestConfig::default().cases / 4,
            ..ProptestConfig::default()
        })]

        /// Whatever a peer sends, an exchange ends, with an error unless it was whole, and touches its buffers alone.
        #[test]
        fn no_bytes_of_a_peer_harm_an_exchange((operation, members, len, bytes) in stream()) {
            let entries = entry(len);
            let call = Call {
                sequence: 1,
                operation: Operation::from_code(operation).unwrap(),
                root: 0,
                entries: &entries,
            };
            let outcome = against(&call, members, bytes, Duration::from_millis(30));
            if let Err(error) = outcome {
                prop_assert!(
                    matches!(
                        error,
                        CollectiveError::Io { .. }
                            | CollectiveError::Mismatch { .. }
                            | CollectiveError::Timeout { .. }
                            | CollectiveError::PeerLost { .. }
                    ),
                    "{error:?}"
                );
            }
        }
    }

    #[test]
    fn each_malformation_of_a_stream_is_named() {
        let entries = entry(LENS[0]);
        let call = Call {
            sequence: 1,
            operation: Operation::AllReduce,
            root: 0,
            entries: &entries,
        };
        let endless = Head {
            exchange: 1,
            kind: Kind::Hello,
            stage: 0,
            segment: 0,
            len: 1 << 40,
        };
        let first = hello(&call, 0);
        let then = |frame: Vec<u8>| [first.clone(), frame].concat();
        for (bytes, expected) in [
            (endless.encode().to_vec(), "an unexpected first frame"),
            (vec![0xff; HEAD], "a malformed frame"),
            (frame(Kind::Share, 1, 0, 0, &[]), "a frame before the first"),
            (
                frame(Kind::Hello, 0, 0, 0, &[]),
                "a frame of a past exchange",
            ),
            (
                frame(Kind::Hello, 1, 0, 0, &[0xff; 64]),
                "a call that cannot be read",
            ),
            (then(first.clone()), "an unexpected first frame"),
            (
                then(frame(Kind::Share, 1, 0, 99, &[])),
                "a segment that is not there",
            ),
            (
                then(frame(Kind::Share, 1, 0, 0, &[0; 8])),
                "a frame that is not expected",
            ),
            (
                then(frame(Kind::Partial, 1, 1, 0, &[0; 8])),
                "a frame that is not expected",
            ),
            (
                then(frame(Kind::Done, 1, 0, 0, &[])),
                "a frame that is not expected",
            ),
        ] {
            let error = against(&call, 1, bytes, Duration::from_secs(20))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("rank 1 on a host sent") && error.contains(expected),
                "{error}, not {expected}"
            );
        }
    }
}
