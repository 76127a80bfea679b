//! A group's calls, each in its turn.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::call_log::CallLog;
use super::sequencer::Sequencer;
use crate::bootstrap::Connected;
use crate::buffer::{DType, RawBuffer, ReduceOp};
use crate::call::{Call, Entry, MAX_ENTRIES, Operation};
use crate::error::{CollectiveError, Result};
use crate::liveness::health::Health;
use crate::liveness::monitor::Monitor;
use crate::liveness::wait::Wait;
use crate::memory::GroupBuffer;
use crate::memory::mapping::Mapping;
use crate::memory::region::{Region, Registry};
use crate::peer::Connections;
use crate::transport::Transport;

/// What the callers' threads and the communication thread share.
pub(super) struct Core {
    // First, so that the goodbye is said before the data connections end.
    _monitor: Option<Monitor>,
    pub(super) health: Arc<Health>,
    pub(super) sequencer: Sequencer,
    pub(super) calls: CallLog,
    /// `None` for a group of one rank.
    transport: Option<Box<dyn Transport>>,
    pub(super) connections: Connections,
    registry: Arc<Registry>,
}

impl Core {
    pub(super) fn new(connected: Connected) -> Self {
        Core {
            _monitor: connected.monitor,
            health: connected.health,
            sequencer: Sequencer::default(),
            calls: CallLog::default(),
            transport: connected.transport,
            connections: connected.connections,
            registry: connected.registry,
        }
    }

    /// Makes a call on this thread: the next in the order of all.
    ///
    /// # Errors
    /// What fails the group.
    ///
    /// # Safety
    /// The buffers are valid, checked, and this call's alone until it returns.
    pub(super) unsafe fn call(
        &self,
        operation: Operation,
        root: usize,
        buffers: &[RawBuffer],
        ops: &[ReduceOp],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.numbered(self.sequencer.take(), operation, root, buffers, ops, true) }
    }

    /// `call`, with a number that was taken before. The interrupt is asked where the wait is `interruptible`.
    ///
    /// # Errors
    /// As `call`.
    ///
    /// # Safety
    /// As `call`.
    pub(super) unsafe fn numbered(
        &self,
        number: u64,
        operation: Operation,
        root: usize,
        buffers: &[RawBuffer],
        ops: &[ReduceOp],
        interruptible: bool,
    ) -> Result<()> {
        let bytes = || buffers.iter().map(RawBuffer::bytes).sum();
        self.in_turn(number, operation, bytes, interruptible, |wait| {
            let Some(transport) = &self.transport else {
                return Ok(());
            };
            let mut entries = [Entry {
                dtype: DType::UInt8,
                op: ReduceOp::Sum,
                len: 0,
            }; MAX_ENTRIES];
            let entries = &mut entries[..buffers.len()];
            for ((entry, buffer), op) in entries.iter_mut().zip(buffers).zip(ops) {
                *entry = Entry {
                    dtype: buffer.dtype,
                    op: *op,
                    len: buffer.len,
                };
            }
            let call = Call {
                sequence: number,
                operation,
                root,
                entries,
            };
            // SAFETY: the caller's promise.
            unsafe { transport.carry_out(&call, buffers, wait) }
        })
    }

    /// Waits for the turn of `number` and does `body` in it, unless the group has failed. The calls before it end by their own
    /// deadlines; its own begins with its turn.
    pub(super) fn in_turn<T>(
        &self,
        number: u64,
        operation: Operation,
        bytes: impl FnOnce() -> usize,
        interruptible: bool,
        body: impl FnOnce(&Wait<'_>) -> Result<T>,
    ) -> Result<T> {
        let health = &*self.health;
        let _unwinding = InCall { health };
        let _turn = self.sequencer.wait(number, || {
            // A call before this one may be on the communication thread, which asks nobody.
            if interruptible && health.failure().is_none() && health.options.is_interrupted() {
                health.fail(CollectiveError::Interrupted);
            }
            health.failure().is_some()
        });
        if let Some(error) = health.failure() {
            return Err(error);
        }
        health.enter(number, operation);
        let wait = Wait {
            health,
            operation,
            sequence: number,
            started: Instant::now(),
            timeout: health.options.timeout,
            interruptible,
        };
        let result = body(&wait);
        health.leave();
        if self.calls.is_on() {
            self.calls.add(number, operation, bytes(), wait.started);
        }
        result
    }

    /// Makes memory of `bytes` zero bytes that the host's other ranks reach too, where that is possible.
    ///
    /// # Errors
    /// What fails the group.
    pub(super) fn allocate(&self, bytes: usize) -> Result<GroupBuffer> {
        let entries = [Entry {
            dtype: DType::UInt8,
            op: ReduceOp::Sum,
            len: bytes,
        }];
        let number = self.sequencer.take();
        let region = self.in_turn(
            number,
            Operation::Allocate,
            || bytes,
            true,
            |wait| {
                // The number is unique in the group and the same on all ranks.
                let id = number as u32;
                if let Some(transport) = &self.transport {
                    let call = Call {
                        sequence: number,
                        operation: Operation::Allocate,
                        root: 0,
                        entries: &entries,
                    };
                    // SAFETY: there is no buffer to promise anything of.
                    unsafe { transport.carry_out(&call, &[], wait)? };
                    if let Some(region) = transport.allocate(id, bytes, wait)? {
                        return Ok(region);
                    }
                }
                let mapping = Mapping::private(bytes.max(1)).map_err(|error| {
                    self.health.fail(CollectiveError::io(
                        format!("allocate {bytes} bytes"),
                        error,
                    ))
                })?;
                Ok(Region::private(id, mapping, bytes))
            },
        )?;
        Ok(GroupBuffer::new(region, self.registry.clone()))
    }
}

/// A call of this rank's, from before its turn to its end.
struct InCall<'a> {
    health: &'a Health,
}

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // Whoever catches the panic may keep the group, and no rank can go on from within a call.
            self.health.abort("a thread of this rank panicked");
        }
    }
}
