//! What PyTorch computed, and a training loop of one rank.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use flambeau_collective::{GroupOptions, ProcessGroup, TcpRendezvous};
use flambeau_data::{AlignedBuffer, Batch, DType, HostTensor, Store};
use flambeau_torch::TorchModel;
use flambeau_train::{
    BucketSizes, DeviceGradients, DeviceModel, GradientReducer, GradientSink, LossSums, MicroBatch,
    Model, ModelError, ParameterInfo, ReducerOptions, StepContext, Tensors, TrainingJob,
};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

/// The folder of `oracle.py make`, made once.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            // Before libtorch runs anything, or it goes on without.
            let _ = flambeau_torch::load_cuda();
            tch::set_num_threads(1);
            let folder = tempfile::tempdir().unwrap();
            let status = oracle()
                .arg("make")
                .arg(folder.path())
                .status()
                .expect("Python starts");
            assert!(status.success());
            folder
        })
        .path()
}

/// `oracle.py`, run by the Python of the environment that libtorch is of.
pub fn oracle() -> Command {
    let environment = std::env::var("VIRTUAL_ENV")
        .expect("run under .ci/with-tools, which names the environment");
    let mut command = Command::new(Path::new(&environment).join("bin/python"));
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/oracle.py"));
    command
}

/// What PyTorch computed, by its part of the oracle.
pub fn expected(part: &str) -> Value {
    let text = std::fs::read_to_string(folder().join("expected.json")).unwrap();
    let mut expected: Value = serde_json::from_str(&text).unwrap();
    expected[part].take()
}

pub fn path(name: &str) -> PathBuf {
    folder().join(name)
}

/// Keeps others from the random generator, which a process has one of.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|number| number.as_f64().unwrap())
        .collect()
}

pub fn dtype(name: &Value) -> DType {
    serde_json::from_value(name.clone()).unwrap()
}

/// Both together, which have one length.
pub fn paired<'a, A, B>(left: &'a [A], right: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right)
}

/// How far two vectors are apart, in the size of the second.
pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let size = norm(&mut b.iter().copied());
    norm(&mut paired(a, b).map(|(x, y)| x - y)) / size.max(1e-30)
}

pub fn tensor(dtype: DType, shape: &[usize], values: &[f64]) -> HostTensor {
    let bytes: Vec<u8> = match dtype {
        DType::Float32 => values
            .iter()
            .flat_map(|&x| (x as f32).to_ne_bytes())
            .collect(),
        DType::Float64 => values.iter().flat_map(|&x| x.to_ne_bytes()).collect(),
        DType::Int64 => values
            .iter()
            .flat_map(|&x| (x as i64).to_ne_bytes())
            .collect(),
        DType::Bool | DType::UInt8 => values.iter().map(|&x| x as u8).collect(),
    };
    let mut buffer = AlignedBuffer::zeroed(bytes.len());
    buffer.as_bytes_mut().copy_from_slice(&bytes);
    HostTensor::new(dtype, shape.to_vec(), buffer)
}

pub fn batch(
    num_rows: usize,
    input: HostTensor,
    label: HostTensor,
    weight: Option<HostTensor>,
) -> Batch {
    Batch {
        epoch: 0,
        index: 0,
        num_rows,
        inputs: vec![input],
        labels: vec![label],
        weight,
        raw: None,
        row_ids: vec![],
    }
}

/// A job over a program of the oracle's, with one input of `width` numbers and one label of `label_width`.
pub fn job(
    program: &Path,
    dtype: DType,
    width: usize,
    label_width: usize,
    program_fields: Value,
) -> TrainingJob {
    let mut fields = json!({"form": "scripted", "eval": program});
    fields
        .as_object_mut()
        .unwrap()
        .extend(program_fields.as_object().unwrap().clone());
    let label_shape = if label_width == 0 {
        json!([])
    } else {
        json!([label_width])
    };
    let job = json!({
        "format": 1,
        "params": {},
        "data": {
            "train": ["unread.parquet"],
            "spec": {
                "inputs": [{"name": "x", "columns": ["x"], "dtype": dtype.name(), "shape": [width]}],
                "labels": [{"name": "y", "columns": ["y"], "dtype": dtype.name(), "shape": label_shape}],
            },
        },
        "attempt": {"id": "a", "workDir": "/unused"},
        "program": fields,
    });
    TrainingJob::from_json(&job.to_string()).unwrap()
}

pub fn store() -> Store {
    Store::new(&HashMap::new()).unwrap()
}

/// Where a trainer computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    Cpu,
    /// On the CPU, batches and gradients taking the ways that they take on a GPU.
    Staged,
    Gpu,
}

impl Place {
    fn device(self) -> Device {
        match self {
            Place::Gpu => Device::Cuda(0),
            Place::Cpu | Place::Staged => Device::Cpu,
        }
    }
}

/// All places that this machine has.
pub fn places() -> Vec<Place> {
    folder();
    let mut places = vec![Place::Cpu, Place::Staged];
    match flambeau_torch::check_cuda() {
        Ok(()) => places.push(Place::Gpu),
        Err(reason) => println!("SKIPPED on a GPU: {reason}"),
    }
    places
}

/// A model with the reducer of a group of one.
pub struct Trainer {
    pub model: TorchModel,
    reducer: Arc<GradientReducer>,
    /// The model's own.
    pub gradients: Option<Arc<dyn DeviceGradients>>,
    place: Place,
    step: u64,
}

impl Trainer {
    pub fn new(job: &TrainingJob) -> Trainer {
        Trainer::with_sizes(job, BucketSizes::default())
    }

    pub fn with_sizes(job: &TrainingJob, sizes: BucketSizes) -> Trainer {
        Trainer::at(Place::Cpu, job, sizes)
    }

    pub fn at(place: Place, job: &TrainingJob, sizes: BucketSizes) -> Trainer {
        Trainer::with_halves(place, job, sizes, None)
    }

    /// With 16-bit floats beside the buckets of a device.
    pub fn with_halves(
        place: Place,
        job: &TrainingJob,
        sizes: BucketSizes,
        halves: Option<flambeau_collective::DType>,
    ) -> Trainer {
        let mut model = flambeau_torch::build(job, &store()).unwrap();
        if place != Place::Cpu {
            model.move_to(place.device()).unwrap();
        }
        let mut rendezvous =
            TcpRendezvous::new("127.0.0.1:0", 0, 1, b"secret", Duration::from_secs(60)).unwrap();
        let options = GroupOptions {
            secret: b"secret".to_vec(),
            ..GroupOptions::default()
        };
        let group = ProcessGroup::connect(&mut rendezvous, options).unwrap();
        let options = ReducerOptions {
            sizes,
            ..ReducerOptions::default()
        };
        // A group of one reduces nothing, wherever the gradients lie.
        let parameters = model.parameters().unwrap().into_iter();
        let parameters = parameters.map(|info| ParameterInfo {
            device: flambeau_collective::Device::Cpu,
            ..info
        });
        let reducer = GradientReducer::new(group, parameters.collect(), None, options).unwrap();
        let reducer = Arc::new(reducer);
        let gradients = (place != Place::Cpu).then(|| {
            let buckets = &reducer.layout().buckets;
            model.allocate_gradients(buckets, halves).unwrap()
        });
        model.attach(reducer.clone()).unwrap();
        Trainer {
            model,
            reducer,
            gradients,
            place,
            step: 0,
        }
    }

    pub fn num_buckets(&self) -> usize {
        self.reducer.layout().buckets.len()
    }

    /// One micro-batch of a step of `num_rows` rows in all.
    pub fn micro(&mut self, batch: Batch, micro: u32, is_last: bool, num_rows: usize) -> LossSums {
        self.try_micro(batch, micro, is_last, num_rows).unwrap()
    }

    /// The same, or its error.
    pub fn try_micro(
        &mut self,
        batch: Batch,
        micro: u32,
        is_last: bool,
        num_rows: usize,
    ) -> Result<LossSums, ModelError> {
        self.reducer.begin(micro == 0, is_last);
        let context = MicroBatch {
            epoch: 0,
            step: self.step,
            micro,
            is_first: micro == 0,
            is_last,
            reference: num_rows as f64,
            loss_scale: 1.0,
        };
        let staged = self.model.stage(batch, true)?;
        self.model.train_batch(staged, &context)
    }

    /// A batch in evaluation mode.
    pub fn evaluate(&mut self, batch: Batch) -> LossSums {
        let staged = self.model.stage(batch, false).unwrap();
        self.model.evaluate_batch(staged).unwrap()
    }

    /// Reduces and steps the optimizer.
    pub fn finish(&mut self, rate_factor: f64) {
        self.reducer.finish(&mut []).unwrap();
        let (model, step) = (&mut self.model, self.step);
        self.reducer.with_used(|used| {
            let context = StepContext {
                epoch: 0,
                step,
                used,
                rate_factor,
            };
            model.optimizer_step(&context).unwrap();
        });
        self.step += 1;
    }

    /// A step of one batch.
    pub fn step(&mut self, batch: Batch) -> LossSums {
        let num_rows = batch.num_rows;
        let sums = self.micro(batch, 0, true, num_rows);
        self.finish(1.0);
        sums
    }

    /// The gradient that a batch gives the first parameter.
    pub fn gradient(&mut self, batch: Batch) -> (LossSums, Vec<f64>) {
        let num_rows = batch.num_rows;
        let sums = self.micro(batch, 0, true, num_rows);
        self.reducer.finish(&mut []).unwrap();
        (sums, self.view(0))
    }

    /// The gradient of a parameter.
    pub fn view(&self, index: usize) -> Vec<f64> {
        let tensor = self.view_tensor(index);
        Vec::try_from(tensor.to_device(Device::Cpu).to_kind(Kind::Double)).unwrap()
    }

    /// Sets the gradient of a parameter.
    pub fn set_view(&self, index: usize, values: &[f64]) {
        self.view_tensor(index).copy_(&Tensor::from_slice(values));
    }

    fn view_tensor(&self, index: usize) -> Tensor {
        let view = self.reducer.view(index);
        let info = &self.reducer.parameters()[index];
        let kind = match info.dtype.size() {
            4 => Kind::Float,
            _ => Kind::Double,
        };
        let bucket = match &self.gradients {
            None => self.reducer.bucket_ptr(view.bucket),
            Some(gradients) => gradients.bucket(view.bucket),
        };
        // SAFETY: the bucket lives as long as the trainer, the view has that many elements, and nobody else uses it now.
        unsafe {
            let address = bucket.cast::<u8>().add(view.byte_offset);
            Tensor::from_blob(
                address,
                &[view.numel as i64],
                &[1],
                kind,
                self.place.device(),
            )
        }
    }

    /// All tensors by name, parameters and buffers.
    pub fn tensors(&mut self) -> HashMap<String, Vec<f64>> {
        let tensors = self.model.tensors(Tensors::All).unwrap();
        let value = |tensor: flambeau_train::TensorRef| {
            use flambeau_collective::DType as D;
            // SAFETY: the model keeps the memory until it next runs.
            let values = unsafe {
                match tensor.dtype {
                    D::Float32 | D::Float64 => {
                        read(tensor.ptr.cast(), tensor.numel, tensor.dtype.size())
                    }
                    D::Int64 => std::slice::from_raw_parts(tensor.ptr.cast::<i64>(), tensor.numel)
                        .iter()
                        .map(|&x| x as f64)
                        .collect(),
                    other => panic!("a program of the oracle's has no tensor of {other}"),
                }
            };
            (tensor.name, values)
        };
        tensors.into_iter().map(value).collect()
    }
}

/// # Safety
///
/// `ptr` points to `numel` floats of `width` bytes.
unsafe fn read(ptr: *const u8, numel: usize, width: usize) -> Vec<f64> {
    // SAFETY: the caller's.
    unsafe {
        match width {
            4 => std::slice::from_raw_parts(ptr.cast::<f32>(), numel)
                .iter()
                .map(|&x| f64::from(x))
                .collect(),
            _ => std::slice::from_raw_parts(ptr.cast::<f64>(), numel).to_vec(),
        }
    }
}
