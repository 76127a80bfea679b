//! Columns of numbers written as a Parquet file.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use arrow_array::types::{Float32Type, Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, ListArray, PrimitiveArray, RecordBatch};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;

use crate::error::DataError;

/// The numbers of some rows of a column, one row after another.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the elements' own names
pub enum Numbers {
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    Int64(Vec<i64>),
    Bool(Vec<bool>),
}

/// Writes a Parquet file batch by batch. A file that is not finished is no Parquet file.
pub struct TableWriter {
    uri: String,
    names: Vec<String>,
    writer: Option<ArrowWriter<File>>,
    file: Option<File>,
}

impl TableWriter {
    /// A writer of the columns of these names into a local file, which is replaced where there is one.
    pub fn create(path: &Path, names: Vec<String>) -> Result<TableWriter, DataError> {
        let uri = path.display().to_string();
        let file = File::create(path).map_err(|source| DataError::Io {
            operation: "write",
            uri: uri.clone(),
            source,
        })?;
        Ok(TableWriter {
            uri,
            names,
            writer: None,
            file: Some(file),
        })
    }

    /// Appends rows: for each column its numbers, as many a row as fit. One number a row makes a plain column, several make
    /// an array.
    pub fn write(&mut self, num_rows: usize, columns: Vec<Numbers>) -> Result<(), DataError> {
        if num_rows == 0 {
            return Ok(());
        }
        let arrays = columns
            .into_iter()
            .map(|numbers| array_of(numbers, num_rows))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.failed(error.into()))?;
        let fields = self.names.iter().zip(&arrays);
        let fields = fields.map(|(name, array)| Field::new(name, array.data_type().clone(), false));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let batch = RecordBatch::try_new(schema.clone(), arrays)
            .map_err(|error| self.failed(error.into()))?;
        if let Some(file) = self.file.take() {
            let writer = ArrowWriter::try_new(file, schema, None);
            self.writer = Some(writer.map_err(|error| self.failed(error))?);
        }
        let written = self.writer.as_mut().map(|writer| writer.write(&batch));
        written.transpose().map_err(|error| self.failed(error))?;
        Ok(())
    }

    /// Writes the footer.
    ///
    /// # Errors
    /// [`DataError::EmptyDataset`] where no rows were written: nothing says the columns' types then.
    pub fn finish(mut self) -> Result<(), DataError> {
        let Some(writer) = self.writer.take() else {
            return Err(DataError::EmptyDataset { num_shards: 0 });
        };
        writer.close().map_err(|error| self.failed(error))?;
        Ok(())
    }

    fn failed(&self, source: ParquetError) -> DataError {
        DataError::Io {
            operation: "write",
            uri: self.uri.clone(),
            source: io::Error::other(source),
        }
    }
}

fn array_of(numbers: Numbers, num_rows: usize) -> Result<ArrayRef, ArrowError> {
    let (values, count): (ArrayRef, usize) = match numbers {
        Numbers::Float32(values) => {
            let count = values.len();
            (Arc::new(PrimitiveArray::<Float32Type>::from(values)), count)
        }
        Numbers::Float64(values) => {
            let count = values.len();
            (Arc::new(PrimitiveArray::<Float64Type>::from(values)), count)
        }
        Numbers::Int64(values) => {
            let count = values.len();
            (Arc::new(PrimitiveArray::<Int64Type>::from(values)), count)
        }
        Numbers::Bool(values) => {
            let count = values.len();
            (Arc::new(BooleanArray::from(values)), count)
        }
    };
    let width = count / num_rows;
    if width * num_rows != count {
        let message = format!("{count} numbers do not fill {num_rows} rows");
        return Err(ArrowError::InvalidArgumentError(message));
    }
    if width == 1 {
        return Ok(values);
    }
    let field = Arc::new(Field::new("element", values.data_type().clone(), false));
    let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(width, num_rows));
    Ok(Arc::new(ListArray::try_new(field, offsets, values, None)?))
}
