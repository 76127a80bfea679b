//! One exchange between the hosts' leaders: the first frames, by which they agree, and the frames of an algorithm.
//!
//! **Agreement.** Every exchange begins with the leader's call, sent to all others, and ends only when all others' have
//! come and are equal. A peer may be one exchange ahead: its frames wait unread.
//!
//! **No deadlock.** A leader always reads, and what it reads it works on at once; nothing waits for room in a queue. The
//! algorithms' windows bound what can be queued.

use std::ptr;
use std::time::{Duration, Instant};

use super::connection::{Body, Bytes, Connection, Head, Kind, Received};
use super::tasks::Tasks;
use super::topology::Topology;
use crate::call::{Call, OwnedCall};
use crate::deadline::SLICE;
use crate::error::{CollectiveError, Result};
use crate::liveness::wait::Wait;
use crate::poll::{self, NOTHING};
use crate::task::{StagedMask, Task};
use crate::wire::Reader;

/// The longest first frame: a call, and a small exchange's elements with their padding.
const MAX_GREETING: usize = 1 << 20;
/// Frames that are worked on before others get their turn.
const FRAMES_PER_TURN: usize = 4;

/// What a peer has done wrong.
pub(crate) const UNEXPECTED: &str = "a frame that is not expected";
pub(crate) const ABSENT: &str = "a segment that is not there";

/// How the elements of an exchange travel. One algorithm a file; `super::algorithm` says which is chosen when.
///
/// None of it waits: an algorithm works on what has come at once, and queues what it sends. A frame is offered to it only when
/// the first frame of its sender has come.
pub(crate) trait Algorithm {
    /// Appends to this host's first frame what travels with it.
    fn greet(&self, _exchange: &Exchange<'_>, _greeting: &mut Vec<u8>) {}

    /// Sends what can be sent before anything has come.
    fn start(&mut self, exchange: &mut Exchange<'_>);

    /// All first frames are here.
    ///
    /// # Errors
    /// Fails the group where one is not as it must be.
    fn greeted(&mut self, _exchange: &Exchange<'_>) -> Result<()> {
        Ok(())
    }

    /// Where the body of a frame from `host` goes.
    ///
    /// # Errors
    /// `ABSENT` or `UNEXPECTED` for a frame that cannot come now.
    fn place(
        &self,
        exchange: &mut Exchange<'_>,
        host: usize,
        head: &Head,
    ) -> std::result::Result<Body, &'static str>;

    /// A whole frame has come, into the place that it was given.
    fn take(&mut self, exchange: &mut Exchange<'_>, host: usize, head: &Head, body: Body);

    /// Whether nothing is left to be done here, but for first frames and what is queued.
    fn is_done(&self) -> bool;
}

/// The connections to the other hosts' leaders, and what one exchange leaves to the next.
pub(crate) struct Connections {
    /// By host; `None` for this one.
    pub(crate) by_host: Vec<Option<Connection>>,
    /// The number of the last exchange.
    pub(crate) exchange: u64,
    /// Used buffers, for the next partial sums.
    pub(crate) pool: Vec<Bytes>,
}

/// The first frame of another host, and where in it the elements begin.
struct Greeting {
    frame: Bytes,
    elements: usize,
}

/// One exchange in progress.
pub(crate) struct Exchange<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) call: &'a Call<'a>,
    pub(crate) tasks: Tasks<'a>,
    connections: &'a mut Connections,
    /// The union of the masks of the hosts that have greeted.
    staged: StagedMask,
    wait: &'a Wait<'a>,
    greetings: Vec<Option<Greeting>>,
    checked: Instant,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(
        topology: &'a Topology,
        connections: &'a mut Connections,
        call: &'a Call<'a>,
        staged: StagedMask,
        tasks: &'a [Task],
        wait: &'a Wait<'a>,
    ) -> Self {
        connections.exchange += 1;
        Exchange {
            topology,
            call,
            tasks: Tasks {
                topology,
                call,
                tasks,
            },
            connections,
            staged,
            wait,
            greetings: topology.hosts.iter().map(|_| None).collect(),
            checked: Instant::now(),
        }
    }

    /// Carries the exchange out. Returns the union of the hosts' masks.
    ///
    /// Blocks for as long as `wait` allows, and is woken by whatever comes over a connection.
    pub(crate) fn run(mut self, algorithm: &mut dyn Algorithm) -> Result<StagedMask> {
        self.greet(algorithm);
        algorithm.start(&mut self);
        loop {
            self.flush();
            let progress = self.read(algorithm)?;
            self.flush();
            if self.is_greeted() && algorithm.is_done() && self.is_flushed() {
                return Ok(self.staged);
            }
            if let Err(error) = self.check(progress) {
                // What has come before the group failed still counts: this exchange may be whole.
                if self.read(algorithm)? {
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

    /// Memory for what comes, used where there is some.
    pub(crate) fn spare(&mut self, bytes: usize) -> Bytes {
        let used = self.connections.pool.pop();
        used.unwrap_or_default().resized(bytes)
    }

    /// Keeps memory that is not needed any more.
    pub(crate) fn reuse(&mut self, used: impl IntoIterator<Item = Bytes>) {
        self.connections.pool.extend(used);
    }

    /// Queues a frame for another host, for `flush` to send. `stage` is the stage, or the place on the route, that it is for.
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
        let head = Head {
            exchange: self.connections.exchange,
            kind,
            stage: stage as u16,
            segment: segment as u32,
            len: body.len(),
        };
        if let Some(connection) = &mut self.connections.by_host[host] {
            connection.send(head, body);
        }
    }

    /// Sends this host's first frame to all: the call, the mask, and what the algorithm adds.
    fn greet(&mut self, algorithm: &dyn Algorithm) {
        let call = self.call.encode();
        let mut greeting = (call.len() as u32).to_le_bytes().to_vec();
        greeting.extend_from_slice(&call);
        greeting.extend_from_slice(&self.staged.to_le_bytes());
        greeting.resize(greeting.len().next_multiple_of(8), 0);
        algorithm.greet(self, &mut greeting);
        for host in (0..self.greetings.len()).filter(|host| *host != self.topology.here) {
            let mut body = Bytes::default().resized(greeting.len());
            // SAFETY: the body has just been made this long.
            unsafe {
                ptr::copy_nonoverlapping(greeting.as_ptr(), body.as_mut_ptr(), greeting.len())
            };
            self.send(host, Kind::Hello, 0, 0, Body::Owned(body));
        }
    }

    fn is_greeted(&self) -> bool {
        let num_greetings = self.greetings.iter().flatten().count();
        num_greetings + 1 == self.greetings.len()
    }

    /// The elements that came with a host's first frame.
    pub(crate) fn elements(&self, host: usize) -> &[u8] {
        match &self.greetings[host] {
            Some(greeting) => &greeting.frame.as_slice()[greeting.elements..],
            None => &[],
        }
    }

    /// Takes a host's first frame: its call must be this one's, and its mask joins the others'.
    fn take_greeting(&mut self, host: usize, frame: Bytes) -> Result<()> {
        let mut reader = Reader::new(frame.as_slice());
        let read = reader.bytes().and_then(|call| {
            let decoded = OwnedCall::decode(&mut Reader::new(call))?;
            let elements = (4 + call.len() + 8).next_multiple_of(8);
            Some((decoded, reader.u64()?, elements))
        });
        let (theirs, mask, elements) =
            read.ok_or_else(|| self.corrupt(host, "a call that cannot be read"))?;
        if elements > frame.len() {
            return Err(self.corrupt(host, "a short first frame"));
        }
        if theirs.borrow() != *self.call {
            return Err(self.mismatch(host, &theirs));
        }
        self.staged |= mask;
        self.greetings[host] = Some(Greeting { frame, elements });
        Ok(())
    }

    /// Fails the group, because a host has called something else.
    fn mismatch(&self, host: usize, theirs: &OwnedCall) -> CollectiveError {
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
        health.fail(CollectiveError::Mismatch {
            sequence: self.call.sequence,
            calls,
        })
    }

    /// Fails the group, because a host has sent what no host sends.
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

    fn is_flushed(&self) -> bool {
        let mut connections = self.connections.by_host.iter().flatten();
        connections.all(Connection::is_flushed)
    }

    fn flush(&mut self) {
        for connection in self.connections.by_host.iter_mut().flatten() {
            // SAFETY: what is queued is the tasks' memory or our own; the tasks' is the exchange's alone, and a run that was
            // queued is written again only when its segment comes back finished, which needs the whole of it received.
            unsafe { connection.flush() };
        }
    }

    /// Reads from all connections; returns whether any had a frame.
    fn read(&mut self, algorithm: &mut dyn Algorithm) -> Result<bool> {
        let mut progress = false;
        for host in 0..self.connections.by_host.len() {
            for _ in 0..FRAMES_PER_TURN {
                let exchange = self.connections.exchange;
                let Some(connection) = &mut self.connections.by_host[host] else {
                    break;
                };
                if connection.ended.is_some() {
                    break;
                }
                let event = match connection.held.take() {
                    Some(head) => Received::Head(head),
                    // SAFETY: a body's place is our own memory, or one that `place` has checked.
                    None => unsafe { connection.read() }
                        .map_err(|error| self.corrupt(host, &error.to_string()))?,
                };
                match event {
                    Received::Pending => break,
                    Received::Head(head) if head.exchange > exchange => {
                        if let Some(connection) = &mut self.connections.by_host[host] {
                            connection.held = Some(head);
                        }
                        break;
                    }
                    Received::Head(head) => {
                        let placed = self.place(algorithm, host, &head);
                        let body = placed.map_err(|what| self.corrupt(host, what))?;
                        if let Some(connection) = &mut self.connections.by_host[host] {
                            connection.accept(head, body);
                        }
                    }
                    Received::Frame(head, body) => {
                        progress = true;
                        self.take(algorithm, host, &head, body)?;
                    }
                }
            }
            // What was computed leaves while more comes in.
            if let Some(connection) = &mut self.connections.by_host[host] {
                // SAFETY: as in `flush`.
                unsafe { connection.flush() };
            }
        }
        Ok(progress)
    }

    /// Checks a head against what can come from `host` now, and says where the body goes.
    fn place(
        &mut self,
        algorithm: &dyn Algorithm,
        host: usize,
        head: &Head,
    ) -> std::result::Result<Body, &'static str> {
        if head.exchange != self.connections.exchange {
            return Err("a frame of a past exchange");
        }
        match (head.kind == Kind::Hello, self.greetings[host].is_some()) {
            (true, false) if head.len <= MAX_GREETING => {
                Ok(Body::Owned(Bytes::default().resized(head.len)))
            }
            (true, _) => Err("an unexpected first frame"),
            (false, false) => Err("a frame before the first frame"),
            (false, true) => algorithm.place(self, host, head),
        }
    }

    fn take(
        &mut self,
        algorithm: &mut dyn Algorithm,
        host: usize,
        head: &Head,
        body: Body,
    ) -> Result<()> {
        match (head.kind, body) {
            (Kind::Hello, Body::Owned(frame)) => {
                self.take_greeting(host, frame)?;
                if self.is_greeted() {
                    algorithm.greeted(self)?;
                }
            }
            (_, body) => algorithm.take(self, host, head, body),
        }
        Ok(())
    }

    /// Waits until a connection has something, for at most a slice.
    fn sleep(&mut self) -> Result<()> {
        let mut interests = Vec::with_capacity(self.connections.by_host.len());
        let mut limit = self.wait.slice().min(SLICE);
        for (host, connection) in self.connections.by_host.iter().enumerate() {
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
            .filter(|host| self.greetings[*host].is_none())
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
