//! The JSON of an exported graph, as `torch/_export/serde/schema.py` declares it: the parts that are run.
//!
//! What is unknown in a place that is not read is passed over, so that later minor versions of the schema are read too.
//! The values of arguments are kept as JSON until their node is compiled, so that an error can name the node.

use std::collections::HashMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The major version of the schema that is read. It is raised where the meaning of a graph changes.
pub(super) const SCHEMA_MAJOR: i64 = 8;

#[derive(Deserialize)]
pub(super) struct ExportedModel {
    pub graph_module: GraphModule,
    #[serde(default)]
    pub range_constraints: HashMap<String, RangeConstraint>,
    pub schema_version: SchemaVersion,
    #[serde(default)]
    pub torch_version: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct SchemaVersion {
    pub major: i64,
    pub minor: i64,
}

#[derive(Deserialize)]
pub(super) struct RangeConstraint {
    pub min_val: Option<i64>,
    pub max_val: Option<i64>,
}

#[derive(Deserialize)]
pub(super) struct GraphModule {
    pub graph: Graph,
    pub signature: Signature,
    pub module_call_graph: Vec<ModuleCall>,
    #[serde(default)]
    pub treespec_namedtuple_fields: HashMap<String, NamedTupleFields>,
}

#[derive(Deserialize)]
pub(super) struct NamedTupleFields {
    pub field_names: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct ModuleCall {
    pub fqn: String,
    pub signature: Option<CallSignature>,
}

#[derive(Deserialize)]
pub(super) struct CallSignature {
    pub out_spec: String,
}

#[derive(Deserialize)]
pub(super) struct Graph {
    pub inputs: Vec<Value>,
    pub outputs: Vec<Value>,
    pub nodes: Vec<Node>,
    #[serde(default)]
    pub tensor_values: HashMap<String, TensorMeta>,
}

#[derive(Deserialize)]
pub(super) struct Node {
    pub target: String,
    pub inputs: Vec<NamedArgument>,
    pub outputs: Vec<Value>,
    /// Absent in what older versions wrote.
    #[serde(default)]
    pub name: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct NamedArgument {
    pub name: String,
    pub arg: Value,
}

/// The value of an argument: a JSON object with one key, the tag.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(
    clippy::enum_variant_names,
    reason = "the variants are the tags of the JSON"
)]
pub(super) enum Argument {
    AsNone(IgnoredAny),
    AsTensor(TensorName),
    AsTensors(Vec<TensorName>),
    AsOptionalTensor(OptionalTensor),
    AsOptionalTensors(Vec<OptionalTensor>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(Float),
    AsFloats(Vec<Float>),
    AsBool(bool),
    AsBools(Vec<bool>),
    AsString(String),
    AsStrings(Vec<String>),
    AsComplex(Complex),
    AsSymInt(Symbolic),
    AsSymInts(Vec<Symbolic>),
    AsSymFloat(Symbolic),
    AsSymFloats(Vec<Symbolic>),
    AsSymBool(Symbolic),
    AsSymBools(Vec<Symbolic>),
    AsScalarType(i64),
    AsLayout(i64),
    AsMemoryFormat(i64),
    AsDevice(Device),
    AsGraph(Box<GraphArgument>),
}

#[derive(Deserialize)]
pub(super) struct TensorName {
    pub name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OptionalTensor {
    AsTensor(TensorName),
    AsNone(IgnoredAny),
}

#[derive(Deserialize)]
pub(super) struct Complex {
    pub real: Float,
    pub imag: Float,
}

/// A number that is known, or the name of one that the graph computes.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(
    clippy::enum_variant_names,
    reason = "the variants are the tags of the JSON"
)]
pub(super) enum Symbolic {
    AsName(String),
    AsInt(i64),
    AsFloat(Float),
    AsBool(bool),
}

#[derive(Deserialize)]
pub(super) struct Device {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub index: Option<i64>,
}

#[derive(Deserialize)]
pub(super) struct GraphArgument {
    pub graph: Graph,
}

#[derive(Deserialize)]
pub(super) struct Signature {
    pub input_specs: Vec<InputSpec>,
    pub output_specs: Vec<OutputSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum InputSpec {
    UserInput {
        arg: Value,
    },
    Parameter {
        arg: TensorName,
        parameter_name: String,
    },
    Buffer {
        arg: TensorName,
        buffer_name: String,
        persistent: bool,
    },
    TensorConstant {
        arg: TensorName,
        tensor_constant_name: String,
    },
    CustomObj {
        custom_obj_name: String,
    },
    Token {},
    ConstantInput {
        name: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OutputSpec {
    UserOutput {},
    LossOutput {},
    BufferMutation { buffer_name: String },
    GradientToParameter {},
    GradientToUserInput {},
    UserInputMutation { user_input_name: String },
    Token {},
    ParameterMutation { parameter_name: String },
}

#[derive(Deserialize)]
pub(super) struct TensorMeta {
    pub dtype: i64,
    pub sizes: Vec<Size>,
    pub requires_grad: bool,
    pub strides: Vec<Size>,
    pub storage_offset: Size,
    pub layout: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Size {
    AsInt(i64),
    AsExpr(Expression),
}

impl Size {
    /// The size, where it is a number.
    pub(super) fn fixed(&self) -> Option<i64> {
        match self {
            Size::AsInt(size) if *size >= 0 => Some(*size),
            _ => None,
        }
    }
}

/// The sizes, where all are numbers.
pub(super) fn fixed(sizes: &[Size]) -> Option<Vec<i64>> {
    sizes.iter().map(Size::fixed).collect()
}

#[derive(Deserialize)]
pub(super) struct Expression {
    pub expr_str: String,
}

/// Which entry of the archive holds a tensor, and how it lies in it.
#[derive(Deserialize)]
pub(super) struct PayloadConfig {
    pub config: HashMap<String, Payload>,
}

#[derive(Deserialize)]
pub(super) struct Payload {
    pub path_name: String,
    pub use_pickle: bool,
    pub tensor_meta: Option<TensorMeta>,
}

/// A float; JSON has no infinities and no NaN, which are written as strings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Float(pub f64);

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Float, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(f64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(Float(number)),
            Written::Text(text) => match text.as_str() {
                "Infinity" => Ok(Float(f64::INFINITY)),
                "-Infinity" => Ok(Float(f64::NEG_INFINITY)),
                "NaN" => Ok(Float(f64::NAN)),
                _ => Err(serde::de::Error::custom(format!("{text:?} is no number"))),
            },
        }
    }
}

/// `c10::ScalarType` of a serialized one.
pub(super) fn scalar_type(serialized: i64) -> Option<i64> {
    Some(match serialized {
        1..=12 => serialized - 1,
        13 => 15,
        28 => 27,
        29 => 24,
        30 => 23,
        31 => 26,
        32 => 25,
        33 => 44,
        34 => 28,
        35 => 29,
        _ => return None,
    })
}

/// `c10::Layout` of a serialized one.
pub(super) fn layout(serialized: i64) -> Option<i64> {
    [
        None,
        Some(1),
        Some(2),
        Some(4),
        Some(5),
        Some(6),
        Some(3),
        Some(0),
    ]
    .get(usize::try_from(serialized).ok()?)
    .copied()
    .flatten()
}

/// `c10::MemoryFormat` of a serialized one.
pub(super) fn memory_format(serialized: i64) -> Option<i64> {
    [None, Some(0), Some(2), Some(3), Some(1)]
        .get(usize::try_from(serialized).ok()?)
        .copied()
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_lacks_are_read() {
        let read = |text: &str| serde_json::from_str::<Float>(text).map(|value| value.0);
        assert_eq!(read("1.5").unwrap(), 1.5);
        assert_eq!(read("3").unwrap(), 3.0);
        assert_eq!(read("\"-Infinity\"").unwrap(), f64::NEG_INFINITY);
        assert!(read("\"NaN\"").unwrap().is_nan());
        assert!(read("\"many\"").is_err());
    }

    #[test]
    fn enumerations_follow_c10() {
        // float32, bool, bfloat16, float8_e4m3fn.
        assert_eq!(
            [7, 12, 13, 29].map(scalar_type),
            [Some(6), Some(11), Some(15), Some(24)]
        );
        assert_eq!([0, 14, 99].map(scalar_type), [None; 3]);
        // Strided, then what is unknown.
        assert_eq!([7, 0, 8, -1].map(layout), [Some(0), None, None, None]);
        // Contiguous, channels last, preserve.
        assert_eq!(
            [1, 2, 4, 5].map(memory_format),
            [Some(0), Some(2), Some(1), None]
        );
    }
}
