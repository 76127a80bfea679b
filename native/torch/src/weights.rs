//! Weights in safetensors files: a program's own, written and taken.
//!
//! A tensor that a program has under several names is written once; the file's metadata maps the other names to the
//! one written, as `safetensors.torch.load_model` expects it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use tch::Tensor;

use crate::error::TorchError;
use crate::program::NamedTensor;
use crate::safetensors::{self, SafeTensors};
use crate::tensor::{identity, kind_name, set_data};

/// The name of the weights file in a model's directory.
pub(crate) const FILE_NAME: &str = "weights.safetensors";

/// Writes the tensors of a `state_dict`.
pub(crate) fn write(tensors: &[NamedTensor], path: &Path) -> Result<(), TorchError> {
    let mut written: Vec<(String, Tensor)> = vec![];
    let mut metadata = vec![("format".to_string(), "pt".to_string())];
    for entry in tensors.iter().filter(|entry| entry.persistent) {
        match written
            .iter()
            .find(|(_, known)| shares(known, &entry.tensor))
        {
            Some((first, _)) => metadata.push((entry.name.clone(), first.clone())),
            None => written.push((entry.name.clone(), entry.tensor.shallow_clone())),
        }
    }
    let failed = |source| TorchError::Io {
        what: format!("writing {}", path.display()),
        source,
    };
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    safetensors::write(&mut file, &written, &metadata)?;
    file.flush().map_err(failed)
}

/// Whether two tensors are the same numbers in the same memory.
fn shares(a: &Tensor, b: &Tensor) -> bool {
    identity(a) == identity(b)
        || (a.numel() > 0
            && a.data_ptr() == b.data_ptr()
            && a.kind() == b.kind()
            && a.size() == b.size()
            && a.stride() == b.stride())
}

/// Gives a program the weights of a file. Its tensors stay the objects that they are, so ties hold; only their data is
/// replaced.
///
/// # Errors
///
/// [`TorchError::Param`] where names, shapes or types do not match; [`TorchError::Data`] for bytes that are no such
/// file.
pub(crate) fn load(tensors: &[NamedTensor], bytes: &[u8]) -> Result<(), TorchError> {
    let file = SafeTensors::read(bytes)?;
    let names: BTreeSet<&str> = file.names().collect();
    let aliases: BTreeMap<&str, &str> = file
        .metadata()
        .iter()
        .map(|(alias, name)| (alias.as_str(), name.as_str()))
        .filter(|(_, name)| names.contains(name))
        .collect();
    let wanted: BTreeMap<&str, &Tensor> = tensors
        .iter()
        .filter(|entry| entry.persistent)
        .map(|entry| (entry.name.as_str(), &entry.tensor))
        .collect();
    let given: BTreeSet<&str> = names.iter().chain(aliases.keys()).copied().collect();
    let missing: Vec<&str> = wanted
        .keys()
        .filter(|name| !given.contains(*name))
        .copied()
        .collect();
    let unexpected: Vec<&str> = given
        .iter()
        .filter(|name| !wanted.contains_key(*name))
        .copied()
        .collect();
    if !missing.is_empty() || !unexpected.is_empty() {
        return Err(TorchError::Param(format!(
            "the program is not the one that the weights are of: the weights lack {} and have {} that the program lacks",
            some(&missing),
            some(&unexpected)
        )));
    }
    let mut loaded: BTreeMap<&str, Tensor> = BTreeMap::new();
    for (name, target) in wanted {
        let source = aliases.get(name).copied().unwrap_or(name);
        let tensor = match loaded.get(source) {
            Some(tensor) => tensor.shallow_clone(),
            None => {
                let tensor = file.tensor(source)?.expect("the name is one of the file's");
                loaded.insert(source, tensor.shallow_clone());
                tensor
            }
        };
        if tensor.size() != target.size() || tensor.kind() != target.kind() {
            return Err(TorchError::Param(format!(
                "the program's {name} is {:?} {}, and the weights' is {:?} {}",
                target.size(),
                kind_name(target.kind()),
                tensor.size(),
                kind_name(tensor.kind())
            )));
        }
        set_data(target, &tensor)?;
    }
    Ok(())
}

/// A few names for a message.
fn some(names: &[&str]) -> String {
    const LIMIT: usize = 5;
    match names.len() {
        0 => "nothing".into(),
        length if length > LIMIT => {
            format!("{} and {} more", names[..LIMIT].join(", "), length - LIMIT)
        }
        _ => names.join(", "),
    }
}
