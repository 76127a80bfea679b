//! The memory through which the ranks of one host meet: arrivals, calls, and the staging areas.
//!
//! ```text
//! page 0          magic, and the group's context
//! page 1 + i      slot i: arrivals | sleepers | vote | two boards     (each on cache lines of its own)
//! then            the result area, and one staging area per member
//! ```
//!
//! **The protocol.** A slot is written by its member alone, except `sleepers`. A member publishes its call on board
//! `sequence % 2`, stores its new arrival count (release), and waits until every other count is as high (acquire): all it
//! wrote before is then visible to all. Between two such barriers a byte of shared memory is written by one member and
//! read by none, or read by any and written by none. Two boards suffice: a member writes a board again two calls later,
//! for which every other member must have arrived at the call between, and so be done reading.
//!
//! **Sleeping.** A waiter spins for a bounded time if every member can have a core, then offers its core to others for a
//! bounded time. Then it counts itself in the slot it waits for, looks again, and sleeps on the count; the arriving member
//! stores its count, then looks for sleepers. Both use sequentially consistent accesses, so one of the two sees the other.
//! A sleep lasts `SLICE` at most, and the monitor wakes sleepers when the group fails.
//!
//! **Trust.** What others wrote is read with atomic loads and checked before it becomes a length or an address.

use std::hint;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::futex;
use crate::buffer::{DType, ReduceOp};
use crate::call::{Call, Entry, MAX_ENTRIES, Operation, OwnedCall};
use crate::error::Result;
use crate::liveness::wait::Wait;
use crate::memory::mapping::Mapping;
use crate::memory::region::Location;
use crate::task::STAGING_AREA;

const MAGIC: u64 = u64::from_le_bytes(*b"FLMBRD01");
const PAGE: usize = 4096;
const SLEEPERS: usize = 64;
const VOTE: usize = 128;
const BOARDS: usize = 192;
const WORDS_PER_ENTRY: usize = 3;
const BOARD_BYTES: usize = (2 + MAX_ENTRIES * WORDS_PER_ENTRY) * 8;
const _: () = assert!(BOARDS + 2 * BOARD_BYTES <= PAGE);

/// Areas start on different cache sets.
const STAGING_STRIDE: usize = STAGING_AREA + 17 * 64;

/// How long a waiter looks without rest, then how long with its core offered to others, before it sleeps. Most arrivals are
/// on their way by then; and a member that shares this waiter's core can arrive only if it is let in.
const SPIN: Duration = Duration::from_micros(5);
const YIELD: Duration = Duration::from_micros(50);
/// The latter where every member can have a core. Nothing else wants it then, and a training's ranks come a few hundred
/// microseconds apart, while to be woken takes a good part of that on a virtual machine.
const YIELD_OWN_CORE: Duration = Duration::from_millis(1);
/// How often a spinning waiter looks before it reads the clock, which takes as long as a few looks.
const LOOKS: usize = 16;

/// This member's view of the board.
pub(crate) struct Board {
    mapping: Mapping,
    /// The members' ranks, ascending.
    pub(crate) ranks: Vec<usize>,
    /// This member's index in `ranks`.
    pub(crate) me: usize,
    /// Whether every member can have a core.
    spins: bool,
    /// How long a waiter offers its core before it sleeps.
    yields: Duration,
    arrivals: AtomicU32,
}

impl Board {
    /// The bytes of a board of this many members.
    pub(crate) fn bytes(members: usize) -> usize {
        PAGE * (1 + members) + STAGING_STRIDE * (1 + members)
    }

    /// Makes the board of a host's members. For the leader, which passes `file` on.
    pub(crate) fn create(ranks: Vec<usize>, me: usize, context: &[u8; 32]) -> io::Result<Self> {
        let board = Self::over(Mapping::create(Self::bytes(ranks.len()))?, ranks, me);
        board.word(0).store(MAGIC, Ordering::Relaxed);
        for (index, word) in context.chunks_exact(8).enumerate() {
            board.word(8 + 8 * index).store(
                u64::from_le_bytes(word.try_into().map_err(io::Error::other)?),
                Ordering::Relaxed,
            );
        }
        Ok(board)
    }

    /// Maps the board that the leader made, and checks that it is this group's.
    pub(crate) fn attach(
        file: OwnedFd,
        ranks: Vec<usize>,
        me: usize,
        context: &[u8; 32],
    ) -> io::Result<Self> {
        let board = Self::over(
            Mapping::attach(file.as_fd(), Self::bytes(ranks.len()))?,
            ranks,
            me,
        );
        let matches = context.chunks_exact(8).enumerate().all(|(index, word)| {
            board
                .word(8 + 8 * index)
                .load(Ordering::Relaxed)
                .to_le_bytes()
                .as_slice()
                == word
        });
        if board.word(0).load(Ordering::Relaxed) != MAGIC || !matches {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the memory is not this group's",
            ));
        }
        Ok(board)
    }

    fn over(mapping: Mapping, ranks: Vec<usize>, me: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let spins = ranks.len() <= cores;
        Board {
            mapping,
            ranks,
            me,
            spins,
            yields: if spins { YIELD_OWN_CORE } else { YIELD },
            arrivals: AtomicU32::new(0),
        }
    }

    /// The memory file, at the leader.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.file().map(AsFd::as_fd)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        let address = self.mapping.at(offset);
        debug_assert!(address.cast::<AtomicU64>().is_aligned() && offset + 8 <= self.mapping.len());
        // SAFETY: eight aligned bytes of the mapping, which lives as long as `self` and is only read and written as atomics here.
        unsafe { AtomicU64::from_ptr(address.cast()) }
    }

    fn half_word(&self, offset: usize) -> &AtomicU32 {
        let address = self.mapping.at(offset);
        // SAFETY: four aligned bytes of the mapping, which lives as long as `self` and is only read and written as atomics here.
        unsafe { AtomicU32::from_ptr(address.cast()) }
    }

    fn arrived(&self, member: usize) -> &AtomicU32 {
        self.half_word(PAGE * (1 + member))
    }

    fn sleepers(&self, member: usize) -> &AtomicU32 {
        self.half_word(PAGE * (1 + member) + SLEEPERS)
    }

    /// A member's word on a question that is asked between barriers.
    pub(crate) fn vote(&self, member: usize) -> &AtomicU64 {
        self.word(PAGE * (1 + member) + VOTE)
    }

    /// The area that results are reduced into.
    pub(crate) fn result(&self) -> *mut u8 {
        self.mapping.at(PAGE * (1 + self.ranks.len()))
    }

    /// A member's staging area.
    pub(crate) fn staging(&self, member: usize) -> *mut u8 {
        self.mapping
            .at(PAGE * (1 + self.ranks.len()) + STAGING_STRIDE * (1 + member))
    }

    /// Wakes every waiter of this process to look at the group's health.
    pub(crate) fn alarm(&self) {
        for member in 0..self.ranks.len() {
            futex::wake_all(self.arrived(member));
        }
    }

    /// Waits until every member has come here as often as this one. Returns early with the error of `wait`.
    pub(crate) fn barrier(&self, wait: &Wait<'_>) -> Result<()> {
        let target = self.arrivals.load(Ordering::Relaxed).wrapping_add(1);
        self.arrivals.store(target, Ordering::Relaxed);
        let own = self.arrived(self.me);
        own.store(target, Ordering::SeqCst);
        if self.sleepers(self.me).load(Ordering::SeqCst) != 0 {
            futex::wake_all(own);
        }
        for member in 0..self.ranks.len() {
            if member != self.me && !self.spin_for(member, target) {
                self.sleep_for(member, target, wait)?;
            }
        }
        Ok(())
    }

    fn has_arrived(&self, member: usize, target: u32, ordering: Ordering) -> bool {
        self.arrived(member).load(ordering).wrapping_sub(target) as i32 >= 0
    }

    fn spin_for(&self, member: usize, target: u32) -> bool {
        let has_arrived = || self.has_arrived(member, target, Ordering::Acquire);
        let looks = || {
            (0..LOOKS).any(|_| {
                hint::spin_loop();
                has_arrived()
            })
        };
        if has_arrived() || self.spins && looks() {
            return true;
        }
        let started = Instant::now();
        loop {
            let came = match started.elapsed() {
                waited if self.spins && waited < SPIN => looks(),
                waited if waited < self.yields => {
                    thread::yield_now();
                    has_arrived()
                }
                _ => return false,
            };
            if came {
                return true;
            }
        }
    }

    fn sleep_for(&self, member: usize, target: u32, wait: &Wait<'_>) -> Result<()> {
        let (arrived, sleepers) = (self.arrived(member), self.sleepers(member));
        sleepers.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            let seen = arrived.load(Ordering::SeqCst);
            if seen.wrapping_sub(target) as i32 >= 0 {
                break Ok(());
            }
            let absent = || {
                let late = |member: &usize| !self.has_arrived(*member, target, Ordering::Relaxed);
                (0..self.ranks.len())
                    .filter(late)
                    .map(|member| self.ranks[member])
                    .collect()
            };
            if let Err(error) = wait.check(absent) {
                // Who has come all the same has done its part before the group failed: that is for the next call to say.
                break if self.has_arrived(member, target, Ordering::Acquire) {
                    Ok(())
                } else {
                    Err(error)
                };
            }
            futex::wait(arrived, seen, wait.slice());
        };
        sleepers.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn board(&self, member: usize, sequence: u64) -> usize {
        PAGE * (1 + member) + BOARDS + (sequence % 2) as usize * BOARD_BYTES
    }

    /// Writes this member's call, and where its buffers lie, for the others to read after the next barrier.
    pub(crate) fn publish(
        &self,
        call: &Call<'_>,
        locations: impl IntoIterator<Item = Option<Location>>,
    ) {
        let board = self.board(self.me, call.sequence);
        self.word(board).store(call.sequence, Ordering::Relaxed);
        self.word(board + 8).store(head(call), Ordering::Relaxed);
        for ((index, entry), location) in call.entries.iter().enumerate().zip(locations) {
            let at = board + 16 + index * WORDS_PER_ENTRY * 8;
            let (offset, place) = match location {
                Some(location) => (location.offset, 1 << 31 | u64::from(location.region) << 32),
                None => (0, 0),
            };
            self.word(at).store(entry.len as u64, Ordering::Relaxed);
            self.word(at + 8).store(offset, Ordering::Relaxed);
            self.word(at + 16)
                .store(kind(entry) | place, Ordering::Relaxed);
        }
    }

    /// Whether a member has published the same call.
    pub(crate) fn agrees(&self, member: usize, call: &Call<'_>) -> bool {
        let board = self.board(member, call.sequence);
        self.word(board).load(Ordering::Relaxed) == call.sequence
            && self.word(board + 8).load(Ordering::Relaxed) == head(call)
            && call.entries.iter().enumerate().all(|(index, entry)| {
                let at = board + 16 + index * WORDS_PER_ENTRY * 8;
                self.word(at).load(Ordering::Relaxed) == entry.len as u64
                    && self.word(at + 16).load(Ordering::Relaxed) & 0xffff == kind(entry)
            })
    }

    /// Where a member's buffer of this index lies, by its own word.
    pub(crate) fn location(&self, member: usize, sequence: u64, index: usize) -> Option<Location> {
        let at = self.board(member, sequence) + 16 + index * WORDS_PER_ENTRY * 8;
        let place = self.word(at + 16).load(Ordering::Relaxed);
        let offset = self.word(at + 8).load(Ordering::Relaxed);
        (place & 1 << 31 != 0).then_some(Location {
            region: (place >> 32) as u32,
            offset,
        })
    }

    /// The call that a member has published, if it can be one.
    pub(crate) fn read(&self, member: usize, sequence: u64) -> Option<OwnedCall> {
        let board = self.board(member, sequence);
        let head = self.word(board + 8).load(Ordering::Relaxed);
        let count = (head >> 8 & 0xffff) as usize;
        let entry = |index| {
            let at = board + 16 + index * WORDS_PER_ENTRY * 8;
            let kind = self.word(at + 16).load(Ordering::Relaxed);
            Some(Entry {
                dtype: DType::from_code((kind >> 8 & 0xff) as u8)?,
                op: ReduceOp::from_code((kind & 0xff) as u8)?,
                len: self.word(at).load(Ordering::Relaxed) as usize,
            })
        };
        Some(OwnedCall {
            sequence: self.word(board).load(Ordering::Relaxed),
            operation: Operation::from_code((head & 0xff) as u8)?,
            root: (head >> 32) as usize,
            entries: (0..count.min(MAX_ENTRIES))
                .map(entry)
                .collect::<Option<Vec<_>>>()?,
        })
    }
}

fn head(call: &Call<'_>) -> u64 {
    (call.root as u64) << 32 | (call.entries.len() as u64) << 8 | call.operation as u64
}

fn kind(entry: &Entry) -> u64 {
    (entry.dtype as u64) << 8 | entry.op as u64
}
