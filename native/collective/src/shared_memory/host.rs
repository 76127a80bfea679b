//! The members of one host: how they meet for a call, and where each of them has its buffers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::board::Board;
use crate::buffer::RawBuffer;
use crate::call::{self, Call, Piece};
use crate::error::{CollectiveError, Result};
use crate::liveness::wait::Wait;
use crate::memory::region::{Location, Region, Registry};
use crate::task::{Part, Places, StagedMask, Task};

/// The members of this host, and the memory that they share.
pub(crate) struct Host {
    pub(crate) board: Arc<Board>,
    /// How memory is passed on: at the leader one socket per other member, by member index; else the leader's, under 0.
    pub(crate) links: BTreeMap<usize, UnixStream>,
    registry: Arc<Registry>,
    pub(crate) world_size: usize,
}

/// The group's memory that holds a buffer, and where in it; `None` for a buffer that lies elsewhere.
pub(crate) type Located = Option<(Arc<Region>, Location)>;

impl Host {
    pub(crate) fn new(
        board: Arc<Board>,
        links: BTreeMap<usize, UnixStream>,
        registry: Arc<Registry>,
        world_size: usize,
    ) -> Self {
        Host {
            board,
            links,
            registry,
            world_size,
        }
    }

    /// Whether this rank is the host's leader.
    pub(crate) fn leads(&self) -> bool {
        self.board.me == 0
    }

    pub(crate) fn num_members(&self) -> usize {
        self.board.ranks.len()
    }

    /// The rank of this member.
    pub(crate) fn rank(&self) -> usize {
        self.board.ranks[self.board.me]
    }

    pub(crate) fn find(&self, buffers: &[RawBuffer]) -> Vec<Located> {
        buffers
            .iter()
            .map(|buffer| self.registry.find(buffer))
            .collect()
    }

    /// Publishes this member's call, waits for the others', and compares.
    pub(crate) fn meet(&self, call: &Call<'_>, found: &[Located], wait: &Wait<'_>) -> Result<()> {
        // An allocation has an entry and no buffer.
        let locations = (0..call.entries.len()).map(|entry| {
            let found = found.get(entry).and_then(Option::as_ref);
            found.map(|(_, location)| *location)
        });
        self.board.publish(call, locations);
        self.board.barrier(wait)?;
        self.compare(call, wait)
    }

    /// What a member took to be staged when it published its call.
    pub(crate) fn foreseen(&self, member: usize, call: &Call<'_>) -> StagedMask {
        mask(
            (0..call.entries.len())
                .map(|entry| self.board.location(member, call.sequence, entry).is_none()),
        )
    }

    /// `addresses` of every buffer of a call that all have published.
    pub(crate) fn all_addresses(
        &self,
        call: &Call<'_>,
        found: &[Located],
    ) -> Vec<Option<Vec<*mut u8>>> {
        let region = |entry: usize| found[entry].as_ref().map(|(region, _)| region.as_ref());
        (0..found.len())
            .map(|entry| self.addresses(call, entry, region(entry)))
            .collect()
    }

    /// Compares the members' calls, and fails the group with what each called where they differ.
    fn compare(&self, call: &Call<'_>, wait: &Wait<'_>) -> Result<()> {
        let differs = |member: &usize| !self.board.agrees(*member, call);
        let Some(other) = (0..self.num_members()).find(differs) else {
            return Ok(());
        };
        let own = self.board.read(self.board.me, call.sequence);
        let theirs = self.board.read(other, call.sequence);
        let name = |member: usize| wait.health.peer(self.board.ranks[member]);
        let unreadable = || "something unreadable".to_owned();
        let calls = vec![
            (
                name(self.board.me),
                theirs
                    .as_ref()
                    .map_or_else(unreadable, |theirs| call.describe(theirs)),
            ),
            (
                name(other),
                theirs
                    .zip(own)
                    .map_or_else(unreadable, |(theirs, own)| theirs.describe(&own.borrow())),
            ),
        ];
        Err(wait.health.fail(CollectiveError::Mismatch {
            sequence: call.sequence,
            calls,
        }))
    }

    /// Every member's address of a buffer, if all passed memory of one allocation. All members come to the same answer,
    /// since it follows from the board alone.
    fn addresses(
        &self,
        call: &Call<'_>,
        entry: usize,
        region: Option<&Region>,
    ) -> Option<Vec<*mut u8>> {
        let region = region?;
        let (bytes, dtype) = (
            call.entries[entry].len * call.entries[entry].dtype.size(),
            call.entries[entry].dtype,
        );
        (0..self.num_members())
            .map(|member| {
                let location: Location = self.board.location(member, call.sequence, entry)?;
                region.resolve(member, location, bytes, dtype)
            })
            .collect()
    }

    /// The work on a part of a staged buffer, from all staging areas to the result area.
    pub(crate) fn staged(&self, part: &Part) -> Task {
        // SAFETY: a part lies within a staging area, and the result area is as long.
        let at = |area: *mut u8| unsafe { area.add(part.offset) };
        Task {
            entry: part.entry,
            range: part.range.clone(),
            sources: (0..self.num_members())
                .map(|member| at(self.board.staging(member)).cast_const())
                .collect(),
            places: Places::Shared(at(self.board.result())),
        }
    }

    /// What of an entry's elements goes from whom to whom, for those in `range`.
    pub(crate) fn pieces(
        &self,
        call: &Call<'_>,
        entry: usize,
        range: &Range<usize>,
    ) -> impl Iterator<Item = Piece> {
        let len = call.entries[entry].len;
        call::pieces(
            call.operation,
            call.root,
            self.world_size,
            len,
            range.clone(),
        )
    }
}

/// The mask of the entries that are staged.
pub(crate) fn mask(staged: impl Iterator<Item = bool>) -> StagedMask {
    staged.enumerate().fold(0, |mask, (entry, staged)| {
        mask | StagedMask::from(staged) << entry
    })
}

/// Tasks on the whole of those buffers that lie where all members reach them.
pub(crate) fn in_place(call: &Call<'_>, addresses: Vec<Option<Vec<*mut u8>>>) -> Vec<Task> {
    let found = addresses
        .into_iter()
        .enumerate()
        .filter_map(|(entry, addresses)| Some((entry, addresses?)));
    found
        .map(|(entry, addresses)| {
            let shape = &call.entries[entry];
            // SAFETY: the addresses were checked to be those of buffers of this shape.
            unsafe { Task::in_place(entry, 0..shape.len, shape.dtype.size(), &addresses) }
        })
        .collect()
}
