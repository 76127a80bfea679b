//! How the tensors that a graph returns make up what its module returned.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value as Json;
use tch::Tensor;

use super::archive::refused;
use super::schema::NamedTupleFields;
use crate::error::TorchError;
use crate::program::Outputs;

/// The structure of what a module returns.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Structure {
    Tensor,
    Tuple(usize),
    List(usize),
    NamedTuple(Vec<String>),
    Dict(Vec<String>),
}

/// A tree as `torch.utils._pytree.treespec_dumps` writes it.
#[derive(Deserialize)]
struct Tree {
    #[serde(rename = "type")]
    kind: Option<String>,
    context: Option<String>,
    children_spec: Vec<Tree>,
}

/// The version of the tree's JSON.
const VERSION: i64 = 1;

impl Structure {
    /// Reads the structure; `fields` are those of the named tuples.
    pub(super) fn parse(
        text: &str,
        fields: &HashMap<String, NamedTupleFields>,
    ) -> Result<Structure, TorchError> {
        let unread = |error: serde_json::Error| {
            refused(&format!(
                "what it returns is not described as expected: {error}"
            ))
        };
        let (version, tree): (i64, Tree) = serde_json::from_str(text).map_err(unread)?;
        if version != VERSION {
            return Err(refused(&format!(
                "what it returns is described in version {version}, not {VERSION}"
            )));
        }
        let Some(kind) = tree.kind.as_deref() else {
            return Ok(Structure::Tensor);
        };
        if tree.children_spec.iter().any(|child| child.kind.is_some()) {
            return Err(refused(
                "it returns a nested structure; return a tensor, or a tuple or dict of tensors",
            ));
        }
        let count = tree.children_spec.len();
        let context = tree.context.unwrap_or_default();
        let structure = match kind {
            "builtins.tuple" => Structure::Tuple(count),
            "builtins.list" => Structure::List(count),
            "builtins.dict" | "collections.OrderedDict" => Structure::Dict(keys(&context)?),
            "collections.namedtuple" => Structure::NamedTuple(
                fields
                    .get(&context)
                    .map(|named| named.field_names.clone())
                    .ok_or_else(|| {
                        refused(&format!(
                            "it returns the named tuple {context}, whose fields it does not tell"
                        ))
                    })?,
            ),
            other => {
                return Err(refused(&format!(
                    "it returns a {other}; return a tensor, or a tuple or dict of tensors"
                )));
            }
        };
        if structure.num_tensors() != count {
            return Err(refused(
                "the structure that it returns has not as many names as values",
            ));
        }
        Ok(structure)
    }

    /// How many tensors it has.
    pub(super) fn num_tensors(&self) -> usize {
        match self {
            Structure::Tensor => 1,
            Structure::Tuple(count) | Structure::List(count) => *count,
            Structure::NamedTuple(names) | Structure::Dict(names) => names.len(),
        }
    }

    /// The structure with these tensors, as many as it has.
    pub(super) fn fill(&self, mut tensors: Vec<Tensor>) -> Outputs {
        let named =
            |names: &[String], tensors| names.iter().cloned().zip::<Vec<Tensor>>(tensors).collect();
        match self {
            Structure::Tensor => Outputs::Tensor(tensors.remove(0)),
            Structure::Tuple(_) => Outputs::Tuple(tensors),
            Structure::List(_) => Outputs::List(tensors),
            Structure::NamedTuple(names) => Outputs::NamedTuple(named(names, tensors)),
            Structure::Dict(names) => Outputs::Dict(named(names, tensors)),
        }
    }
}

/// The keys of a dict, a JSON list.
fn keys(context: &str) -> Result<Vec<String>, TorchError> {
    let keys: Vec<Json> = serde_json::from_str(context).map_err(|error| {
        refused(&format!(
            "it returns a dict whose keys are not described as expected: {error}"
        ))
    })?;
    Ok(keys
        .iter()
        .map(|key| match key {
            Json::String(text) => text.clone(),
            other => other.to_string(),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

    fn parse(kind: &str, context: &str, children: &[&str]) -> Result<Structure, TorchError> {
        let fields = HashMap::from([(
            "m.Pair".to_string(),
            NamedTupleFields {
                field_names: vec!["mean".to_string(), "deviation".to_string()],
            },
        )]);
        let context = serde_json::to_string(context).unwrap();
        let text = format!(
            r#"[1, {{"type": "{kind}", "context": {context}, "children_spec": [{}]}}]"#,
            children.join(", ")
        );
        Structure::parse(&text, &fields)
    }

    #[test]
    fn trees_are_read() {
        assert_eq!(
            Structure::parse(&format!("[1, {LEAF}]"), &HashMap::new()).unwrap(),
            Structure::Tensor
        );
        assert_eq!(
            parse("builtins.tuple", "null", &[LEAF, LEAF]).unwrap(),
            Structure::Tuple(2)
        );
        assert_eq!(
            parse("builtins.list", "null", &[LEAF]).unwrap(),
            Structure::List(1)
        );
        let dict = Structure::Dict(vec!["y".to_string(), "3".to_string()]);
        assert_eq!(
            parse("builtins.dict", r#"["y", 3]"#, &[LEAF, LEAF]).unwrap(),
            dict
        );
        let pair = Structure::NamedTuple(vec!["mean".to_string(), "deviation".to_string()]);
        assert_eq!(
            parse("collections.namedtuple", "m.Pair", &[LEAF, LEAF]).unwrap(),
            pair
        );
    }

    #[test]
    fn other_trees_are_refused() {
        let nested = format!(
            r#"{{"type": "builtins.tuple", "context": "null", "children_spec": [{LEAF}]}}"#
        );
        for (kind, context, children) in [
            ("builtins.tuple", "null", vec![LEAF, &nested]),
            ("builtins.dict", r#"["y"]"#, vec![LEAF, LEAF]),
            ("builtins.dict", "null", vec![LEAF]),
            ("collections.namedtuple", "m.Other", vec![LEAF]),
            ("m.Dataclass", "null", vec![LEAF]),
            ("builtins.dict", "{", vec![LEAF]),
        ] {
            assert!(parse(kind, context, &children).is_err(), "{kind} {context}");
        }
        assert!(Structure::parse(&format!("[2, {LEAF}]"), &HashMap::new()).is_err());
        assert!(Structure::parse("{}", &HashMap::new()).is_err());
    }
}
