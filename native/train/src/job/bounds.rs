//! Checks the params of a job against their own schema, so that bounds are written down once.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::error::JobError;
use crate::job::params::TrainingParams;

/// Checks that every param exists and has a value that its schema allows.
///
/// # Errors
///
/// [`JobError::Unknown`] or [`JobError::Invalid`], naming the param, its value and what is allowed.
pub(crate) fn check_params(params: &Value) -> Result<(), JobError> {
    let Some(params) = params.as_object() else {
        return Err(JobError::invalid("params", params, "an object"));
    };
    let properties = properties();
    for (name, value) in params {
        let Some(schema) = properties.get(name) else {
            return Err(JobError::Unknown {
                param: name.clone(),
                value: value.to_string(),
                allowed: properties.keys().cloned().collect::<Vec<_>>().join(", "),
            });
        };
        check(name, value, schema)?;
    }
    Ok(())
}

/// The schema of each param, by its name.
fn properties() -> &'static Map<String, Value> {
    static PROPERTIES: OnceLock<Map<String, Value>> = OnceLock::new();
    PROPERTIES.get_or_init(|| {
        let mut schema = schemars::schema_for!(TrainingParams);
        match schema.remove("properties") {
            Some(Value::Object(properties)) => properties,
            _ => unreachable!("the schema of a struct has properties"),
        }
    })
}

fn check(name: &str, value: &Value, schema: &Value) -> Result<(), JobError> {
    if !has_type(value, schema) || !within(value, schema) {
        return Err(JobError::invalid(name, value, allowed(schema)));
    }
    if let (Some(items), Some(elements)) = (schema.get("items"), value.as_array()) {
        for (index, element) in elements.iter().enumerate() {
            check(&format!("{name}[{index}]"), element, items)?;
        }
    }
    Ok(())
}

fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    }
}

fn has_type(value: &Value, schema: &Value) -> bool {
    let types = types(schema);
    types.is_empty()
        || types.iter().any(|name| match *name {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            _ => false,
        })
}

fn within(value: &Value, schema: &Value) -> bool {
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    if let Some(number) = value.as_f64() {
        return bound("minimum").is_none_or(|min| number >= min)
            && bound("maximum").is_none_or(|max| number <= max)
            && bound("exclusiveMinimum").is_none_or(|min| number > min)
            && bound("exclusiveMaximum").is_none_or(|max| number < max);
    }
    match value {
        Value::String(text) => {
            let choices = choices(schema);
            if !choices.is_empty() && !choices.contains(&text.as_str()) {
                return false;
            }
            bound("minLength").is_none_or(|min| text.chars().count() as f64 >= min)
        }
        Value::Array(elements) => bound("minItems").is_none_or(|min| elements.len() as f64 >= min),
        _ => true,
    }
}

/// The values of an enumeration, which schemars writes as `enum`, or as `oneOf` constants where they have docs.
fn choices(schema: &Value) -> Vec<&str> {
    let list = |key: &str| {
        schema
            .get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    list("enum")
        .filter_map(Value::as_str)
        .chain(list("oneOf").filter_map(|one| one.get("const")?.as_str()))
        .collect()
}

/// What a schema allows, in words.
fn allowed(schema: &Value) -> String {
    let choices = choices(schema);
    if !choices.is_empty() {
        return format!("one of {}", choices.join(", "));
    }
    let mut words: Vec<String> = types(schema)
        .iter()
        .map(|name| match *name {
            "null" => "null".into(),
            "boolean" => "true or false".into(),
            "integer" => "an integer".into(),
            "number" => "a number".into(),
            "string" => "a text that is not empty".into(),
            "array" => "a list that is not empty".into(),
            other => other.into(),
        })
        .collect();
    words.sort_by_key(|word| word == "null");
    let mut text = words.join(" or ");
    let limits = [
        ("minimum", "at least"),
        ("exclusiveMinimum", "greater than"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "less than"),
    ];
    let limits: Vec<String> = limits
        .iter()
        .filter_map(|(key, word)| Some(format!("{word} {}", schema.get(key)?)))
        .collect();
    if !limits.is_empty() {
        text = format!("{text}, {}", limits.join(" and "));
    }
    text
}
