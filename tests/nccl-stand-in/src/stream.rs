//! Streams and events of the host, with CUDA's semantics.

use std::ffi::c_void;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// A job as C knows it.
type RawJob = extern "C" fn(*mut c_void);

/// A thread that does one job after the other.
///
/// Tests make it, and the shared library uses it through its address: `launch` is all that the two have in common.
#[repr(C)]
pub struct HostStream {
    launch: extern "C" fn(*const HostStream, RawJob, *mut c_void),
    jobs: Sender<Box<dyn FnOnce() + Send>>,
}

impl HostStream {
    /// Starts the thread, which ends with the stream, after its last job.
    pub fn new() -> Self {
        let (jobs, queue) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        thread::Builder::new()
            .name("host-stream".into())
            .spawn(move || queue.into_iter().for_each(|job| job()))
            .expect("a thread");
        HostStream {
            launch: launch_raw,
            jobs,
        }
    }

    /// Adds a job.
    pub fn launch(&self, job: impl FnOnce() + Send + 'static) {
        self.jobs
            .send(Box::new(job))
            .expect("the stream's thread lives");
    }
}

impl Default for HostStream {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" fn launch_raw(stream: *const HostStream, job: RawJob, argument: *mut c_void) {
    let argument = argument as usize;
    // SAFETY: whoever passes a stream keeps it alive meanwhile.
    unsafe { &*stream }.launch(move || job(argument as *mut c_void));
}

/// Adds a job to a stream that may be of another copy of this crate.
///
/// # Safety
/// The stream is alive.
pub(crate) unsafe fn launch(stream: *const HostStream, job: impl FnOnce() + Send + 'static) {
    type Boxed = Box<dyn FnOnce() + Send>;
    extern "C" fn call(argument: *mut c_void) {
        // SAFETY: made by `into_raw` below, and called once.
        let job = unsafe { Box::from_raw(argument.cast::<Boxed>()) };
        job();
    }
    let boxed: Box<Boxed> = Box::new(Box::new(job));
    // SAFETY: the caller's promise.
    let entry = unsafe { (*stream).launch };
    entry(stream, call, Box::into_raw(boxed).cast());
}

/// A point in a stream's work. One that was never recorded is done.
#[derive(Clone, Default)]
pub struct HostEvent {
    shared: Arc<(Mutex<Count>, Condvar)>,
}

#[derive(Default)]
struct Count {
    recorded: u64,
    reached: u64,
}

impl HostEvent {
    /// Puts the event behind the stream's present work.
    pub fn record(&self, stream: &HostStream) {
        let number = {
            let mut count = self.shared.0.lock().expect("no panic");
            count.recorded += 1;
            count.recorded
        };
        let shared = self.shared.clone();
        stream.launch(move || {
            shared.0.lock().expect("no panic").reached = number;
            shared.1.notify_all();
        });
    }

    /// Has the stream's further work wait for the event as it was last recorded.
    pub fn hold(&self, stream: &HostStream) {
        let shared = self.shared.clone();
        let number = shared.0.lock().expect("no panic").recorded;
        stream.launch(move || {
            let count = shared.0.lock().expect("no panic");
            let held = shared.1.wait_while(count, |count| count.reached < number);
            drop(held.expect("no panic"));
        });
    }

    /// Whether the work before the event is done.
    pub fn is_done(&self) -> bool {
        let count = self.shared.0.lock().expect("no panic");
        count.reached >= count.recorded
    }
}
