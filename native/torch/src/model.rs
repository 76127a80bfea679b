//! A program with its loss, optimizer and metrics, as the training loop's model.

use std::collections::HashSet;
use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use flambeau_collective::{DType, Device};
use flambeau_data::{Batch, HostTensor};
use flambeau_train::{
    GradientReducer, LossSums, MicroBatch, Model, ModelError, ParameterInfo, Precision,
    StagedBatch, StepContext, TensorRef, Tensors,
};
use tch::{Kind, TchError, Tensor};

use crate::autocast::Autocast;
use crate::error::TorchError;
use crate::gradients::{GatherError, Gradients, sparse_parameter};
use crate::loss::{Loss, LossValue};
use crate::metrics::Metric;
use crate::optimizer::{Optimizer, Update};
use crate::program::{NamedTensor, Outputs, Program};
use crate::tensor::{collective_dtype, identity, is_dense, of_host};
use crate::{random, state, weights};

/// A libtorch program that is trained.
///
/// Before the first backward of a step parameters have no gradients; after a backward each gradient lies in the
/// reducer's memory, where later micro-steps accumulate.
pub struct TorchModel {
    program: Box<dyn Program>,
    loss: Box<dyn Loss>,
    optimizer: Optimizer,
    metrics: Vec<Metric>,
    precision: Precision,
    tensors: ModelTensors,
    gradients: Option<Gradients>,
}

/// The tensors of a batch.
struct Rows {
    inputs: Vec<Tensor>,
    labels: Vec<Tensor>,
    weight: Option<Tensor>,
    num_rows: usize,
}

impl Rows {
    fn new(batch: Batch) -> Result<Rows, TorchError> {
        let tensors = |tensors: Vec<HostTensor>| {
            tensors
                .into_iter()
                .map(of_host)
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(Rows {
            inputs: tensors(batch.inputs)?,
            labels: tensors(batch.labels)?,
            weight: batch.weight.map(of_host).transpose()?,
            num_rows: batch.num_rows,
        })
    }
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
        }
    }

    /// What the program returns for a batch, and its loss.
    fn evaluate(&self, rows: &Rows, training: bool) -> Result<(Outputs, LossValue), TorchError> {
        let _autocast = Autocast::of(self.precision);
        let output = self.program.forward(&rows.inputs, training)?;
        let weight = rows.weight.as_ref();
        let loss = self
            .loss
            .evaluate(&output, &rows.labels, weight, rows.num_rows)?;
        Ok((output, loss))
    }

    /// The sums of a batch, after its forward and, in training, its backward.
    fn sums(
        &self,
        output: &Outputs,
        rows: &Rows,
        loss: &LossValue,
    ) -> Result<LossSums, TorchError> {
        let numerator = match loss.denominator {
            0.0 => 0.0,
            denominator => loss.value.f_double_value(&[])? * denominator,
        };
        let mut metrics = vec![];
        let _autocast = Autocast::of(self.precision);
        tch::no_grad(|| {
            self.metrics.iter().try_for_each(|metric| {
                metric.update(
                    output,
                    &rows.labels,
                    rows.weight.as_ref(),
                    rows.num_rows,
                    &mut metrics,
                )
            })
        })?;
        Ok(LossSums {
            numerator,
            denominator: loss.denominator,
            metrics,
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
        device: Device::Cpu,
    })
}

/// The memory of a tensor, as bytes where collectives don't know its dtype.
fn shared(entry: &NamedTensor) -> Result<TensorRef, ModelError> {
    let tensor = &entry.tensor;
    if !is_dense(tensor) {
        return Err(Box::new(TorchError::Param(format!(
            "model: {} has elements that share memory; make it a tensor of its own with .clone()",
            entry.name
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
        name: entry.name.clone(),
        ptr: tensor.data_ptr().cast::<c_void>(),
        numel,
        dtype,
    })
}

impl Model for TorchModel {
    fn parameters(&mut self) -> Result<Vec<ParameterInfo>, ModelError> {
        self.tensors.trained.iter().map(info).collect()
    }

    fn num_metric_sums(&mut self) -> Result<usize, ModelError> {
        Ok(self.metrics.iter().map(Metric::num_sums).sum())
    }

    fn attach(&mut self, reducer: Arc<GradientReducer>) -> Result<(), ModelError> {
        // The old hooks go before the new ones come.
        self.gradients = None;
        self.gradients = Some(Gradients::attach(&self.tensors.trained, reducer)?);
        Ok(())
    }

    fn tensors(&mut self, which: Tensors) -> Result<Vec<TensorRef>, ModelError> {
        self.tensors
            .all
            .iter()
            .filter(|entry| entry.is_buffer || which == Tensors::All)
            .filter(|entry| entry.tensor.numel() > 0)
            .map(shared)
            .collect()
    }

    fn train_batch(
        &mut self,
        batch: StagedBatch,
        micro: &MicroBatch,
    ) -> Result<LossSums, ModelError> {
        let rows = Rows::new(batch.into_host())?;
        let (output, loss) = self.evaluate(&rows, true)?;
        if loss.denominator != 0.0 {
            self.backward(&loss, micro)?;
        }
        Ok(self.sums(&output, &rows, &loss)?)
    }

    fn optimizer_step(&mut self, context: &StepContext<'_>) -> Result<(), ModelError> {
        let gradients = self
            .gradients
            .as_mut()
            .ok_or("a step came before the reducer")?;
        if let Some(learning_rate) = context.learning_rate {
            self.optimizer.set_learning_rate(learning_rate);
        }
        let used = self.tensors.trained.iter().zip(context.used).enumerate();
        let updates: Vec<Update<'_>> = used
            .filter(|(_, (_, is_used))| **is_used)
            .map(|(index, (parameter, _))| Update {
                index,
                parameter: &parameter.tensor,
                gradient: gradients.view(index),
            })
            .collect();
        self.optimizer.step(&updates)?;
        drop(updates);
        gradients.clear();
        Ok(())
    }

    fn skip_step(&mut self) -> Result<(), ModelError> {
        let gradients = self.gradients.as_mut();
        gradients.ok_or("a step came before the reducer")?.clear();
        Ok(())
    }

    fn evaluate_batch(&mut self, batch: StagedBatch) -> Result<LossSums, ModelError> {
        let rows = Rows::new(batch.into_host())?;
        // Not inference mode: a module may keep a tensor that it makes here, and training could not use that one.
        Ok(tch::no_grad(|| {
            let (output, loss) = self.evaluate(&rows, false)?;
            self.sums(&output, &rows, &loss)
        })?)
    }

    fn finish_metrics(&mut self, sums: &[f64]) -> Result<Vec<(String, f64)>, ModelError> {
        let mut rest = sums;
        let finish = |metric: &Metric| {
            let (own, others) = rest.split_at(metric.num_sums());
            rest = others;
            (metric.name.clone(), metric.finish(own))
        };
        Ok(self.metrics.iter().map(finish).collect())
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

    fn save_rank_state(&mut self) -> Result<Vec<u8>, ModelError> {
        Ok(random::state()?)
    }

    fn load_rank_state(&mut self, state: &[u8]) -> Result<(), ModelError> {
        Ok(random::set_state(state)?)
    }

    fn seed(&mut self, seed: u64, step: u64, rank: usize) -> Result<(), ModelError> {
        random::seed(seed, step, rank);
        Ok(())
    }

    fn write_weights(&mut self, directory: &Path) -> Result<Vec<String>, ModelError> {
        weights::write(&self.program.tensors(), &directory.join(weights::FILE_NAME))?;
        let mut names = vec![weights::FILE_NAME.to_string()];
        names.extend(self.program.write(directory)?);
        Ok(names)
    }
}
