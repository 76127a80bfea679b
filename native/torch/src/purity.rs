//! Whether a program from outside is data: whether it computes and does nothing else.

use flambeau_train::{ProgramForm, is_pure_operator};

use crate::error::TorchError;
use crate::exported;
use crate::script::ScriptProgram;

/// Refuses a program, or a loss, that could do more than compute. It is loaded for that, and nothing of it is run.
///
/// # Errors
///
/// [`TorchError::Param`] names what it could do; or says that the bytes are no such program.
pub fn check_pure(form: ProgramForm, program: &[u8]) -> Result<(), TorchError> {
    match form {
        ProgramForm::Scripted => ScriptProgram::load_pure(program).map(|_| ()),
        ProgramForm::Exported => exported::load_pure(program),
    }
}

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
