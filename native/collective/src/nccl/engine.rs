//! A communicator at work: what is in flight, who watches it, and how it ends.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::communicator::{Call, Communicator, Fault, Progress};
use super::device::{DeviceRuntime, OwnEvent, OwnStream};
use super::meeting::NcclMeeting;
use crate::buffer::Stream;
use crate::call::Operation;
use crate::error::{CollectiveError, Peer, Result};
use crate::group::ProcessGroup;
use crate::health::{Health, Wait, lock};
use crate::patience::SLICE;

/// Between two looks at a communicator that is in progress.
const PAUSE: Duration = Duration::from_micros(20);

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
    /// In the order in which they were issued, which is that in which they end.
    in_flight: VecDeque<Flight>,
}

/// An operation that the device has not finished, as far as is known.
struct Flight {
    done: Arc<OwnEvent>,
    operation: Operation,
    sequence: u64,
    started: Instant,
}

impl Engine {
    /// Makes the communicator together with the other ranks, for at most the group's `connect_timeout`.
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
            let wait = Wait {
                timeout: health.options.connect_timeout,
                ..*wait
            };
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
            let settled = engine.settle(&state, &wait);
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

    /// Issues the calls as the group's next operation: behind the work that `streams` have now, on the engine's own stream.
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
        calls: &[Call],
    ) -> Result<NcclWork> {
        self.group.in_turn(operation, |wait| {
            let mut state = lock(&self.state);
            // SAFETY: the caller's promise.
            let issued = unsafe { self.issue(&mut state, streams, calls, wait) };
            let done = Arc::new(issued.map_err(|error| self.end(&mut state, error))?);
            state.in_flight.push_back(Flight {
                done: done.clone(),
                operation,
                sequence: wait.sequence,
                started: wait.started,
            });
            self.tell_in_flight(&state);
            Ok(NcclWork {
                engine: self.clone(),
                done,
            })
        })
    }

    /// # Safety
    /// As `launch`.
    unsafe fn issue(
        &self,
        state: &mut State,
        streams: &[Stream],
        calls: &[Call],
        wait: &Wait<'_>,
    ) -> Result<OwnEvent> {
        self.settle(state, wait)?;
        self.land(state)?;
        let Some(communicator) = &state.communicator else {
            return Err(CollectiveError::invalid("the NCCL group was closed"));
        };
        self.runtime.make_current()?;
        for stream in streams {
            // SAFETY: the caller's promise, and our own stream lives as long as this.
            unsafe { OwnEvent::after(&self.runtime, *stream)?.hold(self.stream.stream)? };
        }
        // SAFETY: the caller's promise; the communicator has settled.
        let issued = unsafe { communicator.issue(calls, self.stream.stream) };
        issued.map_err(|fault| self.blame(fault))?;
        // Until then the calls may not be on the stream, and an event would be before them.
        self.settle(state, wait)?;
        // SAFETY: our own stream lives as long as this.
        unsafe { OwnEvent::after(&self.runtime, self.stream.stream) }
    }

    /// Waits until NCCL has carried out on the host what it was asked for.
    fn settle(&self, state: &State, wait: &Wait<'_>) -> Result<()> {
        while self.progress(state)? == Progress::InProgress {
            wait.check(Vec::new)?;
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn progress(&self, state: &State) -> Result<Progress> {
        if let Some(error) = self.health().failure() {
            return Err(error);
        }
        match &state.communicator {
            Some(communicator) => communicator.progress().map_err(|fault| self.blame(fault)),
            None => Ok(Progress::Ready),
        }
    }

    /// Makes one error of NCCL's fault, and fails the group with it. Where a peer may be at fault, the group is given the time in
    /// which it notices a lost one, whose name says more.
    fn blame(&self, fault: Fault) -> CollectiveError {
        let health = self.health();
        let operation = health.activity();
        let patience = match fault.blames_peer {
            true => health.options.heartbeat_timeout + health.options.heartbeat_interval,
            false => Duration::ZERO,
        };
        let since = Instant::now();
        while since.elapsed() < patience && health.failure().is_none() {
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
            let wait = Wait {
                health: self.health(),
                operation: oldest.operation,
                sequence: oldest.sequence,
                started: oldest.started,
                timeout: self.health().options.timeout,
                interruptible: false,
            };
            wait.check(Vec::new)?;
        }
        Ok(progress)
    }

    /// Forgets the operations that have ended.
    fn land(&self, state: &mut State) -> Result<()> {
        while let Some(oldest) = state.in_flight.front()
            && oldest.done.is_done()?
        {
            state.in_flight.pop_front();
        }
        self.tell_in_flight(state);
        Ok(())
    }

    /// What the watching thread does, until the engine has failed or nobody holds the other end of `closing`. It needs nothing
    /// of the threads that wait for the device, and frees them by its abort.
    pub(crate) fn watch(&self, closing: &Receiver<()>) {
        if let Err(error) = self.runtime.make_current() {
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

/// An operation that the device carries out.
///
/// Dropping the handle neither waits for the operation nor ends it.
#[must_use = "somebody has to wait for the operation"]
pub struct NcclWork {
    engine: Arc<Engine>,
    done: Arc<OwnEvent>,
}

impl fmt::Debug for NcclWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclWork").finish_non_exhaustive()
    }
}

impl NcclWork {
    /// Has the work that `stream` gets from now on wait for the result. The host does not wait.
    ///
    /// A failure that comes later lets the stream go on with unspecified contents; it is the error of the next call.
    ///
    /// # Errors
    /// What fails the group; `Device`.
    ///
    /// # Safety
    /// The stream is alive, and of the group's device.
    pub unsafe fn order_before(&self, stream: Stream) -> Result<()> {
        if let Some(error) = self.engine.health().failure() {
            return Err(error);
        }
        self.engine.runtime.make_current()?;
        // SAFETY: the caller's promise.
        unsafe { self.done.hold(stream) }
    }

    /// Waits on the host until the result is there, for at most the group's timeout from the call on. The group's interrupt is
    /// asked meanwhile.
    ///
    /// # Errors
    /// What fails the group. NCCL has let go of all buffers then.
    pub fn wait(self) -> Result<()> {
        let health = self.engine.health();
        let mut pause = PAUSE;
        loop {
            // In this order: an abort, which ends operations too, comes after its cause.
            let done = self.done.is_done().unwrap_or_else(|error| {
                health.fail(error);
                false
            });
            if done || health.failure().is_some() {
                return self.engine.check();
            }
            let interrupt = health.options.interrupt.as_ref();
            if interrupt.is_some_and(|interrupt| interrupt()) {
                health.fail(CollectiveError::Interrupted);
            }
            thread::sleep(pause);
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }
}
