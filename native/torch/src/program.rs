//! What computes outputs from inputs, and what it returns.

use std::path::Path;

use tch::{Device, Tensor};

use crate::error::TorchError;

/// A parameter or a buffer of a program. It is the program's own tensor: what is written to it, or set as its data,
/// the program computes with.
#[derive(Debug)]
pub struct NamedTensor {
    /// Its name in the module's `state_dict`, such as `layers.0.weight`.
    pub name: String,
    /// The tensor. A tied one is listed under each of its names, as the same tensor.
    pub tensor: Tensor,
    /// Whether it is a buffer rather than a parameter.
    pub is_buffer: bool,
    /// Whether it is trained.
    pub requires_grad: bool,
    /// Whether it is part of the `state_dict`, and so of the weights file. False for buffers registered with
    /// `persistent=False`.
    pub persistent: bool,
}

impl NamedTensor {
    /// The same entry, over the same tensor.
    pub fn shallow_clone(&self) -> NamedTensor {
        NamedTensor {
            name: self.name.clone(),
            tensor: self.tensor.shallow_clone(),
            ..*self
        }
    }
}

/// A module without its loss: a graph and the tensors that it computes with.
///
/// Several threads may run a program at once in one mode; one alone trains it.
pub trait Program: Send + Sync {
    /// Parameters and buffers in the order of the module's `state_dict`, a tied tensor under each of its names. The
    /// same tensors at every call.
    fn tensors(&self) -> Vec<NamedTensor>;

    /// Runs the graph on inputs whose first dimension is the rows. `training` chooses the mode: that of dropout and
    /// batch normalization, not whether gradients are recorded, which is the caller's `no_grad`.
    ///
    /// # Errors
    ///
    /// What torch says; [`TorchError::Param`] where something else than tensors is returned, where the number of
    /// inputs is wrong, or where the program has no graph for the mode.
    fn forward(&self, inputs: &[Tensor], training: bool) -> Result<Outputs, TorchError>;

    /// The names of forward's arguments, in their order.
    ///
    /// # Errors
    ///
    /// What torch says of a program without a forward.
    fn arguments(&self) -> Result<Vec<String>, TorchError>;

    /// Moves everything that it computes with from one device to another, before it runs there: the tensors stay the
    /// objects that they are. What names the first device names the second from then on.
    ///
    /// # Errors
    ///
    /// What torch says, such as that the device's memory is full.
    fn move_to(&mut self, from: Device, to: Device) -> Result<(), TorchError>;

    /// Whether the program can be trained.
    ///
    /// # Errors
    ///
    /// [`TorchError::Param`] says why it cannot, and what to do.
    fn check_trainable(&self) -> Result<(), TorchError> {
        Ok(())
    }

    /// Writes the program, without the data of its persistent tensors, into `directory`, for the model that is saved
    /// from this training. Returns the names of the files; none where the program's own files serve as they are.
    fn write(&self, directory: &Path) -> Result<Vec<String>, TorchError> {
        let _ = directory;
        Ok(vec![])
    }
}

/// What a program returned.
#[derive(Debug)]
pub enum Outputs {
    /// One tensor.
    Tensor(Tensor),
    /// A tuple, whose tensors are named `_1`, `_2`, ...
    Tuple(Vec<Tensor>),
    /// A list, whose tensors are named `_1`, `_2`, ...
    List(Vec<Tensor>),
    /// A named tuple: its fields.
    NamedTuple(Vec<(String, Tensor)>),
    /// A dict: its keys, in its order.
    Dict(Vec<(String, Tensor)>),
}

impl Outputs {
    /// The tensors with their names, `None` for the only one.
    pub fn named(&self) -> Vec<(Option<String>, &Tensor)> {
        match self {
            Outputs::Tensor(tensor) => vec![(None, tensor)],
            Outputs::Tuple(tensors) | Outputs::List(tensors) => tensors
                .iter()
                .enumerate()
                .map(|(index, tensor)| (Some(format!("_{}", index + 1)), tensor))
                .collect(),
            Outputs::NamedTuple(fields) | Outputs::Dict(fields) => fields
                .iter()
                .map(|(name, tensor)| (Some(name.clone()), tensor))
                .collect(),
        }
    }

    /// The tensor where it is the only one.
    pub fn single(&self) -> Option<&Tensor> {
        match self {
            Outputs::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The same with every tensor replaced.
    pub(crate) fn map(
        &self,
        change: impl Fn(&Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Outputs, TorchError> {
        let all = |tensors: &[Tensor]| tensors.iter().map(&change).collect::<Result<_, _>>();
        let fields = |fields: &[(String, Tensor)]| {
            let changed = |(name, tensor): &(String, Tensor)| Ok((name.clone(), change(tensor)?));
            fields
                .iter()
                .map(changed)
                .collect::<Result<_, TorchError>>()
        };
        Ok(match self {
            Outputs::Tensor(tensor) => Outputs::Tensor(change(tensor)?),
            Outputs::Tuple(tensors) => Outputs::Tuple(all(tensors)?),
            Outputs::List(tensors) => Outputs::List(all(tensors)?),
            Outputs::NamedTuple(named) => Outputs::NamedTuple(fields(named)?),
            Outputs::Dict(named) => Outputs::Dict(fields(named)?),
        })
    }

    /// What it is, for messages, such as `a tuple of 2`.
    pub(crate) fn describe(&self) -> String {
        match self {
            Outputs::Tensor(_) => "a Tensor".into(),
            Outputs::Tuple(tensors) => format!("a tuple of {}", tensors.len()),
            Outputs::List(tensors) => format!("a list of {}", tensors.len()),
            Outputs::NamedTuple(fields) => format!("a tuple of {}", fields.len()),
            Outputs::Dict(_) => "a dict".into(),
        }
    }

    /// The kind as C++ numbers it, the tensors, and a dict's keys.
    pub(crate) fn parts(&self) -> (i32, Vec<&Tensor>, Vec<&str>) {
        match self {
            Outputs::Tensor(tensor) => (0, vec![tensor], vec![]),
            Outputs::Tuple(tensors) => (1, tensors.iter().collect(), vec![]),
            Outputs::List(tensors) => (2, tensors.iter().collect(), vec![]),
            Outputs::NamedTuple(fields) => (3, fields.iter().map(|(_, t)| t).collect(), vec![]),
            Outputs::Dict(fields) => {
                let (names, tensors) = fields.iter().map(|(n, t)| (n.as_str(), t)).unzip();
                (4, tensors, names)
            }
        }
    }
}
