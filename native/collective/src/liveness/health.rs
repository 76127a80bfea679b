//! What this rank knows of the others' lives, and the first cause of the group's failure.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

use super::control_connection::ControlConnection;
use super::notice::Notice;
use crate::call::Operation;
use crate::error::{CollectiveError, LossCause};
use crate::lock::lock;
use crate::options::GroupOptions;
use crate::peer::Peer;
use crate::phase::{CurrentPhase, LateRank, Stall};

/// `Member::left` of a rank that has not left.
const PRESENT: u64 = u64::MAX;

/// How long there is at least between two beats for each peer: a rank sends no more than 250 in a second.
const BETWEEN_BEATS: Duration = Duration::from_millis(4);

/// Who is told of ranks that keep the others waiting.
pub(crate) type StallListener = Box<dyn Fn(Stall) + Send + Sync>;

/// One rank of the group, as seen from here.
pub(crate) struct Member {
    pub(crate) peer: Peer,
    /// The number of the last collective that it is known to have entered.
    entered: AtomicU64,
    /// What it is in, as it last said.
    phase: CurrentPhase,
    /// The number of the last collective it took part in, once it has said goodbye.
    left: AtomicU64,
    /// Its vote on sharing memory: 0 none yet, 1 no, 2 yes.
    vote: AtomicU8,
    /// The control connection; `None` for this rank itself.
    control: Option<ControlConnection>,
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
    /// Who is told of ranks that keep the others waiting, and after how long.
    stall_listener: OnceLock<(Duration, StallListener)>,
    /// Wakes those who sleep elsewhere than on `changed`.
    alarm: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Health {
    /// `controls[rank]` is the connection to `rank`, and `None` for this rank.
    pub(crate) fn new(
        rank: usize,
        peers: Vec<Peer>,
        controls: Vec<Option<ControlConnection>>,
        options: GroupOptions,
    ) -> Self {
        let member = |(peer, control)| Member {
            peer,
            entered: AtomicU64::new(0),
            phase: CurrentPhase::default(),
            left: AtomicU64::new(PRESENT),
            vote: AtomicU8::new(0),
            control,
        };
        Health {
            rank,
            members: peers.into_iter().zip(controls).map(member).collect(),
            options,
            failed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            cause: Mutex::new(None),
            changed: Condvar::new(),
            entered: AtomicU64::new(0),
            doing: AtomicU8::new(0),
            in_flight: AtomicU64::new(0),
            stall_listener: OnceLock::new(),
            alarm: OnceLock::new(),
        }
    }

    pub(crate) fn peer(&self, rank: usize) -> Peer {
        self.members[rank].peer.clone()
    }

    pub(crate) fn control(&self, rank: usize) -> Option<&ControlConnection> {
        self.members[rank].control.as_ref()
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

    /// See `ProcessGroup::watch_stalls`.
    pub(crate) fn set_stall_listener(&self, after: Duration, listener: StallListener) {
        // The first stays.
        let _ = self.stall_listener.set((after, listener));
    }

    pub(crate) fn stall_listener(&self) -> Option<&(Duration, StallListener)> {
        self.stall_listener.get()
    }

    /// See `ProcessGroup::enter_phase`.
    pub(crate) fn enter_phase(&self, name: &str) {
        self.members[self.rank].phase.enter(name);
    }

    /// A rank that is waited for, with what is known of it.
    pub(crate) fn late(&self, rank: usize) -> LateRank {
        LateRank {
            peer: self.peer(rank),
            phase: self.members[rank].phase.get(),
        }
    }

    /// The newest collective that any rank is known to have entered, and those that have not, which are in the group.
    pub(crate) fn behind(&self) -> (u64, Vec<usize>) {
        let entered = |rank: usize| match rank == self.rank {
            true => self.entered(),
            false => self.members[rank].entered.load(Ordering::Relaxed),
        };
        let ranks = 0..self.members.len();
        let newest = ranks.clone().map(entered).max().unwrap_or(0);
        let late = ranks.filter(|&rank| entered(rank) < newest && !self.has_left(rank));
        (newest, late.collect())
    }

    /// The time between two beats: at most a quarter of `heartbeat_timeout`, unless `heartbeat_interval` is longer.
    pub(crate) fn beat_interval(&self) -> Duration {
        let options = &self.options;
        let for_all = BETWEEN_BEATS * (self.members.len() - 1) as u32;
        options
            .heartbeat_interval
            .max(for_all.min(options.heartbeat_timeout / 4))
    }

    /// What this rank says of itself at every beat.
    pub(crate) fn heartbeat(&self) -> Notice {
        Notice::Heartbeat {
            entered: self.entered(),
            phase: self.members[self.rank].phase.get(),
        }
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
            if let Some(control) = &member.control {
                control.send(&frame);
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
            Notice::Heartbeat { entered, phase } => {
                member.entered.store(entered, Ordering::Relaxed);
                member.phase.set(phase);
            }
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
                        missing.iter().any(|late| late.peer.rank == self.rank)
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

    /// Whether a rank is known to have entered this collective.
    pub(crate) fn has_entered(&self, rank: usize, sequence: u64) -> bool {
        self.members[rank].entered.load(Ordering::Relaxed) >= sequence
    }

    /// Whether a rank has left the group without taking part in this collective.
    pub(crate) fn left_before(&self, rank: usize, sequence: u64) -> bool {
        self.members[rank].left.load(Ordering::Acquire) < sequence
    }

    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.members[rank].left.load(Ordering::Acquire) != PRESENT
    }

    /// Tells all others whether this rank could attach its host's shared memory. Once, while the group is made.
    pub(crate) fn cast_vote(&self, yes: bool) {
        let own = &self.members[self.rank].vote;
        own.store(1 + u8::from(yes), Ordering::Release);
        self.tell_all(&Notice::Vote(yes));
    }

    /// What a rank has voted, once its vote has come.
    pub(crate) fn vote(&self, rank: usize) -> Option<bool> {
        match self.members[rank].vote.load(Ordering::Acquire) {
            0 => None,
            vote => Some(vote == 2),
        }
    }

    pub(crate) fn voted_no(&self, rank: usize) -> bool {
        self.vote(rank) == Some(false)
    }

    /// Sleeps for `limit`, or until the group fails or a vote comes.
    pub(crate) fn sleep(&self, limit: Duration) {
        let cause = lock(&self.cause);
        if cause.is_none() {
            drop(self.changed.wait_timeout(cause, limit));
        }
    }
}
