//! The rows of a batch: where the program computes, and beside that in main memory.

use std::any::Any;

use flambeau_data::{Batch, HostTensor};
use flambeau_train::{ModelError, StagedBatch, StagedData};
use tch::Tensor;

use crate::device::{Placement, Upload};
use crate::error::TorchError;
use crate::tensor::of_host;

/// The tensors of a batch.
pub(crate) struct Rows {
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) targets: Targets,
}

/// What the outputs of a batch are held against.
pub(crate) struct Targets {
    pub(crate) num_rows: usize,
    pub(crate) labels: Vec<Tensor>,
    /// One number a row.
    pub(crate) weight: Option<Tensor>,
    /// Labels and weights in main memory, where the program computes elsewhere.
    on_host: Option<(Vec<Tensor>, Option<Tensor>)>,
}

impl Targets {
    /// Those of a program that computes on the CPU.
    pub(crate) fn on_cpu(labels: Vec<Tensor>, weight: Option<Tensor>, num_rows: usize) -> Targets {
        Targets {
            num_rows,
            labels,
            weight,
            on_host: None,
        }
    }

    /// Whether the program computes elsewhere than in main memory, where a number is read without waiting.
    pub(crate) fn are_on_device(&self) -> bool {
        self.on_host.is_some()
    }

    /// The weights in main memory.
    pub(crate) fn host_weight(&self) -> Option<&Tensor> {
        match &self.on_host {
            Some((_, weight)) => weight.as_ref(),
            None => self.weight.as_ref(),
        }
    }

    /// What `make` makes of the labels where the program computes, and of those in main memory: the same tensor where that
    /// is one place.
    pub(crate) fn both(
        &self,
        make: impl Fn(&[Tensor]) -> Result<Tensor, TorchError>,
    ) -> Result<(Tensor, Tensor), TorchError> {
        let made = make(&self.labels)?;
        let on_host = match &self.on_host {
            Some((labels, _)) => make(labels)?,
            None => made.shallow_clone(),
        };
        Ok((made, on_host))
    }
}

/// A batch on its way to a device.
struct StagedRows {
    /// Inputs, labels and the weight.
    upload: Upload,
    num_inputs: usize,
    num_rows: usize,
    labels: Vec<Tensor>,
    weight: Option<Tensor>,
}

impl Rows {
    /// The rows of a batch for a program that computes on the CPU: nothing is copied.
    pub(crate) fn on_cpu(batch: Batch) -> Result<Rows, TorchError> {
        let weight = batch.weight.map(of_host).transpose()?;
        Ok(Rows {
            inputs: tensors(batch.inputs)?,
            targets: Targets::on_cpu(tensors(batch.labels)?, weight, batch.num_rows),
        })
    }

    /// Begins to copy a batch to a device.
    pub(crate) fn stage(batch: Batch, placement: &Placement) -> Result<StagedBatch, TorchError> {
        let inputs = tensors(batch.inputs)?;
        let labels = tensors(batch.labels)?;
        let weight = batch.weight.map(of_host).transpose()?;
        let all = inputs.iter().chain(&labels).chain(&weight);
        let all: Vec<Tensor> = all.map(Tensor::shallow_clone).collect();
        let staged: Box<dyn Any> = Box::new(StagedRows {
            upload: placement.upload(&all)?,
            num_inputs: inputs.len(),
            num_rows: batch.num_rows,
            labels,
            weight,
        });
        Ok(StagedBatch {
            num_rows: batch.num_rows,
            data: StagedData::Device(staged),
        })
    }

    /// The rows of a staged batch, for work that this thread launches from now on.
    pub(crate) fn of_staged(
        batch: StagedBatch,
        placement: Option<&Placement>,
    ) -> Result<Rows, ModelError> {
        match (batch.data, placement) {
            (StagedData::Host(batch), None) => Ok(Rows::on_cpu(batch)?),
            (StagedData::Host(batch), Some(placement)) => {
                Rows::of_staged(Rows::stage(batch, placement)?, Some(placement))
            }
            (StagedData::Device(staged), Some(placement)) => {
                match staged.downcast::<StagedRows>() {
                    Ok(staged) => Ok(staged.arrived(placement)?),
                    Err(_) => Err("another model has put this batch on its device".into()),
                }
            }
            (StagedData::Device(_), None) => {
                Err("a batch on a device came to a model that computes on the CPU".into())
            }
        }
    }
}

impl StagedRows {
    fn arrived(self, placement: &Placement) -> Result<Rows, TorchError> {
        let mut inputs = self.upload.take(placement)?;
        let mut labels = inputs.split_off(self.num_inputs);
        let weight = match self.weight {
            Some(_) => labels.pop(),
            None => None,
        };
        Ok(Rows {
            inputs,
            targets: Targets {
                num_rows: self.num_rows,
                labels,
                weight,
                on_host: Some((self.labels, self.weight)),
            },
        })
    }
}

fn tensors(tensors: Vec<HostTensor>) -> Result<Vec<Tensor>, TorchError> {
    tensors.into_iter().map(of_host).collect()
}
