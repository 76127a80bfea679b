//! Prepared data: rows that were written once as Parquet files, for any number of fits.
//!
//! `manifest.json` says what the files hold and which files they are. It is written last, so that a directory without one was
//! not written to its end. Names of files are relative to the directory, which may be moved or mounted elsewhere.

use std::collections::BTreeMap;
use std::fmt;

use flambeau_data::{DType, DataError, DataFile, DatasetSpec, Manifest, TensorSpec};
use flambeau_train::HandleInvalid;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::SupervisorError;
use crate::rows;
use crate::work_directory::{PROBES, WorkDirectory};

const FORMAT: u32 = 3;
/// The file that says what was prepared.
pub(crate) const MANIFEST: &str = "manifest.json";
/// The directory that front ends write the files into; they name it so too.
const FILES: &str = "data";
/// The partition column that is true for validation rows.
const VALIDATION: &str = "flambeau_validation";
/// The partition column with the number of a row's fold.
const FOLD: &str = "flambeau_fold";

/// What a column is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
enum Role {
    Input,
    Label,
    Weight,
    /// What `preprocess` makes inputs of, as it is.
    Raw,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Input => "input",
            Role::Label => "label",
            Role::Weight => "weight",
            Role::Raw => "input of preprocess",
        }
    }
}

/// The type of a column's values: a tensor's, or one that only `preprocess` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
enum ValueType {
    Number(DType),
    Other(OtherType),
}

/// A type that no tensor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
enum OtherType {
    Binary,
    String,
    /// A vector's size, and the places and values of what is not zero.
    Sparse,
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueType::Number(dtype) => dtype.name(),
            ValueType::Other(OtherType::Binary) => "binary",
            ValueType::Other(OtherType::String) => "string",
            ValueType::Other(OtherType::Sparse) => "sparse",
        })
    }
}

/// A column of the files.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Column {
    /// Its name in the files.
    name: String,
    /// The column of the rows that it was made of, and what for: labels and weights were checked as such.
    source: String,
    role: Role,
    dtype: ValueType,
    /// How many arrays are nested in the source: 0 for numbers.
    depth: usize,
    /// The shape of one row. Those who write tell that of nested arrays, which lie flat in the files.
    shape: Option<Vec<usize>>,
}

/// Which rows are for validation.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) enum Split {
    /// Those of a boolean column.
    Indicator { column: String },
    /// A random fraction.
    Fraction { fraction: f64, seed: i64 },
}

impl Split {
    fn text(split: Option<&Self>) -> String {
        match split {
            None => "without validation rows".into(),
            Some(Split::Indicator { column }) => format!("by validationIndicatorCol {column:?}"),
            Some(Split::Fraction { fraction, .. }) => format!("by validationFraction {fraction}"),
        }
    }

    /// Whether rows that were split this way are split as a fit asks for. A seed chooses rows as they are written, and no
    /// more after that: fits with other seeds share one split.
    fn suits(then: Option<&Self>, now: Option<&Self>) -> bool {
        match (then, now) {
            (
                Some(Split::Fraction { fraction: then, .. }),
                Some(Split::Fraction { fraction: now, .. }),
            ) => then == now,
            _ => then == now,
        }
    }
}

/// Whether rows that were written by a rule for those with a null or a NaN among their features are those that a fit by another
/// rule would write. Rows that were refused where one was invalid are all of them and valid, so that every rule has them. Of
/// others some may be left out, or be invalid.
fn suits(then: HandleInvalid, now: HandleInvalid) -> bool {
    then == now || then == HandleInvalid::Error
}

/// A rule as a message says it.
fn rule(rule: HandleInvalid) -> &'static str {
    match rule {
        HandleInvalid::Keep => "by handleInvalid \"keep\"",
        HandleInvalid::Skip => "by handleInvalid \"skip\"",
        HandleInvalid::Error => "by handleInvalid \"error\"",
    }
}

/// What a front end says of rows that it has written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Draft {
    /// Spark's schema of the columns that were read, as JSON; nobody reads it here.
    schema: Value,
    columns: Vec<Column>,
    split: Option<Split>,
    handle_invalid: HandleInvalid,
    /// The time that writing took.
    seconds: f64,
    /// The files' names.
    files: Vec<String>,
}

/// One file of rows.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    name: String,
    is_validation: bool,
    fold: Option<u32>,
    num_rows: u64,
    /// Its size, and the SHA-256 of its end.
    digest: String,
}

/// The contents of `manifest.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Prepared {
    format: u32,
    schema: Value,
    columns: Vec<Column>,
    split: Option<Split>,
    /// What became of rows with a null or a NaN among their features.
    handle_invalid: HandleInvalid,
    seconds: f64,
    num_rows: u64,
    num_validation_rows: u64,
    /// Of all files.
    num_bytes: u64,
    files: Vec<File>,
}

/// Makes a manifest of what was written, and writes it, unless there are no rows to train on.
pub(crate) fn seal(work: &WorkDirectory<'_>, draft: Draft) -> Result<Prepared, SupervisorError> {
    let mut names = draft.files;
    names.sort();
    let uris: Vec<String> = names.iter().map(|name| work.path(name)).collect();
    let spec = DatasetSpec {
        inputs: draft.columns.iter().filter_map(as_it_lies).collect(),
        labels: vec![],
        weight: None,
        raw_columns: (draft.columns.iter())
            .filter(|column| as_it_lies(column).is_none())
            .map(|column| column.name.clone())
            .collect(),
    };
    let found = rows::manifest(work.store, &DataFile::whole(&uris), &spec)?;
    let shards = found.as_ref().map_or(&[][..], Manifest::shards);
    let digests = rows::digests(work.store, &uris, true)?;
    let mut files = vec![];
    for ((name, shard), digest) in names.into_iter().zip(shards).zip(digests) {
        files.push(File {
            name,
            is_validation: partition(&shard.partitions, VALIDATION)?.unwrap_or(false),
            fold: partition(&shard.partitions, FOLD)?,
            num_rows: shard.row_groups.iter().map(|group| group.num_rows).sum(),
            digest,
        });
    }
    let mut columns = draft.columns;
    let as_found = found.iter().flat_map(|found| &found.spec().inputs);
    let of_tensors = (columns.iter_mut()).filter(|column| as_it_lies(column).is_some());
    for (column, found) in of_tensors.zip(as_found) {
        column.shape = column.shape.take().or_else(|| found.shape.clone());
    }
    let rows = |of_validation: bool| {
        let files = files
            .iter()
            .filter(move |file| file.is_validation == of_validation);
        files.map(|file| file.num_rows).sum()
    };
    let prepared = Prepared {
        format: FORMAT,
        schema: draft.schema,
        columns,
        split: draft.split,
        handle_invalid: draft.handle_invalid,
        seconds: draft.seconds,
        num_rows: rows(false),
        num_validation_rows: rows(true),
        num_bytes: shards.iter().map(|shard| shard.size).sum(),
        files,
    };
    if prepared.num_rows > 0 {
        let bytes = serde_json::to_vec(&prepared).expect("a manifest is JSON");
        work.store.put(&work.path(MANIFEST), bytes.into())?;
    }
    Ok(prepared)
}

/// A column as a tensor of its own, with the shape that it has in the files; none of one that stays as it is.
fn as_it_lies(column: &Column) -> Option<TensorSpec> {
    let ValueType::Number(dtype) = column.dtype else {
        return None;
    };
    (column.role != Role::Raw).then(|| TensorSpec {
        name: column.name.clone(),
        columns: vec![column.name.clone()],
        dtype,
        shape: None,
    })
}

/// The value of a partition column of Flambeau's own.
fn partition<T: std::str::FromStr>(
    partitions: &BTreeMap<String, String>,
    name: &str,
) -> Result<Option<T>, SupervisorError> {
    let value = partitions.get(name).map(|text| {
        text.parse().map_err(|_| {
            SupervisorError::Refused(format!("{name} is {text:?} in the path of a file"))
        })
    });
    value.transpose()
}

/// What a directory holds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Found {
    /// None where the manifest is damaged, or another version wrote it.
    prepared: Option<Prepared>,
}

/// What was prepared in a directory; none where there is no manifest.
pub(crate) fn read(work: &WorkDirectory<'_>) -> Result<Option<Found>, DataError> {
    let bytes = match work.store.get(&work.path(MANIFEST)) {
        Err(DataError::NotFound { .. }) => return Ok(None),
        bytes => bytes?,
    };
    let prepared: Option<Prepared> = serde_json::from_slice(&bytes).ok();
    Ok(Some(Found {
        prepared: prepared.filter(|prepared| prepared.format == FORMAT),
    }))
}

/// Removes what is empty of a directory in which rows were to be prepared, `data`, `probes` and then itself. What another
/// writes there just now stays.
pub(crate) fn remove_empty(work: &WorkDirectory<'_>) -> Result<(), DataError> {
    for directory in [work.path(FILES), work.path(PROBES), work.uri().into()] {
        work.store.delete_empty(&directory)?;
    }
    Ok(())
}

/// What differs from the manifest in the files: a text for each of those. Reads no more than the files' ends.
pub(crate) fn changes(
    work: &WorkDirectory<'_>,
    prepared: &Prepared,
) -> Result<Vec<String>, DataError> {
    let uris: Vec<String> = prepared
        .files
        .iter()
        .map(|file| work.path(&file.name))
        .collect();
    let digests = match rows::digests(work.store, &uris, true) {
        Err(DataError::NotFound { uri }) => return Ok(vec![format!("{uri} is gone")]),
        digests => digests?,
    };
    let changed = prepared.files.iter().zip(&uris).zip(digests);
    let changed = changed.filter(|((file, _), digest)| file.digest != *digest);
    Ok(changed
        .map(|((_, uri), _)| format!("{uri} is another file than the one that was written"))
        .collect())
}

/// The training job's data, as prepared files hold it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Data {
    spec: DatasetSpec,
    train: Vec<String>,
    validation: Vec<String>,
    num_rows: u64,
    num_validation_rows: u64,
}

/// A column that `preprocess` gets as it is.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawColumn {
    source: String,
    dtype: ValueType,
    /// None of arrays of any length.
    shape: Option<Vec<usize>>,
}

/// What a fit asks of prepared data.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Asked {
    spec: DatasetSpec,
    /// What the spec's columns are that stay as they are, in their order.
    #[serde(default)]
    raw: Vec<RawColumn>,
    split: Option<Split>,
    handle_invalid: HandleInvalid,
    /// The fold that is left out.
    without_fold: Option<u32>,
}

/// The files of prepared data, and their columns for a fit. Refuses what was not prepared, with what to do. Reads nothing.
pub(crate) fn data(
    work: &WorkDirectory<'_>,
    prepared: &Prepared,
    asked: Asked,
) -> Result<Data, SupervisorError> {
    let otherwise = |then: &str, now: &str| {
        refused(format!(
            "the rows in {} were prepared {then}, and are asked for {now}: set what they were prepared with, or prepare them anew",
            work.uri(),
        ))
    };
    let (then, now) = (prepared.split.as_ref(), asked.split.as_ref());
    if !Split::suits(then, now) {
        return Err(otherwise(&Split::text(then), &Split::text(now)));
    }
    let (then, now) = (prepared.handle_invalid, asked.handle_invalid);
    if !suits(then, now) {
        return Err(otherwise(rule(then), rule(now)));
    }
    let (raw, without_fold, asked) = (asked.raw, asked.without_fold, asked.spec);
    let place = |tensor: TensorSpec, role| in_files(work, prepared, tensor, role);
    let place_all = |tensors: Vec<TensorSpec>, role| -> Result<Vec<_>, _> {
        tensors
            .into_iter()
            .map(|tensor| place(tensor, role))
            .collect()
    };
    let spec = DatasetSpec {
        inputs: place_all(asked.inputs, Role::Input)?,
        labels: place_all(asked.labels, Role::Label)?,
        weight: asked
            .weight
            .map(|tensor| place(tensor, Role::Weight))
            .transpose()?,
        raw_columns: raw
            .into_iter()
            .map(|column| raw_in_files(work, prepared, column))
            .collect::<Result<_, _>>()?,
    };
    let is_read = |file: &&File| without_fold.is_none() || file.fold != without_fold;
    let (validation, train): (Vec<&File>, Vec<&File>) = prepared
        .files
        .iter()
        .filter(is_read)
        .partition(|file| file.is_validation);
    let uris = |files: &[&File]| files.iter().map(|file| work.path(&file.name)).collect();
    let rows = |files: &[&File]| files.iter().map(|file| file.num_rows).sum();
    Ok(Data {
        spec,
        train: uris(&train),
        validation: uris(&validation),
        num_rows: rows(&train),
        num_validation_rows: rows(&validation),
    })
}

/// What a column that stays as it is is called in the files.
fn raw_in_files(
    work: &WorkDirectory<'_>,
    prepared: &Prepared,
    raw: RawColumn,
) -> Result<String, SupervisorError> {
    let column = column_for(work, prepared, &raw.source, raw.dtype, Role::Raw)?;
    if column.depth > 1 {
        shape_of(work, column, raw.shape)?;
    }
    Ok(column.name.clone())
}

/// A tensor in terms of the files' columns.
fn in_files(
    work: &WorkDirectory<'_>,
    prepared: &Prepared,
    tensor: TensorSpec,
    role: Role,
) -> Result<TensorSpec, SupervisorError> {
    let sources = tensor.columns.iter();
    let dtype = ValueType::Number(tensor.dtype);
    let columns: Vec<&Column> = sources
        .map(|source| column_for(work, prepared, source, dtype, role))
        .collect::<Result<_, _>>()?;
    let shape = match (&columns[..], tensor.shape) {
        ([column], asked) => Some(shape_of(work, column, asked)?),
        (_, asked) => asked,
    };
    Ok(TensorSpec {
        columns: columns.iter().map(|column| column.name.clone()).collect(),
        shape,
        ..tensor
    })
}

/// The files' column with the values of a source for that use. What was written as a label or a weight was checked for more
/// than an input is, so that an input may be read from any, but for what stays as it is, which has no shape.
fn column_for<'a>(
    work: &WorkDirectory<'_>,
    prepared: &'a Prepared,
    source: &str,
    dtype: ValueType,
    role: Role,
) -> Result<&'a Column, SupervisorError> {
    let of_source = || {
        prepared
            .columns
            .iter()
            .filter(|column| column.source == source)
    };
    let has_type = || of_source().filter(|column| column.dtype == dtype);
    let exact = has_type().find(|column| column.role == role);
    let any = || has_type().find(|column| role == Role::Input && column.role != Role::Raw);
    exact.or_else(any).ok_or_else(|| {
        let mut written: Vec<String> = of_source()
            .map(|column| format!("{} in {}", column.role.name(), column.dtype))
            .collect();
        written.dedup();
        let reason = if written.is_empty() {
            "was not prepared".to_owned()
        } else {
            format!("was prepared as {}", written.join(" and as "))
        };
        refused(format!(
            "column {source:?} {reason} in {}, and is read as {} in {dtype}: prepare the rows with an estimator that reads it so",
            work.uri(),
            role.name()
        ))
    })
}

/// The shape of a tensor that is one column.
fn shape_of(
    work: &WorkDirectory<'_>,
    column: &Column,
    asked: Option<Vec<usize>>,
) -> Result<Vec<usize>, SupervisorError> {
    let written = column.shape.clone().unwrap_or_default();
    let Some(asked) = asked else {
        return Ok(written);
    };
    let product = |shape: &[usize]| shape.iter().product::<usize>();
    // A shape with as many numbers as arrays are nested is one that each row was held to.
    let holds_rows = column.depth > 1 && asked.len() == column.depth;
    if product(&asked) == product(&written) && (!holds_rows || asked == written) {
        return Ok(asked);
    }
    Err(refused(format!(
        "column {:?} was prepared with rows of shape {written:?} in {}, and is read in shape {asked:?}: set inputShapes to what it \
         is, or prepare the rows anew",
        column.source,
        work.uri()
    )))
}

fn refused(text: String) -> SupervisorError {
    SupervisorError::Refused(text)
}
