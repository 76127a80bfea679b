//! What lies in a `.pt2` file: a zip with the graph as JSON and the data of its tensors.
//!
//! The layout is that of `torch/export/pt2_archive`: `models/<name>.json`, and for weights and constants a configuration
//! that names the entry of each tensor. Torch 2.8 wrote them by `torch.save` instead, and versions before it the graph
//! too under another name. Sample inputs, which are a pickle, are never read.

use std::collections::{HashMap, HashSet};
use std::io::{Cursor, Read};

use serde::de::DeserializeOwned;
use tch::{Kind, Tensor};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::saved::saved_tensors;
use super::schema::{self, ExportedModel, Payload, PayloadConfig, SCHEMA_MAJOR, TensorMeta};
use crate::error::TorchError;

/// How many bytes an archive may come to in memory: so many times its size, and these beside. Torch stores tensors as they
/// are; a graph may be compressed.
const MAX_RATIO: u64 = 8;
const MAX_BESIDE: u64 = 64 << 20;
const STRIDED: i64 = 0;

/// An archive that is open.
pub(super) struct Archive<'a> {
    files: Files<'a>,
    pub(super) model: ExportedModel,
    weights: Stored,
    constants: Stored,
}

/// Where the tensors of one kind lie.
enum Stored {
    /// In entries of their own, in this folder.
    Entries {
        folder: String,
        payloads: HashMap<String, Payload>,
    },
    /// In one entry, by `torch.save`, which has been read.
    Saved(HashMap<String, Tensor>),
}

/// The entries of an archive: its graph, and for weights and constants the folder, the configuration in it, and the entry
/// that older versions wrote instead.
struct Layout {
    graph: String,
    weights: (String, String, String),
    constants: (String, String, String),
}

/// Where a tensor's bytes lie: tensors with the same place are one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    entry: String,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    offset: i64,
    kind: Kind,
}

impl<'a> Archive<'a> {
    /// Opens an archive and reads its graph.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Archive<'a>, TorchError> {
        let mut files = Files {
            zip: ZipArchive::new(Cursor::new(bytes)).map_err(|error| damaged(&error))?,
            len: bytes.len() as u64,
            left: (bytes.len() as u64).saturating_mul(MAX_RATIO) + MAX_BESIDE,
            counted: HashSet::new(),
        };
        let layout = Layout::of(&mut files)?;
        let model: ExportedModel = files.json(&layout.graph)?;
        let version = &model.schema_version;
        if version.major != SCHEMA_MAJOR {
            return Err(refused(&format!(
                "its schema has version {}.{}, written by torch {}; versions {SCHEMA_MAJOR}.* are read: export the module \
                 again with torch 2.13",
                version.major,
                version.minor,
                model
                    .torch_version
                    .as_deref()
                    .unwrap_or("of an unknown version"),
            )));
        }
        let weights = Stored::open(&mut files, layout.weights)?;
        let constants = Stored::open(&mut files, layout.constants)?;
        Ok(Archive {
            files,
            model,
            weights,
            constants,
        })
    }

    /// A parameter, or a buffer of the `state_dict`, where it lies, and whether it is trained. It is contiguous, on the
    /// CPU, and zero where the archive was saved without its weights.
    pub(super) fn weight(&mut self, name: &str) -> Result<(Place, Tensor, bool), TorchError> {
        self.weights.tensor(name, &mut self.files)
    }

    /// A tensor that the graph holds itself, or a buffer outside the `state_dict`.
    pub(super) fn constant(&mut self, name: &str) -> Result<Tensor, TorchError> {
        Ok(self.constants.tensor(name, &mut self.files)?.1)
    }

    /// Type and shape of a parameter or a buffer.
    pub(super) fn shape(&self, name: &str) -> Option<(Kind, Vec<i64>)> {
        self.weights
            .shape(name)
            .or_else(|| self.constants.shape(name))
    }
}

impl Layout {
    fn of(files: &mut Files<'_>) -> Result<Layout, TorchError> {
        if files.has("serialized_exported_program.json") {
            let saved = |name: &str| {
                (
                    String::new(),
                    String::new(),
                    format!("serialized_{name}.pt"),
                )
            };
            return Ok(Layout {
                graph: "serialized_exported_program.json".to_string(),
                weights: saved("state_dict"),
                constants: saved("constants"),
            });
        }
        let names: Vec<String> = files.zip.file_names().map(str::to_string).collect();
        let root = names
            .iter()
            .find_map(|name| name.strip_suffix("archive_format"))
            .ok_or_else(|| refused("it is no archive of torch.export.save"))?;
        let models: Vec<&str> = names
            .iter()
            .filter_map(|name| {
                name.strip_prefix(root)?
                    .strip_prefix("models/")?
                    .strip_suffix(".json")
            })
            .collect();
        let [model] = models[..] else {
            return Err(match models.is_empty() {
                true => refused("it holds no graph; write it with torch.export.save"),
                false => refused(&format!(
                    "it holds several graphs ({}); save one",
                    models.join(", ")
                )),
            });
        };
        let format = files.read(&format!("{root}archive_format"))?;
        if format != b"pt2" {
            let format = String::from_utf8_lossy(&format);
            return Err(refused(&format!("its format is {format:?}, not pt2")));
        }
        let order = format!("{root}byteorder");
        if files.has(&order) && files.read(&order)? != b"little" {
            return Err(refused("its tensors are big-endian"));
        }
        let stored = |kind: &str| {
            let folder = format!("{root}data/{kind}/");
            let (config, saved) = (
                format!("{folder}{model}_{kind}_config.json"),
                format!("{folder}{model}.pt"),
            );
            (folder, config, saved)
        };
        Ok(Layout {
            graph: format!("{root}models/{model}.json"),
            weights: stored("weights"),
            constants: stored("constants"),
        })
    }
}

impl Stored {
    fn open(
        files: &mut Files<'_>,
        (folder, config, saved): (String, String, String),
    ) -> Result<Stored, TorchError> {
        if !files.has(&saved) {
            let PayloadConfig { config: payloads } = files.json(&config)?;
            return Ok(Stored::Entries { folder, payloads });
        }
        let tensors = saved_tensors(&files.read(&saved)?);
        tensors
            .map(Stored::Saved)
            .map_err(|message| refused(&format!("{saved}: {message}")))
    }

    fn tensor(
        &self,
        name: &str,
        files: &mut Files<'_>,
    ) -> Result<(Place, Tensor, bool), TorchError> {
        let missing = || refused(&format!("it lacks the tensor {name}"));
        let (folder, payloads) = match self {
            Stored::Saved(tensors) => return copied(name, tensors.get(name).ok_or_else(missing)?),
            Stored::Entries { folder, payloads } => (folder, payloads),
        };
        let payload = payloads.get(name).ok_or_else(missing)?;
        let (false, Some(meta)) = (payload.use_pickle, &payload.tensor_meta) else {
            return Err(refused(&format!(
                "{name} is a pickled tensor (of a subclass of torch.Tensor)"
            )));
        };
        let (kind, sizes, strides, offset) = layout_of(name, meta)?;
        let place = Place {
            entry: format!("{folder}{}", payload.path_name),
            sizes,
            strides,
            offset,
            kind,
        };
        let bytes = files.read(&place.entry)?;
        if !bytes.is_empty() {
            let elements = place.sizes.iter().map(|&size| size as u64);
            let elements = elements.fold(1, u64::saturating_mul);
            let size = elements.saturating_mul(kind.elt_size_in_bytes() as u64);
            files.count(&format!("{} as {name}", place.entry), size)?;
        }
        let tensor = tensor_of(name, &bytes, &place)?;
        Ok((place, tensor, meta.requires_grad))
    }

    fn shape(&self, name: &str) -> Option<(Kind, Vec<i64>)> {
        match self {
            Stored::Saved(tensors) => tensors
                .get(name)
                .map(|tensor| (tensor.kind(), tensor.size())),
            Stored::Entries { payloads, .. } => {
                let meta = payloads.get(name)?.tensor_meta.as_ref()?;
                Some((kind_of(meta.dtype)?, schema::fixed(&meta.sizes)?))
            }
        }
    }
}

/// A tensor of its own with the values of one that was saved. The address of the data is its place.
fn copied(name: &str, saved: &Tensor) -> Result<(Place, Tensor, bool), TorchError> {
    let place = Place {
        entry: format!("{:p}", saved.data_ptr()),
        sizes: saved.size(),
        strides: saved.stride(),
        offset: 0,
        kind: saved.kind(),
    };
    let copy = || -> Result<Tensor, tch::TchError> {
        let mut tensor = Tensor::f_empty(&place.sizes[..], (place.kind, tch::Device::Cpu))?;
        tensor.f_copy_(&saved.f_detach()?)?;
        Ok(tensor)
    };
    let tensor =
        copy().map_err(|error| refused(&format!("{name}: {}", TorchError::from(error))))?;
    Ok((place, tensor, saved.requires_grad()))
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

/// A tensor with the values of `bytes`, the whole storage: contiguous, but for one that an archive without weights keeps
/// hollow, all its elements in one place.
fn tensor_of(name: &str, bytes: &[u8], place: &Place) -> Result<Tensor, TorchError> {
    let kind = place.kind;
    let of = |error: tch::TchError| {
        TorchError::Param(format!("{PREFIX}{name}: {}", TorchError::from(error)))
    };
    let options = (kind, tch::Device::Cpu);
    if bytes.is_empty() {
        let hollow =
            Tensor::f_zeros([], options).and_then(|zero| zero.f_expand(&place.sizes[..], false));
        return hollow.map_err(of);
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
    if view.numel() > 1 && place.strides.iter().all(|&stride| stride == 0) {
        return Ok(view);
    }
    let mut tensor = Tensor::f_empty(&place.sizes[..], options).map_err(of)?;
    tensor.f_copy_(&view).map_err(of)?;
    Ok(tensor)
}

/// An archive with its sample inputs, which are a pickle that nothing here reads, left empty.
pub(super) fn without_pickles(bytes: &[u8]) -> Result<Vec<u8>, TorchError> {
    let mut source = ZipArchive::new(Cursor::new(bytes)).map_err(|error| damaged(&error))?;
    let mut target = ZipWriter::new(Cursor::new(vec![]));
    for index in 0..source.len() {
        let entry = source
            .by_index_raw(index)
            .map_err(|error| damaged(&error))?;
        let name = entry.name().to_string();
        let copied = if name.contains("/data/sample_inputs/") {
            let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
            target.start_file(name, stored)
        } else {
            target.raw_copy_file(entry)
        };
        copied.map_err(|error| damaged(&error))?;
    }
    let written = target.finish().map_err(|error| damaged(&error))?;
    Ok(written.into_inner())
}

/// The entries of a zip.
struct Files<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    len: u64,
    /// How many more bytes the archive may come to.
    left: u64,
    /// What was taken off that: tied tensors are read under each of their names.
    counted: HashSet<(String, u64)>,
}

impl Files<'_> {
    fn has(&self, name: &str) -> bool {
        self.zip.index_for_name(name).is_some()
    }

    /// Counts what an entry comes to in memory.
    fn count(&mut self, name: &str, size: u64) -> Result<(), TorchError> {
        if self.counted.contains(&(name.to_string(), size)) {
            return Ok(());
        }
        self.left = self.left.checked_sub(size).ok_or_else(|| {
            refused(&format!(
                "with the {size} bytes of {name} it comes to more than {MAX_RATIO} times its own {} bytes and {MAX_BESIDE} \
                 beside",
                self.len
            ))
        })?;
        self.counted.insert((name.to_string(), size));
        Ok(())
    }

    fn read(&mut self, name: &str) -> Result<Vec<u8>, TorchError> {
        let unread = |error: zip::result::ZipError| refused(&format!("{name}: {error}"));
        let size = self.zip.by_name(name).map_err(unread)?.size();
        self.count(name, size)?;
        let mut entry = self.zip.by_name(name).map_err(unread)?;
        let mut bytes = Vec::with_capacity(size.min(self.len) as usize);
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

    fn json<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, TorchError> {
        serde_json::from_slice(&self.read(name)?)
            .map_err(|error| refused(&format!("{name} is not what this version reads: {error}")))
    }
}

const PREFIX: &str = "the exported program cannot be read: ";

/// An archive that is whole, and holds what is not run.
pub(super) fn refused(why: &str) -> TorchError {
    TorchError::Param(format!("{PREFIX}{why}"))
}

fn damaged(error: &dyn std::error::Error) -> TorchError {
    TorchError::Param(format!("{PREFIX}it is not a whole archive: {error}"))
}
