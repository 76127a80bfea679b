//! A program that trains without Python: where it is, and its loss, optimizer and metrics by name.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How a program is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ProgramForm {
    /// A TorchScript archive, as `torch.jit.save` writes it. One file serves training and evaluation.
    Scripted,
    /// An archive of `torch.export`. The mode is baked into the graph.
    Exported,
}

/// A libtorch program with all that its training needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NativeProgram {
    /// How the program is written down.
    pub form: ProgramForm,
    /// URI of the TorchScript archive, or of the exported graph in evaluation mode.
    #[schemars(length(min = 1))]
    pub eval: String,
    /// URI of the exported graph in training mode, over the same weights. None where one graph serves both modes, and
    /// for a scripted program.
    #[serde(default)]
    pub train: Option<String>,
    /// The weights that training starts from. None takes those in the program's own file.
    #[serde(default)]
    pub weights: Option<StoredWeights>,
    /// The loss.
    pub loss: LossSpec,
    /// The optimizer: `sgd`, `adam`, `adamw` or `rmsprop`.
    pub optimizer: NamedOptions,
    /// Names of the metrics of each epoch beside the loss.
    #[serde(default)]
    pub metrics: Vec<String>,
}

/// A safetensors file in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct StoredWeights {
    /// Its URI.
    #[schemars(length(min = 1))]
    pub uri: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256, in lower-case hexadecimal.
    pub sha256: String,
}

/// A loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum LossSpec {
    /// One that torch has.
    Named(NamedOptions),
    /// A TorchScript module of the user's.
    Scripted(ScriptedLoss),
}

/// A loss that is a TorchScript module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct ScriptedLoss {
    /// URI of the archive. Its `forward(output, label)` returns a scalar, the mean over the rows, or one value a row.
    #[schemars(length(min = 1))]
    pub script: String,
}

/// Something of torch's by its name, with keywords of its constructor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct NamedOptions {
    /// The name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// The keywords, with torch's names; those that are left out have torch's defaults.
    #[serde(default)]
    pub options: BTreeMap<String, Value>,
}
