//! What lies in a `.pt2` file: a zip with the graph as JSON and the data of its tensors.
//!
//! The layout is that of `torch/export/pt2_archive`: `models/<name>.json`, and for weights and constants a configuration
//! that names the entry of each tensor. Sample inputs, which are a pickle, are never read.

use std::collections::HashMap;
use std::io::{Cursor, Read};

use serde::de::DeserializeOwned;
use tch::{Kind, Tensor};
use zip::ZipArchive;

use super::schema::{self, ExportedModel, Payload, PayloadConfig, SCHEMA_MAJOR, TensorMeta};
use crate::error::TorchError;

/// No compression of the zip format makes more than this out of a byte.
const MAX_RATIO: u64 = 1040;
const STRIDED: i64 = 0;

/// An archive that is open.
pub(super) struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    len: u64,
    /// The folder that everything lies in, with its slash.
    root: String,
    pub(super) model: ExportedModel,
    weights: HashMap<String, Payload>,
    constants: HashMap<String, Payload>,
}

/// Where a tensor's bytes lie: tensors with the same place are one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    entry: String,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    offset: i64,
    dtype: i64,
}

impl<'a> Archive<'a> {
    /// Opens an archive and reads its graph.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Archive<'a>, TorchError> {
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(|error| damaged(&error))?;
        let names: Vec<&str> = zip.file_names().collect();
        if names.contains(&"serialized_exported_program.json") {
            return Err(refused(
                "it has the layout that torch wrote before 2.8; export the module again with a later torch",
            ));
        }
        let root = names
            .iter()
            .find_map(|name| name.strip_suffix("archive_format"))
            .ok_or_else(|| refused("it is no archive of torch.export.save"))?
            .to_string();
        let models: Vec<String> = names
            .iter()
            .filter_map(|name| {
                Some(
                    name.strip_prefix(&root)?
                        .strip_prefix("models/")?
                        .strip_suffix(".json")?
                        .to_string(),
                )
            })
            .collect();
        let model = match &models[..] {
            [model] => model.clone(),
            [] => {
                return Err(refused(
                    "it holds no graph; write it with torch.export.save",
                ));
            }
            _ => {
                return Err(refused(&format!(
                    "it holds several graphs ({}); save one",
                    models.join(", ")
                )));
            }
        };
        if names.contains(&format!("{root}data/weights/{model}.pt").as_str()) {
            return Err(refused(
                "its weights are a pickle, as torch 2.8 wrote them; export the module again with a later torch",
            ));
        }
        let mut files = Files {
            zip,
            len: bytes.len() as u64,
        };
        let format = files.read(&format!("{root}archive_format"))?;
        if format != b"pt2" {
            return Err(refused(&format!(
                "its format is {:?}, not pt2",
                String::from_utf8_lossy(&format)
            )));
        }
        if files.has(&format!("{root}byteorder"))
            && files.read(&format!("{root}byteorder"))? != b"little"
        {
            return Err(refused("its tensors are big-endian"));
        }
        let parsed: ExportedModel = files.json(&format!("{root}models/{model}.json"))?;
        let version = &parsed.schema_version;
        if version.major != SCHEMA_MAJOR {
            return Err(refused(&format!(
                "its schema has version {}.{}, written by torch {}; versions {SCHEMA_MAJOR}.* are read: export the module \
                 again with torch 2.13",
                version.major,
                version.minor,
                parsed
                    .torch_version
                    .as_deref()
                    .unwrap_or("of an unknown version"),
            )));
        }
        let weights: PayloadConfig =
            files.json(&format!("{root}data/weights/{model}_weights_config.json"))?;
        let constants: PayloadConfig = files.json(&format!(
            "{root}data/constants/{model}_constants_config.json"
        ))?;
        Ok(Archive {
            zip: files.zip,
            len: files.len,
            root,
            model: parsed,
            weights: weights.config,
            constants: constants.config,
        })
    }

    /// A parameter, or a buffer of the `state_dict`, and where it lies. It is contiguous, on the CPU, and zero where
    /// the archive was saved without its weights.
    pub(super) fn weight(&mut self, name: &str) -> Result<(Place, Tensor, bool), TorchError> {
        let payload = self.weights.get(name).cloned();
        self.tensor(name, "weights", payload)
    }

    /// Type and shape of a parameter or a buffer.
    pub(super) fn meta(&self, name: &str) -> Option<&TensorMeta> {
        self.weights
            .get(name)
            .or_else(|| self.constants.get(name))?
            .tensor_meta
            .as_ref()
    }

    /// A tensor that the graph holds itself, or a buffer outside the `state_dict`.
    pub(super) fn constant(&mut self, name: &str) -> Result<Tensor, TorchError> {
        let payload = self.constants.get(name).cloned();
        Ok(self.tensor(name, "constants", payload)?.1)
    }

    fn tensor(
        &mut self,
        name: &str,
        folder: &str,
        payload: Option<Payload>,
    ) -> Result<(Place, Tensor, bool), TorchError> {
        let Some(payload) = payload else {
            return Err(refused(&format!("it lacks the tensor {name}")));
        };
        let (false, Some(meta)) = (payload.use_pickle, payload.tensor_meta) else {
            return Err(refused(&format!(
                "{name} is a pickled tensor (of a subclass of torch.Tensor)"
            )));
        };
        let (kind, sizes, strides, offset) = layout_of(name, &meta)?;
        let place = Place {
            entry: format!("{}data/{folder}/{}", self.root, payload.path_name),
            sizes,
            strides,
            offset,
            dtype: meta.dtype,
        };
        let bytes = read(&mut self.zip, self.len, &place.entry)?;
        Ok((
            place.clone(),
            tensor_of(name, &bytes, kind, &place)?,
            meta.requires_grad,
        ))
    }
}

/// Kind, sizes, strides and offset of a tensor.
fn layout_of(name: &str, meta: &TensorMeta) -> Result<(Kind, Vec<i64>, Vec<i64>, i64), TorchError> {
    let unknown = || refused(&format!("{name} has no fixed shape"));
    let sizes = schema::fixed(&meta.sizes).ok_or_else(unknown)?;
    let strides = schema::fixed(&meta.strides).ok_or_else(unknown)?;
    let offset = meta.storage_offset.fixed().ok_or_else(unknown)?;
    if sizes.len() != strides.len() {
        return Err(refused(&format!(
            "{name} has {} sizes and {} strides",
            sizes.len(),
            strides.len()
        )));
    }
    if schema::layout(meta.layout) != Some(STRIDED) {
        return Err(refused(&format!("{name} is a sparse tensor")));
    }
    let kind = kind_of(meta.dtype).ok_or_else(|| {
        refused(&format!(
            "{name} has a type that is not known ({})",
            meta.dtype
        ))
    })?;
    Ok((kind, sizes, strides, offset))
}

/// The type of a tensor, from its serialized number.
pub(super) fn kind_of(dtype: i64) -> Option<Kind> {
    Some(match dtype {
        1 => Kind::Uint8,
        2 => Kind::Int8,
        3 => Kind::Int16,
        4 => Kind::Int,
        5 => Kind::Int64,
        6 => Kind::Half,
        7 => Kind::Float,
        8 => Kind::Double,
        9 => Kind::ComplexHalf,
        10 => Kind::ComplexFloat,
        11 => Kind::ComplexDouble,
        12 => Kind::Bool,
        13 => Kind::BFloat16,
        29 => Kind::Float8e4m3fn,
        30 => Kind::Float8e5m2,
        31 => Kind::Float8e4m3fnuz,
        32 => Kind::Float8e5m2fnuz,
        _ => return None,
    })
}

/// A contiguous tensor with the values of `bytes`, the whole storage.
fn tensor_of(name: &str, bytes: &[u8], kind: Kind, place: &Place) -> Result<Tensor, TorchError> {
    let of = |error: tch::TchError| {
        TorchError::Param(format!("{PREFIX}{name}: {}", TorchError::from(error)))
    };
    let options = (kind, tch::Device::Cpu);
    if bytes.is_empty() {
        return Tensor::f_zeros(&place.sizes[..], options).map_err(of);
    }
    let width = kind.elt_size_in_bytes();
    if !bytes.len().is_multiple_of(width) {
        return Err(refused(&format!(
            "{name} has {} bytes, no multiple of {width}",
            bytes.len()
        )));
    }
    let storage =
        Tensor::f_from_data_size(bytes, &[(bytes.len() / width) as i64], kind).map_err(of)?;
    let view = storage
        .f_as_strided(&place.sizes[..], &place.strides[..], place.offset)
        .map_err(of)?;
    let mut tensor = Tensor::f_empty(&place.sizes[..], options).map_err(of)?;
    tensor.f_copy_(&view).map_err(of)?;
    Ok(tensor)
}

/// The entries of a zip.
struct Files<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    len: u64,
}

impl Files<'_> {
    fn has(&self, name: &str) -> bool {
        self.zip.index_for_name(name).is_some()
    }

    fn read(&mut self, name: &str) -> Result<Vec<u8>, TorchError> {
        read(&mut self.zip, self.len, name)
    }

    fn json<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, TorchError> {
        serde_json::from_slice(&self.read(name)?)
            .map_err(|error| refused(&format!("{name} is not what this version reads: {error}")))
    }
}

fn read(zip: &mut ZipArchive<Cursor<&[u8]>>, len: u64, name: &str) -> Result<Vec<u8>, TorchError> {
    let mut entry = zip
        .by_name(name)
        .map_err(|error| refused(&format!("{name}: {error}")))?;
    let size = entry.size();
    if size > len.saturating_mul(MAX_RATIO) {
        return Err(refused(&format!("{name} says that it has {size} bytes")));
    }
    let mut bytes = Vec::with_capacity(size.min(len) as usize);
    entry
        .by_ref()
        .take(size + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| damaged(&error))?;
    if bytes.len() as u64 != size {
        return Err(refused(&format!(
            "{name} has {} bytes, not {size}",
            bytes.len()
        )));
    }
    Ok(bytes)
}

const PREFIX: &str = "the exported program cannot be read: ";

/// An archive that is whole, and holds what is not run.
pub(super) fn refused(why: &str) -> TorchError {
    TorchError::Param(format!("{PREFIX}{why}"))
}

fn damaged(error: &dyn std::error::Error) -> TorchError {
    TorchError::Param(format!("{PREFIX}it is not a whole archive: {error}"))
}
