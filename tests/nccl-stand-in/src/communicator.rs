//! A communicator, and the operations on it.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::arithmetic;
use crate::control;
use crate::stream::{self, HostStream};
use crate::world::{Aborted, SLOT, UniqueId, World};

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const SYSTEM_ERROR: c_int = 2;
pub(crate) const INVALID_ARGUMENT: c_int = 4;
pub(crate) const INVALID_USAGE: c_int = 5;
pub(crate) const IN_PROGRESS: c_int = 7;

/// How many of the library's threads and of the streams' jobs are at work for communicators of this process.
pub(crate) static INSIDE: AtomicU64 = AtomicU64::new(0);

/// What `ncclComm_t` points to.
pub(crate) struct Communicator {
    world: World,
    aborted: AtomicBool,
    /// `ncclCommGetAsyncError`'s answer once nothing waits to be issued.
    state: AtomicI32,
    /// The number of operations that were issued, and of those that are done.
    issued: AtomicU64,
    done: AtomicU64,
    /// How many threads and jobs are at work for this communicator.
    inside: AtomicU64,
    pending: Mutex<Pending>,
    /// The thread that begins or finalises it.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Counts a thread or a job as inside while it lives.
struct Inside<'a>(&'a Communicator);

impl<'a> Inside<'a> {
    fn enter(communicator: &'a Communicator) -> Self {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        communicator.inside.fetch_add(1, Ordering::SeqCst);
        Inside(communicator)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A group whose work has not begun.
#[derive(Default)]
struct Pending {
    /// How often `ncclInProgress` is still the answer.
    polls: u32,
    calls: Vec<(Call, Address<HostStream>)>,
}

/// An address that another thread may use.
pub(crate) struct Address<T>(pub(crate) *const T);

// SAFETY: who passes the address promises that it may be used from the stream's thread.
unsafe impl<T> Send for Address<T> {}

/// The functions that carry elements.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    AllReduce { op: c_int },
    Reduce { op: c_int, root: usize },
    Broadcast { root: usize },
    AllGather,
    ReduceScatter { op: c_int },
}

/// One of them with its arguments.
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) send: Address<c_void>,
    pub(crate) receive: Address<c_void>,
    /// In bytes.
    pub(crate) len: usize,
    pub(crate) dtype: c_int,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Communicator {
    /// Begins to meet the other ranks, on a thread.
    pub(crate) fn begin(id: UniqueId, rank: usize, size: usize) -> io::Result<Arc<Self>> {
        let communicator = Arc::new(Communicator {
            world: World::attach(&id, rank, size)?,
            aborted: AtomicBool::new(false),
            state: AtomicI32::new(IN_PROGRESS),
            issued: AtomicU64::new(0),
            done: AtomicU64::new(0),
            inside: AtomicU64::new(0),
            pending: Mutex::default(),
            thread: Mutex::default(),
        });
        communicator.run(move |this| {
            if control::value::<String>("INIT").as_deref() == Some("hang") {
                this.hang();
            } else if this.meet().is_ok() {
                this.world.hide(&id);
                this.state.store(SUCCESS, Ordering::SeqCst);
            }
        });
        Ok(communicator)
    }

    /// Does `body` on a thread of the library's.
    fn run(self: &Arc<Self>, body: impl FnOnce(&Self) + Send + 'static) {
        let this = self.clone();
        let thread = thread::spawn(move || {
            let _inside = Inside::enter(&this);
            body(&this);
        });
        *lock(&self.thread) = Some(thread);
    }

    pub(crate) fn size(&self) -> usize {
        self.world.size
    }

    fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    fn meet(&self) -> Result<(), Aborted> {
        self.world.barrier(|| self.is_aborted())
    }

    fn hang(&self) {
        while !self.is_aborted() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// `ncclCommGetAsyncError`'s answer. Issues what was to be issued after this many answers.
    pub(crate) fn poll(self: &Arc<Self>) -> c_int {
        let mut pending = lock(&self.pending);
        if pending.polls > 0 {
            pending.polls -= 1;
            return IN_PROGRESS;
        }
        for (call, stream) in mem::take(&mut pending.calls) {
            self.issue(call, &stream);
        }
        self.state.load(Ordering::SeqCst)
    }

    /// Whether calls may be made: not before the last ones were issued.
    pub(crate) fn is_ready(&self) -> bool {
        lock(&self.pending).calls.is_empty() && self.state.load(Ordering::SeqCst) == SUCCESS
    }

    /// Takes the calls of a group. Returns `ncclGroupEnd`'s answer.
    pub(crate) fn submit(self: &Arc<Self>, calls: Vec<(Call, Address<HostStream>)>) -> c_int {
        let polls = control::value("POLLS").unwrap_or(0);
        *lock(&self.pending) = Pending { polls, calls };
        match polls {
            0 => self.poll(),
            _ => IN_PROGRESS,
        }
    }

    fn issue(self: &Arc<Self>, call: Call, stream: &Address<HostStream>) {
        let number = self.issued.fetch_add(1, Ordering::SeqCst) + 1;
        let this = self.clone();
        // SAFETY: who passed the stream keeps it alive until its work is done.
        unsafe { stream::launch(stream.0, move || this.work(&call, number)) };
    }

    /// What the stream does. After an abort it touches no memory.
    fn work(&self, call: &Call, number: u64) {
        let _inside = Inside::enter(self);
        if self.is_aborted() {
            return;
        }
        control::log(format_args!("begin {}", call.kind.name()));
        match control::error() {
            Some((code, at)) if at == number => {
                self.state.store(code, Ordering::SeqCst);
                self.hang();
            }
            _ if control::value("HANG") == Some(number) => self.hang(),
            // Whoever aborts knows that the result is none.
            _ => drop(self.carry_out(call)),
        }
        control::log(format_args!("end {}", call.kind.name()));
        self.done.fetch_add(1, Ordering::SeqCst);
    }

    /// One round for each run of elements that fits into the slots: show, meet, take, meet.
    fn carry_out(&self, call: &Call) -> Result<(), Aborted> {
        // The parts of what is sent, one after the other: all ranks' for a scattering, else one.
        let parts = match call.kind {
            Kind::ReduceScatter { .. } => self.world.size,
            _ => 1,
        };
        for part in 0..parts {
            for start in (0..call.len).step_by(SLOT) {
                let len = SLOT.min(call.len - start);
                // SAFETY: the caller of NCCL's function owns as much memory at its addresses.
                let (sent, place) = unsafe {
                    (
                        std::slice::from_raw_parts(
                            call.send.0.cast::<u8>().add(part * call.len + start),
                            len,
                        ),
                        call.receive.0.cast::<u8>().cast_mut().add(start),
                    )
                };
                self.world.show(sent);
                self.meet()?;
                // SAFETY: as above.
                unsafe { self.take(call, part, place, len) };
                self.meet()?;
            }
        }
        Ok(())
    }

    /// Writes the result of a round.
    ///
    /// # Safety
    /// `place` is where the round's first result goes.
    unsafe fn take(&self, call: &Call, part: usize, place: *mut u8, len: usize) {
        let rank = self.world.rank;
        // SAFETY: the caller's promise.
        let result =
            |offset: usize| unsafe { std::slice::from_raw_parts_mut(place.add(offset), len) };
        match call.kind {
            Kind::AllReduce { op } => self.reduce(result(0), call.dtype, op),
            Kind::Reduce { op, root } if root == rank => self.reduce(result(0), call.dtype, op),
            Kind::ReduceScatter { op } if part == rank => self.reduce(result(0), call.dtype, op),
            Kind::Reduce { .. } | Kind::ReduceScatter { .. } => {}
            Kind::Broadcast { root } => result(0).copy_from_slice(self.world.see(root, len)),
            Kind::AllGather => (0..self.world.size).for_each(|from| {
                result(from * call.len).copy_from_slice(self.world.see(from, len));
            }),
        }
    }

    fn reduce(&self, result: &mut [u8], dtype: c_int, op: c_int) {
        let ranks: Vec<_> = (0..self.world.size)
            .map(|rank| self.world.see(rank, result.len()))
            .collect();
        arithmetic::reduce(&ranks, result, dtype, op);
    }

    /// Begins to wait for all operations and all ranks.
    pub(crate) fn finalize(self: &Arc<Self>) {
        self.join();
        self.state.store(IN_PROGRESS, Ordering::SeqCst);
        self.run(|this| {
            while this.done.load(Ordering::SeqCst) < this.issued.load(Ordering::SeqCst) {
                if this.is_aborted() {
                    return;
                }
                thread::sleep(Duration::from_micros(20));
            }
            if this.meet().is_ok() {
                this.state.store(SUCCESS, Ordering::SeqCst);
            }
        });
    }

    /// Waits for the library's thread.
    pub(crate) fn join(&self) {
        if let Some(thread) = lock(&self.thread).take() {
            thread.join().expect("no panic");
        }
    }

    /// Ends everything, and returns once nothing of it is inside.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        lock(&self.pending).calls.clear();
        self.join();
        while self.inside.load(Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_micros(100));
        }
    }
}

impl fmt::Display for Kind {
    /// The function, and of those that reduce their operation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match *self {
            Kind::AllReduce { op } | Kind::Reduce { op, .. } | Kind::ReduceScatter { op } => {
                write!(f, " {}", arithmetic::name(op))
            }
            Kind::Broadcast { .. } | Kind::AllGather => Ok(()),
        }
    }
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::AllReduce { .. } => "all_reduce",
            Kind::Reduce { .. } => "reduce",
            Kind::Broadcast { .. } => "broadcast",
            Kind::AllGather => "all_gather",
            Kind::ReduceScatter { .. } => "reduce_scatter",
        }
    }
}
