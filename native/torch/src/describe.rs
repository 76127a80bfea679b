//! What a program is, for whoever looks at one.

use flambeau_data::{DatasetSpec, TensorSpec};
use flambeau_train::ProgramForm;

use crate::error::TorchError;
use crate::job::probe;
use crate::output::OutputTensor;
use crate::tensor::kind_name;
use crate::{load, random};

/// A program from outside.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramDescription {
    /// Its parameters and buffers, in the order of its `state_dict`, tied ones under each of their names.
    pub tensors: Vec<TensorDescription>,
    /// What it returns for inputs of these shapes; `None` where no inputs were given.
    pub output: Option<Vec<OutputTensor>>,
}

/// A parameter or a buffer from outside.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDescription {
    /// Its name in the `state_dict`.
    pub name: String,
    /// Its dtype, as torch names it.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// Whether it is a buffer rather than a parameter.
    pub is_buffer: bool,
    /// Whether it is trained.
    pub requires_grad: bool,
}

/// Looks at a program, with its weights or without: for inputs, whose shapes must be known, it is run on two rows.
///
/// # Errors
///
/// What is wrong with the file, or with the inputs for it.
pub fn describe(
    form: ProgramForm,
    program: &[u8],
    inputs: &[TensorSpec],
) -> Result<ProgramDescription, TorchError> {
    let program = load::open(form, program, None)?;
    let tensors = program
        .tensors()
        .into_iter()
        .map(|entry| TensorDescription {
            dtype: kind_name(entry.tensor.kind()),
            shape: entry.tensor.size(),
            name: entry.name,
            is_buffer: entry.is_buffer,
            requires_grad: entry.requires_grad,
        });
    let tensors = tensors.collect();
    if inputs.is_empty() {
        return Ok(ProgramDescription {
            tensors,
            output: None,
        });
    }
    let spec = DatasetSpec {
        inputs: inputs.to_vec(),
        labels: vec![],
        weight: None,
        raw_columns: vec![],
    };
    let output = random::forked(|| Ok(probe(&*program, &spec)?.1))?;
    Ok(ProgramDescription {
        tensors,
        output: Some(output),
    })
}
