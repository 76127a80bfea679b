//! The state of a training, in one safetensors file: the program's tensors, the optimizer's and its learning rates.

use tch::Tensor;

use crate::error::TorchError;
use crate::optimizer::Optimizer;
use crate::program::NamedTensor;
use crate::safetensors::{SafeTensors, to_bytes};
use crate::tensor::kind_name;

const FORMAT: &str = "flambeau-state";

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
    let file = SafeTensors::read(bytes)?;
    let saved = |name: &str| {
        file.metadata()
            .get(name)
            .map(String::as_str)
            .unwrap_or_default()
    };
    if saved("format") != FORMAT || saved("optimizer") != optimizer.name() {
        return Err(TorchError::Data(format!(
            "the checkpoint holds the state of {:?} with optimizer {:?}, but this training has {FORMAT:?} with {:?}",
            saved("format"),
            saved("optimizer"),
            optimizer.name()
        )));
    }
    let rate = |name: &str| {
        saved(name).parse::<f64>().map_err(|_| {
            TorchError::Data(format!(
                "the checkpoint's learning rate is {:?}, which is no number",
                saved(name)
            ))
        })
    };
    let learning_rate = rate("lr")?;
    // Older versions did not write it.
    let is_known = file.metadata().contains_key("last_lr");
    let last_rate = is_known.then(|| rate("last_lr")).transpose()?;
    for entry in tensors {
        let name = model_name(&entry.name);
        let value = file
            .tensor(&name)?
            .filter(|value| value.size() == entry.tensor.size());
        let Some(value) = value.filter(|value| value.kind() == entry.tensor.kind()) else {
            return Err(TorchError::Data(format!(
                "the checkpoint has no {} of {:?} {}: it is another program's",
                entry.name,
                entry.tensor.size(),
                kind_name(entry.tensor.kind())
            )));
        };
        tch::no_grad(|| entry.tensor.shallow_clone().f_copy_(&value))?;
    }
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
    })?;
    optimizer.set_learning_rate(learning_rate);
    optimizer.set_last_rate(last_rate);
    Ok(())
}

fn model_name(name: &str) -> String {
    format!("model/{name}")
}

fn state_name(kind: &str, parameter: &str) -> String {
    format!("optimizer/{kind}/{parameter}")
}
