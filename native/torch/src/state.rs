//! The state of a training, in one safetensors file: the program's tensors, the optimizer's and its learning rates.

use tch::Tensor;

use crate::error::TorchError;
use crate::optimizer::Optimizer;
use crate::program::NamedTensor;
use crate::safetensors::{SafeTensors, to_bytes};
use crate::tensor::kind_name;

const FORMAT: &str = "flambeau-state";

/// What the archives of `torch.save` begin with, in which the Python runtime keeps its states.
const ARCHIVE: &[u8] = b"PK\x03\x04";

/// What [`load`] takes back. `tensors` are the program's, `names` those of the trained parameters.
pub(crate) fn save(
    tensors: &[NamedTensor],
    names: &[&str],
    optimizer: &mut Optimizer,
) -> Result<Vec<u8>, TorchError> {
    let model = tensors
        .iter()
        .map(|entry| (model_name(&entry.name), entry.tensor.shallow_clone()));
    let state = optimizer.state().into_iter();
    let state = state.map(|(kind, index, tensor)| (state_name(kind, names[index]), tensor));
    let tensors: Vec<(String, Tensor)> = model.chain(state).collect();
    let metadata = [
        ("format", FORMAT.to_string()),
        ("optimizer", optimizer.name().to_string()),
        ("lr", optimizer.learning_rate().to_string()),
        ("last_lr", optimizer.last_rate().to_string()),
    ];
    to_bytes(
        &tensors,
        &metadata.map(|(name, value)| (name.to_string(), value)),
    )
}

/// Copies a state into the program's tensors and gives the optimizer its own. `parameters` are the trained ones.
///
/// # Errors
///
/// [`TorchError::Data`] where the state is another program's or another optimizer's.
pub(crate) fn load(
    bytes: &[u8],
    tensors: &[NamedTensor],
    parameters: &[NamedTensor],
    optimizer: &mut Optimizer,
) -> Result<(), TorchError> {
    let file = read(bytes, optimizer)?;
    let rate = |name: &str| {
        let saved = metadata(&file, name);
        saved.parse::<f64>().map_err(|_| {
            TorchError::Data(format!(
                "the checkpoint's learning rate is {saved:?}, which is no number"
            ))
        })
    };
    let learning_rate = rate("lr")?;
    let last_rate = rate("last_lr")?;
    for entry in tensors {
        let value = model_tensor(&file, entry)?;
        tch::no_grad(|| entry.tensor.shallow_clone().f_copy_(&value))?;
    }
    load_slots(&file, parameters, optimizer)?;
    optimizer.set_learning_rate(learning_rate);
    optimizer.set_last_rate(last_rate);
    Ok(())
}

/// Gives the optimizer the state of another training's, which has its own learning rates. `parameters` are the trained ones.
///
/// # Errors
///
/// [`TorchError::Data`] where the state is another program's or another optimizer's.
pub(crate) fn load_optimizer(
    bytes: &[u8],
    parameters: &[NamedTensor],
    optimizer: &mut Optimizer,
) -> Result<(), TorchError> {
    let file = read(bytes, optimizer)?;
    parameters
        .iter()
        .try_for_each(|entry| model_tensor(&file, entry).map(drop))?;
    load_slots(&file, parameters, optimizer)
}

/// A state of this optimizer's.
fn read<'a>(bytes: &'a [u8], optimizer: &Optimizer) -> Result<SafeTensors<'a>, TorchError> {
    if bytes.starts_with(ARCHIVE) {
        return Err(TorchError::Data(
            "the checkpoint is of runtime=\"python\", and this training has runtime=\"native\""
                .into(),
        ));
    }
    let file = SafeTensors::read(bytes)?;
    let (format, saved, own) = (
        metadata(&file, "format"),
        metadata(&file, "optimizer"),
        optimizer.name(),
    );
    if format != FORMAT {
        return Err(TorchError::Data(format!(
            "the checkpoint's format is {format:?}, this version reads {FORMAT:?}"
        )));
    }
    if saved != own {
        return Err(TorchError::Data(format!(
            "the checkpoint holds the state of the optimizer {saved:?}, and this training has {own:?}"
        )));
    }
    Ok(file)
}

/// What a state's metadata has under that name.
fn metadata<'a>(file: &'a SafeTensors<'_>, name: &str) -> &'a str {
    let value = file.metadata().get(name);
    value.map(String::as_str).unwrap_or_default()
}

/// The value that a state has of a tensor of the program's.
fn model_tensor(file: &SafeTensors<'_>, entry: &NamedTensor) -> Result<Tensor, TorchError> {
    let tensor = &entry.tensor;
    let value = file.tensor(&model_name(&entry.name))?;
    value
        .filter(|value| value.size() == tensor.size() && value.kind() == tensor.kind())
        .ok_or_else(|| {
            TorchError::Data(format!(
                "the checkpoint has no {} of {:?} {}: it is another program's",
                entry.name,
                tensor.size(),
                kind_name(tensor.kind())
            ))
        })
}

/// Gives the optimizer what a state has for those parameters.
fn load_slots(
    file: &SafeTensors<'_>,
    parameters: &[NamedTensor],
    optimizer: &mut Optimizer,
) -> Result<(), TorchError> {
    optimizer.load_state(parameters.len(), |kind, index| {
        let parameter = &parameters[index];
        let Some(value) = file.tensor(&state_name(kind, &parameter.name))? else {
            return Ok(None);
        };
        if value.size() != parameter.tensor.size() || value.kind() != parameter.tensor.kind() {
            return Ok(Some(value.f_to_device(parameter.tensor.device())?));
        }
        // Laid out as the parameter is, so that kernels stay flat.
        tch::no_grad(|| {
            let mut state = parameter.tensor.f_empty_like()?;
            state.f_copy_(&value)?;
            Ok(Some(state))
        })
    })
}

fn model_name(name: &str) -> String {
    format!("model/{name}")
}

fn state_name(kind: &str, parameter: &str) -> String {
    format!("optimizer/{kind}/{parameter}")
}
