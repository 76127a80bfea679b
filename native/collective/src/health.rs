//! What this rank knows of the others' lives, and the first cause of the group's failure.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::call::Operation;
use crate::error::{CollectiveError, LossCause, Peer, Result};
use crate::notice::Notice;
use crate::options::GroupOptions;
use crate::patience::SLICE;

/// `Member::left` of a rank that has not left.
const PRESENT: u64 = u64::MAX;

/// The most that waits to be sent to a peer that does not read.
const MAX_PENDING: usize = 1 << 20;

/// One rank of the group, as seen from here.
pub(crate) struct Member {
    pub(crate) peer: Peer,
    /// The number of the last collective that it is known to have entered.
    entered: AtomicU64,
    /// The number of the last collective it took part in, once it has said goodbye.
    left: AtomicU64,
    /// Its vote on sharing memory: 0 none yet, 1 no, 2 yes.
    vote: AtomicU8,
    /// The control connection; `None` for this rank itself.
    line: Option<Line>,
}

/// A non-blocking connection that any thread may write to, and the monitor reads.
pub(crate) struct Line {
    pub(crate) stream: TcpStream,
    pending: Mutex<Vec<u8>>,
}

impl Line {
    /// Takes over a connection that has proved itself.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Line {
            stream,
            pending: Mutex::new(Vec::new()),
        })
    }

    /// Sends what the socket takes at once and keeps the rest for `flush`. A broken connection is the reader's to notice.
    fn send(&self, bytes: &[u8]) {
        let mut pending = lock(&self.pending);
        if pending.len() + bytes.len() <= MAX_PENDING {
            pending.extend_from_slice(bytes);
        }
        Self::write(&self.stream, &mut pending);
    }

    /// Sends what is left; returns whether the socket took all.
    pub(crate) fn flush(&self) -> bool {
        let mut pending = lock(&self.pending);
        Self::write(&self.stream, &mut pending);
        pending.is_empty()
    }

    fn write(mut stream: &TcpStream, pending: &mut Vec<u8>) {
        while !pending.is_empty() {
            match stream.write(pending) {
                Ok(written) => drop(pending.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return pending.clear(),
            }
        }
    }
}

/// Shared by the callers' threads and the monitor.
pub(crate) struct Health {
    pub(crate) rank: usize,
    pub(crate) members: Vec<Member>,
    pub(crate) options: GroupOptions,
    failed: AtomicBool,
    closing: AtomicBool,
    cause: Mutex<Option<CollectiveError>>,
    changed: Condvar,
    /// The number of the last collective that this rank has entered, and its code while it lasts.
    entered: AtomicU64,
    doing: AtomicU8,
    /// The oldest operation that is in flight on a device, as its number and its code below that; 0 when there is none.
    in_flight: AtomicU64,
    /// Wakes those who sleep elsewhere than on `changed`.
    alarm: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Health {
    /// `lines[rank]` is the connection to `rank`, and `None` for this rank.
    pub(crate) fn new(
        rank: usize,
        peers: Vec<Peer>,
        lines: Vec<Option<Line>>,
        options: GroupOptions,
    ) -> Self {
        let member = |(peer, line)| Member {
            peer,
            entered: AtomicU64::new(0),
            left: AtomicU64::new(PRESENT),
            vote: AtomicU8::new(0),
            line,
        };
        Health {
            rank,
            members: peers.into_iter().zip(lines).map(member).collect(),
            options,
            failed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            cause: Mutex::new(None),
            changed: Condvar::new(),
            entered: AtomicU64::new(0),
            doing: AtomicU8::new(0),
            in_flight: AtomicU64::new(0),
            alarm: OnceLock::new(),
        }
    }

    pub(crate) fn peer(&self, rank: usize) -> Peer {
        self.members[rank].peer.clone()
    }

    pub(crate) fn line(&self, rank: usize) -> Option<&Line> {
        self.members[rank].line.as_ref()
    }

    /// The ranks other than this one.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.rank;
        (0..self.members.len()).filter(move |rank| *rank != own)
    }

    pub(crate) fn set_alarm(&self, alarm: impl Fn() + Send + Sync + 'static) {
        // Set once, while the group is made.
        let _ = self.alarm.set(Box::new(alarm));
    }

    pub(crate) fn enter(&self, sequence: u64, operation: Operation) {
        self.doing.store(operation as u8, Ordering::Relaxed);
        self.entered.store(sequence, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.doing.store(0, Ordering::Relaxed);
    }

    /// Takes note of the oldest operation that is in flight on a device, for messages.
    pub(crate) fn set_in_flight(&self, oldest: Option<(u64, Operation)>) {
        let code = oldest.map_or(0, |(sequence, operation)| sequence << 8 | operation as u64);
        self.in_flight.store(code, Ordering::Relaxed);
    }

    pub(crate) fn entered(&self) -> u64 {
        self.entered.load(Ordering::Relaxed)
    }

    /// What this rank is doing, for messages.
    pub(crate) fn activity(&self) -> String {
        let sequence = self.entered();
        let doing = Operation::from_code(self.doing.load(Ordering::Relaxed));
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        match (doing, Operation::from_code(in_flight as u8)) {
            (Some(operation), _) => format!("{operation} #{sequence}"),
            (None, Some(operation)) => format!("{operation} #{}", in_flight >> 8),
            (None, None) if sequence == 0 => "the making of the group".into(),
            (None, None) => format!(
                "the time between collectives #{sequence} and #{}",
                sequence + 1
            ),
        }
    }

    /// The first cause of failure, if there is one.
    #[inline]
    pub(crate) fn failure(&self) -> Option<CollectiveError> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.cause).clone()
    }

    /// Fails the group, tells every rank, and returns the first cause, which may be an older one.
    ///
    /// The others are told before anyone here can act on it: should this process end next, its reason arrives on each
    /// connection before that connection's end does.
    pub(crate) fn fail(&self, error: CollectiveError) -> CollectiveError {
        let told = Notice::Failure(Box::new(error.clone()));
        self.fail_telling(error, &told)
    }

    /// `fail`, where the others are told the cause in other words.
    fn fail_telling(&self, error: CollectiveError, told: &Notice) -> CollectiveError {
        let mut cause = lock(&self.cause);
        if let Some(first) = &*cause {
            return first.clone();
        }
        self.tell_all(told);
        *cause = Some(error.clone());
        drop(cause);
        self.failed.store(true, Ordering::Release);
        self.changed.notify_all();
        if let Some(alarm) = self.alarm.get() {
            alarm();
        }
        error
    }

    /// Fails the group because this rank wants it so.
    pub(crate) fn abort(&self, reason: &str) -> CollectiveError {
        let Peer { rank, host } = self.peer(self.rank);
        self.fail(CollectiveError::Aborted {
            rank,
            host,
            reason: reason.to_owned(),
        })
    }

    /// Fails the group for the loss of `rank`.
    pub(crate) fn lose(&self, rank: usize, cause: LossCause) -> CollectiveError {
        let Peer { rank, host } = self.peer(rank);
        self.fail(CollectiveError::PeerLost {
            rank,
            host,
            operation: self.activity(),
            cause,
        })
    }

    pub(crate) fn tell_all(&self, notice: &Notice) {
        let frame = notice.encode(&self.peer(self.rank));
        for member in &self.members {
            if let Some(line) = &member.line {
                line.send(&frame);
            }
        }
    }

    /// Says that this rank is done, so that the end of its connections is no loss to the others.
    pub(crate) fn close(&self) {
        if self.failure().is_none() {
            self.tell_all(&Notice::Goodbye {
                entered: self.entered(),
            });
        }
        self.closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Takes note of what `rank` says of itself or of the group.
    pub(crate) fn hear(&self, rank: usize, notice: Notice) {
        let member = &self.members[rank];
        match notice {
            Notice::Heartbeat { entered } => member.entered.store(entered, Ordering::Relaxed),
            Notice::Goodbye { entered } => {
                member.entered.store(entered, Ordering::Relaxed);
                member.left.store(entered, Ordering::Release);
                if let Some(alarm) = self.alarm.get() {
                    alarm();
                }
            }
            Notice::Vote(yes) => {
                member.vote.store(1 + u8::from(yes), Ordering::Release);
                let _held = lock(&self.cause);
                self.changed.notify_all();
            }
            // Who is leaving has nothing to pass on.
            Notice::Failure(_) if self.is_closing() => {}
            Notice::Failure(told) => {
                let Peer { rank: by, host } = member.peer.clone();
                // What the others call a loss of this rank is, seen from here, their giving it up.
                let given_up = match &*told {
                    CollectiveError::PeerLost { rank: lost, .. } => *lost == self.rank,
                    CollectiveError::Timeout { missing, .. } => {
                        missing.iter().any(|peer| peer.rank == self.rank)
                    }
                    _ => false,
                };
                let error = match given_up {
                    true => CollectiveError::Aborted {
                        rank: by,
                        host,
                        reason: told.to_string(),
                    },
                    false => (*told).clone(),
                };
                self.fail_telling(error, &Notice::Failure(told));
            }
        }
    }

    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.members[rank].left.load(Ordering::Acquire) != PRESENT
    }

    /// Votes on whether this rank could attach its host's shared memory, and waits for all votes; `true` at its index
    /// for a rank that could. Used once, while the group is made.
    pub(crate) fn vote(&self, own: bool, wait: &Wait<'_>) -> Result<Vec<bool>> {
        self.members[self.rank]
            .vote
            .store(1 + u8::from(own), Ordering::Release);
        self.tell_all(&Notice::Vote(own));
        loop {
            let absent: Vec<usize> = self
                .others()
                .filter(|rank| self.members[*rank].vote.load(Ordering::Acquire) == 0)
                .collect();
            if absent.is_empty() {
                return Ok(self
                    .members
                    .iter()
                    .map(|member| member.vote.load(Ordering::Acquire) == 2)
                    .collect());
            }
            wait.check(|| absent)?;
            self.sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn voted_no(&self, rank: usize) -> bool {
        self.members[rank].vote.load(Ordering::Acquire) == 1
    }

    /// Sleeps for `limit`, or until the group fails or a vote comes.
    pub(crate) fn sleep(&self, limit: Duration) {
        let cause = lock(&self.cause);
        if cause.is_none() {
            drop(self.changed.wait_timeout(cause, limit));
        }
    }
}

/// One call's wait for the other ranks: how long, and what ends it early.
pub(crate) struct Wait<'a> {
    pub(crate) health: &'a Health,
    pub(crate) operation: Operation,
    /// 0 while the group is made.
    pub(crate) sequence: u64,
    pub(crate) started: Instant,
    pub(crate) timeout: Duration,
    /// Whether the interrupt is asked: not on the communication thread, whose work is waited for elsewhere.
    pub(crate) interruptible: bool,
}

impl Wait<'_> {
    /// Called at least every `SLICE` while waiting. `suspects` are the ranks that the caller is waiting for.
    ///
    /// # Errors
    /// The group's failure; a rank that left before this call; the interrupt; the deadline. Each fails the group.
    pub(crate) fn check(&self, suspects: impl FnOnce() -> Vec<usize>) -> Result<()> {
        let health = self.health;
        if let Some(error) = health.failure() {
            return Err(error);
        }
        let left =
            |rank: &usize| health.members[*rank].left.load(Ordering::Acquire) < self.sequence;
        if let Some(rank) = health.others().find(left) {
            return Err(health.lose(rank, LossCause::Left));
        }
        if self.interruptible
            && health
                .options
                .interrupt
                .as_ref()
                .is_some_and(|interrupt| interrupt())
        {
            return Err(health.fail(CollectiveError::Interrupted));
        }
        let waited = self.started.elapsed();
        if waited < self.timeout {
            return Ok(());
        }
        let operation = if self.sequence == 0 {
            "connect".into()
        } else {
            self.operation.to_string()
        };
        let missing = self
            .missing(suspects())
            .into_iter()
            .map(|rank| health.peer(rank))
            .collect();
        Err(health.fail(CollectiveError::Timeout {
            operation,
            sequence: self.sequence,
            missing,
            waited,
        }))
    }

    /// Who is to blame: a rank that waits in the same call for a third is a suspect too, so the heartbeats' word on who
    /// has entered the call decides where it can.
    fn missing(&self, suspects: Vec<usize>) -> Vec<usize> {
        let late = |rank: &usize| {
            self.health.members[*rank].entered.load(Ordering::Relaxed) < self.sequence
        };
        let late_suspects: Vec<usize> = suspects.iter().copied().filter(late).collect();
        if !late_suspects.is_empty() {
            return late_suspects;
        }
        let late: Vec<usize> = self.health.others().filter(late).collect();
        if late.is_empty() { suspects } else { late }
    }

    /// What a data connection's end means: the monitor's verdict on `rank`, or a loss when none comes soon.
    pub(crate) fn verdict(&self, rank: usize, since: Instant) -> Result<()> {
        if since.elapsed() > Duration::from_secs(2) && !self.health.has_left(rank) {
            return Err(self.health.lose(rank, LossCause::Closed));
        }
        Ok(())
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }

    pub(crate) fn slice(&self) -> Duration {
        SLICE.min(self.remaining().max(Duration::from_millis(1)))
    }
}

/// A lock that a panicking holder does not take along: what it guards is whole after every statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
