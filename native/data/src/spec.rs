//! Which columns make which tensors.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// The element type of a tensor that the reader hands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit floats. Wider numbers (double, decimal, long) are rounded to the nearest.
    Float32,
    /// 64-bit floats.
    Float64,
    /// 64-bit signed integers. Floats and decimals must be whole numbers.
    Int64,
    /// One byte an element, 0 or 1.
    Bool,
    /// Unsigned bytes: binary columns, or integers within 0..=255.
    UInt8,
}

impl DType {
    /// Bytes an element.
    pub const fn size(self) -> usize {
        match self {
            DType::Float32 => 4,
            DType::Float64 | DType::Int64 => 8,
            DType::Bool | DType::UInt8 => 1,
        }
    }

    /// The name in specs and messages: `float32`, `float64`, `int64`, `bool` or `uint8`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Float32 => "float32",
            DType::Float64 => "float64",
            DType::Int64 => "int64",
            DType::Bool => "bool",
            DType::UInt8 => "uint8",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// One tensor of a batch and the columns that fill it.
///
/// A row of the tensor is its columns' elements one after another, row-major.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TensorSpec {
    /// The tensor's name, unique among inputs and among labels.
    pub name: String,
    /// The columns, at least one. Several are packed next to each other.
    pub columns: Vec<String>,
    /// The element type.
    pub dtype: DType,
    /// The shape of one row. `None` in a request: `[]` for one scalar column, the data's own for one array column,
    /// `[n]` for several columns. Always `Some` in a [`Manifest`](crate::Manifest)'s resolved spec.
    #[serde(default)]
    pub shape: Option<Vec<usize>>,
}

impl TensorSpec {
    /// Elements of one row; `None` while the shape is not resolved.
    pub fn elements(&self) -> Option<usize> {
        self.shape.as_ref().map(|shape| shape.iter().product())
    }
}

/// All tensors of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatasetSpec {
    /// The arguments of the model, in order.
    pub inputs: Vec<TensorSpec>,
    /// The labels; none for a model that computes its own loss.
    #[serde(default)]
    pub labels: Vec<TensorSpec>,
    /// One weight a row: a single column of finite numbers >= 0.
    #[serde(default)]
    pub weight: Option<TensorSpec>,
    /// Columns that a batch holds as they are, beside the tensors: numbers, strings, bytes, and lists of any length, for
    /// whoever makes the model's arguments of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raw_columns: Vec<String>,
}

impl DatasetSpec {
    /// Inputs, then labels, then the weight.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.inputs.iter().chain(&self.labels).chain(&self.weight)
    }

    /// Every column of a tensor once, in the order of first use.
    pub fn tensor_columns(&self) -> Vec<&str> {
        unique(self.tensors().flat_map(|tensor| &tensor.columns))
    }

    /// Every column once: those of the tensors, then those that stay as they are.
    pub fn columns(&self) -> Vec<&str> {
        let of_tensors = self.tensors().flat_map(|tensor| &tensor.columns);
        unique(of_tensors.chain(&self.raw_columns))
    }

    /// Whether the spec makes sense by itself: at least one input or column as it is, columns in every tensor, unique names, a
    /// scalar weight.
    pub fn validate(&self) -> Result<(), DataError> {
        let fail = |reason: String| Err(DataError::InvalidSpec { reason });
        if self.inputs.is_empty() && self.raw_columns.is_empty() {
            return fail("at least one input tensor is needed".into());
        }
        if let Some(column) = repeated(&self.raw_columns) {
            return fail(format!("the column `{column}` is named twice"));
        }
        for group in [&self.inputs, &self.labels] {
            for (index, tensor) in group.iter().enumerate() {
                if group[..index].iter().any(|other| other.name == tensor.name) {
                    return fail(format!("two tensors are named `{}`", tensor.name));
                }
            }
        }
        for tensor in self.tensors() {
            if tensor.columns.is_empty() {
                return fail(format!("tensor `{}` has no columns", tensor.name));
            }
            if tensor
                .shape
                .as_ref()
                .is_some_and(|shape| shape.contains(&0))
            {
                return fail(format!(
                    "tensor `{}` has a dimension of 0 in its shape",
                    tensor.name
                ));
            }
        }
        if let Some(weight) = &self.weight {
            if weight.columns.len() != 1 || weight.elements().unwrap_or(1) != 1 {
                return fail(format!(
                    "the weight must be one scalar column, not `{}`",
                    weight.columns.join(", ")
                ));
            }
            if !matches!(weight.dtype, DType::Float32 | DType::Float64) {
                return fail(format!(
                    "the weight must be float32 or float64, not {}",
                    weight.dtype
                ));
            }
        }
        Ok(())
    }
}

/// Each name once, in the order in which it comes first.
fn unique<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for name in names {
        if !found.contains(&name.as_str()) {
            found.push(name);
        }
    }
    found
}

/// The first name that stood before.
fn repeated(names: &[String]) -> Option<&str> {
    let again = |(index, name): (usize, &String)| names[..index].contains(name);
    (names.iter().enumerate().find(|&one| again(one))).map(|(_, name)| name.as_str())
}
