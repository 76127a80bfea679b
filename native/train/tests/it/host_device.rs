//! The host as the ranks' devices: streams that are threads, and a stand-in for NCCL.

use std::env;
use std::ffi::c_void;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use flambeau_collective::{CollectiveError, DType, Device, DeviceRuntime, Gpu, Stream};
use flambeau_train::{BucketInfo, DeviceGradients, Devices, Gpus, ModelError};
use half::{bf16, f16};
use nccl_stand_in::{HostEvent, HostRuntime, HostStream, framework_stream};

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
    /// Batches that are staged and not yet used.
    pub num_staged: usize,
}

impl HostDevice {
    pub fn new(index: u32) -> Self {
        let (stream, name) = framework_stream();
        HostDevice {
            device: Device::Cuda(index),
            queue: Arc::new(HostQueue { stream, name }),
            num_staged: 0,
        }
    }

    pub fn device(&self) -> Device {
        self.device
    }

    pub fn stream(&self) -> Stream {
        self.queue.name
    }

    /// Zeros for gradients, of which the device narrows `most`, if that is given.
    pub fn allocate(
        &self,
        buckets: &[BucketInfo],
        halves: Option<DType>,
        most: Option<usize>,
    ) -> HostGradients {
        let of_bucket = |bucket: &BucketInfo| {
            let halves = halves.filter(|_| bucket.dtype == DType::Float32);
            let mut tensors = Tensors {
                bucket: HostTensor::zeros(bucket.dtype, bucket.numel),
                halves: halves.map(|dtype| HostTensor::zeros(dtype, bucket.numel)),
            };
            let places = (
                tensors.bucket.place(),
                tensors.halves.as_mut().map(HostTensor::place),
            );
            (tensors, places)
        };
        let (tensors, places) = buckets.iter().map(of_bucket).unzip();
        HostGradients {
            queue: self.queue.clone(),
            tensors: Mutex::new(tensors),
            places,
            left: most.map(AtomicUsize::new),
        }
    }
}

struct Tensors {
    bucket: HostTensor,
    halves: Option<HostTensor>,
}

/// Address, type and length.
type Place = (usize, DType, usize);

/// A rank's gradients on its device.
pub struct HostGradients {
    queue: Arc<HostQueue>,
    tensors: Mutex<Vec<Tensors>>,
    /// Of each bucket, and of the 16-bit floats beside it.
    places: Vec<(Place, Option<Place>)>,
    /// How many buckets may still be narrowed, if that is limited.
    left: Option<AtomicUsize>,
}

impl Drop for HostGradients {
    fn drop(&mut self) {
        // What is left of a training that failed would write to the buckets.
        self.queue.synchronize();
    }
}

impl HostGradients {
    /// Gives `work` all gradients, once the stream has come to here.
    fn update(&self, mut work: impl FnMut(&mut f64)) {
        self.queue.synchronize();
        for tensors in &mut *self.tensors.lock().unwrap() {
            tensors.bucket.update(&mut work);
        }
    }

    /// Queues `work` on a bucket's numbers and the bits of its halves, with the type of these.
    fn launch(&self, bucket: usize, work: fn(&mut [f32], &mut [u16], DType)) {
        let (whole, halves) = self.places[bucket];
        let (halves, dtype, _) = halves.expect("a bucket with halves");
        assert_eq!(whole.1, DType::Float32);
        self.queue.launch(move || {
            // SAFETY: as many elements, which only jobs of this stream touch, one after the other.
            unsafe {
                let whole = slice::from_raw_parts_mut(whole.0 as *mut f32, whole.2);
                let halves = slice::from_raw_parts_mut(halves as *mut u16, whole.len());
                work(whole, halves, dtype);
            }
        });
    }
}

impl DeviceGradients for HostGradients {
    fn bucket(&self, bucket: usize) -> *mut c_void {
        self.places[bucket].0.0 as *mut c_void
    }

    fn halves(&self, bucket: usize) -> *mut c_void {
        self.places[bucket].1.expect("a bucket with halves").0 as *mut c_void
    }

    fn narrow(&self, bucket: usize) -> Result<(), ModelError> {
        if let Some(left) = &self.left
            && left.fetch_sub(1, Ordering::Relaxed) == 0
        {
            return Err("the device's memory is full".into());
        }
        self.launch(bucket, |whole, halves, dtype| {
            for (number, half) in whole.iter().zip(halves) {
                *half = match dtype {
                    DType::Float16 => f16::from_f32(*number).to_bits(),
                    _ => bf16::from_f32(*number).to_bits(),
                };
            }
        });
        Ok(())
    }

    fn widen(&self, bucket: usize) -> Result<(), ModelError> {
        self.launch(bucket, |whole, halves, dtype| {
            for (number, half) in whole.iter_mut().zip(halves) {
                *number = match dtype {
                    DType::Float16 => f16::from_bits(*half).to_f32(),
                    _ => bf16::from_bits(*half).to_f32(),
                };
            }
        });
        Ok(())
    }

    fn scale(&self, factor: f64) -> Result<(), ModelError> {
        self.update(|gradient| *gradient *= factor);
        Ok(())
    }

    fn are_finite(&self) -> Result<bool, ModelError> {
        let mut are_finite = true;
        self.update(|gradient| are_finite &= gradient.is_finite());
        Ok(are_finite)
    }

    fn clip(&self, max_norm: f64) -> Result<(), ModelError> {
        let mut squares = 0.0;
        self.update(|gradient| squares += *gradient * *gradient);
        self.scale((max_norm / (squares.sqrt() + 1e-6)).min(1.0))
    }
}
