//! The host as the ranks' devices: streams that are threads, and a stand-in for NCCL.

use std::env;
use std::ffi::c_void;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use flambeau_collective::{CollectiveError, Device, DeviceRuntime, Gpu, Stream};
use flambeau_train::{BucketInfo, Devices, Gpus};
use nccl_stand_in::{HostEvent, HostRuntime, HostStream, framework_stream};

/// 64 bytes, on such a boundary, as buckets are laid out.
#[repr(align(64))]
#[derive(Clone)]
struct Line([f64; 8]);

/// A directory with the stand-in, which cargo builds beside this program's own file, as `libnccl.so.2`.
pub fn nccl_directory() -> PathBuf {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let program = env::current_exe().unwrap();
        let library = program.with_file_name("libnccl_stand_in.so");
        assert!(library.exists(), "{} is not built", library.display());
        symlink(library, directory.path().join("libnccl.so.2")).unwrap();
        directory
    });
    directory.path().to_path_buf()
}

/// One GPU of these UUIDs, or why there is none.
#[derive(Clone)]
pub struct HostDevices(pub Result<Vec<String>, String>);

impl Devices for HostDevices {
    fn visible(&self) -> Result<Vec<Gpu>, CollectiveError> {
        let uuids = self.0.as_ref().map_err(|message| CollectiveError::Device {
            call: "CUDA".into(),
            message: message.clone(),
        })?;
        let gpu = |(index, uuid): (usize, &String)| Gpu {
            index: index as u32,
            uuid: uuid.clone(),
            name: "the host".into(),
        };
        Ok(uuids.iter().enumerate().map(gpu).collect())
    }

    fn open(&self, index: u32) -> Result<Arc<dyn DeviceRuntime>, CollectiveError> {
        assert_eq!(index, 0, "the host plays cuda:0 alone");
        Ok(Arc::new(HostRuntime::default()))
    }
}

/// A rank's own GPU.
pub fn own_gpu(rank: usize) -> Gpus {
    Gpus {
        assigned: None,
        devices: Arc::new(HostDevices(Ok(vec![format!("GPU-{rank}")]))),
    }
}

/// A rank's device as a framework has it: a stream, and memory for gradients.
pub struct HostDevice {
    device: Device,
    stream: Box<HostStream>,
    name: Stream,
    buckets: Vec<Vec<Line>>,
    /// Batches that are staged and not yet used.
    pub num_staged: usize,
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        // What is left of a training that failed would write to the buckets.
        self.synchronize();
    }
}

impl HostDevice {
    pub fn new(index: u32) -> Self {
        let (stream, name) = framework_stream();
        HostDevice {
            device: Device::Cuda(index),
            stream,
            name,
            buckets: vec![],
            num_staged: 0,
        }
    }

    pub fn device(&self) -> Device {
        self.device
    }

    pub fn stream(&self) -> Stream {
        self.name
    }

    /// Adds work to the stream, which takes its time: whoever does not wait for it reads too early.
    pub fn launch(&self, work: impl FnOnce() + Send + 'static) {
        self.stream.launch(move || {
            thread::sleep(Duration::from_micros(200));
            work();
        });
    }

    /// Waits for the stream's work.
    pub fn synchronize(&self) {
        let reached = HostEvent::default();
        reached.record(&self.stream);
        while !reached.is_done() {
            thread::yield_now();
        }
    }

    pub fn allocate(&mut self, buckets: &[BucketInfo]) -> Vec<*mut c_void> {
        self.synchronize();
        let zeros = |bucket: &BucketInfo| vec![Line([0.0; 8]); bucket.num_bytes().div_ceil(64)];
        self.buckets = buckets.iter().map(zeros).collect();
        let address = |bucket: &mut Vec<Line>| bucket.as_mut_ptr().cast();
        self.buckets.iter_mut().map(address).collect()
    }

    /// Gives `work` all gradients, piece by piece, once the stream has come to here.
    pub fn update(&mut self, mut work: impl FnMut(&mut [f64])) {
        self.synchronize();
        for line in self.buckets.iter_mut().flatten() {
            work(&mut line.0);
        }
    }
}
