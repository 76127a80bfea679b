//! Collectives between the ranks of one host, through memory that they share.
//!
//! Buffers in the group's memory are worked on where they lie: each member reduces its slice of all members' buffers and
//! writes the result into all of them, between two barriers. Other buffers pass through the staging areas in chunks:
//! copy in, barrier, reduce into the result area, barrier, copy out. Where the group spans hosts, the first member of
//! the host (its leader) takes the place of the reduction and works with the other hosts' leaders.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::board::{Board, Location};
use crate::buffer::RawBuffer;
use crate::call::{self, Call, Operation, Piece, Ranks};
use crate::descriptor;
use crate::error::{CollectiveError, Result};
use crate::health::Wait;
use crate::mesh::Mesh;
use crate::patience::Timed;
use crate::reduce::{self, Output, Reduction};
use crate::region::{Region, Registry};
use crate::segment::Segment;
use crate::task::{self, Part, Places, StagedMask, Task};

/// The members of this host, and the memory that they share.
pub(crate) struct Host {
    pub(crate) board: Arc<Board>,
    /// How segments are passed on: at the leader one socket per other member, else the leader's.
    links: BTreeMap<usize, UnixStream>,
    registry: Arc<Registry>,
    world_size: usize,
}

impl Host {
    /// `links` are keyed by member index.
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

    fn leads(&self) -> bool {
        self.board.me == 0
    }

    fn num_members(&self) -> usize {
        self.board.ranks.len()
    }

    /// Carries out `call` on `buffers`, one per entry, when all ranks are on this host.
    ///
    /// # Safety
    /// Each buffer holds its entry's elements, and is this call's alone until it returns.
    pub(crate) unsafe fn run(
        &self,
        call: &Call<'_>,
        buffers: &[RawBuffer],
        wait: &Wait<'_>,
    ) -> Result<()> {
        let found: Vec<_> = buffers
            .iter()
            .map(|buffer| self.registry.find(buffer))
            .collect();
        // As this member sees it; most often all see the same, and then the first chunk is staged with the first barrier.
        let foreseen = mask(found.iter().map(Option::is_none));
        let mut chunks = task::chunks(call, foreseen);
        if let Some(chunk) = chunks.first() {
            // SAFETY: the caller's promise; nobody reads this member's staging area before the next barrier.
            unsafe { self.copy_in(call, buffers, chunk, false) };
        }
        self.meet(call, &found, wait)?;
        if matches!(call.operation, Operation::Barrier | Operation::Allocate) {
            return Ok(());
        }
        let direct = self.all_addresses(call, &found);
        let staged = mask(direct.iter().map(Option::is_none));
        if (0..self.num_members()).any(|member| self.foreseen(member, call) != staged) {
            chunks = task::chunks(call, staged);
            if let Some(chunk) = chunks.first() {
                // SAFETY: as above: every read of this area lies behind the next barrier.
                unsafe { self.copy_in(call, buffers, chunk, false) };
            }
            self.board.barrier(wait)?;
        }

        let mut tasks = in_place(call, direct);
        for turn in 0..chunks.len().max(1) {
            let chunk = chunks.get(turn).map_or(&[][..], Vec::as_slice);
            if turn > 0 {
                // SAFETY: the barrier that ended the last turn lies behind every member's reads of this area.
                unsafe { self.copy_in(call, buffers, chunk, false) };
                self.board.barrier(wait)?;
            }
            // SAFETY: the caller's promise.
            tasks.extend(
                chunk
                    .iter()
                    .map(|part| unsafe { self.staged_here(call, part, buffers) }),
            );
            // SAFETY: all members are behind the barrier, and each writes its own slices and its own buffers.
            unsafe {
                tasks
                    .iter()
                    .for_each(|task| self.share(call, task, buffers))
            };
            self.board.barrier(wait)?;
            // SAFETY: the results are behind the barrier, and are written again behind the next one only.
            unsafe { self.copy_out(call, buffers, chunk, false) };
            tasks.clear();
        }
        Ok(())
    }

    /// Carries out `call` on `buffers`, one per entry, when the group spans hosts: the leader works with the other hosts'
    /// leaders, the other members wait for it.
    ///
    /// # Safety
    /// As for `run`.
    pub(crate) unsafe fn run_across(
        &self,
        call: &Call<'_>,
        buffers: &[RawBuffer],
        wait: &Wait<'_>,
        mesh: &Mesh,
    ) -> Result<()> {
        let found: Vec<_> = buffers
            .iter()
            .map(|buffer| self.registry.find(buffer))
            .collect();
        self.meet(call, &found, wait)?;
        if matches!(call.operation, Operation::Barrier | Operation::Allocate) {
            if self.leads() {
                mesh.exchange(call, 0, &[], wait)?;
            }
            return self.board.barrier(wait);
        }
        let direct = self.all_addresses(call, &found);
        let mut staged = mask(direct.iter().map(Option::is_none));
        if mesh.must_agree(call) {
            // What is staged on one host is staged on all, so that all cut alike.
            let note = self.board.vote(0);
            if self.leads() {
                staged = mesh.exchange(call, staged, &[], wait)?;
                note.store(staged, Ordering::Relaxed);
            }
            self.board.barrier(wait)?;
            staged = note.load(Ordering::Relaxed);
        } else {
            staged = task::ALL_STAGED;
        }
        let chunks = task::chunks(call, staged);
        let direct = direct
            .into_iter()
            .enumerate()
            .map(|(entry, direct)| direct.filter(|_| staged >> entry & 1 == 0));
        let mut tasks = in_place(call, direct.collect());
        for turn in 0..chunks.len().max(1) {
            let chunk = chunks.get(turn).map_or(&[][..], Vec::as_slice);
            if !chunk.is_empty() {
                // SAFETY: the caller's promise; the barrier that ended the last turn lies behind every read of this area.
                unsafe { self.copy_in(call, buffers, chunk, true) };
                self.board.barrier(wait)?;
            }
            tasks.extend(chunk.iter().map(|part| self.staged(part)));
            if self.leads() {
                mesh.exchange(call, staged, &tasks, wait)?;
            }
            self.board.barrier(wait)?;
            // SAFETY: the results are behind the barrier, and are written again behind the next one only.
            unsafe { self.copy_out(call, buffers, chunk, true) };
            tasks.clear();
        }
        Ok(())
    }

    /// Publishes this member's call, waits for the others', and compares.
    fn meet(
        &self,
        call: &Call<'_>,
        found: &[Option<(Arc<Region>, Location)>],
        wait: &Wait<'_>,
    ) -> Result<()> {
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
    fn foreseen(&self, member: usize, call: &Call<'_>) -> StagedMask {
        mask(
            (0..call.entries.len())
                .map(|entry| self.board.location(member, call.sequence, entry).is_none()),
        )
    }

    fn all_addresses(
        &self,
        call: &Call<'_>,
        found: &[Option<(Arc<Region>, Location)>],
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

    fn staged(&self, part: &Part) -> Task {
        // SAFETY: a part lies within a staging area, and the result area is as long.
        let at = |area: *mut u8| unsafe { area.add(part.offset) };
        Task {
            entry: part.entry,
            range: part.range.clone(),
            sources: (0..self.num_members())
                .map(|member| at(self.board.stage(member)).cast_const())
                .collect(),
            places: Places::Shared(at(self.board.result())),
        }
    }

    /// A part's work when all ranks are on this host: this member takes its own elements of what it reduces from its
    /// buffer, and puts the result there too.
    ///
    /// # Safety
    /// The buffer holds the part.
    unsafe fn staged_here(&self, call: &Call<'_>, part: &Part, buffers: &[RawBuffer]) -> Task {
        let mut task = self.staged(part);
        if let (Operation::AllReduce, &Places::Shared(result)) = (call.operation, &task.places) {
            let offset = part.range.start * call.entries[part.entry].dtype.size();
            // SAFETY: the caller's promise.
            let own = unsafe { buffers[part.entry].ptr.cast::<u8>().add(offset) };
            task.sources[self.board.me] = own;
            task.places = Places::Each(vec![result, own]);
        }
        task
    }

    /// What of an entry's elements goes from whom to whom, for those in `range`.
    fn pieces(
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

    /// Copies the elements that others need from this member into its staging area.
    ///
    /// # Safety
    /// The buffers hold their entries' elements; nobody else uses them or the area meanwhile.
    unsafe fn copy_in(
        &self,
        call: &Call<'_>,
        buffers: &[RawBuffer],
        chunk: &[Part],
        spans_hosts: bool,
    ) {
        let rank = Ranks::One(self.board.ranks[self.board.me]);
        let is_needed = |piece: &Piece| piece.from == Ranks::All || piece.from == rank;
        let stage = self.board.stage(self.board.me);
        for run in self.runs(call, chunk, spans_hosts, is_needed) {
            let buffer = buffers[run.entry].ptr.cast::<u8>();
            // SAFETY: the buffer and the area hold the run, and are different memory.
            unsafe {
                ptr::copy_nonoverlapping(buffer.add(run.in_buffer), stage.add(run.in_area), run.len)
            };
        }
    }

    /// Copies what is in the result area for this member into its buffers. Within one host that is what goes to all from
    /// all; the rest each has fetched for itself.
    ///
    /// # Safety
    /// As for `copy_in`, but that others may read the area.
    unsafe fn copy_out(
        &self,
        call: &Call<'_>,
        buffers: &[RawBuffer],
        chunk: &[Part],
        spans_hosts: bool,
    ) {
        let rank = Ranks::One(self.board.ranks[self.board.me]);
        let is_mine = |piece: &Piece| piece.to == Ranks::All || piece.to == rank;
        let is_there = |piece: &Piece| match spans_hosts {
            true => piece.from != rank,
            false => piece.from == Ranks::All && piece.to == Ranks::All,
        };
        let result = self.board.result();
        for run in self.runs(call, chunk, spans_hosts, |piece| {
            is_mine(piece) && is_there(piece)
        }) {
            let buffer = buffers[run.entry].ptr.cast::<u8>();
            // SAFETY: the buffer and the area hold the run, and are different memory.
            unsafe {
                ptr::copy_nonoverlapping(
                    result.add(run.in_area),
                    buffer.add(run.in_buffer),
                    run.len,
                )
            };
        }
    }

    /// What of a chunk passes through an area: the pieces that are `wanted`, without what this member itself reduces from
    /// its own buffer (see `staged_here`).
    fn runs(
        &self,
        call: &Call<'_>,
        chunk: &[Part],
        spans_hosts: bool,
        wanted: impl Fn(&Piece) -> bool,
    ) -> impl Iterator<Item = Run> {
        chunk.iter().flat_map(move |part| {
            let size = call.entries[part.entry].dtype.size();
            let pieces: Vec<_> = self
                .pieces(call, part.entry, &part.range)
                .filter(&wanted)
                .collect();
            pieces.into_iter().flat_map(move |piece| {
                let (start, len) = (piece.range.start, piece.range.len());
                let own = match (piece.from, piece.to) {
                    (Ranks::All, Ranks::All) if !spans_hosts => {
                        slice(len, size, self.board.me, self.num_members())
                    }
                    _ => len..len,
                };
                [0..own.start, own.end..len].map(|run| Run {
                    entry: part.entry,
                    in_buffer: (start + run.start) * size,
                    in_area: part.offset + (start + run.start - part.range.start) * size,
                    len: run.len() * size,
                })
            })
        })
    }

    /// This member's share of a task when all ranks are on this host, so that member and rank are the same.
    unsafe fn share(&self, call: &Call<'_>, task: &Task, buffers: &[RawBuffer]) {
        let entry = &call.entries[task.entry];
        let size = entry.dtype.size();
        let me = self.board.me;
        for piece in self.pieces(call, task.entry, &task.range) {
            let (start, len) = (piece.range.start - task.range.start, piece.range.len());
            // SAFETY: `start` lies in the task's range, which each of its places holds.
            let source =
                |member: usize, start: usize| unsafe { task.sources[member].add(start * size) };
            // SAFETY: the buffer holds the piece.
            let own = || unsafe {
                buffers[task.entry]
                    .ptr
                    .cast::<u8>()
                    .add(piece.range.start * size)
            };
            match (piece.from, piece.to) {
                (Ranks::All, Ranks::All) => {
                    let slice = slice(len, size, me, self.num_members());
                    let start = start + slice.start;
                    let sources: Vec<_> = (0..self.num_members())
                        .map(|member| source(member, start))
                        .collect();
                    // SAFETY: as for `source`.
                    let at = |place: &*mut u8| unsafe { place.add(start * size) };
                    let places: Vec<_> = match &task.places {
                        Places::Each(places) => places.iter().map(at).collect(),
                        Places::Shared(place) => vec![at(place)],
                    };
                    // SAFETY: the caller's promise; the slice is this member's alone.
                    unsafe { self.reduce(entry, &sources, &places, slice.len()) };
                }
                (Ranks::All, Ranks::One(rank)) if rank == me => {
                    let sources: Vec<_> = (0..self.num_members())
                        .map(|member| source(member, start))
                        .collect();
                    // SAFETY: the caller's promise; nobody else touches the part of the buffer that is this rank's.
                    unsafe { self.reduce(entry, &sources, &[own()], len) };
                }
                (Ranks::One(rank), _) if rank != me => {
                    // SAFETY: the source is another member's memory, the target is this one's own.
                    unsafe { ptr::copy_nonoverlapping(source(rank, start), own(), len * size) };
                }
                _ => {}
            }
        }
    }

    unsafe fn reduce(
        &self,
        entry: &call::Entry,
        sources: &[*const u8],
        places: &[*mut u8],
        len: usize,
    ) {
        let output = Output::Finished {
            places,
            world_size: self.world_size,
        };
        let reduction = Reduction {
            dtype: entry.dtype,
            op: entry.op,
            initial: None,
            sources,
            output,
        };
        // SAFETY: the caller's promise.
        unsafe { reduce::reduce(&reduction, len) };
    }

    /// Makes memory that all members of this host can reach, after an `Allocate` call that all agreed on. `None` when the
    /// system refuses it to any of them.
    pub(crate) fn allocate(
        &self,
        id: u32,
        bytes: usize,
        wait: &Wait<'_>,
    ) -> Result<Option<Region>> {
        let len = Region::stride(bytes) * self.num_members();
        let segment = if self.leads() {
            self.offer(len)
        } else {
            self.take(len, wait)?
        };
        let vote = self.board.vote(self.board.me);
        vote.store(u64::from(segment.is_ok()), Ordering::Relaxed);
        self.board.barrier(wait)?;
        let all = (0..self.num_members())
            .all(|member| self.board.vote(member).load(Ordering::Relaxed) == 1);
        // So that no vote is cast again before all have been counted.
        self.board.barrier(wait)?;
        Ok(segment
            .ok()
            .filter(|_| all)
            .map(|segment| Region::shared(id, segment, bytes, self.board.me)))
    }

    fn offer(&self, len: usize) -> io::Result<Segment> {
        let segment = Segment::create(len);
        let file = segment
            .as_ref()
            .ok()
            .and_then(|segment| segment.file())
            .map(|file| file.as_fd());
        let mut sent = Ok(());
        for link in self.links.values() {
            sent = sent.and(descriptor::send(link, u8::from(file.is_some()), file));
        }
        sent.and(segment)
    }

    fn take(&self, len: usize, wait: &Wait<'_>) -> Result<io::Result<Segment>> {
        let Some(link) = self.links.get(&0) else {
            return Ok(Err(io::ErrorKind::NotConnected.into()));
        };
        loop {
            if let Err(error) = link.set_slice(wait.slice()) {
                return Ok(Err(error));
            }
            match descriptor::receive(link) {
                Ok((1, Some(file))) => return Ok(Segment::attach(file.as_fd(), len)),
                Ok(_) => return Ok(Err(io::ErrorKind::OutOfMemory.into())),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) =>
                {
                    wait.check(|| vec![self.board.ranks[0]])?;
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }
}

/// Bytes of an entry that are copied between a buffer and an area, and where they begin in each, in bytes.
struct Run {
    entry: usize,
    in_buffer: usize,
    in_area: usize,
    len: usize,
}

/// One member's share of `len` elements: whole cache lines, so that no two members write one.
fn slice(len: usize, size: usize, member: usize, num_members: usize) -> Range<usize> {
    let line = 64 / size;
    let lines = call::part_of(len.div_ceil(line), member, num_members);
    (lines.start * line).min(len)..(lines.end * line).min(len)
}

fn mask(staged: impl Iterator<Item = bool>) -> StagedMask {
    staged.enumerate().fold(0, |mask, (entry, staged)| {
        mask | StagedMask::from(staged) << entry
    })
}

/// Tasks on the whole of those buffers that lie where all members reach them.
fn in_place(call: &Call<'_>, addresses: Vec<Option<Vec<*mut u8>>>) -> Vec<Task> {
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
