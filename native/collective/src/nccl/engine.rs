//! A communicator at work: what is in flight, who watches it, and how it ends.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::communicator::{Communicator, Fault, NcclCall, Progress};
use super::device::{DeviceRuntime, OwnEvent, OwnStream};
use super::meeting::NcclMeeting;
use crate::buffer::Stream;
use crate::call::Operation;
use crate::deadline::SLICE;
use crate::error::{CollectiveError, Result};
use crate::group::ProcessGroup;
use crate::liveness::health::Health;
use crate::liveness::wait::Wait;
use crate::lock::lock;
use crate::peer::Peer;

/// Between two looks at a communicator that is in progress.
const PAUSE: Duration = Duration::from_micros(20);

/// For how long it is looked at without pauses. NCCL issues from a thread that it starts for each group (`ncclGroupEndInternal`
/// in `src/group.cc`), which is a matter of microseconds; a sleep lasts longer than it is asked to.
const EAGER: Duration = Duration::from_micros(200);

/// The longest between two looks at an operation that is waited for.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// One rank's communicator, the stream it works on, and the group of processes that it lives and dies with.
pub(crate) struct Engine {
    group: ProcessGroup,
    runtime: Arc<dyn DeviceRuntime>,
    // The lock makes NCCL's calls one thread's at a time. Whoever finds a failure under it aborts before letting it go, so that
    // who learns of the failure afterwards knows that NCCL has let go of all memory.
    state: Mutex<State>,
    stream: OwnStream,
}

struct State {
    /// `None` once it has ended.
    communicator: Option<Communicator>,
    /// In the order in which they were issued, which is that in which they end. None but the newest is without its end.
    in_flight: VecDeque<Arc<Flight>>,
}

/// An operation that the device has not finished, as far as is known.
struct Flight {
    /// What the device comes to when it has finished. Not there before it is known that NCCL, which takes its time on a thread of
    /// its own, has issued everything: an event would be before that.
    end: OnceLock<OwnEvent>,
    operation: Operation,
    sequence: u64,
    started: Instant,
}

impl Flight {
    fn is_done(&self) -> Result<bool> {
        self.end.get().map_or(Ok(false), OwnEvent::is_done)
    }

    /// The host's wait for it.
    fn wait<'a>(&self, health: &'a Health, interruptible: bool) -> Wait<'a> {
        Wait {
            health,
            operation: self.operation,
            sequence: self.sequence,
            started: self.started,
            timeout: health.options.timeout,
            interruptible,
        }
    }
}

impl Engine {
    /// Makes the communicator together with the other ranks, for at most the group's `timeout`: NCCL looks at the machines'
    /// topology, connects all ranks and loads its kernels, and lost ranks are noticed meanwhile.
    ///
    /// # Errors
    /// `Nccl`, `Device` or `Timeout`, which fail the group; what fails the group.
    pub(crate) fn start(
        group: &ProcessGroup,
        meeting: &NcclMeeting,
        runtime: Arc<dyn DeviceRuntime>,
    ) -> Result<Self> {
        let health = group.health();
        group.in_turn(Operation::NcclInit, |wait| {
            let made = runtime
                .make_current()
                .and_then(|()| OwnStream::new(&runtime))
                .map_err(|error| health.fail(error))?;
            let begun = Communicator::begin(
                meeting.library().clone(),
                meeting.unique_id(),
                group.rank(),
                group.world_size(),
            );
            let engine = Engine {
                group: group.clone(),
                runtime,
                state: Mutex::new(State {
                    communicator: None,
                    in_flight: VecDeque::new(),
                }),
                stream: made,
            };
            let mut state = lock(&engine.state);
            state.communicator = Some(begun.map_err(|fault| engine.blame(fault))?);
            let settled = engine.settle(&state, wait);
            settled.map_err(|error| engine.end(&mut state, error))?;
            drop(state);
            Ok(engine)
        })
    }

    pub(crate) fn group(&self) -> &ProcessGroup {
        &self.group
    }

    pub(crate) fn runtime(&self) -> &dyn DeviceRuntime {
        &*self.runtime
    }

    fn health(&self) -> &Health {
        self.group.health()
    }

    /// Has NCCL issue the calls as the group's next operation: behind the work that `streams` have now, on the engine's own
    /// stream. Waits for NCCL to have issued the operation before, and not for this one.
    ///
    /// # Errors
    /// `Nccl`, `Device` or `Timeout`, which fail the group; what fails the group.
    ///
    /// # Safety
    /// The streams are alive, and the calls' memory is the device's, and theirs until their work is done.
    pub(crate) unsafe fn launch(
        self: &Arc<Self>,
        operation: Operation,
        streams: &[Stream],
        calls: &[NcclCall],
    ) -> Result<NcclWork> {
        self.group.in_turn(operation, |wait| {
            let mut state = lock(&self.state);
            // SAFETY: the caller's promise.
            let issued = unsafe { self.issue(&mut state, streams, calls, wait) };
            issued.map_err(|error| self.end(&mut state, error))?;
            let flight = Arc::new(Flight {
                end: OnceLock::new(),
                operation,
                sequence: wait.sequence,
                started: wait.started,
            });
            state.in_flight.push_back(flight.clone());
            self.tell_in_flight(&state);
            Ok(NcclWork {
                engine: self.clone(),
                flight,
            })
        })
    }

    /// # Safety
    /// As `launch`.
    unsafe fn issue(
        &self,
        state: &mut State,
        streams: &[Stream],
        calls: &[NcclCall],
        wait: &Wait<'_>,
    ) -> Result<()> {
        self.settle(state, wait)?;
        self.land(state)?;
        let Some(communicator) = &state.communicator else {
            return Err(closed());
        };
        self.runtime.make_current()?;
        for stream in streams {
            // SAFETY: the caller's promise, and our own stream lives as long as this.
            unsafe { OwnEvent::after(&self.runtime, *stream)?.hold(self.stream.stream)? };
        }
        // SAFETY: the caller's promise; the communicator has settled.
        let issued = unsafe { communicator.issue(calls, self.stream.stream) };
        issued.map(drop).map_err(|fault| self.blame(fault))
    }

    /// Waits until NCCL has carried out on the host what it was asked for.
    fn settle(&self, state: &State, wait: &Wait<'_>) -> Result<()> {
        let since = Instant::now();
        while self.progress(state)? == Progress::InProgress {
            if since.elapsed() < EAGER {
                thread::yield_now();
                continue;
            }
            wait.check(Vec::new)?;
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// How far NCCL is on the host. Where it has issued the newest operation, that has its end from now on.
    fn progress(&self, state: &State) -> Result<Progress> {
        if let Some(error) = self.health().failure() {
            return Err(error);
        }
        let Some(communicator) = &state.communicator else {
            return Ok(Progress::Ready);
        };
        let progress = communicator.progress().map_err(|fault| self.blame(fault))?;
        if progress == Progress::Ready
            && let Some(newest) = state.in_flight.back()
            && newest.end.get().is_none()
        {
            // Whichever thread looks first.
            self.runtime.make_current()?;
            // SAFETY: our own stream lives as long as this.
            let end = unsafe { OwnEvent::after(&self.runtime, self.stream.stream)? };
            // Whoever sets it holds the lock of the state.
            let _ = newest.end.set(end);
        }
        Ok(progress)
    }

    /// The end of an operation, once NCCL has issued it, for which this waits for at most the group's timeout from the
    /// operation's call on.
    ///
    /// # Errors
    /// What fails the group. NCCL has let go of all buffers then.
    fn end_of<'a>(&self, flight: &'a Flight) -> Result<&'a OwnEvent> {
        if flight.end.get().is_none() || self.health().failure().is_some() {
            let mut state = lock(&self.state);
            let settled = self.settle(&state, &flight.wait(self.health(), true));
            settled.map_err(|error| self.end(&mut state, error))?;
        }
        flight.end.get().ok_or_else(closed)
    }

    /// Makes one error of NCCL's fault, and fails the group with it. Where a peer may be at fault, the group is given the time in
    /// which it notices a lost one, whose name says more.
    fn blame(&self, fault: Fault) -> CollectiveError {
        let health = self.health();
        let operation = health.activity();
        let grace = match fault.blames_peer {
            true => health.options.heartbeat_timeout + health.beat_interval(),
            false => Duration::ZERO,
        };
        let since = Instant::now();
        while since.elapsed() < grace && health.failure().is_none() {
            health.sleep(SLICE);
        }
        let Peer { rank, host } = health.peer(health.rank);
        health.fail(CollectiveError::Nccl {
            rank,
            host,
            operation,
            message: fault.message,
        })
    }

    /// Fails the group, aborts the communicator, and returns the first cause.
    fn end(&self, state: &mut State, error: CollectiveError) -> CollectiveError {
        let cause = self.health().fail(error);
        if let Some(communicator) = state.communicator.take() {
            communicator.abort();
        }
        state.in_flight.clear();
        self.tell_in_flight(state);
        cause
    }

    fn tell_in_flight(&self, state: &State) {
        let oldest = state.in_flight.front();
        self.health()
            .set_in_flight(oldest.map(|flight| (flight.sequence, flight.operation)));
    }

    /// Takes note of what has ended, and ends everything where the group, NCCL, the device or the clock says so.
    fn check(&self) -> Result<()> {
        let mut state = lock(&self.state);
        let looked = self.look(&mut state).map(drop);
        looked.map_err(|error| self.end(&mut state, error))
    }

    fn look(&self, state: &mut State) -> Result<Progress> {
        let progress = self.progress(state)?;
        self.land(state)?;
        if let Some(oldest) = state.in_flight.front() {
            oldest.wait(self.health(), false).check(Vec::new)?;
        }
        Ok(progress)
    }

    /// Forgets the operations that have ended.
    fn land(&self, state: &mut State) -> Result<()> {
        while let Some(oldest) = state.in_flight.front()
            && oldest.is_done()?
        {
            state.in_flight.pop_front();
        }
        self.tell_in_flight(state);
        Ok(())
    }

    /// What the watching thread does, until the engine has failed or nobody holds the other end of `closing`. It needs nothing
    /// of the threads that wait for the device, and frees them by its abort.
    pub(crate) fn watch(&self, closing: &Receiver<()>) {
        let ready = self.runtime.make_current();
        if let Err(error) = ready.and_then(|()| self.runtime.ignore_captures()) {
            self.end(&mut lock(&self.state), error);
            return;
        }
        while closing.recv_timeout(SLICE) == Err(RecvTimeoutError::Timeout) {
            if self.check().is_err() {
                return;
            }
        }
    }

    /// Completes what is in flight and frees the communicator, together with the other ranks; or aborts it, where the group
    /// has failed, or does so meanwhile, or a rank does not come within `connect_timeout` of the last operation.
    pub(crate) fn close(&self) {
        if thread::panicking() {
            self.group.abort("a thread of this rank panicked");
        }
        let mut state = lock(&self.state);
        let finished = self.finish(&mut state);
        let finished = finished.map_err(|error| self.end(&mut state, error));
        if let Some(communicator) = state.communicator.take() {
            match finished {
                Ok(Progress::Ready) => communicator.destroy(),
                Ok(Progress::InProgress) | Err(_) => communicator.abort(),
            }
        }
        state.in_flight.clear();
        self.tell_in_flight(&state);
    }

    fn finish(&self, state: &mut State) -> Result<Progress> {
        self.runtime.make_current()?;
        self.look(state)?;
        while !state.in_flight.is_empty() {
            thread::sleep(PAUSE);
            self.look(state)?;
        }
        let Some(communicator) = &state.communicator else {
            return Ok(Progress::Ready);
        };
        let mut progress = communicator.finalize().map_err(|fault| self.blame(fault))?;
        let since = Instant::now();
        while progress == Progress::InProgress
            && since.elapsed() < self.health().options.connect_timeout
        {
            thread::sleep(PAUSE);
            progress = self.progress(state)?;
        }
        Ok(progress)
    }
}

/// What is asked of a group that has ended in good order.
pub(super) fn closed() -> CollectiveError {
    CollectiveError::invalid("the NCCL group was closed")
}

/// An operation that the device carries out.
///
/// Dropping the handle neither waits for the operation nor ends it.
#[must_use = "somebody has to wait for the operation"]
pub struct NcclWork {
    engine: Arc<Engine>,
    flight: Arc<Flight>,
}

impl fmt::Debug for NcclWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclWork").finish_non_exhaustive()
    }
}

impl NcclWork {
    /// Has the work that `stream` gets from now on wait for the result. The host waits for no more than NCCL's having issued the
    /// operation, for at most the group's timeout; the group's interrupt is asked meanwhile.
    ///
    /// A failure that comes later lets the stream go on with unspecified contents; it is the error of the next call.
    ///
    /// # Errors
    /// What fails the group; `Device`.
    ///
    /// # Safety
    /// The stream is alive, and of the group's device.
    pub unsafe fn order_before(&self, stream: Stream) -> Result<()> {
        self.engine.runtime.make_current()?;
        let end = self.engine.end_of(&self.flight)?;
        // SAFETY: the caller's promise.
        unsafe { end.hold(stream) }
    }

    /// Waits on the host until the result is there, for at most the group's timeout from the call on. The group's interrupt is
    /// asked meanwhile.
    ///
    /// # Errors
    /// What fails the group. NCCL has let go of all buffers then.
    pub fn wait(self) -> Result<()> {
        let health = self.engine.health();
        let end = self.engine.end_of(&self.flight)?;
        let mut pause = PAUSE;
        loop {
            // In this order: an abort, which ends operations too, comes after its cause.
            let done = end.is_done().unwrap_or_else(|error| {
                health.fail(error);
                false
            });
            if done || health.failure().is_some() {
                return self.engine.check();
            }
            if health.options.is_interrupted() {
                health.fail(CollectiveError::Interrupted);
            }
            thread::sleep(pause);
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }
}
