//! The shards' rows, row groups and types, as their footers state them, checked against a spec.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::DataError;
use crate::files::FileRows;
use crate::spec::{DatasetSpec, TensorSpec};

/// The elements of a column, before they become a tensor's dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // the types' own names
pub enum Element {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float16,
    Float32,
    Float64,
    Decimal,
}

/// How a column holds its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ColumnKind {
    /// One element a row.
    Scalar(Element),
    /// Arrays nested `depth` deep (1: a plain array), every row alike.
    List {
        /// The innermost elements.
        element: Element,
        /// Levels of nesting.
        depth: usize,
    },
    /// Spark ML's vectors, dense or sparse; sparse ones are filled with zeros.
    Vector,
    /// Byte strings of one length.
    Binary,
    /// A `key=value` directory: one number for all rows of a shard.
    Partition(Element),
}

/// One column that the spec uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// Its type, the same in all shards.
    pub kind: ColumnKind,
    /// The shape of one row in the data: `[]` for scalars, one number a level of nesting otherwise.
    pub shape: Vec<usize>,
}

/// The most rows of a row group. A page of Parquet counts its values in 32 bits, and writers make groups far smaller; what
/// says otherwise is damaged, or would take memory out of all proportion to its size.
pub(crate) const MAX_GROUP_ROWS: u64 = i32::MAX as u64;

/// One row group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RowGroup {
    /// Rows that are read, which may be 0.
    pub num_rows: u64,
    /// Rows that it has.
    pub stored_rows: u64,
    /// Bytes of the spec's columns as they lie in the file.
    pub stored_bytes: u64,
}

/// One Parquet file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shard {
    /// Where it lies, as it was given.
    pub uri: String,
    /// Its length in bytes.
    pub size: u64,
    /// Which of its rows are read; `None` for all.
    #[serde(default)]
    pub rows: Option<FileRows>,
    /// Its row groups in file order.
    pub row_groups: Vec<RowGroup>,
    /// The `key=value` directories of its path, unescaped.
    pub partitions: BTreeMap<String, String>,
}

/// A dataset as training sees it: shards in the order given, their rows numbered through from 0.
///
/// Serde: one rank reads it, all use it, so that all agree even where files change meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub(crate) spec: DatasetSpec,
    pub(crate) columns: Vec<ColumnInfo>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) num_rows: u64,
    /// What a row of the columns that stay as they are takes in memory, on average over all rows, rounded up.
    #[serde(default)]
    pub(crate) raw_bytes_per_row: u64,
}

impl Manifest {
    /// Reads what serde wrote, and checks that it holds together.
    ///
    /// # Errors
    /// [`DataError::InvalidManifest`] for other bytes, and for a manifest that [`read`](Self::read) could not have given.
    pub fn from_json(json: &[u8]) -> Result<Self, DataError> {
        let fail = |reason: String| DataError::InvalidManifest { reason };
        let manifest: Manifest =
            serde_json::from_slice(json).map_err(|error| fail(error.to_string()))?;
        manifest
            .spec
            .validate()
            .map_err(|error| fail(error.to_string()))?;
        // A list of Arrow's counts its elements in 32 bits.
        let is_small = |shape: &[usize]| {
            let product = |product: usize, length: &usize| product.checked_mul(*length);
            let elements = shape.iter().try_fold(1, product);
            elements.is_some_and(|elements| elements <= i32::MAX as usize)
        };
        if let Some(info) = manifest.columns.iter().find(|info| !is_small(&info.shape)) {
            return Err(fail(format!(
                "column `{}` of shape {:?}",
                info.name, info.shape
            )));
        }
        for tensor in manifest.spec.tensors() {
            let missing = |name: &&String| !manifest.columns.iter().any(|info| info.name == **name);
            if let Some(name) = tensor.columns.iter().find(missing) {
                return Err(fail(format!("it has no column `{name}`")));
            }
            let shape = tensor.shape.as_deref();
            if !shape.is_some_and(is_small) || row_shape(tensor, &manifest.columns).is_err() {
                return Err(fail(format!("tensor `{}` of shape {shape:?}", tensor.name)));
            }
        }
        for (shard, group) in manifest.row_groups() {
            let reads_all = manifest.shards[shard].rows.is_none();
            let RowGroup {
                num_rows,
                stored_rows,
                ..
            } = *group;
            if stored_rows > MAX_GROUP_ROWS
                || num_rows > stored_rows
                || reads_all && num_rows < stored_rows
            {
                return Err(fail(format!(
                    "a row group of {stored_rows} rows, {num_rows} of them read"
                )));
            }
        }
        let lengths = manifest.row_groups().map(|(_, group)| group.num_rows);
        if manifest.num_rows == 0 || lengths.sum::<u64>() != manifest.num_rows {
            return Err(fail(format!(
                "{} rows, which are not those of its row groups",
                manifest.num_rows
            )));
        }
        Ok(manifest)
    }

    /// The spec with every shape known.
    pub fn spec(&self) -> &DatasetSpec {
        &self.spec
    }

    /// The columns that the spec uses.
    pub fn columns(&self) -> &[ColumnInfo] {
        &self.columns
    }

    /// The files, in the order given.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// All row groups in row order, each with its shard's index.
    pub fn row_groups(&self) -> impl Iterator<Item = (usize, &RowGroup)> {
        self.shards
            .iter()
            .enumerate()
            .flat_map(|(index, shard)| shard.row_groups.iter().map(move |group| (index, group)))
    }

    /// Rows of all shards; at least 1.
    pub fn num_rows(&self) -> u64 {
        self.num_rows
    }

    /// Bytes of one row over all tensors, and of the columns that stay as they are what a row of them takes on average, as
    /// far as footers tell.
    pub fn bytes_per_row(&self) -> u64 {
        let of_tensors: u64 = self
            .spec
            .tensors()
            .map(|tensor| (tensor.elements().unwrap_or(0) * tensor.dtype.size()) as u64)
            .sum();
        of_tensors.saturating_add(self.raw_bytes_per_row)
    }

    /// A column's place in [`columns`](Self::columns).
    pub(crate) fn column_index(&self, name: &str) -> usize {
        let index = self.columns.iter().position(|column| column.name == name);
        index.expect("a manifest has all columns of its spec")
    }
}

/// The shape of one row of a tensor.
pub(crate) fn row_shape(
    tensor: &TensorSpec,
    columns: &[ColumnInfo],
) -> Result<Vec<usize>, DataError> {
    let shapes: Vec<&[usize]> = tensor
        .columns
        .iter()
        .filter_map(|name| columns.iter().find(|column| column.name == *name))
        .map(|column| column.shape.as_slice())
        .collect();
    let elements = shapes
        .iter()
        .map(|shape| shape.iter().product::<usize>())
        .sum();
    match &tensor.shape {
        Some(shape) if shape.iter().product::<usize>() == elements => Ok(shape.clone()),
        Some(shape) => Err(DataError::ShapeMismatch {
            tensor: tensor.name.clone(),
            shape: shape.clone(),
            elements,
        }),
        None if shapes.len() == 1 => Ok(shapes[0].to_vec()),
        None => Ok(vec![elements]),
    }
}
