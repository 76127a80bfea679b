//! What a program returns: names, dtypes and the shapes of rows.

use serde::{Deserialize, Serialize};

use crate::error::TorchError;
use crate::program::Outputs;
use crate::tensor::kind_name;

/// One tensor that a program returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputTensor {
    /// Its name; `None` where it is the only one.
    pub name: Option<String>,
    /// Its dtype, as torch names it.
    pub dtype: String,
    /// The shape of a row.
    pub shape: Vec<i64>,
}

impl OutputTensor {
    /// Whether a row is one number.
    pub fn is_scalar(&self) -> bool {
        matches!(self.shape[..], [] | [1])
    }
}

/// The signature of what a program returned for `num_rows` rows.
pub(crate) fn output_spec(
    output: &Outputs,
    num_rows: i64,
) -> Result<Vec<OutputTensor>, TorchError> {
    let mut tensors = vec![];
    for (name, tensor) in output.named() {
        let size = tensor.size();
        if size.first() != Some(&num_rows) {
            return Err(TorchError::Param(format!(
                "model: forward returns {} of shape {size:?} for {num_rows} rows; its first dimension must be the rows",
                name.as_deref().unwrap_or("a tensor")
            )));
        }
        tensors.push(OutputTensor {
            name,
            dtype: kind_name(tensor.kind()),
            shape: size[1..].to_vec(),
        });
    }
    match tensors.is_empty() {
        true => Err(TorchError::Param("model: forward returns nothing".into())),
        false => Ok(tensors),
    }
}
