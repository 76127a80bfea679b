//! The host as the ranks' devices: streams that are threads, and a stand-in for NCCL.

use std::env;
use std::ffi::c_void;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use flambeau_collective::{CollectiveError, DType, Device, DeviceRuntime, Gpu, Stream};
use flambeau_train::{BucketInfo, DevicePlan, Devices, Gpus};
use nccl_stand_in::{HostEvent, HostRuntime, HostStream, framework_stream};

use crate::host_programs::HostPrograms;

/// 64 bytes, on such a boundary, as buckets are laid out.
#[repr(align(64))]
#[derive(Clone)]
#[expect(dead_code, reason = "only its size and place matter")]
struct Line([u64; 8]);

/// Memory of the device.
pub struct HostTensor {
    dtype: DType,
    len: usize,
    lines: Vec<Line>,
}

impl HostTensor {
    pub fn zeros(dtype: DType, len: usize) -> Self {
        HostTensor {
            dtype,
            len,
            lines: vec![Line([0; 8]); (len * dtype.size()).div_ceil(64)],
        }
    }

    /// Where it begins, and what it holds.
    pub fn place(&mut self) -> (usize, DType, usize) {
        (self.lines.as_mut_ptr() as usize, self.dtype, self.len)
    }

    /// Gives `work` each number.
    fn update(&mut self, mut work: impl FnMut(&mut f64)) {
        let (address, dtype, len) = self.place();
        for index in 0..len {
            // SAFETY: as many elements of the type, whose every pattern of bits is a number.
            unsafe {
                match dtype {
                    DType::Float64 => work(&mut *(address as *mut f64).add(index)),
                    DType::Float32 => {
                        let place = (address as *mut f32).add(index);
                        let mut number = f64::from(*place);
                        work(&mut number);
                        *place = number as f32;
                    }
                    other => panic!("gradients of {other}"),
                }
            }
        }
    }
}

/// The stream of a rank's framework.
pub struct HostQueue {
    stream: Box<HostStream>,
    name: Stream,
}

impl HostQueue {
    /// Adds work, which takes its time: whoever does not wait for it reads too early.
    pub fn launch(&self, work: impl FnOnce() + Send + 'static) {
        self.stream.launch(move || {
            thread::sleep(Duration::from_micros(200));
            work();
        });
    }

    /// Waits for the work.
    pub fn synchronize(&self) {
        let reached = HostEvent::default();
        reached.record(&self.stream);
        while !reached.is_done() {
            thread::yield_now();
        }
    }
}

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
    pub queue: Arc<HostQueue>,
    buckets: Vec<HostTensor>,
    /// Batches that are staged and not yet used.
    pub num_staged: usize,
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        // What is left of a training that failed would write to the buckets.
        self.queue.synchronize();
    }
}

impl HostDevice {
    pub fn new(index: u32) -> Self {
        let (stream, name) = framework_stream();
        HostDevice {
            device: Device::Cuda(index),
            queue: Arc::new(HostQueue { stream, name }),
            buckets: vec![],
            num_staged: 0,
        }
    }

    pub fn device(&self) -> Device {
        self.device
    }

    pub fn stream(&self) -> Stream {
        self.queue.name
    }

    pub fn allocate(&mut self, buckets: &[BucketInfo]) -> Vec<*mut c_void> {
        self.queue.synchronize();
        let zeros = |bucket: &BucketInfo| HostTensor::zeros(bucket.dtype, bucket.numel);
        self.buckets = buckets.iter().map(zeros).collect();
        let address = |bucket: &mut HostTensor| bucket.place().0 as *mut c_void;
        self.buckets.iter_mut().map(address).collect()
    }

    /// As [`HostPrograms::new`].
    pub fn prepare(&mut self, plan: &DevicePlan, most: Option<usize>) -> HostPrograms {
        HostPrograms::new(&mut self.buckets, plan, self.queue.clone(), most)
    }

    /// Gives `work` all gradients, once the stream has come to here.
    pub fn update(&mut self, mut work: impl FnMut(&mut f64)) {
        self.queue.synchronize();
        for bucket in &mut self.buckets {
            bucket.update(&mut work);
        }
    }
}
