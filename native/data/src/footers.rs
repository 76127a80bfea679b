//! What Parquet footers say about a dataset, and whether that suits a spec.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::UInt32Array;
use arrow_schema::{DataType, Fields};
use arrow_select::take::take;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, RowGroupMetaData};

use crate::decode::{
    Flaw, ShardBytes, arrow_error, catching_panics, first_null, project, read_column, read_footer,
    shape_of_first,
};
use crate::error::DataError;
use crate::files::{Bitmap, DataFile, FileRows};
use crate::manifest::{
    ColumnInfo, ColumnKind, Element, MAX_GROUP_ROWS, Manifest, RowGroup, Shard, row_shape,
};
use crate::spec::{DType, DatasetSpec};
use crate::store::{Store, percent_decode};

/// Footers read at once. They are small, and waiting for a remote store dominates.
const PARALLEL_FOOTERS: usize = 16;

/// What Hive and Spark write for a null in a `key=value` directory.
const NULL_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";

impl Manifest {
    /// Reads the footers of `files` in parallel and checks them against `spec`: columns exist, with one convertible type in all shards, hold no
    /// nulls as far as statistics tell, and fill the shapes. Where a shape is not given, the first row of the data tells it.
    ///
    /// # Errors
    /// [`DataError`], naming column and shard; [`DataError::EmptyDataset`] where there are no rows.
    pub fn read(store: &Store, files: &[DataFile], spec: &DatasetSpec) -> Result<Self, DataError> {
        spec.validate()?;
        let footers = read_all(store, files, &spec.columns())?;
        let num_rows = footers.iter().map(Footer::num_rows).sum();
        if num_rows == 0 {
            return Err(DataError::EmptyDataset {
                num_shards: files.len(),
            });
        }
        check_raw(&footers, &spec.raw_columns)?;
        let raw_bytes = footers
            .iter()
            .map(|footer| raw_bytes(footer, &spec.raw_columns))
            .fold(0, u64::saturating_add);
        let columns = spec
            .tensor_columns()
            .into_iter()
            .map(|name| resolve_column(store, &footers, spec, name));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        refuse_nulls(store, &footers, &columns)?;
        let mut spec = spec.clone();
        for tensor in spec
            .inputs
            .iter_mut()
            .chain(&mut spec.labels)
            .chain(&mut spec.weight)
        {
            tensor.shape = Some(row_shape(tensor, &columns)?);
        }
        spec.validate()?; // again, now that the weight's shape is known
        let shards = footers.into_iter().map(Footer::into_shard).collect();
        Ok(Manifest {
            spec,
            columns,
            shards,
            num_rows,
            raw_bytes_per_row: raw_bytes.div_ceil(num_rows),
        })
    }
}

/// Refuses columns that are not in all shards, with one type.
fn check_raw(footers: &[Footer], columns: &[String]) -> Result<(), DataError> {
    for name in columns {
        let mut first: Option<&DataType> = None;
        for footer in footers {
            let schema = footer.metadata.schema();
            let Some((_, field)) = schema.column_with_name(name) else {
                return Err(missing(footer, name));
            };
            let expected = *first.get_or_insert(field.data_type());
            if expected != field.data_type() {
                return Err(DataError::MixedTypes {
                    column: name.clone(),
                    uri: footer.shard.uri.clone(),
                    expected: describe(expected),
                    got: describe(field.data_type()),
                });
            }
        }
    }
    Ok(())
}

/// What the rows of these columns that are read of a shard take in memory, as far as its footer tells: byte strings as they are where it
/// says so, else all values as they lie in the file once decompressed; of some rows, their part of all.
fn raw_bytes(footer: &Footer, columns: &[String]) -> u64 {
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mask = project(&footer.metadata, &names);
    let groups = footer.metadata.metadata().row_groups().iter();
    let leaves = groups.flat_map(|group| group.columns().iter().enumerate());
    let bytes: u64 = leaves
        .filter(|(leaf, _)| mask.leaf_included(*leaf))
        .map(|(_, column)| {
            let size = column
                .unencoded_byte_array_data_bytes()
                .unwrap_or_else(|| column.uncompressed_size());
            u64::try_from(size).unwrap_or(0)
        })
        .fold(0, u64::saturating_add);
    let stored: u64 = (footer.shard.row_groups.iter())
        .map(|group| group.stored_rows)
        .sum();
    let part = u128::from(bytes) * u128::from(footer.num_rows()) / u128::from(stored.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// One shard's footer.
pub(crate) struct Footer {
    shard: Shard,
    metadata: ArrowReaderMetadata,
    /// Which rows are read, where not all are.
    bitmap: Option<Bitmap>,
    /// What is given of columns that have one value in all rows.
    values: BTreeMap<String, String>,
}

impl Footer {
    pub(crate) fn num_rows(&self) -> u64 {
        self.shard
            .row_groups
            .iter()
            .map(|group| group.num_rows)
            .sum()
    }

    pub(crate) fn into_shard(self) -> Shard {
        self.shard
    }

    /// Its bytes, for reading some more of it.
    fn bytes(&self, store: &Store) -> Result<ShardBytes, DataError> {
        ShardBytes::with_tail(store, &self.shard.uri, self.shard.size)
    }

    /// The index and the first row, in the file's numbering, of every row group of which rows are read.
    fn filled_groups(&self) -> impl Iterator<Item = (usize, u64)> {
        let mut first_row = 0;
        let groups = self.shard.row_groups.iter().enumerate();
        groups.filter_map(move |(index, group)| {
            let first = first_row;
            first_row += group.stored_rows;
            (group.num_rows > 0).then_some((index, first))
        })
    }
}

/// All footers in the shards' order, read by up to 16 threads. The error is that of the first shard that has one.
pub(crate) fn read_all(
    store: &Store,
    files: &[DataFile],
    columns: &[&str],
) -> Result<Vec<Footer>, DataError> {
    let results: Vec<OnceLock<Result<Footer, DataError>>> =
        files.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let read_some = || {
        while let Some((file, slot)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            files.get(index).zip(results.get(index))
        } {
            let result = read(store, file, columns);
            let failed = result.is_err();
            let _ = slot.set(result); // each slot is one thread's
            if failed {
                // Later shards need not be read; those before this one already are, or are being read.
                next.store(files.len(), Ordering::Relaxed);
            }
        }
    };
    let remote = (files.first()).map_or(Ok(false), |file| store.is_remote(file.uri()))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // A few local footers are read in the time that a thread takes to start.
    let threads = if remote {
        files.len()
    } else {
        cores.min(files.len().div_ceil(8))
    };
    let threads = threads.min(PARALLEL_FOOTERS);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(read_some);
        }
        read_some();
    });
    results
        .into_iter()
        .filter_map(OnceLock::into_inner)
        .collect()
}

fn read(store: &Store, file: &DataFile, columns: &[&str]) -> Result<Footer, DataError> {
    let uri = file.uri();
    let size = store.size(uri)?.ok_or_else(|| DataError::NotFound {
        uri: uri.to_owned(),
    })?;
    let metadata = read_footer(
        &ShardBytes::with_tail(store, uri, size)?,
        uri,
        PageIndexPolicy::Skip,
    )?;
    let mask = project(&metadata, columns);
    let mut row_groups: Vec<RowGroup> = catching_panics(uri, || {
        metadata
            .metadata()
            .row_groups()
            .iter()
            .map(|group| row_group(uri, group, &mask))
            .collect()
    })?;
    let stored_rows = row_groups.iter().map(|group| group.stored_rows).sum();
    let rows = (file.rows()).filter(|rows| **rows != FileRows::First(stored_rows));
    let bitmap = rows
        .map(|rows| rows.read_all(store, uri, stored_rows))
        .transpose()?;
    if let Some(bitmap) = &bitmap {
        let mut first = 0;
        for group in &mut row_groups {
            let next = first + group.stored_rows as usize;
            group.num_rows = bitmap.set_rows(first..next).count() as u64;
            first = next;
        }
    }
    let values = file.values().cloned().unwrap_or_default();
    let mut partitions = partitions(uri);
    partitions.extend(values.clone());
    let shard = Shard {
        uri: uri.to_owned(),
        size,
        rows: rows.cloned(),
        row_groups,
        partitions,
    };
    Ok(Footer {
        shard,
        metadata,
        bitmap,
        values,
    })
}

fn row_group(
    uri: &str,
    group: &RowGroupMetaData,
    mask: &ProjectionMask,
) -> Result<RowGroup, DataError> {
    let num_rows = u64::try_from(group.num_rows());
    let Some(num_rows) = num_rows.ok().filter(|rows| *rows <= MAX_GROUP_ROWS) else {
        let source = ParquetError::General(format!(
            "a row group of {} rows; 0 to {MAX_GROUP_ROWS} are allowed",
            group.num_rows()
        ));
        return Err(DataError::Parquet {
            uri: uri.to_owned(),
            source,
        });
    };
    let leaves = group
        .columns()
        .iter()
        .enumerate()
        .filter(|(leaf, _)| mask.leaf_included(*leaf));
    Ok(RowGroup {
        num_rows,
        stored_rows: num_rows,
        stored_bytes: leaves
            .map(|(_, leaf)| leaf.byte_range().1)
            .fold(0, u64::saturating_add),
    })
}

/// The `key=value` directories of a path. In a URI they are escaped twice: by Spark's catalog, which escapes what a file
/// name cannot hold, and as any URI's path.
fn partitions(uri: &str) -> BTreeMap<String, String> {
    let is_uri = uri
        .split_once(':')
        .is_some_and(|(scheme, _)| !scheme.contains('/'));
    let path = if is_uri {
        percent_decode(uri).unwrap_or_default()
    } else {
        uri.to_owned()
    };
    let Some((directories, _)) = path.rsplit_once('/') else {
        return BTreeMap::new();
    };
    let pairs = directories
        .split('/')
        .filter_map(|directory| directory.split_once('='));
    pairs
        .filter_map(|(key, value)| Some((percent_decode(key)?, percent_decode(value)?)))
        .collect()
}

/// A column's type and the shape of its rows, the same in all shards and fit for every tensor that uses it.
pub(crate) fn resolve_column(
    store: &Store,
    footers: &[Footer],
    spec: &DatasetSpec,
    name: &str,
) -> Result<ColumnInfo, DataError> {
    let dtypes: Vec<DType> = spec
        .tensors()
        .filter(|tensor| tensor.columns.iter().any(|column| column == name))
        .map(|t| t.dtype)
        .collect();
    let dtype = dtypes[0];
    let mut first: Option<(ColumnKind, String)> = None;
    for footer in footers {
        let uri = &footer.shard.uri;
        let own = footer.metadata.schema().column_with_name(name);
        // A file may have a column of the same name, which is not what the table has there.
        let (kind, found) = match own.filter(|_| !footer.values.contains_key(name)) {
            Some((_, field)) => match kind_of(field.data_type()) {
                Some(kind) => (kind, describe(field.data_type())),
                None => {
                    return Err(unsupported(
                        name,
                        describe(field.data_type()),
                        dtype,
                        mend(field.data_type()),
                    ));
                }
            },
            None if footer.shard.partitions.contains_key(name) => (
                ColumnKind::Partition(partition_element(footers, name, dtype)?),
                "of a directory's name".to_owned(),
            ),
            None => return Err(missing(footer, name)),
        };
        match &first {
            None => first = Some((kind, found)),
            Some((expected, _)) if *expected == kind => {}
            Some((_, expected)) => {
                return Err(DataError::MixedTypes {
                    column: name.to_owned(),
                    uri: uri.clone(),
                    expected: expected.clone(),
                    got: found,
                });
            }
        }
    }
    let (kind, found) = first.ok_or(DataError::EmptyDataset { num_shards: 0 })?;
    for dtype in dtypes {
        if !converts(kind, dtype) {
            return Err(unsupported(
                name,
                found,
                dtype,
                "Cast the column, or ask for another type.",
            ));
        }
    }
    let shape = match kind {
        ColumnKind::Scalar(_) | ColumnKind::Partition(_) => Vec::new(),
        _ => first_shape(store, footers, name, dtype)?,
    };
    Ok(ColumnInfo {
        name: name.to_owned(),
        kind,
        shape,
    })
}

fn missing(footer: &Footer, name: &str) -> DataError {
    let fields = footer
        .metadata
        .schema()
        .fields()
        .iter()
        .map(|field| field.name().clone());
    DataError::MissingColumn {
        column: name.to_owned(),
        uri: footer.shard.uri.clone(),
        available: fields
            .chain(footer.shard.partitions.keys().cloned())
            .collect(),
    }
}

fn unsupported(column: &str, found: String, dtype: DType, mend: &'static str) -> DataError {
    DataError::UnsupportedType {
        column: column.to_owned(),
        found,
        dtype: dtype.name(),
        allowed: allowed(dtype),
        mend,
    }
}

/// The numbers that a partition column's directories spell: whole in all shards, or floating point.
fn partition_element(footers: &[Footer], name: &str, dtype: DType) -> Result<Element, DataError> {
    let mut element = Element::Int64;
    for footer in footers {
        let Some(text) = footer.shard.partitions.get(name) else {
            continue;
        };
        if text == NULL_PARTITION && footer.num_rows() > 0 {
            return Err(DataError::NullValue {
                column: name.to_owned(),
                uri: footer.shard.uri.clone(),
                row: 0,
            });
        }
        if text.parse::<i64>().is_err() {
            element = Element::Float64;
            if text.parse::<f64>().is_err() {
                let mend = "Index it with StringIndexer and write it as a column.";
                return Err(unsupported(
                    name,
                    "string (a directory's name)".into(),
                    dtype,
                    mend,
                ));
            }
        }
    }
    Ok(element)
}

/// The shape of a column in the first row that is read of the dataset.
fn first_shape(
    store: &Store,
    footers: &[Footer],
    name: &str,
    dtype: DType,
) -> Result<Vec<usize>, DataError> {
    let filled = footers
        .iter()
        .find_map(|footer| Some((footer, footer.filled_groups().next()?)));
    let Some((footer, (row_group, first_row))) = filled else {
        return Ok(Vec::new());
    };
    let uri = &footer.shard.uri;
    let read = footer.bitmap.as_ref().and_then(|bitmap| {
        let mut rows = bitmap.set_rows(first_row as usize..usize::MAX);
        Some(rows.next()? - first_row as usize)
    });
    let row = read.unwrap_or(0);
    let arrays = read_column(
        footer.bytes(store)?,
        uri,
        &footer.metadata,
        row_group,
        name,
        Some(row),
    )?;
    let shape = match arrays.first() {
        Some(array) => shape_of_first(array),
        None => Err(Flaw::Type("no rows".into())),
    };
    shape.map_err(|flaw| flaw.at(name, uri, first_row + row as u64, dtype))
}

/// Refuses columns for which statistics state nulls, naming the first one's row.
pub(crate) fn refuse_nulls(
    store: &Store,
    footers: &[Footer],
    columns: &[ColumnInfo],
) -> Result<(), DataError> {
    // In a vector, nulls are how dense and sparse ones are told apart: decoding looks at those.
    let checked = |kind| {
        matches!(
            kind,
            ColumnKind::Scalar(_) | ColumnKind::List { .. } | ColumnKind::Binary
        )
    };
    for column in columns.iter().filter(|column| checked(column.kind)) {
        for footer in footers {
            let mask = project(&footer.metadata, &[&column.name]);
            for (row_group, first_row) in footer.filled_groups() {
                let group = footer.metadata.metadata().row_group(row_group);
                let leaves = group
                    .columns()
                    .iter()
                    .enumerate()
                    .filter(|(leaf, _)| mask.leaf_included(*leaf));
                let stated = |leaf: &ColumnChunkMetaData| {
                    leaf.statistics()
                        .and_then(|statistics| statistics.null_count_opt())
                        .unwrap_or(0)
                };
                let RowGroup {
                    num_rows,
                    stored_rows,
                    ..
                } = footer.shard.row_groups[row_group];
                // As many may be in the rows that are not read; decoding looks at the others.
                if leaves.map(|(_, leaf)| stated(leaf)).sum::<u64>() <= stored_rows - num_rows {
                    continue;
                }
                let uri = &footer.shard.uri;
                let mut first = first_row as usize;
                for array in read_column(
                    footer.bytes(store)?,
                    uri,
                    &footer.metadata,
                    row_group,
                    &column.name,
                    None,
                )? {
                    let here = first..first + array.len();
                    let row = match &footer.bitmap {
                        None => first_null(&array).map(|index| first + index),
                        Some(bitmap) => {
                            let read: Vec<usize> = bitmap.set_rows(here.clone()).collect();
                            let places = read.iter().map(|row| (row - first) as u32);
                            let array = take(&array, &UInt32Array::from_iter_values(places), None)
                                .map_err(|error| arrow_error(uri, error))?;
                            first_null(&array).map(|index| read[index])
                        }
                    };
                    if let Some(row) = row {
                        let (column, uri) = (column.name.clone(), uri.clone());
                        let row = row as u64;
                        return Err(DataError::NullValue { column, uri, row });
                    }
                    first = here.end;
                }
            }
        }
    }
    Ok(())
}

/// How a column of this type holds its elements; `None` for types that hold no numbers.
pub(crate) fn kind_of(data_type: &DataType) -> Option<ColumnKind> {
    if let Some(element) = element_of(data_type) {
        return Some(ColumnKind::Scalar(element));
    }
    match data_type {
        DataType::Binary | DataType::FixedSizeBinary(_) => Some(ColumnKind::Binary),
        DataType::Struct(fields) => is_vector(fields).then_some(ColumnKind::Vector),
        DataType::List(field) => match kind_of(field.data_type())? {
            ColumnKind::Scalar(element) => Some(ColumnKind::List { element, depth: 1 }),
            ColumnKind::List { element, depth } => Some(ColumnKind::List {
                element,
                depth: depth + 1,
            }),
            _ => None,
        },
        _ => None,
    }
}

fn element_of(data_type: &DataType) -> Option<Element> {
    Some(match data_type {
        DataType::Boolean => Element::Bool,
        DataType::Int8 => Element::Int8,
        DataType::Int16 => Element::Int16,
        DataType::Int32 => Element::Int32,
        DataType::Int64 => Element::Int64,
        DataType::UInt8 => Element::UInt8,
        DataType::UInt16 => Element::UInt16,
        DataType::UInt32 => Element::UInt32,
        DataType::UInt64 => Element::UInt64,
        DataType::Float16 => Element::Float16,
        DataType::Float32 => Element::Float32,
        DataType::Float64 => Element::Float64,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) => {
            Element::Decimal
        }
        _ => return None,
    })
}

/// Spark ML's `VectorUDT` as Spark writes it.
fn is_vector(fields: &Fields) -> bool {
    let list_of = |data_type: &DataType, element: DataType| match data_type {
        DataType::List(field) => *field.data_type() == element,
        _ => false,
    };
    let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    names == ["type", "size", "indices", "values"]
        && *fields[0].data_type() == DataType::Int8
        && *fields[1].data_type() == DataType::Int32
        && list_of(fields[2].data_type(), DataType::Int32)
        && list_of(fields[3].data_type(), DataType::Float64)
}

/// Whether elements of a column can become a dtype.
fn converts(kind: ColumnKind, dtype: DType) -> bool {
    let element = match kind {
        ColumnKind::Binary => return dtype == DType::UInt8,
        ColumnKind::Vector => Element::Float64,
        ColumnKind::Scalar(element)
        | ColumnKind::List { element, .. }
        | ColumnKind::Partition(element) => element,
    };
    let is_integer = !matches!(
        element,
        Element::Float16 | Element::Float32 | Element::Float64 | Element::Decimal
    );
    match dtype {
        DType::Float32 | DType::Float64 | DType::Int64 => true,
        DType::Bool | DType::UInt8 => is_integer,
    }
}

/// The columns that can become a dtype, in words.
fn allowed(dtype: DType) -> &'static str {
    match dtype {
        DType::Float32 | DType::Float64 => {
            "numeric, decimal and boolean columns, arrays of them, and Spark ML vectors"
        }
        DType::Int64 => {
            "integer and boolean columns, floating and decimal ones with whole numbers, and arrays of them"
        }
        DType::Bool => "boolean columns, integer ones with 0 and 1, and arrays of them",
        DType::UInt8 => {
            "binary columns, boolean and integer ones with 0 to 255, and arrays of them"
        }
    }
}

/// A type by the name that Spark's users know.
pub(crate) fn describe(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "string".into(),
        DataType::Date32 | DataType::Date64 => "date".into(),
        DataType::Timestamp(..) => "timestamp".into(),
        DataType::Binary | DataType::FixedSizeBinary(_) => "binary".into(),
        DataType::Boolean => "boolean".into(),
        DataType::Int8 => "byte".into(),
        DataType::Int16 => "short".into(),
        DataType::Int32 => "int".into(),
        DataType::Int64 => "long".into(),
        DataType::Float32 => "float".into(),
        DataType::Float64 => "double".into(),
        DataType::List(field) => format!("array<{}>", describe(field.data_type())),
        DataType::Struct(fields) if is_vector(fields) => "vector".into(),
        DataType::Struct(fields) => {
            let fields = fields
                .iter()
                .map(|field| format!("{}: {}", field.name(), describe(field.data_type())));
            format!("struct<{}>", fields.collect::<Vec<_>>().join(", "))
        }
        DataType::Map(..) => "map".into(),
        other => other.to_string().to_lowercase(),
    }
}

/// What to do about a type that holds no numbers.
fn mend(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            "Index it with StringIndexer, or cast it to a number."
        }
        DataType::Date32
        | DataType::Date64
        | DataType::Timestamp(..)
        | DataType::Time32(_)
        | DataType::Time64(_) => {
            "Turn it into numbers first, for instance with unix_timestamp, dayofyear or hour."
        }
        DataType::List(field) => mend(field.data_type()),
        DataType::Struct(_) => "Select its fields as columns of their own.",
        DataType::Map(..) => "Select its entries as columns of their own.",
        _ => "Cast the column to a number.",
    }
}
