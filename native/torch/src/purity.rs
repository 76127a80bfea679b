//! Operators that compute and do nothing else.

use flambeau_train::is_pure_operator;

use crate::error::TorchError;

/// Refuses operators that do more than compute.
pub(crate) fn check_operators(names: &[String]) -> Result<(), TorchError> {
    let others: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !is_pure_operator(name))
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    Err(TorchError::Param(format!(
        "it calls {}, which may do more than compute",
        others.join(", ")
    )))
}
