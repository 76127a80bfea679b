//! A program with its loss, optimizer and metrics, as the training loop's model.

use std::collections::HashSet;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flambeau_collective::{DType, Device, Stream};
use flambeau_data::Batch;
use flambeau_train::{
    BucketInfo, DeviceGradients, DeviceModel, GradientSink, LossSums, MetricNames, MicroBatch,
    Model, ModelError, ParameterInfo, Precision, Split, StagedBatch, StepContext, TensorRef,
    Tensors,
};
use tch::{Kind, TchError, Tensor};

use crate::autocast::Autocast;
use crate::buckets::Buckets;
use crate::device::{Download, Placement, allow_tf32};
use crate::error::TorchError;
use crate::gradients::{GatherError, Gradients, sparse_parameter};
use crate::loss::{Loss, LossValue};
use crate::metrics::{self, Metric};
use crate::optimizer::{Optimizer, Update};
use crate::program::{NamedTensor, Outputs, Program};
use crate::rows::Rows;
use crate::tensor::{collective_dtype, identity, is_dense};
use crate::{cuda, random, state, weights};

/// A libtorch program that is trained.
///
/// Before the first backward of a step parameters have no gradients; after a backward each gradient lies in the
/// sink's memory, where later micro-batches accumulate.
pub struct TorchModel {
    program: Box<dyn Program>,
    loss: Box<dyn Loss>,
    optimizer: Optimizer,
    metrics: Vec<Metric>,
    precision: Precision,
    tensors: ModelTensors,
    gradients: Option<Gradients>,
    /// None on the CPU.
    abroad: Option<Abroad>,
}

/// Where a model computes that was moved to a device.
struct Abroad {
    placement: Placement,
    buckets: Option<Arc<Buckets>>,
    /// Copies in main memory of the tensors that were asked for last, and those that they are of.
    copies: Vec<(Tensor, Tensor)>,
}

/// What a batch came to, on its way to main memory: the mean loss, then the sums of the metrics.
pub(crate) enum Numbers {
    /// In main memory.
    Here(Vec<Tensor>),
    OnTheWay(Download),
}

impl TorchModel {
    /// A model of checked parts; see [`crate::build`].
    pub(crate) fn new(
        program: Box<dyn Program>,
        loss: Box<dyn Loss>,
        optimizer: Optimizer,
        metrics: Vec<Metric>,
        tensors: ModelTensors,
        precision: Precision,
    ) -> TorchModel {
        TorchModel {
            tensors,
            precision,
            program,
            loss,
            optimizer,
            metrics,
            gradients: None,
            abroad: None,
        }
    }

    /// Moves everything to a device, before the first batch. Main memory serves as one too: batches, gradients and tensors
    /// then take the ways that they take on a GPU.
    ///
    /// # Errors
    ///
    /// What CUDA says where there is no such device, or its memory is full.
    pub fn move_to(&mut self, device: tch::Device) -> Result<(), TorchError> {
        let placement = Placement::new(device)?;
        if self.precision == Precision::Tf32 && device.is_cuda() {
            allow_tf32()?;
        }
        self.program.move_to(tch::Device::Cpu, device)?;
        self.loss.move_to(tch::Device::Cpu, device)?;
        self.optimizer.move_to(device)?;
        self.abroad = Some(Abroad {
            placement,
            buckets: None,
            copies: vec![],
        });
        Ok(())
    }

    fn device(&self) -> tch::Device {
        self.abroad
            .as_ref()
            .map_or(tch::Device::Cpu, |abroad| abroad.placement.device())
    }

    fn abroad(&mut self) -> Result<&mut Abroad, ModelError> {
        self.abroad
            .as_mut()
            .ok_or_else(|| "the model computes on the CPU".into())
    }

    fn rows(&self, batch: StagedBatch) -> Result<Rows, ModelError> {
        Rows::of_staged(batch, self.abroad.as_ref().map(|abroad| &abroad.placement))
    }

    /// What the program returns for a batch, and its loss.
    fn evaluate(&self, rows: &Rows, training: bool) -> Result<(Outputs, LossValue), TorchError> {
        let _autocast = Autocast::of(self.precision, self.device());
        let output = self.program.forward(&rows.inputs, training)?;
        let loss = self.loss.evaluate(&output, &rows.targets)?;
        Ok((output, loss))
    }

    /// Begins to bring loss and metrics of a batch to main memory.
    fn read(&self, output: &Outputs, rows: &Rows, loss: &LossValue) -> Result<Numbers, TorchError> {
        let _autocast = Autocast::of(self.precision, self.device());
        tch::no_grad(|| {
            let mut numbers = vec![loss.value.f_detach()?];
            for metric in &self.metrics {
                metric.update(output, &rows.targets, &mut numbers)?;
            }
            match &self.abroad {
                None => Ok(Numbers::Here(numbers)),
                Some(abroad) => abroad.placement.download(&numbers).map(Numbers::OnTheWay),
            }
        })
    }

    fn backward(&mut self, loss: &LossValue, micro: &MicroBatch) -> Result<(), ModelError> {
        if !loss.value.requires_grad() {
            return Err(Box::new(detached(self.loss.name())));
        }
        let factor = micro.factor(loss.denominator);
        let backward = match factor == 1.0 {
            true => loss.value.f_backward(),
            false => scaled(&loss.value, factor).and_then(|scaled| scaled.f_backward()),
        };
        backward.map_err(|error| self.name_sparse(error.into()))?;
        let gradients = self
            .gradients
            .as_mut()
            .ok_or("a batch came before the reducer")?;
        match gradients.gather() {
            Ok(()) => Ok(()),
            Err(GatherError::Reduce(error)) => Err(Box::new(error)),
            Err(GatherError::Torch(error)) => Err(Box::new(self.name_sparse(error))),
        }
    }

    /// A sparse gradient's error names the parameter.
    fn name_sparse(&self, error: TorchError) -> TorchError {
        match sparse_parameter(&error).and_then(|index| self.tensors.trained.get(index)) {
            None => error,
            Some(parameter) => TorchError::Param(format!(
                "model: {} got a sparse gradient, which is not supported; make it dense, with sparse=False",
                parameter.name
            )),
        }
    }
}

/// A copy of a tensor in main memory, with its strides.
fn copy_in_main_memory(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let kind = tensor.kind();
    Ok(tch::no_grad(|| {
        tensor.f_to_device_(tch::Device::Cpu, kind, false, true)
    })?)
}

impl Numbers {
    /// The sums of the batch. Waits for them, and so for the forward pass.
    pub(crate) fn wait(self, denominator: f64) -> Result<LossSums, TorchError> {
        let mut numbers = match self {
            Numbers::OnTheWay(download) => download.wait()?,
            Numbers::Here(tensors) => tensors
                .iter()
                .map(|number| number.f_double_value(&[]))
                .collect::<Result<_, _>>()?,
        };
        let mean = numbers.remove(0);
        Ok(LossSums {
            numerator: match denominator {
                0.0 => 0.0,
                _ => mean * denominator,
            },
            denominator,
            metrics: numbers,
        })
    }
}

/// A loss times a factor, in a type that holds both.
fn scaled(loss: &Tensor, factor: f64) -> Result<Tensor, TchError> {
    match loss.kind() {
        Kind::Half => loss.f_to_kind(Kind::Float)?.f_mul_scalar(factor),
        _ => loss.f_mul_scalar(factor),
    }
}

/// Why a loss that no parameter takes part in cannot be trained.
pub(crate) fn detached(loss: &str) -> TorchError {
    TorchError::Param(format!(
        "{loss} does not depend on any trainable parameter: is the output detached, or made under no_grad or from \
         .item()?"
    ))
}

/// A program's tensors, each once.
pub(crate) struct ModelTensors {
    /// Parameters, then buffers, a tied one under its first name.
    pub(crate) all: Vec<NamedTensor>,
    /// The parameters that are trained.
    pub(crate) trained: Vec<NamedTensor>,
}

impl ModelTensors {
    pub(crate) fn of(program: &dyn Program) -> ModelTensors {
        let mut known = HashSet::new();
        let (buffers, mut all): (Vec<_>, Vec<_>) = program
            .tensors()
            .into_iter()
            .filter(|entry| known.insert(identity(&entry.tensor)))
            .partition(|entry| entry.is_buffer);
        all.extend(buffers);
        let trained = all
            .iter()
            .filter(|entry| entry.requires_grad && entry.tensor.numel() > 0)
            .map(NamedTensor::shallow_clone)
            .collect();
        ModelTensors { all, trained }
    }
}

fn info(entry: &NamedTensor) -> Result<ParameterInfo, ModelError> {
    let dtype = collective_dtype(entry.tensor.kind())
        .ok_or("a trained parameter has a dtype that cannot be reduced")?;
    Ok(ParameterInfo {
        name: entry.name.clone(),
        numel: entry.tensor.numel(),
        num_rows: entry.tensor.size().first().map_or(1, |&size| size as usize),
        dtype,
        device: match entry.tensor.device() {
            tch::Device::Cuda(index) => Device::Cuda(index as u32),
            _ => Device::Cpu,
        },
    })
}

/// The memory of a tensor, or of its copy in main memory, as bytes where collectives don't know its dtype.
fn shared(name: &str, tensor: &Tensor) -> Result<TensorRef, ModelError> {
    if !is_dense(tensor) {
        return Err(Box::new(TorchError::Param(format!(
            "model: {name} has elements that share memory; make it a tensor of its own with .clone()"
        ))));
    }
    let (dtype, numel) = match collective_dtype(tensor.kind()) {
        Some(dtype) => (dtype, tensor.numel()),
        None => (
            DType::UInt8,
            tensor.numel() * tensor.kind().elt_size_in_bytes(),
        ),
    };
    Ok(TensorRef {
        name: name.to_owned(),
        ptr: tensor.data_ptr().cast::<c_void>(),
        numel,
        dtype,
    })
}

impl DeviceModel for TorchModel {
    fn nccl_directories(&mut self) -> Vec<PathBuf> {
        cuda::nccl_directories()
    }

    fn to_device(&mut self, index: u32) -> Result<Stream, ModelError> {
        self.move_to(tch::Device::Cuda(index as usize))?;
        Ok(Stream(self.abroad()?.placement.stream_handle()?))
    }

    fn allocate_gradients(
        &mut self,
        buckets: &[BucketInfo],
        halves: Option<DType>,
    ) -> Result<Arc<dyn DeviceGradients>, ModelError> {
        let abroad = self.abroad()?;
        let buckets = Arc::new(Buckets::new(buckets, halves, &abroad.placement)?);
        abroad.buckets = Some(buckets.clone());
        Ok(buckets)
    }
}

impl Model for TorchModel {
    fn on_cuda(&mut self) -> Result<&mut dyn DeviceModel, String> {
        cuda::check_cuda()?;
        Ok(self)
    }

    fn looks_ahead(&self) -> usize {
        usize::from(self.abroad.is_some())
    }

    fn stage(&mut self, batch: Batch, _: bool) -> Result<StagedBatch, ModelError> {
        match &self.abroad {
            None => Ok(batch.into()),
            Some(abroad) => Ok(Rows::stage(batch, &abroad.placement)?),
        }
    }

    fn parameters(&mut self) -> Result<Vec<ParameterInfo>, ModelError> {
        self.tensors.trained.iter().map(info).collect()
    }

    fn num_metric_sums(&mut self) -> Result<usize, ModelError> {
        Ok(self.metrics.iter().map(Metric::num_sums).sum())
    }

    fn learning_rate(&mut self) -> Result<Option<f64>, ModelError> {
        Ok(Some(self.optimizer.last_rate()))
    }

    fn attach(&mut self, gradients: Arc<dyn GradientSink>) -> Result<(), ModelError> {
        // The old hooks go before the new ones come.
        self.gradients = None;
        let own = self
            .abroad
            .as_ref()
            .and_then(|abroad| abroad.buckets.as_deref());
        let attached = Gradients::attach(&self.tensors.trained, gradients, own)?;
        self.gradients = Some(attached);
        Ok(())
    }

    fn tensors(&mut self, which: Tensors) -> Result<Vec<TensorRef>, ModelError> {
        let (listed, only_buffers) = match which {
            Tensors::All => (&self.tensors.all, false),
            Tensors::Buffers => (&self.tensors.all, true),
            Tensors::Trained => (&self.tensors.trained, false),
            Tensors::Optimizer => {
                // The optimizer keeps the memory that these clones share.
                let state = self.optimizer.state().into_iter();
                let named = state.map(|(kind, index, tensor)| {
                    let parameter = &self.tensors.trained[index].name;
                    shared(&format!("{parameter} ({kind})"), &tensor)
                });
                return named.collect();
            }
        };
        let wanted =
            |entry: &&NamedTensor| entry.tensor.numel() > 0 && (entry.is_buffer || !only_buffers);
        let wanted = listed.iter().filter(wanted);
        let Some(abroad) = &mut self.abroad else {
            return wanted
                .map(|entry| shared(&entry.name, &entry.tensor))
                .collect();
        };
        abroad.copies.clear();
        let mut found = vec![];
        for entry in wanted {
            let copy = copy_in_main_memory(&entry.tensor)?;
            found.push(shared(&entry.name, &copy)?);
            abroad.copies.push((copy, entry.tensor.shallow_clone()));
        }
        Ok(found)
    }

    fn take_tensors(&mut self) -> Result<(), ModelError> {
        let Some(abroad) = &mut self.abroad else {
            return Ok(());
        };
        for (copy, tensor) in std::mem::take(&mut abroad.copies) {
            tch::no_grad(|| tensor.shallow_clone().f_copy_(&copy)).map_err(TorchError::from)?;
        }
        Ok(())
    }

    fn train_batch(
        &mut self,
        batch: StagedBatch,
        micro: &MicroBatch,
    ) -> Result<LossSums, ModelError> {
        let rows = self.rows(batch)?;
        let (output, loss) = self.evaluate(&rows, true)?;
        // Before backward, so that who waits for the numbers waits for the forward pass alone.
        let numbers = self.read(&output, &rows, &loss)?;
        if loss.denominator != 0.0 {
            self.backward(&loss, micro)?;
        }
        Ok(numbers.wait(loss.denominator)?)
    }

    fn optimizer_step(&mut self, context: &StepContext<'_>) -> Result<(), ModelError> {
        let gradients = self
            .gradients
            .as_mut()
            .ok_or("a step came before the gradients")?;
        let used = context.used.iter().enumerate();
        let updates: Vec<Update<'_>> = used
            .filter(|(_, is_used)| **is_used)
            .map(|(index, _)| Update {
                index,
                parameter: &self.tensors.trained[index].tensor,
                gradient: gradients.reduced(index),
            })
            .collect();
        self.optimizer.step(&updates, context.rate_factor)?;
        drop(updates);
        gradients.clear();
        Ok(())
    }

    fn skip_step(&mut self) -> Result<(), ModelError> {
        let gradients = self.gradients.as_mut();
        gradients.ok_or("a step came before the gradients")?.clear();
        Ok(())
    }

    fn evaluate_batch(&mut self, batch: StagedBatch) -> Result<LossSums, ModelError> {
        let rows = self.rows(batch)?;
        // Not inference mode: a module may keep a tensor that it makes here, and training could not use that one.
        Ok(tch::no_grad(|| {
            let (output, loss) = self.evaluate(&rows, false)?;
            self.read(&output, &rows, &loss)?.wait(loss.denominator)
        })?)
    }

    fn metric_names(&mut self) -> Result<MetricNames, ModelError> {
        let names = self.metrics.iter().map(|metric| metric.name.clone());
        Ok(MetricNames::of_both(names.collect()))
    }

    fn finish_metrics(&mut self, _: Split, sums: &[f64]) -> Result<Vec<(String, f64)>, ModelError> {
        Ok(metrics::finish(&self.metrics, sums))
    }

    fn save_state(&mut self) -> Result<Vec<u8>, ModelError> {
        let names: Vec<&str> = self
            .tensors
            .trained
            .iter()
            .map(|entry| entry.name.as_str())
            .collect();
        Ok(state::save(&self.tensors.all, &names, &mut self.optimizer)?)
    }

    fn load_state(&mut self, state: &[u8]) -> Result<(), ModelError> {
        Ok(state::load(
            state,
            &self.tensors.all,
            &self.tensors.trained,
            &mut self.optimizer,
        )?)
    }

    fn load_optimizer_state(&mut self, state: &[u8]) -> Result<(), ModelError> {
        let (parameters, optimizer) = (&self.tensors.trained, &mut self.optimizer);
        state::load_optimizer(state, parameters, optimizer).map_err(|error| match error {
            TorchError::Data(reason) => TorchError::Param(format!("initialState: {reason}")).into(),
            other => other.into(),
        })
    }

    fn save_rank_state(&mut self) -> Result<Vec<u8>, ModelError> {
        Ok(random::states(self.device())?)
    }

    fn load_rank_state(&mut self, state: &[u8]) -> Result<(), ModelError> {
        Ok(random::set_states(state, self.device())?)
    }

    fn seed(&mut self, seed: u64, step: u64, rank: usize) -> Result<(), ModelError> {
        random::seed(seed, step, rank);
        Ok(())
    }

    fn write_weights(&mut self, directory: &Path) -> Result<Vec<String>, ModelError> {
        // A program that is written elsewhere asks whoever loads it for the device that it was on.
        let (here, device) = (tch::Device::Cpu, self.device());
        self.program.move_to(device, here)?;
        weights::write(&self.program.tensors(), &directory.join(weights::FILE_NAME))?;
        let mut names = vec![weights::FILE_NAME.to_string()];
        names.extend(self.program.write(directory)?);
        self.program.move_to(here, device)?;
        Ok(names)
    }
}
