//! The host as a device: its streams are threads, its memory is the process's.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use flambeau_collective::{DType, Device, DeviceRuntime, Event, RawBuffer, Result, Stream};

use crate::control::log;
use crate::{HostEvent, HostStream};

/// Streams and events of the host, which plays `cuda:0`. Logs their order.
#[derive(Clone, Default)]
pub struct HostRuntime {
    /// The addresses of the streams that the group has made; others are the framework's.
    own: Arc<Mutex<Vec<Stream>>>,
}

impl HostRuntime {
    fn name(&self, stream: Stream) -> &'static str {
        match self.own.lock().unwrap().contains(&stream) {
            true => "nccl",
            false => "framework",
        }
    }
}

/// A stream of the framework's, and its name as buffers bear it.
pub fn framework_stream() -> (Box<HostStream>, Stream) {
    let stream = Box::new(HostStream::new());
    let name = Stream(&raw const *stream as usize);
    (stream, name)
}

/// A buffer on the host device.
pub fn buffer(ptr: *mut c_void, len: usize, dtype: DType, stream: Stream) -> RawBuffer {
    RawBuffer::cuda(ptr, len, dtype, 0, stream)
}

/// # Safety
/// The stream is alive.
unsafe fn stream_at<'a>(stream: Stream) -> &'a HostStream {
    // SAFETY: streams are the addresses of such, and alive, says the caller.
    unsafe { &*(stream.0 as *const HostStream) }
}

/// # Safety
/// The event is alive.
unsafe fn event_at<'a>(event: Event) -> &'a HostEvent {
    // SAFETY: events are the addresses of such, and alive, says the caller.
    unsafe { &*(event.0 as *const HostEvent) }
}

impl DeviceRuntime for HostRuntime {
    fn device(&self) -> Device {
        Device::Cuda(0)
    }

    fn make_current(&self) -> Result<()> {
        Ok(())
    }

    fn ignore_captures(&self) -> Result<()> {
        log("ignore captures");
        Ok(())
    }

    fn create_stream(&self) -> Result<Stream> {
        let stream = Stream(Box::into_raw(Box::new(HostStream::new())) as usize);
        self.own.lock().unwrap().push(stream);
        Ok(stream)
    }

    unsafe fn destroy_stream(&self, stream: Stream) {
        // SAFETY: made by `create_stream`, and not used any more, says the caller.
        drop(unsafe { Box::from_raw(stream.0 as *mut HostStream) });
    }

    fn create_event(&self) -> Result<Event> {
        Ok(Event(Box::into_raw(Box::new(HostEvent::default())) as usize))
    }

    unsafe fn destroy_event(&self, event: Event) {
        // SAFETY: made by `create_event`, and not used any more, says the caller.
        drop(unsafe { Box::from_raw(event.0 as *mut HostEvent) });
    }

    unsafe fn record(&self, event: Event, stream: Stream) -> Result<()> {
        log(format_args!("record on {}", self.name(stream)));
        // SAFETY: the caller's promise.
        unsafe { event_at(event).record(stream_at(stream)) };
        Ok(())
    }

    unsafe fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        log(format_args!("wait on {}", self.name(stream)));
        // SAFETY: the caller's promise.
        unsafe { event_at(event).hold(stream_at(stream)) };
        Ok(())
    }

    unsafe fn zero(&self, ptr: *mut c_void, num_bytes: usize, stream: Stream) -> Result<()> {
        log(format_args!("zero on {}", self.name(stream)));
        let address = ptr as usize;
        // SAFETY: the caller's promise.
        unsafe {
            stream_at(stream).launch(move || (address as *mut u8).write_bytes(0, num_bytes));
        }
        Ok(())
    }

    unsafe fn is_done(&self, event: Event) -> Result<bool> {
        // SAFETY: the caller's promise.
        Ok(unsafe { event_at(event).is_done() })
    }
}
