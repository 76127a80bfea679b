//! What a Parquet file holds, as its footer states it.

use parquet::file::metadata::PageIndexPolicy;
use serde::Serialize;

use crate::decode::{ShardBytes, read_footer};
use crate::error::DataError;
use crate::footers::{describe, kind_of};
use crate::manifest::{ColumnKind, Element};
use crate::spec::DType;
use crate::store::Store;

/// A Parquet file, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Contents {
    /// Where it lies, as it was given.
    pub uri: String,
    /// Its length in bytes.
    pub size: u64,
    /// Rows.
    pub num_rows: u64,
    /// Row groups.
    pub num_row_groups: usize,
    /// Its columns in file order, those inside others left out.
    pub columns: Vec<StoredColumn>,
}

/// A column of a Parquet file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredColumn {
    /// Its name.
    pub name: String,
    /// Its type, as Spark names it.
    pub data_type: String,
    /// The dtype of a tensor of it where none is asked for; `None` for what holds no numbers.
    pub dtype: Option<DType>,
}

impl Contents {
    /// Reads the footer of a file.
    ///
    /// # Errors
    /// [`DataError::NotFound`], and [`DataError::Parquet`] where it is no Parquet file.
    pub fn read(store: &Store, uri: &str) -> Result<Contents, DataError> {
        let size = store.size(uri)?.ok_or_else(|| DataError::NotFound {
            uri: uri.to_owned(),
        })?;
        let tail = ShardBytes::with_tail(store, uri, size)?;
        let footer = read_footer(&tail, uri, PageIndexPolicy::Skip)?;
        let file = footer.metadata().file_metadata();
        let columns = footer.schema().fields().iter().map(|field| StoredColumn {
            name: field.name().clone(),
            data_type: describe(field.data_type()),
            dtype: kind_of(field.data_type()).map(default_dtype),
        });
        Ok(Contents {
            uri: uri.to_owned(),
            size,
            num_rows: u64::try_from(file.num_rows()).unwrap_or(0),
            num_row_groups: footer.metadata().num_row_groups(),
            columns: columns.collect(),
        })
    }
}

/// The tensor that a column becomes where no dtype is asked for.
fn default_dtype(kind: ColumnKind) -> DType {
    let element = match kind {
        ColumnKind::Binary => return DType::UInt8,
        ColumnKind::Vector => return DType::Float32,
        ColumnKind::Scalar(element)
        | ColumnKind::List { element, .. }
        | ColumnKind::Partition(element) => element,
    };
    match element {
        Element::Float16 | Element::Float32 | Element::Float64 | Element::Decimal => DType::Float32,
        Element::Bool => DType::Bool,
        _ => DType::Int64,
    }
}
