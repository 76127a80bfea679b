//! Keywords of a loss or an optimizer, as they come in a job.

use std::fmt::Display;

use flambeau_train::NamedOptions;
use serde_json::Value;

use crate::error::TorchError;

/// The keywords of one loss or optimizer. Every error names what was given and what is allowed.
pub(crate) struct Options<'a> {
    /// `loss huber`, for messages.
    what: String,
    spec: &'a NamedOptions,
}

impl<'a> Options<'a> {
    /// The keywords of `spec`, which is a `role` (`loss` or `optimizer`), all of which must be among `allowed`.
    pub(crate) fn new(
        role: &str,
        spec: &'a NamedOptions,
        allowed: &[&str],
    ) -> Result<Options<'a>, TorchError> {
        let what = format!("{role} {}", spec.name);
        if let Some(unknown) = spec
            .options
            .keys()
            .find(|name| !allowed.contains(&name.as_str()))
        {
            return Err(TorchError::Param(match allowed {
                [] => format!("{what}: unknown option {unknown}; it has none"),
                _ => format!(
                    "{what}: unknown option {unknown}; the options are {}",
                    allowed.join(", ")
                ),
            }));
        }
        Ok(Options { what, spec })
    }

    /// A finite number for which `is_allowed` holds, or the default.
    pub(crate) fn number(
        &self,
        name: &str,
        default: f64,
        is_allowed: impl Fn(f64) -> bool,
        allowed: &str,
    ) -> Result<f64, TorchError> {
        match self.given(name) {
            None => Ok(default),
            Some(value) => value
                .as_f64()
                .filter(|&number| is_allowed(number))
                .ok_or_else(|| self.refuse(name, value, allowed)),
        }
    }

    /// A number that is at least 0.
    pub(crate) fn non_negative(&self, name: &str, default: f64) -> Result<f64, TorchError> {
        self.number(
            name,
            default,
            |number| number >= 0.0,
            "a number, at least 0",
        )
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, TorchError> {
        match self.given(name) {
            None => Ok(default),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| self.refuse(name, value, "true or false")),
        }
    }

    pub(crate) fn integer(&self, name: &str, default: i64) -> Result<i64, TorchError> {
        match self.given(name) {
            None => Ok(default),
            Some(value) => value
                .as_i64()
                .ok_or_else(|| self.refuse(name, value, "a whole number")),
        }
    }

    /// A list of numbers that are at least 0; `None` where it is not given.
    pub(crate) fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>, TorchError> {
        let Some(value) = self.given(name) else {
            return Ok(None);
        };
        let numbers: Option<Vec<f64>> = match value {
            Value::Array(values) => values.iter().map(Value::as_f64).collect(),
            other => other.as_f64().map(|number| vec![number]),
        };
        match numbers {
            Some(numbers) if !numbers.is_empty() && numbers.iter().all(|&number| number >= 0.0) => {
                Ok(Some(numbers))
            }
            _ => Err(self.refuse(name, value, "a list of numbers, each at least 0")),
        }
    }

    /// What is wrong with options that do not go together.
    pub(crate) fn conflict(&self, reason: impl Display) -> TorchError {
        TorchError::Param(format!("{}: {reason}", self.what))
    }

    pub(crate) fn refuse(&self, name: &str, value: &Value, allowed: &str) -> TorchError {
        TorchError::Param(format!(
            "{}: {name} is {value}, but must be {allowed}",
            self.what
        ))
    }

    /// The value of a keyword; null, which is Python's None, counts as not given.
    pub(crate) fn given(&self, name: &str) -> Option<&'a Value> {
        self.spec.options.get(name).filter(|value| !value.is_null())
    }
}
