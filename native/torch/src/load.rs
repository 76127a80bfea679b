//! A program of a job, with its weights, as it is when training starts.

use std::fmt::Write;

use flambeau_data::Store;
use flambeau_train::{NativeProgram, ProgramForm, StoredWeights};
use sha2::{Digest, Sha256};

use crate::error::TorchError;
use crate::model::ModelTensors;
use crate::program::{NamedTensor, Program};
use crate::script::ScriptProgram;
use crate::tensor::{collective_dtype, is_dense, kind_name};
use crate::{exported, weights};

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

/// Reads a program and gives it its weights.
pub(crate) fn of_job(spec: &NativeProgram, store: &Store) -> Result<Box<dyn Program>, TorchError> {
    let eval = store.get(&spec.eval)?;
    let train = spec
        .train
        .as_deref()
        .map(|uri| store.get(uri))
        .transpose()?;
    let program = match spec.form {
        ProgramForm::Scripted => open(spec.form, &eval, train.as_deref()),
        ProgramForm::Exported => exported::load(&eval, train.as_deref())
            .and_then(|program| program.with_archives(&eval, train.as_deref()))
            .map(|program| Box::new(program) as Box<dyn Program>),
    };
    let program = program.map_err(|error| {
        TorchError::Param(format!("model: {} cannot be loaded: {error}", spec.eval))
    })?;
    if let Some(stored) = &spec.weights {
        let bytes = store.get(&stored.uri)?;
        check_hash(&bytes, stored)?;
        weights::load(&program.tensors(), &bytes)?;
    }
    Ok(program)
}

/// A program from the bytes of its files.
pub(crate) fn open(
    form: ProgramForm,
    eval: &[u8],
    train: Option<&[u8]>,
) -> Result<Box<dyn Program>, TorchError> {
    match (form, train) {
        (ProgramForm::Scripted, None) => Ok(Box::new(ScriptProgram::load(eval)?)),
        (ProgramForm::Scripted, Some(_)) => Err(TorchError::Param(
            "a scripted program has one file, which serves training too; leave `train` out".into(),
        )),
        (ProgramForm::Exported, train) => Ok(Box::new(exported::load(eval, train)?)),
    }
}

fn check_hash(bytes: &[u8], stored: &StoredWeights) -> Result<(), TorchError> {
    let mut actual = String::new();
    for byte in Sha256::digest(bytes) {
        write!(actual, "{byte:02x}").expect("a string takes what is written");
    }
    if bytes.len() as u64 == stored.size && actual == stored.sha256 {
        return Ok(());
    }
    Err(TorchError::Data(format!(
        "{} is not the weights file of this job: it has {} bytes with the SHA-256 {actual}, expected {} with {}; was \
         another model saved over it?",
        stored.uri,
        bytes.len(),
        stored.size,
        stored.sha256
    )))
}

/// Refuses, by name and with what to do, what cannot be trained data-parallel.
pub(crate) fn check_trainable(
    program: &dyn Program,
    tensors: &ModelTensors,
) -> Result<(), TorchError> {
    let ModelTensors { all, trained } = tensors;
    check_held(all)?;
    program.check_trainable()?;
    let refuse =
        |name: &str, reason: String| Err(TorchError::Param(format!("model: {name} {reason}")));
    for entry in trained {
        let kind = entry.tensor.kind();
        if !crate::tensor::is_floating(kind) || collective_dtype(kind).is_none() {
            let reason = format!(
                "has dtype {}; trainable ones are float32, float64, float16 or bfloat16",
                kind_name(kind)
            );
            return refuse(&entry.name, reason);
        }
    }
    if let Some(entry) = all.iter().find(|entry| !is_dense(&entry.tensor)) {
        let reason = "has elements that share memory; make it a tensor of its own with .clone()";
        return refuse(&entry.name, reason.into());
    }
    if trained.is_empty() {
        return Err(TorchError::Param(
            "model: no parameter is trainable; at least one must have requires_grad=True".into(),
        ));
    }
    Ok(())
}

/// Refuses a program whose weights lie in another file that was not given.
pub(crate) fn check_held(tensors: &[NamedTensor]) -> Result<(), TorchError> {
    let is_hollow = |entry: &&NamedTensor| {
        let tensor = &entry.tensor;
        entry.persistent && tensor.numel() > 1 && tensor.stride().iter().all(|&stride| stride == 0)
    };
    match tensors.iter().find(is_hollow) {
        None => Ok(()),
        Some(entry) => Err(TorchError::Param(format!(
            "model: the program's file has no weights in it ({} is empty); give the weights file that lies beside it",
            entry.name
        ))),
    }
}
