//! Collectives between hosts, over TCP between the hosts' leaders.
//!
//! **The way of the elements.** A buffer is cut into segments. The ranks of a segment's reduction are visited in rank
//! order: a *stage* is a run of consecutive ranks on one host, whose leader adds their elements to what comes from the
//! stage before and passes it on, so that sums are formed as `((x0 + x1) + x2) + …` wherever the ranks are. The last
//! stage finishes the segment, which then travels along its *route* to the hosts that need it; the last of them tells the
//! first stage's host, which keeps a bounded number of its segments under way. A broadcast and an all-gather are the same
//! with one stage. So each link carries a reduced buffer once in each direction, whatever the number of hosts.
//!
//! **No deadlock.** A leader always reads, and what it reads it works on at once; nothing waits for room in a queue. The
//! windows bound what can be queued.
//!
//! **Small exchanges** travel with the first frame, from everyone to everyone, and each leader computes all of it: one
//! message of latency, and the same sums in the same order.
//!
//! **Agreement.** Every exchange begins with the leader's call, sent to all others, and ends only when all others' have
//! come and are equal. A peer may be one exchange ahead: its frames wait unread.

use std::ptr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::buffer::RawBuffer;
use crate::call::{self, Call, Operation, OwnedCall, Piece, Ranks};
use crate::connection::{Body, Bytes, Connection, Event, Head, Kind};
use crate::error::{CollectiveError, Result};
use crate::health::{Wait, lock};
use crate::patience::SLICE;
use crate::poll::{self, NOTHING};
use crate::reduce::{self, Output, Reduction};
use crate::task::{self, Places, StagedMask, Task};
use crate::topology::{Run, Topology};
use crate::wire::Reader;

/// Bytes of a segment: enough that a system call costs little beside it, and several fit in a cache.
const SEGMENT: usize = 256 << 10;
/// Segments that a host has under way at a time.
const WINDOW: usize = 16;
/// The most bytes, over all ranks, that travel with the first frame.
const EAGER: usize = 64 << 10;
/// Calls on fewer bytes are staged everywhere without asking.
const SMALL: usize = 16 << 10;
/// The longest first frame: a call, and a small exchange's elements with their padding.
const MAX_HELLO: usize = 1 << 20;
/// Frames that are worked on before others get their turn.
const FRAMES_PER_TURN: usize = 4;

/// The connections to the other hosts' leaders.
pub(crate) struct Mesh {
    topology: Topology,
    state: Mutex<State>,
}

struct State {
    /// By host; `None` for this one.
    connections: Vec<Option<Connection>>,
    exchange: u64,
    /// Used buffers, for the next partial sums.
    pool: Vec<Bytes>,
}

impl Mesh {
    /// `connections[host]` leads to the host's leader, and is `None` for this host.
    pub(crate) fn new(topology: Topology, connections: Vec<Option<Connection>>) -> Self {
        Mesh {
            topology,
            state: Mutex::new(State {
                connections,
                exchange: 0,
                pool: Vec::new(),
            }),
        }
    }

    /// Whether hosts have to agree on what is staged before they cut a call's buffers.
    pub(crate) fn must_agree(&self, call: &Call<'_>) -> bool {
        let bytes: usize = call
            .entries
            .iter()
            .map(|entry| entry.len * entry.dtype.size())
            .sum();
        self.topology.is_hierarchical() && bytes > SMALL
    }

    /// Carries out `call` on `buffers`, one per entry, for a host of one rank.
    ///
    /// # Safety
    /// Each buffer holds its entry's elements, and is this call's alone until it returns.
    pub(crate) unsafe fn run(
        &self,
        call: &Call<'_>,
        buffers: &[RawBuffer],
        wait: &Wait<'_>,
    ) -> Result<()> {
        if matches!(call.operation, Operation::Barrier | Operation::Allocate) {
            return self.exchange(call, 0, &[], wait).map(drop);
        }
        let staged = match self.topology.is_hierarchical() {
            true if self.must_agree(call) => self.exchange(call, 0, &[], wait)?,
            true => task::ALL_STAGED,
            false => 0,
        };
        let task = |entry: usize, range| {
            let address = buffers[entry].ptr.cast::<u8>();
            // SAFETY: the caller's promise.
            unsafe { Task::in_place(entry, range, call.entries[entry].dtype.size(), &[address]) }
        };
        let whole = (0..buffers.len()).filter(|entry| staged >> entry & 1 == 0);
        let mut tasks: Vec<Task> = whole
            .map(|entry| task(entry, 0..call.entries[entry].len))
            .collect();
        let chunks = task::chunks(call, staged);
        for turn in 0..chunks.len().max(1) {
            if let Some(chunk) = chunks.get(turn) {
                tasks.extend(
                    chunk
                        .iter()
                        .map(|part| task(part.entry, part.range.clone())),
                );
            }
            self.exchange(call, staged, &tasks, wait)?;
            tasks.clear();
        }
        Ok(())
    }

    /// Works on `tasks` together with the other leaders, who have the same ones up to addresses. Returns the union of the
    /// hosts' masks.
    ///
    /// The tasks' memory holds the elements that they describe, and is this exchange's alone until it returns, which
    /// `run` and `Host::run_across` see to.
    pub(crate) fn exchange(
        &self,
        call: &Call<'_>,
        staged: StagedMask,
        tasks: &[Task],
        wait: &Wait<'_>,
    ) -> Result<StagedMask> {
        if let Some(error) = wait.health.failure() {
            // What an earlier exchange left in the connections may point to memory that is gone.
            return Err(error);
        }
        let mut state = lock(&self.state);
        state.exchange += 1;
        Exchange::new(&self.topology, &mut state, call, staged, tasks, wait).run()
    }
}

/// A run of a piece that travels as one.
struct Segment {
    task: usize,
    piece: Piece,
    route: Vec<usize>,
    /// How many of this host's stages are done.
    stages_done: usize,
    is_finished: bool,
}

/// One exchange in progress.
struct Exchange<'a> {
    topology: &'a Topology,
    state: &'a mut State,
    call: &'a Call<'a>,
    staged: StagedMask,
    tasks: &'a [Task],
    wait: &'a Wait<'a>,
    segments: Vec<Segment>,
    /// Segments that start here and have not been started, last first.
    unstarted: Vec<usize>,
    under_way: usize,
    /// Steps that are still to be done here.
    todo: usize,
    /// The first frames of the other hosts.
    hellos: Vec<Option<Bytes>>,
    is_eager: bool,
    /// The most segments of this host's under way at a time.
    window: usize,
    checked: Instant,
}

impl<'a> Exchange<'a> {
    fn new(
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
            window,
            checked: Instant::now(),
        };
        if !is_eager {
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
                let mut start = piece.range.start;
                while start < piece.range.end {
                    let end = piece.range.end.min(start + SEGMENT / size);
                    let piece = Piece {
                        range: start..end,
                        ..piece.clone()
                    };
                    if starts_here {
                        self.unstarted.push(self.segments.len());
                    }
                    self.todo += steps;
                    let route = route.clone();
                    self.segments.push(Segment {
                        task,
                        piece,
                        route,
                        stages_done: 0,
                        is_finished: false,
                    });
                    start = end;
                }
            }
        }
        self.unstarted.reverse();
    }

    fn entry(&self, task: usize) -> &'a call::Entry {
        &self.call.entries[self.tasks[task].entry]
    }

    fn pieces(&self, task: usize) -> Vec<Piece> {
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

    fn run(mut self) -> Result<StagedMask> {
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

    fn connections(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.state.connections.iter_mut().flatten()
    }

    fn flush(&mut self) {
        for connection in self.connections() {
            // SAFETY: what is queued is the tasks' memory or our own; the tasks' is the exchange's alone, and a run that was
            // queued is written again only when its segment comes back finished, which needs the whole of it received.
            unsafe { connection.flush() };
        }
    }

    /// Sends the call, and a small exchange's elements, to all.
    fn greet(&mut self) {
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
                            std::slice::from_raw_parts(source, piece.range.len() * size)
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
    fn local(&self, piece: &Piece, host: usize) -> std::ops::Range<usize> {
        match piece.from {
            Ranks::All => 0..self.topology.hosts[host].len(),
            Ranks::One(rank) => match self.topology.place(rank) {
                (place, index) if place == host => index..index + 1,
                _ => 0..0,
            },
        }
    }

    /// The address of a local member's element.
    fn source(&self, task: usize, member: usize, element: usize) -> *const u8 {
        let offset = (element - self.tasks[task].range.start) * self.entry(task).dtype.size();
        // SAFETY: the element lies in the task's range.
        unsafe { self.tasks[task].sources[member].add(offset) }
    }

    /// The addresses where this host wants a finished run that starts at `element`.
    fn places(&self, task: usize, to: Ranks, element: usize) -> Vec<*mut u8> {
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
            self.add(segment, 0, None);
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
    fn done(&mut self) {
        self.todo -= 1;
        self.under_way -= 1;
        self.start();
    }

    fn send(&mut self, host: usize, kind: Kind, stage: usize, segment: usize, body: Body) {
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

    fn compare(&mut self, host: usize, hello: &Bytes) -> Result<()> {
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
    fn compute(&mut self) -> Result<()> {
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

    fn corrupt(&self, host: usize, what: &str) -> CollectiveError {
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
