//! The threads that decode, and what they decode next.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::arena::{Arena, Unit};
use super::options::ReaderOptions;
use crate::decode::{Decoder, catching_panics};
use crate::error::DataError;
use crate::memory::Meter;

/// How often a waiting caller asks its interrupt.
const INTERRUPT_POLL: Duration = Duration::from_millis(50);

/// Rows that are decoded into one arena: a window of a lane, or all of a lane.
#[derive(Debug)]
pub(super) struct Load {
    /// The lane's place among the rank's lanes.
    pub(super) lane: usize,
    /// Which of the lane's loads this is.
    pub(super) index: usize,
    /// Each with the batch that needs it first, which is the order of decoding.
    pub(super) units: Vec<(u64, Unit)>,
}

/// How many arenas may be held.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Arenas ahead of a lane's current one.
    pub(super) ahead: usize,
    /// Arenas of all lanes, which only a lane that has none may exceed.
    pub(super) arenas: usize,
}

/// Decoding threads and their queue.
pub(super) struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    decoder: Decoder,
    meter: Meter,
    row_bytes: Vec<usize>,
    num_lanes: usize,
    limits: Limits,
    state: Mutex<State>,
    /// Something to decode, room for more, or the end.
    work: Condvar,
    /// Something was decoded, or failed.
    done: Condvar,
    /// Which `reset` counts now; `STOPPED` at the end. Tasks of another one give up.
    generation: AtomicU64,
}

const STOPPED: u64 = u64::MAX;

#[derive(Default)]
struct State {
    upcoming: VecDeque<Load>,
    tasks: VecDeque<Task>,
    live: Vec<Live>,
    num_busy: usize,
    /// Tasks of an older generation that have not yet noticed; their arenas still hold memory.
    num_stale: usize,
    /// Whether the caller waits, and so leaves its processor to the spare thread.
    is_awaited: bool,
    error: Option<DataError>,
}

struct Live {
    lane: usize,
    index: usize,
    arena: Arc<Arena>,
}

struct Task {
    batch: u64,
    unit: usize,
    arena: Arc<Arena>,
}

impl Loader {
    /// Starts the threads, which wait for a `reset`.
    pub(super) fn new(
        decoder: Decoder,
        meter: Meter,
        num_lanes: usize,
        limits: Limits,
        num_threads: usize,
    ) -> Result<Self, DataError> {
        let shared = Arc::new(Shared {
            row_bytes: decoder.row_bytes(),
            decoder,
            meter,
            num_lanes,
            limits,
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            generation: AtomicU64::new(0),
        });
        let mut loader = Loader {
            shared,
            threads: Vec::new(),
        };
        for thread in 0..num_threads {
            let shared = loader.shared.clone();
            let is_spare = thread > 0 && thread + 1 == num_threads;
            let spawned = std::thread::Builder::new()
                .name("flambeau-decode".into())
                .spawn(move || shared.work(is_spare));
            let thread = spawned.map_err(|source| DataError::Io {
                operation: "start a decoding thread for",
                uri: "the training data".into(),
                source,
            })?;
            loader.threads.push(thread);
        }
        Ok(loader)
    }

    /// Forgets what was asked for and decodes `loads` instead, in their order; returns at once.
    pub(super) fn reset(&self, loads: Vec<Load>) {
        let mut state = self.shared.lock();
        self.shared.generation.fetch_add(1, Ordering::Relaxed);
        state.num_stale += std::mem::take(&mut state.num_busy);
        state.tasks.clear();
        state.live.clear();
        state.error = None;
        state.upcoming = loads.into();
        drop(state);
        self.shared.work.notify_all();
    }

    /// Waits until the units of a load that are of these row groups, ascending, are decoded.
    ///
    /// # Errors
    /// The first error of any decoding task; [`DataError::Timeout`] and [`DataError::Interrupted`] as the options say.
    pub(super) fn wait(
        &self,
        lane: usize,
        index: usize,
        row_groups: &[usize],
        options: &ReaderOptions,
    ) -> Result<Arc<Arena>, DataError> {
        let started = Instant::now();
        let mut state = self.shared.lock();
        loop {
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            let live = state
                .live
                .iter()
                .find(|live| live.lane == lane && live.index == index);
            if let Some(live) = live.filter(|live| live.arena.are_ready(row_groups)) {
                return Ok(live.arena.clone());
            }
            let waited = started.elapsed();
            if waited > options.timeout {
                let awaited = state
                    .tasks
                    .front()
                    .map(|task| task.arena.units()[task.unit].row_group);
                let uri = awaited
                    .map_or("the training data", |group| self.shared.decoder.uri(group))
                    .to_owned();
                return Err(DataError::Timeout { uri, waited });
            }
            if self.threads.is_empty() {
                // Without threads the caller decodes.
                match self.shared.next_task(&mut state) {
                    Some(task) => state = self.shared.run(state, task),
                    None => unreachable!("a lane without an arena is always let in"),
                }
            } else {
                state.is_awaited = true;
                self.shared.work.notify_all();
                let waited = self.shared.done.wait_timeout(state, INTERRUPT_POLL);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                state.is_awaited = false;
            }
            if let Some(interrupt) = &options.interrupt {
                // The caller's code must not run under our lock.
                drop(state);
                if interrupt() {
                    return Err(DataError::Interrupted);
                }
                state = self.shared.lock();
            }
        }
    }

    /// Lets go of a load that was read to its end.
    pub(super) fn release(&self, lane: usize, index: usize) {
        self.shared
            .lock()
            .live
            .retain(|live| (live.lane, live.index) != (lane, index));
        self.shared.work.notify_all();
    }
}

impl Drop for Loader {
    /// Ends the threads and waits for them: until the next few thousand rows are decoded, or a request to the store that is under
    /// way ends.
    fn drop(&mut self) {
        let state = self.shared.lock();
        self.shared.generation.store(STOPPED, Ordering::Relaxed);
        drop(state);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread catches the panics of its tasks.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a decoding thread does until the end. The spare one decodes in the caller's stead, only while that waits: it must not
    /// decode itself, since what it reads may hang where no interrupt reaches it.
    fn work(&self, is_spare: bool) {
        let mut state = self.lock();
        while self.generation.load(Ordering::Relaxed) != STOPPED {
            let may_decode = state.is_awaited || !is_spare;
            let task = may_decode.then(|| self.next_task(&mut state)).flatten();
            state = match task {
                Some(task) => self.run(state, task),
                None => self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn next_task(&self, state: &mut State) -> Option<Task> {
        while let Some(load) = self
            .admissible(state)
            .and_then(|place| state.upcoming.remove(place))
        {
            self.admit(state, load);
        }
        state.tasks.pop_front()
    }

    /// The first load for which there is room.
    ///
    /// A lane without an arena is always let in: the caller may be waiting for just that, while arenas of other lanes, of which
    /// it needs more rows, cannot be let go. Room is kept for such lanes, so that the limit holds all the same.
    fn admissible(&self, state: &State) -> Option<usize> {
        if state.error.is_some() || state.num_stale > 0 {
            return None;
        }
        // A lane's loads are let in one after another: only its first counts.
        let mut heads = vec![None; self.num_lanes];
        for (place, load) in state.upcoming.iter().enumerate() {
            heads[load.lane].get_or_insert(place);
        }
        let held = |lane: usize| state.live.iter().filter(|live| live.lane == lane).count();
        let waiting = || {
            heads
                .iter()
                .enumerate()
                .filter_map(|(lane, head)| Some((held(lane), (*head)?)))
        };
        let num_without = waiting().filter(|(held, _)| *held == 0).count();
        let is_room = state.live.len() + num_without < self.limits.arenas;
        waiting()
            .filter(|(held, _)| *held == 0 || (is_room && *held <= self.limits.ahead))
            .map(|(_, place)| place)
            .min()
    }

    fn admit(&self, state: &mut State, load: Load) {
        let (batches, units): (Vec<u64>, Vec<Unit>) = load.units.into_iter().unzip();
        let arena = Arc::new(Arena::new(units, &self.row_bytes, &self.meter));
        for (unit, batch) in batches.into_iter().enumerate() {
            // Behind all tasks of the same batch, so that a load's units keep their order.
            let place = state.tasks.partition_point(|task| task.batch <= batch);
            state.tasks.insert(
                place,
                Task {
                    batch,
                    unit,
                    arena: arena.clone(),
                },
            );
        }
        state.live.push(Live {
            lane: load.lane,
            index: load.index,
            arena,
        });
        // There may be more tasks now than the thread that let them in can do.
        self.work.notify_all();
    }

    /// Decodes one unit, without the lock meanwhile.
    fn run<'a>(&'a self, mut state: MutexGuard<'a, State>, task: Task) -> MutexGuard<'a, State> {
        let generation = self.generation.load(Ordering::Relaxed);
        state.num_busy += 1;
        drop(state);
        let cancelled = || self.generation.load(Ordering::Relaxed) != generation;
        let uri = self.decoder.uri(task.arena.units()[task.unit].row_group);
        let result = catching_panics(uri, || {
            task.arena.fill(task.unit, &self.decoder, &cancelled)
        });
        drop(task);
        let mut state = self.lock();
        if self.generation.load(Ordering::Relaxed) != generation {
            state.num_stale = state.num_stale.saturating_sub(1);
            self.work.notify_all();
            return state;
        }
        state.num_busy -= 1;
        if let Err(error) = result {
            state.tasks.clear();
            state.upcoming.clear();
            state.error.get_or_insert(error);
        }
        self.done.notify_all();
        state
    }
}
