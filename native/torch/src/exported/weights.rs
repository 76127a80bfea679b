//! The parameters and buffers that the graphs of a program share.

use std::collections::HashMap;

use tch::{Device, Tensor};

use super::archive::{Archive, Place, refused};
use super::schema::InputSpec;
use crate::error::TorchError;
use crate::program::NamedTensor;
use crate::tensor::move_data;

/// Parameters in the order of their registration, then buffers.
pub(super) struct Weights {
    tensors: Vec<NamedTensor>,
    index: HashMap<String, usize>,
}

impl Weights {
    /// The weights that an archive's signature names, with the values that it holds. Tied ones are one tensor.
    pub(super) fn read(archive: &mut Archive<'_>) -> Result<Weights, TorchError> {
        let mut known: HashMap<Place, Tensor> = HashMap::new();
        let (mut parameters, mut buffers) = (vec![], vec![]);
        for (name, persistent, is_buffer) in named(archive) {
            let (mut tensor, requires_grad) = if persistent {
                let (place, tensor, requires_grad) = archive.weight(&name)?;
                (
                    known.entry(place).or_insert(tensor).shallow_clone(),
                    requires_grad && !is_buffer,
                )
            } else {
                (archive.constant(&name)?, false)
            };
            if requires_grad {
                tensor = tensor
                    .f_set_requires_grad(true)
                    .map_err(|error| refused(&format!("{name}: {error}")))?;
            }
            let entry = NamedTensor {
                name,
                tensor,
                is_buffer,
                requires_grad,
                persistent,
            };
            if is_buffer {
                buffers.push(entry)
            } else {
                parameters.push(entry)
            }
        }
        parameters.extend(buffers);
        let index = parameters
            .iter()
            .enumerate()
            .map(|(index, entry)| (entry.name.clone(), index))
            .collect();
        Ok(Weights {
            tensors: parameters,
            index,
        })
    }

    /// The tensor of a name that an archive's signature has; [`Weights::check`] comes first.
    pub(super) fn get(&self, name: &str) -> Tensor {
        self.tensors[self.index[name]].tensor.shallow_clone()
    }

    /// All of them, as handles of the same tensors.
    pub(super) fn all(&self) -> Vec<NamedTensor> {
        self.tensors
            .iter()
            .map(NamedTensor::shallow_clone)
            .collect()
    }

    /// Moves their data to a device. Tied ones move once.
    pub(super) fn move_to(&self, device: Device) -> Result<(), TorchError> {
        let elsewhere = |entry: &&NamedTensor| entry.tensor.device() != device;
        self.tensors
            .iter()
            .filter(elsewhere)
            .try_for_each(|entry| move_data(&entry.tensor, device))
    }

    /// Refuses another graph that does not compute with the same tensors.
    pub(super) fn check(&self, archive: &mut Archive<'_>) -> Result<(), TorchError> {
        for (name, _, is_buffer) in named(archive) {
            let ours = self.index.get(&name).map(|&index| &self.tensors[index]);
            let same = ours.is_some_and(|ours| {
                ours.is_buffer == is_buffer && matches(archive, &name, &ours.tensor)
            });
            if !same {
                return Err(refused(&format!(
                    "the training graph's {name} is not that of the evaluation graph; save both from one module, with \
                     flambeau.save_program"
                )));
            }
        }
        Ok(())
    }
}

/// Name, whether it is persistent and whether it is a buffer, of all parameters and buffers of a signature.
fn named(archive: &Archive<'_>) -> Vec<(String, bool, bool)> {
    let specs = &archive.model.graph_module.signature.input_specs;
    specs
        .iter()
        .filter_map(|spec| match spec {
            InputSpec::Parameter { parameter_name, .. } => {
                Some((parameter_name.clone(), true, false))
            }
            InputSpec::Buffer {
                buffer_name,
                persistent,
                ..
            } => Some((buffer_name.clone(), *persistent, true)),
            _ => None,
        })
        .collect()
}

fn matches(archive: &Archive<'_>, name: &str, tensor: &Tensor) -> bool {
    archive.shape(name) == Some((tensor.kind(), tensor.size()))
}
