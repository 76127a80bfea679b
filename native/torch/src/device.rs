//! The device that a model computes on: copies to it and back, and what waits for what.
//!
//! Nothing here waits for a device unless its name says so. Main memory serves as a device too: copies to it are done
//! when they are asked for, so that all that does not depend on a GPU runs without one.

use std::ffi::c_char;
use std::marker::PhantomData;
use std::ptr;

use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use crate::border::check;
use crate::error::TorchError;
use crate::tensor::scalar_type;

/// What C++ keeps of a stream.
#[repr(C)]
struct RawStream {
    _private: [u8; 0],
}

/// What C++ keeps of an event.
#[repr(C)]
struct RawEvent {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn flambeau_set_device(index: i32) -> *mut c_char;
    fn flambeau_allow_tf32() -> *mut c_char;
    fn flambeau_stream_current(index: i32, result: *mut *mut RawStream) -> *mut c_char;
    fn flambeau_stream_of_pool(index: i32, result: *mut *mut RawStream) -> *mut c_char;
    fn flambeau_stream_free(stream: *mut RawStream);
    fn flambeau_stream_enter(stream: *const RawStream, before: *mut *mut RawStream) -> *mut c_char;
    fn flambeau_stream_handle(stream: *const RawStream, handle: *mut usize) -> *mut c_char;
    fn flambeau_stream_uses(stream: *const RawStream, tensor: *const C_tensor) -> *mut c_char;
    fn flambeau_event_after(stream: *const RawStream, result: *mut *mut RawEvent) -> *mut c_char;
    fn flambeau_event_free(event: *mut RawEvent);
    fn flambeau_event_hold(event: *const RawEvent, stream: *const RawStream) -> *mut c_char;
    fn flambeau_event_wait(event: *const RawEvent) -> *mut c_char;
    fn flambeau_empty_pinned(
        sizes: *const i64,
        num_dims: usize,
        scalar_type: i32,
        result: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn flambeau_copy(target: *const C_tensor, source: *const C_tensor) -> *mut c_char;
}

/// A device that a model computes on, with a stream of its own for the copies of batches to it.
pub(crate) struct Placement {
    device: Device,
    /// None in main memory.
    copies: Option<Stream>,
}

impl Placement {
    /// Makes a device the present one of this thread.
    ///
    /// # Errors
    ///
    /// What CUDA says where there is no such device.
    pub(crate) fn new(device: Device) -> Result<Placement, TorchError> {
        let copies = match device {
            Device::Cuda(index) => {
                make_present(index)?;
                Some(Stream::of_pool(index)?)
            }
            _ => None,
        };
        Ok(Placement { device, copies })
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// Begins to copy tensors of main memory to the device.
    pub(crate) fn upload(&self, tensors: &[Tensor]) -> Result<Upload, TorchError> {
        let Some(stream) = &self.copies else {
            let copies = tensors.iter().map(|tensor| {
                let mut own = tensor.f_empty_like()?;
                own.f_copy_(tensor)?;
                Ok(own)
            });
            return Ok(Upload {
                tensors: copies.collect::<Result<_, TorchError>>()?,
                done: None,
            });
        };
        let _entered = stream.enter()?;
        let sent = tensors.iter().map(|tensor| {
            let pinned = empty_pinned(&tensor.size(), tensor.kind())?;
            copy(&pinned, tensor)?;
            send(&pinned, self.device)
        });
        Ok(Upload {
            tensors: sent.collect::<Result<_, TorchError>>()?,
            done: Some(Event::after(stream)?),
        })
    }

    /// Begins to copy numbers, each a tensor of one element, to main memory.
    pub(crate) fn download(&self, numbers: &[Tensor]) -> Result<Download, TorchError> {
        let doubles: Result<Vec<Tensor>, TorchError> = numbers
            .iter()
            .map(|number| Ok(number.f_totype(Kind::Double)?.f_reshape([0i64; 0])?))
            .collect();
        let numbers = Tensor::f_stack(&doubles?, 0)?;
        let Some(stream) = self.present_stream()? else {
            return Ok(Download {
                numbers,
                done: None,
            });
        };
        let pinned = empty_pinned(&numbers.size(), Kind::Double)?;
        copy(&pinned, &numbers)?;
        Ok(Download {
            numbers: pinned,
            done: Some(Event::after(&stream)?),
        })
    }

    /// The stream of this thread's work as the driver knows it; 0 is the default one, and that of main memory.
    pub(crate) fn stream_handle(&self) -> Result<usize, TorchError> {
        self.present_stream()?
            .map_or(Ok(0), |stream| stream.handle())
    }

    /// The stream that this thread's work on the device goes to; none in main memory.
    pub(crate) fn present_stream(&self) -> Result<Option<Stream>, TorchError> {
        match self.device {
            Device::Cuda(index) => Stream::present(index).map(Some),
            _ => Ok(None),
        }
    }
}

/// Tensors on their way to a device.
pub(crate) struct Upload {
    tensors: Vec<Tensor>,
    done: Option<Event>,
}

impl Upload {
    /// The tensors, for work that this thread launches from now on: it waits for the copies, the thread does not.
    pub(crate) fn take(self, placement: &Placement) -> Result<Vec<Tensor>, TorchError> {
        if let (Some(done), Some(stream)) = (&self.done, placement.present_stream()?) {
            done.hold(&stream)?;
            // Their memory is the other stream's, which could take it back while this one still works with it.
            self.tensors
                .iter()
                .try_for_each(|tensor| stream.uses(tensor))?;
        }
        Ok(self.tensors)
    }
}

/// Numbers on their way to main memory.
pub(crate) struct Download {
    numbers: Tensor,
    done: Option<Event>,
}

impl Download {
    /// Waits for the numbers.
    pub(crate) fn wait(self) -> Result<Vec<f64>, TorchError> {
        if let Some(done) = &self.done {
            done.wait()?;
        }
        Ok(Vec::try_from(&self.numbers)?)
    }
}

/// Makes a GPU the present one of this thread: the one that programs mean by `cuda` without a number.
///
/// # Errors
///
/// What CUDA says where there is no such GPU.
pub(crate) fn make_present(gpu: usize) -> Result<(), TorchError> {
    // SAFETY: no condition.
    check(unsafe { flambeau_set_device(gpu as i32) })
}

/// Copies tensors of a GPU to main memory, once the stream has come to here. Waits for all of them at once.
pub(crate) fn fetch(tensors: &[Tensor], stream: &Stream) -> Result<Vec<Tensor>, TorchError> {
    let copies = tensors.iter().map(|tensor| {
        let pinned = empty_pinned(&tensor.size(), tensor.kind())?;
        copy(&pinned, tensor)?;
        Ok(pinned)
    });
    let copies = copies.collect::<Result<_, TorchError>>()?;
    Event::after(stream)?.wait()?;
    Ok(copies)
}

/// Begins to copy a page-locked tensor to a device, in the present stream.
pub(crate) fn send(pinned: &Tensor, device: Device) -> Result<Tensor, TorchError> {
    Ok(pinned.f_to_device_(device, pinned.kind(), true, false)?)
}

/// A tensor without values in page-locked memory, which goes back to libtorch's pool once no copy of it is under way.
pub(crate) fn empty_pinned(sizes: &[i64], kind: Kind) -> Result<Tensor, TorchError> {
    let mut result = ptr::null_mut();
    // SAFETY: the sizes are read during the call only, which sets `result` to a new tensor or fails.
    check(unsafe {
        flambeau_empty_pinned(sizes.as_ptr(), sizes.len(), scalar_type(kind), &mut result)
    })?;
    // SAFETY: a new tensor, owned by nobody yet.
    Ok(unsafe { Tensor::from_ptr(result) })
}

/// Copies one tensor over another of its shape. Waits only where the one in main memory is not page-locked.
pub(crate) fn copy(target: &Tensor, source: &Tensor) -> Result<(), TorchError> {
    // SAFETY: both are live tensors.
    check(unsafe { flambeau_copy(target.as_ptr(), source.as_ptr()) })
}

/// Lets GPUs round what goes into matrix products and convolutions of float32 to TensorFloat-32, in this process.
pub(crate) fn allow_tf32() -> Result<(), TorchError> {
    // SAFETY: it sets flags of the process.
    check(unsafe { flambeau_allow_tf32() })
}

/// A queue of work on a GPU.
pub(crate) struct Stream(*mut RawStream);

// SAFETY: a stream is a number, which any thread may use.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// One of libtorch's pool, which does not wait for the default stream.
    pub(crate) fn of_pool(index: usize) -> Result<Stream, TorchError> {
        Stream::made(|result| {
            // SAFETY: the call sets `result` to a new stream, or fails.
            unsafe { flambeau_stream_of_pool(index as i32, result) }
        })
    }

    /// The one that this thread's work goes to.
    fn present(index: usize) -> Result<Stream, TorchError> {
        Stream::made(|result| {
            // SAFETY: as above.
            unsafe { flambeau_stream_current(index as i32, result) }
        })
    }

    fn made(make: impl FnOnce(*mut *mut RawStream) -> *mut c_char) -> Result<Stream, TorchError> {
        let mut result = ptr::null_mut();
        check(make(&mut result))?;
        Ok(Stream(result))
    }

    /// Has this thread's work go to this stream as long as what is returned lives.
    pub(crate) fn enter(&self) -> Result<Entered, TorchError> {
        Ok(Entered {
            before: self.make_present()?,
            not_send: PhantomData,
        })
    }

    /// Has this thread's work go to this stream. Returns the one that it went to until now.
    fn make_present(&self) -> Result<Stream, TorchError> {
        Stream::made(|before| {
            // SAFETY: the stream is live; the call sets `before` to a new one, or fails.
            unsafe { flambeau_stream_enter(self.0, before) }
        })
    }

    fn handle(&self) -> Result<usize, TorchError> {
        let mut handle = 0;
        // SAFETY: the stream and the number are live.
        check(unsafe { flambeau_stream_handle(self.0, &mut handle) })?;
        Ok(handle)
    }

    fn uses(&self, tensor: &Tensor) -> Result<(), TorchError> {
        // SAFETY: both are live.
        check(unsafe { flambeau_stream_uses(self.0, tensor.as_ptr()) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: owned here and freed once. The stream itself is libtorch's.
        unsafe { flambeau_stream_free(self.0) }
    }
}

/// A stream that this thread's work goes to; the one before it comes back when this is dropped.
pub(crate) struct Entered {
    before: Stream,
    /// It ends on the thread that it began on.
    not_send: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // A stream that was the present one may be so again: this does not fail.
        let _ = self.before.make_present();
    }
}

/// A point in a stream's work.
struct Event(*mut RawEvent);

// SAFETY: an event may be recorded and waited for from any thread; it is owned by one.
unsafe impl Send for Event {}

impl Event {
    /// Behind all work that the stream has now.
    fn after(stream: &Stream) -> Result<Event, TorchError> {
        let mut result = ptr::null_mut();
        // SAFETY: the stream is live; the call sets `result` to a new event, or fails.
        check(unsafe { flambeau_event_after(stream.0, &mut result) })?;
        Ok(Event(result))
    }

    /// Has the work that a stream gets from now on wait.
    fn hold(&self, stream: &Stream) -> Result<(), TorchError> {
        // SAFETY: both are live.
        check(unsafe { flambeau_event_hold(self.0, stream.0) })
    }

    fn wait(&self) -> Result<(), TorchError> {
        // SAFETY: the event is live.
        check(unsafe { flambeau_event_wait(self.0) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: owned here and freed once; what waits for it has taken note of it.
        unsafe { flambeau_event_free(self.0) }
    }
}
