//! Streams and events, whichever the device.

use std::ffi::c_void;
use std::sync::Arc;

use crate::buffer::{Device, Stream};
use crate::error::Result;

/// A point in a stream's work (`cudaEvent_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Event(pub usize);

/// The streams and events of one device. Nothing here waits for the device.
///
/// Errors are `CollectiveError::Device`; among them may be those of earlier work on the device.
pub trait DeviceRuntime: Send + Sync {
    /// The device.
    fn device(&self) -> Device;

    /// Makes the device the calling thread's current one.
    ///
    /// # Errors
    /// `Device`.
    fn make_current(&self) -> Result<()>;

    /// Has what the calling thread does from now on leave alone the work that other threads capture (CUDA graphs). By default
    /// a thread's asking for an event ends every capture that is under way elsewhere with an error.
    ///
    /// # Errors
    /// `Device`.
    fn ignore_captures(&self) -> Result<()>;

    /// A stream that does not wait for the default one.
    ///
    /// # Errors
    /// `Device`.
    fn create_stream(&self) -> Result<Stream>;

    /// Frees a stream once its work is done.
    ///
    /// # Safety
    /// The stream is this runtime's, and not used any more.
    unsafe fn destroy_stream(&self, stream: Stream);

    /// An event without time.
    ///
    /// # Errors
    /// `Device`.
    fn create_event(&self) -> Result<Event>;

    /// Frees an event once nothing waits for it.
    ///
    /// # Safety
    /// The event is this runtime's, and not used any more.
    unsafe fn destroy_event(&self, event: Event);

    /// Puts the event behind all work that the stream has now.
    ///
    /// # Errors
    /// `Device`.
    ///
    /// # Safety
    /// Both are alive, and of this device.
    unsafe fn record(&self, event: Event, stream: Stream) -> Result<()>;

    /// Has the work that the stream gets from now on wait for the event as it was last recorded.
    ///
    /// # Errors
    /// `Device`.
    ///
    /// # Safety
    /// As `record`.
    unsafe fn wait(&self, stream: Stream, event: Event) -> Result<()>;

    /// Sets `num_bytes` bytes of the device's memory to 0, as the stream's next work.
    ///
    /// # Errors
    /// `Device`.
    ///
    /// # Safety
    /// The memory is the device's, and nobody else's until the stream has done it. The stream is alive, and of this device.
    unsafe fn zero(&self, ptr: *mut c_void, num_bytes: usize, stream: Stream) -> Result<()>;

    /// Whether the work before the event is done.
    ///
    /// # Errors
    /// `Device`.
    ///
    /// # Safety
    /// The event is alive, and of this device.
    unsafe fn is_done(&self, event: Event) -> Result<bool>;
}

/// A stream of our own.
pub(crate) struct OwnStream {
    runtime: Arc<dyn DeviceRuntime>,
    pub(crate) stream: Stream,
}

impl OwnStream {
    pub(crate) fn new(runtime: &Arc<dyn DeviceRuntime>) -> Result<Self> {
        Ok(OwnStream {
            runtime: runtime.clone(),
            stream: runtime.create_stream()?,
        })
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // SAFETY: made by the runtime, and only used through this.
        unsafe { self.runtime.destroy_stream(self.stream) };
    }
}

/// An event of our own, recorded when made.
pub(crate) struct OwnEvent {
    runtime: Arc<dyn DeviceRuntime>,
    event: Event,
}

impl OwnEvent {
    /// An event behind all work that the stream has now.
    ///
    /// # Safety
    /// The stream is alive, and of the runtime's device.
    pub(crate) unsafe fn after(runtime: &Arc<dyn DeviceRuntime>, stream: Stream) -> Result<Self> {
        let own = OwnEvent {
            runtime: runtime.clone(),
            event: runtime.create_event()?,
        };
        // SAFETY: the event was just made; the stream is the caller's promise.
        unsafe { runtime.record(own.event, stream)? };
        Ok(own)
    }

    /// Has the stream's further work wait.
    ///
    /// # Safety
    /// As `after`.
    pub(crate) unsafe fn hold(&self, stream: Stream) -> Result<()> {
        // SAFETY: the event is alive as long as this; the stream is the caller's promise.
        unsafe { self.runtime.wait(stream, self.event) }
    }

    pub(crate) fn is_done(&self) -> Result<bool> {
        // SAFETY: the event is alive as long as this.
        unsafe { self.runtime.is_done(self.event) }
    }
}

impl Drop for OwnEvent {
    fn drop(&mut self) {
        // SAFETY: made by the runtime, and only used through this. A stream that waits for it has taken note of it.
        unsafe { self.runtime.destroy_event(self.event) };
    }
}
