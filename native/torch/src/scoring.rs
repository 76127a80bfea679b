//! A program over rows in host memory: what `transform` runs.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use flambeau_data::{DType, Store};
use flambeau_train::ProgramForm;
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use crate::classes::{ClassField, ClassOutput, class_columns};
use crate::cuda::check_cuda;
use crate::device::{Stream, empty_pinned, fetch, make_present, send};
use crate::error::TorchError;
use crate::judge::{Judge, JudgeSpec};
use crate::load;
use crate::output::OutputTensor;
use crate::pieces::Pieces;
use crate::program::{Outputs, Program};
use crate::rows::Targets;
use crate::scores::{Scores, elements};
use crate::tensor::{InferenceMode, bytes_of, filled, is_floating, kind_of, of_bytes};
use crate::weights;

/// All that scoring needs to know.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScorerSpec {
    /// How the program is written down.
    pub form: ProgramForm,
    /// Path of the program's file.
    pub program: PathBuf,
    /// Path of its weights; `None` takes those in the program's own file.
    #[serde(default)]
    pub weights: Option<PathBuf>,
    /// The arguments of `forward`, in order.
    pub inputs: Vec<InputTensor>,
    /// What the program returned when it was trained.
    pub output: Vec<OutputTensor>,
    /// Rows that the program is run on at once, where memory suffices for so many.
    pub batch_size: usize,
    /// How a classifier's output reads; `None` where this is no classifier.
    #[serde(default)]
    pub classes: Option<ClassOutput>,
    /// The columns that are wanted of a classifier, in order.
    #[serde(default)]
    pub fields: Vec<ClassField>,
    /// Threads that torch computes with.
    pub num_threads: usize,
    /// What the outputs are held against, for [`Scorer::sums`].
    #[serde(default)]
    pub judged: Option<JudgedSpec>,
    /// The number of the GPU that it computes on among those that the process sees; `None` for the CPU.
    #[serde(default)]
    pub gpu: Option<usize>,
}

/// A loss and metrics, with the tensors that they take.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgedSpec {
    /// The labels.
    pub labels: Vec<InputTensor>,
    /// One number a row; `None` where all rows weigh the same.
    #[serde(default)]
    pub weight: Option<InputTensor>,
    /// The loss and the metrics.
    pub by: JudgeSpec,
}

/// One argument of `forward`, or a label.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputTensor {
    /// The element type.
    pub dtype: DType,
    /// The shape of a row.
    pub shape: Vec<usize>,
}

impl InputTensor {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// A loaded program that scores rows. Several threads may call it at once.
pub struct Scorer {
    program: Box<dyn Program>,
    spec: ScorerSpec,
    device: Device,
    pieces: Pieces,
    judge: Option<Judge>,
}

impl Scorer {
    /// Loads the program and its weights, to the GPU where the spec names one.
    ///
    /// # Errors
    ///
    /// [`TorchError::Io`] for a file that cannot be read, and otherwise what is wrong with what is in it, or with a
    /// spec whose parts do not go together; why there is no such GPU.
    pub fn open(spec: &ScorerSpec) -> Result<Scorer, TorchError> {
        if spec.batch_size == 0 {
            return Err(TorchError::Param(
                "batchSize is 0, but must be at least 1".into(),
            ));
        }
        if spec.classes.is_some() == spec.fields.is_empty() {
            return Err(TorchError::Param(
                "classes and fields are given together for a classifier, and neither for another model".into(),
            ));
        }
        let read = |path: &PathBuf| {
            fs::read(path).map_err(|source| TorchError::Io {
                what: format!("reading {}", path.display()),
                source,
            })
        };
        // Its files are on this machine.
        let store = Store::new(&HashMap::new())?;
        let judge = spec
            .judged
            .as_ref()
            .map(|judged| Judge::new(&judged.by, &store));
        let device = spec.gpu.map_or(Device::Cpu, Device::Cuda);
        if device.is_cuda() {
            check_cuda().map_err(TorchError::Param)?;
        }
        let mut program = load::open(spec.form, &read(&spec.program)?, None)
            .map_err(|error| named(&spec.program, error))?;
        if let Some(path) = &spec.weights {
            weights::load(&program.tensors(), &read(path)?).map_err(|error| named(path, error))?;
        }
        load::check_held(&program.tensors())?;
        program.move_to(Device::Cpu, device)?;
        Ok(Scorer {
            program,
            pieces: Pieces::of(spec.batch_size),
            judge: judge.transpose()?,
            spec: spec.clone(),
            device,
        })
    }

    /// Scores rows: for each input the rows' bytes one after another, in native order. Returns one column for each
    /// output tensor, or for each wanted field of a classifier. Where memory runs out it goes on with half the rows at
    /// once, down to one.
    ///
    /// # Errors
    ///
    /// [`TorchError::Data`] for inputs of another size, or where the program returns something else than when it was
    /// trained; what torch says where it fails.
    pub fn score(&self, num_rows: usize, inputs: &[&[u8]]) -> Result<Vec<Scores>, TorchError> {
        check_sizes(&self.spec.inputs, num_rows, inputs)?;
        set_threads_here(self.spec.num_threads);
        let _inference = InferenceMode::enter();
        let outputs = match self.device {
            Device::Cuda(gpu) => {
                on_own_stream(gpu, |stream| fetch(&self.run(num_rows, inputs)?, stream))?
            }
            // A program may put what it returns anywhere.
            _ => self
                .run(num_rows, inputs)?
                .iter()
                .map(|output| output.f_to_device(Device::Cpu))
                .collect::<Result<_, _>>()?,
        };
        if let Some(kind) = self.spec.classes {
            return class_columns(&outputs[0], kind, &self.spec.fields);
        }
        let columns = outputs.iter().zip(&self.spec.output);
        columns.map(|(tensor, spec)| column(tensor, spec)).collect()
    }

    /// Rows that the program is run on at once: the spec's `batch_size`, halved as often as memory ran out.
    pub fn rows_at_once(&self) -> usize {
        self.pieces.num_rows()
    }

    /// What rows add to the sums that a loss and metrics are made of ([`Judge::finish`]), as in a training's validation:
    /// the inputs' bytes, then those of the labels and of the weight, as [`Scorer::score`] takes them. They are added up in
    /// float64; where memory runs out it goes on as `score` does.
    ///
    /// # Errors
    ///
    /// As `score`; and [`TorchError::Data`] where outputs and labels do not go together.
    pub fn sums(&self, num_rows: usize, tensors: &[&[u8]]) -> Result<Vec<f64>, TorchError> {
        let (Some(judge), Some(judged)) = (&self.judge, &self.spec.judged) else {
            return Err(TorchError::Param(
                "the scorer was opened without a loss".into(),
            ));
        };
        let targets: Vec<InputTensor> = judged
            .labels
            .iter()
            .chain(&judged.weight)
            .cloned()
            .collect();
        let all: Vec<InputTensor> = self.spec.inputs.iter().chain(&targets).cloned().collect();
        check_sizes(&all, num_rows, tensors)?;
        let (inputs, held) = tensors.split_at(self.spec.inputs.len());
        set_threads_here(self.spec.num_threads);
        let _inference = InferenceMode::enter();
        let mut sums: Vec<f64> = vec![];
        self.pieces.over(num_rows, |start, stop| {
            let output = match self.device {
                Device::Cuda(gpu) => on_own_stream(gpu, |_| {
                    let output = self.forward(inputs, start, stop)?;
                    output.map(|tensor| Ok(tensor.f_to_device(Device::Cpu)?))
                })?,
                _ => self.forward(inputs, start, stop)?,
            };
            let mut labels = tensors_of(&targets, held, start, stop, Device::Cpu)?;
            let weight = judged.weight.as_ref().and_then(|_| labels.pop());
            let own = judge.sums(&output, &Targets::on_cpu(labels, weight, stop - start))?;
            sums.resize(own.len(), 0.0);
            for (sum, part) in sums.iter_mut().zip(own) {
                *sum += part;
            }
            Ok(())
        })?;
        Ok(sums)
    }

    /// What the program returns for the rows from `start` to `stop`, where it computes.
    fn forward(&self, inputs: &[&[u8]], start: usize, stop: usize) -> Result<Outputs, TorchError> {
        let tensors = tensors_of(&self.spec.inputs, inputs, start, stop, self.device)?;
        let output = self.program.forward(&tensors, false)?;
        self.check_output(&output, stop - start)?;
        Ok(output)
    }

    /// The program's tensors for all rows, where it computes.
    fn run(&self, num_rows: usize, inputs: &[&[u8]]) -> Result<Vec<Tensor>, TorchError> {
        let mut parts: Vec<Vec<Tensor>> = self.spec.output.iter().map(|_| vec![]).collect();
        self.pieces.over(num_rows, |start, stop| {
            let output = self.forward(inputs, start, stop)?;
            for (part, (_, tensor)) in parts.iter_mut().zip(output.named()) {
                part.push(tensor.shallow_clone());
            }
            Ok(())
        })?;
        parts
            .into_iter()
            .zip(&self.spec.output)
            .map(|(part, spec)| match part.len() {
                0 => empty(spec),
                1 => Ok(part[0].shallow_clone()),
                _ => Ok(Tensor::f_cat(&part, 0)?),
            })
            .collect()
    }

    /// Whether a program's output is what it was when it was trained.
    fn check_output(&self, output: &Outputs, num_rows: usize) -> Result<(), TorchError> {
        let found: Vec<(Option<String>, Vec<i64>)> = output
            .named()
            .into_iter()
            .map(|(name, tensor)| (name, tensor.size()))
            .collect();
        let wanted: Vec<(Option<String>, Vec<i64>)> = self
            .spec
            .output
            .iter()
            .map(|spec| {
                let rows = [num_rows as i64].into_iter();
                (
                    spec.name.clone(),
                    rows.chain(spec.shape.iter().copied()).collect(),
                )
            })
            .collect();
        if found == wanted {
            return Ok(());
        }
        Err(TorchError::Data(format!(
            "model: forward returned {} for a batch of {num_rows} rows, where {} was expected",
            shapes(&found),
            shapes(&wanted)
        )))
    }
}

/// What torch says of a file, with the file's name, which torch does not know.
fn named(path: &Path, error: TorchError) -> TorchError {
    match error {
        TorchError::Torch(text) => TorchError::Torch(format!("{}: {text}", path.display())),
        other => other,
    }
}

/// Sets the number of threads that torch computes with on the calling thread, and on those that begin later.
pub fn set_num_threads(num_threads: usize) {
    tch::set_num_threads(i32::try_from(num_threads).unwrap_or(i32::MAX));
}

/// The number of threads is a setting of each thread that calls torch.
fn set_threads_here(num_threads: usize) {
    thread_local!(static PRESENT: Cell<usize> = const { Cell::new(0) });
    PRESENT.with(|present| {
        if present.replace(num_threads) != num_threads {
            set_num_threads(num_threads);
        }
    });
}

/// Runs `body` with this thread's work on a GPU going to a stream that no other thread has meanwhile, so that threads do not
/// wait for one another's.
///
/// There are as many streams as threads score at once, and not as threads: libtorch keeps the memory of each for its later work.
fn on_own_stream<T>(
    gpu: usize,
    body: impl FnOnce(&Stream) -> Result<T, TorchError>,
) -> Result<T, TorchError> {
    /// The streams that no thread has, with their GPUs, the last used at the end.
    static IDLE: Mutex<Vec<(usize, Stream)>> = Mutex::new(vec![]);
    let idle = || IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    make_present(gpu)?;
    let found = {
        let mut idle = idle();
        let last = idle.iter().rposition(|(of, _)| *of == gpu);
        last.map(|place| idle.remove(place).1)
    };
    let stream = found.map_or_else(|| Stream::of_pool(gpu), Ok)?;
    let entered = stream.enter()?;
    let result = body(&stream);
    drop(entered);
    idle().push((gpu, stream));
    result
}

fn check_sizes(
    tensors: &[InputTensor],
    num_rows: usize,
    bytes: &[&[u8]],
) -> Result<(), TorchError> {
    let wanted: Vec<usize> = tensors
        .iter()
        .map(|tensor| tensor.row_bytes() * num_rows)
        .collect();
    let given: Vec<usize> = bytes.iter().map(|bytes| bytes.len()).collect();
    if given == wanted {
        return Ok(());
    }
    Err(TorchError::Data(format!(
        "inputs of {given:?} bytes were given to score {num_rows} rows, which take {wanted:?}"
    )))
}

/// Rows of several tensors.
fn tensors_of(
    specs: &[InputTensor],
    bytes: &[&[u8]],
    start: usize,
    stop: usize,
    device: Device,
) -> Result<Vec<Tensor>, TorchError> {
    let rows = |(spec, &bytes): (&InputTensor, &&[u8])| rows_of(spec, bytes, start, stop, device);
    specs.iter().zip(bytes).map(rows).collect()
}

/// Rows of an input, copied into torch's own memory, so that a row's outputs have the same bits in every process, and begun
/// to be sent on where they are wanted elsewhere.
fn rows_of(
    spec: &InputTensor,
    bytes: &[u8],
    start: usize,
    stop: usize,
    device: Device,
) -> Result<Tensor, TorchError> {
    let width = spec.row_bytes();
    let shape: Vec<i64> = [stop - start]
        .iter()
        .chain(&spec.shape)
        .map(|&size| size as i64)
        .collect();
    let (bytes, kind) = (&bytes[start * width..stop * width], kind_of(spec.dtype));
    if device.is_cuda() {
        return send(&filled(empty_pinned(&shape, kind)?, bytes)?, device);
    }
    of_bytes(bytes, kind, &shape)
}

/// No rows of an output.
fn empty(spec: &OutputTensor) -> Result<Tensor, TorchError> {
    let kind = match spec.dtype.as_str() {
        "float64" => Kind::Double,
        "bool" => Kind::Bool,
        name if name.contains("int") => Kind::Int64,
        _ => Kind::Float,
    };
    let shape: Vec<i64> = [0].into_iter().chain(spec.shape.iter().copied()).collect();
    Ok(Tensor::f_empty(shape.as_slice(), (kind, Device::Cpu))?)
}

/// Doubles for single numbers; otherwise float, double, long or boolean elements.
fn column(tensor: &Tensor, spec: &OutputTensor) -> Result<Scores, TorchError> {
    let kind = match tensor.kind() {
        _ if spec.is_scalar() => Kind::Double,
        kind @ (Kind::Double | Kind::Bool) => kind,
        kind if is_floating(kind) => Kind::Float,
        _ => Kind::Int64,
    };
    let flat = tensor.f_totype(kind)?.f_contiguous()?;
    Ok(match kind {
        Kind::Float => Scores::F32(elements(&flat)),
        Kind::Double => Scores::F64(elements(&flat)),
        Kind::Int64 => Scores::I64(elements(&flat)),
        _ => Scores::Bool(bytes_of(&flat).iter().map(|&byte| byte != 0).collect()),
    })
}

fn shapes(named: &[(Option<String>, Vec<i64>)]) -> String {
    let shape = |(name, size): &(Option<String>, Vec<i64>)| {
        format!("{} of {size:?}", name.as_deref().unwrap_or("a tensor"))
    };
    named.iter().map(shape).collect::<Vec<_>>().join(", ")
}
