//! Streams and events of a CUDA device, through the driver's library.
//!
//! Some functions of `libcuda.so.1`, which comes with the driver under this one name and works with every CUDA runtime that
//! torch may have brought. `cuda.h` of CUDA 13.0 declares the functions; those with `_v2` are the ones that its names stand for.
//!
//! Bound by hand: cudarc, which binds them all, takes a `CUresult` for a Rust enum, so that an error that only a newer driver
//! has is undefined behaviour; it tries `libcuda.so`, which may be the toolkit's stub, before `libcuda.so.1`, and panics where
//! there is neither. With a check before it, for that, it would save a dozen lines.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::device::{DeviceRuntime, Event};
use super::symbols::symbols;
use crate::buffer::{Device, Stream};
use crate::error::{CollectiveError, Result};

/// The driver's library.
const FILE: &str = "libcuda.so.1";

/// `CUresult`. Later drivers may return codes that this header does not know.
type CuResult = c_int;

const SUCCESS: CuResult = 0;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: CuResult = 600;
/// `CU_STREAM_NON_BLOCKING`: does not synchronise with the default stream.
const NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const THREAD_LOCAL: c_int = 1;
/// `CU_EVENT_DISABLE_TIMING`, which makes events cheap.
const DISABLE_TIMING: c_uint = 2;

symbols! {
    /// The driver's functions that are used.
    DriverFunctions {
        init = "cuInit" fn(c_uint) -> CuResult;
        device_get_count = "cuDeviceGetCount" fn(*mut c_int) -> CuResult;
        device_get = "cuDeviceGet" fn(*mut c_int, c_int) -> CuResult;
        device_get_uuid = "cuDeviceGetUuid_v2" fn(*mut [u8; 16], c_int) -> CuResult;
        device_get_name = "cuDeviceGetName" fn(*mut c_char, c_int, c_int) -> CuResult;
        primary_ctx_retain = "cuDevicePrimaryCtxRetain" fn(*mut *mut c_void, c_int) -> CuResult;
        primary_ctx_release = "cuDevicePrimaryCtxRelease_v2" fn(c_int) -> CuResult;
        ctx_set_current = "cuCtxSetCurrent" fn(*mut c_void) -> CuResult;
        exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" fn(*mut c_int) -> CuResult;
        stream_create = "cuStreamCreate" fn(*mut Stream, c_uint) -> CuResult;
        stream_destroy = "cuStreamDestroy_v2" fn(Stream) -> CuResult;
        stream_wait_event = "cuStreamWaitEvent" fn(Stream, Event, c_uint) -> CuResult;
        event_create = "cuEventCreate" fn(*mut Event, c_uint) -> CuResult;
        event_destroy = "cuEventDestroy_v2" fn(Event) -> CuResult;
        event_record = "cuEventRecord" fn(Event, Stream) -> CuResult;
        event_query = "cuEventQuery" fn(Event) -> CuResult;
        memset = "cuMemsetD8Async" fn(*mut c_void, u8, usize, Stream) -> CuResult;
        get_error_string = "cuGetErrorString" fn(CuResult, *mut *const c_char) -> CuResult;
    }
}

/// A CUDA device's streams and events, in its primary context, which is the one that torch and NCCL use.
pub struct CudaRuntime {
    functions: DriverFunctions,
    index: u32,
    device: c_int,
    context: *mut c_void,
}

// SAFETY: the driver's functions may be called from any thread, and a context be current on several.
unsafe impl Send for CudaRuntime {}
// SAFETY: as above.
unsafe impl Sync for CudaRuntime {}

impl CudaRuntime {
    /// Opens the device of this index among those that the process sees (`CUDA_VISIBLE_DEVICES`).
    ///
    /// # Errors
    /// `Device` where there is no driver, no such device, or the driver refuses.
    pub fn open(index: u32) -> Result<Self> {
        let functions = DriverFunctions::open()?;
        let count = functions.count()?;
        if index >= count {
            let message = format!("there is no cuda:{index}: the process sees {count} devices");
            return Err(failed("CUDA", message));
        }
        let device = functions.device(index)?;
        let mut context = ptr::null_mut();
        // SAFETY: the pointer is alive, and the device one of the driver's.
        let retained = unsafe { (functions.primary_ctx_retain)(&raw mut context, device) };
        functions.check("cuDevicePrimaryCtxRetain", retained)?;
        Ok(CudaRuntime {
            functions,
            index,
            device,
            context,
        })
    }
}

impl Drop for CudaRuntime {
    fn drop(&mut self) {
        // SAFETY: retained once, by `open`.
        unsafe { (self.functions.primary_ctx_release)(self.device) };
    }
}

/// A GPU that the process sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its number among those that the process sees, from 0: CUDA's ordinal.
    pub index: u32,
    /// What it is called wherever it is seen, as `nvidia-smi -L` writes it: `GPU-` and five groups of hexadecimal digits.
    pub uuid: String,
    /// Its model, such as `NVIDIA H200`.
    pub name: String,
}

impl Gpu {
    /// The GPUs that the process sees (`CUDA_VISIBLE_DEVICES`), by number. Makes no context on any.
    ///
    /// # Errors
    /// `Device` where there is no driver, the driver finds none, or refuses.
    pub fn visible() -> Result<Vec<Gpu>> {
        let functions = DriverFunctions::open()?;
        (0..functions.count()?)
            .map(|index| functions.describe(index))
            .collect()
    }
}

impl DriverFunctions {
    /// Opens the driver's library and initialises it.
    fn open() -> Result<Self> {
        // SAFETY: what runs on loading are the initialisers of the driver's library.
        let library = unsafe { Library::open(Some(FILE), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| failed("CUDA", format!("no NVIDIA driver is installed: {error}")))?;
        // SAFETY: functions of these names are the driver's, whose signatures are those of its header.
        let functions = unsafe { DriverFunctions::bind(library) }
            .map_err(|symbol| failed("CUDA", format!("the NVIDIA driver has no {symbol}")))?;
        // SAFETY: initialises the driver; called as often as one likes.
        functions.check("cuInit", unsafe { (functions.init)(0) })?;
        Ok(functions)
    }

    fn count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: the number is alive.
        let counted = unsafe { (self.device_get_count)(&raw mut count) };
        self.check("cuDeviceGetCount", counted)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The driver's name for the device of an index below the count.
    fn device(&self, index: u32) -> Result<c_int> {
        let mut device = 0;
        // SAFETY: the number is alive.
        let got = unsafe { (self.device_get)(&raw mut device, index as c_int) };
        self.check("cuDeviceGet", got)?;
        Ok(device)
    }

    fn describe(&self, index: u32) -> Result<Gpu> {
        let device = self.device(index)?;
        let mut uuid = [0; 16];
        // SAFETY: the bytes are alive.
        let got = unsafe { (self.device_get_uuid)(&raw mut uuid, device) };
        self.check("cuDeviceGetUuid", got)?;
        let mut name = [0; 256];
        // SAFETY: the bytes are alive, and as many as is said.
        let got = unsafe { (self.device_get_name)(name.as_mut_ptr(), name.len() as c_int, device) };
        self.check("cuDeviceGetName", got)?;
        // SAFETY: the driver ends the name with a null, within the bytes.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(Gpu {
            index,
            uuid: uuid_text(uuid),
            name: name.to_string_lossy().into_owned(),
        })
    }

    fn check(&self, call: &str, code: CuResult) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut text = ptr::null();
        // SAFETY: the pointer is alive; the driver fills it with a string of its own, or with null.
        let text = unsafe {
            (self.get_error_string)(code, &raw mut text);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        let text = text.unwrap_or_else(|| "unknown error".into());
        Err(failed(call, format!("{text} (CUDA error {code})")))
    }
}

/// A device's UUID as the driver's tools write it.
fn uuid_text(uuid: [u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (place, byte) in uuid.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn failed(call: &str, message: String) -> CollectiveError {
    CollectiveError::Device {
        call: call.to_owned(),
        message,
    }
}

impl DeviceRuntime for CudaRuntime {
    fn device(&self) -> Device {
        Device::Cuda(self.index)
    }

    fn make_current(&self) -> Result<()> {
        // SAFETY: the context is retained.
        let code = unsafe { (self.functions.ctx_set_current)(self.context) };
        self.functions.check("cuCtxSetCurrent", code)
    }

    fn ignore_captures(&self) -> Result<()> {
        let mut mode = THREAD_LOCAL;
        // SAFETY: the mode is alive; the driver puts the one before into it.
        let code = unsafe { (self.functions.exchange_capture_mode)(&raw mut mode) };
        self.functions
            .check("cuThreadExchangeStreamCaptureMode", code)
    }

    fn create_stream(&self) -> Result<Stream> {
        self.make_current()?;
        let mut stream = Stream(0);
        // SAFETY: the stream's place is alive.
        let code = unsafe { (self.functions.stream_create)(&raw mut stream, NON_BLOCKING) };
        self.functions.check("cuStreamCreate", code)?;
        Ok(stream)
    }

    unsafe fn destroy_stream(&self, stream: Stream) {
        // SAFETY: the caller's promise. A failure is one of the context's, which is at its end then.
        unsafe { (self.functions.stream_destroy)(stream) };
    }

    fn create_event(&self) -> Result<Event> {
        self.make_current()?;
        let mut event = Event(0);
        // SAFETY: the event's place is alive.
        let code = unsafe { (self.functions.event_create)(&raw mut event, DISABLE_TIMING) };
        self.functions.check("cuEventCreate", code)?;
        Ok(event)
    }

    unsafe fn destroy_event(&self, event: Event) {
        // SAFETY: the caller's promise. A failure is one of the context's, which is at its end then.
        unsafe { (self.functions.event_destroy)(event) };
    }

    unsafe fn record(&self, event: Event, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.functions.event_record)(event, stream) };
        self.functions.check("cuEventRecord", code)
    }

    unsafe fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.functions.stream_wait_event)(stream, event, 0) };
        self.functions.check("cuStreamWaitEvent", code)
    }

    unsafe fn zero(&self, ptr: *mut c_void, num_bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.functions.memset)(ptr, 0, num_bytes, stream) };
        self.functions.check("cuMemsetD8Async", code)
    }

    unsafe fn is_done(&self, event: Event) -> Result<bool> {
        // SAFETY: the caller's promise.
        match unsafe { (self.functions.event_query)(event) } {
            NOT_READY => Ok(false),
            code => self.functions.check("cuEventQuery", code).map(|()| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_the_drivers_tools_do() {
        let uuid = std::array::from_fn(|place| (place as u8) * 0x11);
        assert_eq!(uuid_text(uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
