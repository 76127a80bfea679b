//! Row groups into rows of tensors.

mod convert;
mod extract;
mod plain;
mod shard_bytes;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use arrow_array::{ArrayRef, RecordBatch, UInt32Array};
use arrow_schema::ArrowError;
use arrow_select::take::take_record_batch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder, RowSelection,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};

use crate::error::DataError;
use crate::files::FileRows;
use crate::manifest::{ColumnInfo, ColumnKind, Element, Manifest};
use crate::memory::{Charge, Meter};
use crate::order::Chunk;
use crate::spec::DType;
use crate::store::Store;
use convert::{Part, Role};
use extract::{Fault, Values};
pub(crate) use extract::{Flaw, first_null, shape_of_first};
use plain::PlainColumn;
pub(crate) use shard_bytes::ShardBytes;

/// Bytes of tensors that are decoded at once: few enough that they and the columns that they are made of stay in the second-level cache.
const BATCH_BYTES: usize = 512 << 10;

/// Rows decoded at once: enough that a batch's own cost does not count, and no more than the bytes allow.
const BATCH_ROWS: Range<usize> = 256..8192;

/// Decodes rows of a manifest's shards. Any thread may use it.
pub(crate) struct Decoder {
    store: Store,
    manifest: Arc<Manifest>,
    tensors: Vec<Tensor>,
    /// Where each row group, counted over all shards, lies.
    places: Vec<Place>,
    /// Footers, read when first needed.
    footers: Vec<OnceLock<ArrowReaderMetadata>>,
    meter: Meter,
    /// Rows decoded at once.
    batch_rows: usize,
}

struct Tensor {
    dtype: DType,
    role: Role,
    /// Elements a row.
    elements: usize,
    columns: Vec<TensorColumn>,
    /// Its column's place in the manifest's columns, where it is an input of one that no other tensor has: such numbers are not looked
    /// at and may lie in the tensor as they lie in the file.
    sole: Option<usize>,
}

impl Tensor {
    fn row_bytes(&self) -> usize {
        self.elements * self.dtype.size()
    }
}

struct TensorColumn {
    /// Its place in the manifest's columns.
    index: usize,
    offset: usize,
    width: usize,
}

#[derive(Clone, Copy)]
struct Place {
    shard: usize,
    /// Within the shard.
    row_group: usize,
    /// Of those that are read, in the manifest's numbering.
    first_row: u64,
    /// Rows that are read.
    num_rows: u64,
    /// In the file's numbering.
    first_stored: u64,
    /// Rows that it has.
    stored_rows: usize,
}

impl Place {
    /// The rows to read for a chunk, numbered from the row group's first that is read. A round that other lanes have of the row group's ends counts to the chunk
    /// beside it, so that a whole row group is read as one.
    fn span(self, chunk: &Chunk) -> Range<usize> {
        let Range { start, end } = chunk.span();
        let round = chunk.round();
        let end = end.min(self.first_row + self.num_rows) - self.first_row;
        let start = start.saturating_sub(self.first_row);
        let first = if start < round { 0 } else { start };
        let last = if end + round > self.num_rows {
            self.num_rows
        } else {
            end
        };
        first as usize..last as usize
    }
}

/// A row group's columns while they are read.
struct OpenGroup {
    /// By their places in the manifest's columns.
    plain: Vec<Option<PlainColumn>>,
    /// Reads the columns of the file that are not plain, where there are any.
    others: Option<ParquetRecordBatchReader>,
}

/// Rows of a row group as they lie in the file.
struct Stored {
    footer: ArrowReaderMetadata,
    /// `None` where the file has none of the columns.
    bytes: Option<ShardBytes>,
    read: ReadRows,
    _charge: Charge,
}

/// The rows of a row group that are read, by their places there; `None` for all.
struct ReadRows(Option<Vec<u32>>);

impl ReadRows {
    fn is_partial(&self) -> bool {
        self.0.is_some()
    }

    /// The place of a row, which is numbered from the first that is read.
    fn place(&self, row: usize) -> usize {
        (self.0.as_ref()).map_or(row, |places| places[row] as usize)
    }

    /// The places from the first of some rows, of which there are such, to the last.
    fn span(&self, rows: &Range<usize>) -> Range<usize> {
        self.place(rows.start)..self.place(rows.end - 1) + 1
    }
}

/// Some rows of a row group.
struct Rows {
    num_rows: usize,
    /// By their places in the manifest's columns.
    plain: Vec<Option<Values>>,
    others: Option<RecordBatch>,
}

/// Why rows were not read.
enum Unread {
    /// A column is not plain after all.
    NotPlain,
    Error(DataError),
}

impl From<DataError> for Unread {
    fn from(error: DataError) -> Self {
        Unread::Error(error)
    }
}

impl Decoder {
    /// Reads nothing yet.
    pub(crate) fn new(store: Store, manifest: Arc<Manifest>, meter: Meter) -> Self {
        let spec = manifest.spec();
        let roles = std::iter::repeat_n(Role::Input, spec.inputs.len())
            .chain(std::iter::repeat_n(Role::Label, spec.labels.len()))
            .chain(spec.weight.iter().map(|_| Role::Weight));
        let tensors = spec
            .tensors()
            .zip(roles)
            .map(|(tensor, role)| {
                let mut offset = 0;
                let columns = tensor.columns.iter().map(|name| {
                    let index = manifest.column_index(name);
                    let width = manifest.columns()[index].shape.iter().product();
                    offset += width;
                    TensorColumn {
                        index,
                        offset: offset - width,
                        width,
                    }
                });
                let columns: Vec<TensorColumn> = columns.collect();
                let uses = |name| {
                    spec.tensors()
                        .flat_map(|tensor| &tensor.columns)
                        .filter(move |other| *other == name)
                        .count()
                };
                let is_sole =
                    role == Role::Input && columns.len() == 1 && uses(&tensor.columns[0]) == 1;
                Tensor {
                    dtype: tensor.dtype,
                    role,
                    elements: offset,
                    sole: is_sole.then(|| columns[0].index),
                    columns,
                }
            })
            .collect();
        let mut places = Vec::new();
        let mut first_row = 0;
        for (shard, info) in manifest.shards().iter().enumerate() {
            let mut first_stored = 0;
            for (row_group, group) in info.row_groups.iter().enumerate() {
                places.push(Place {
                    shard,
                    row_group,
                    first_row,
                    num_rows: group.num_rows,
                    first_stored,
                    stored_rows: group.stored_rows as usize,
                });
                first_row += group.num_rows;
                first_stored += group.stored_rows;
            }
        }
        let footers = manifest.shards().iter().map(|_| OnceLock::new()).collect();
        let row_bytes = (manifest.bytes_per_row() as usize).max(1);
        Decoder {
            batch_rows: (BATCH_BYTES / row_bytes).clamp(BATCH_ROWS.start, BATCH_ROWS.end),
            store,
            manifest,
            tensors,
            places,
            footers,
            meter,
        }
    }

    /// Bytes of a row in each tensor.
    pub(crate) fn row_bytes(&self) -> Vec<usize> {
        self.tensors.iter().map(Tensor::row_bytes).collect()
    }

    /// The shard that holds a row group.
    pub(crate) fn uri(&self, row_group: usize) -> &str {
        &self.manifest.shards()[self.places[row_group].shard].uri
    }

    /// Decodes rows of one row group (chunks of it, ascending) into `out`: for each tensor exactly the rows' bytes. What the file has of them
    /// is fetched once. Returns the columns that stay as they are, part after part; no part where there are no such columns.
    ///
    /// Holds the row group's columns as they lie in the file while it works. Looks at `cancelled` after every batch of rows and
    /// returns `None` where that ends it.
    pub(crate) fn decode(
        &self,
        row_group: usize,
        chunks: &[Chunk],
        out: &mut [&mut [u8]],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<RecordBatch>>, DataError> {
        let uri = self.uri(row_group);
        let place = self.places[row_group];
        let spans: Vec<Range<usize>> = chunks.iter().map(|chunk| place.span(chunk)).collect();
        let stored = catching_panics(uri, || self.fetch(place, &spans))?;
        let (mut first, mut raw) = (0, Vec::new());
        for chunk in chunks {
            let next = first + chunk.num_rows as usize;
            let mut out: Vec<&mut [u8]> = (self.tensors.iter().zip(out.iter_mut()))
                .map(|(tensor, out)| {
                    let row_bytes = tensor.row_bytes();
                    &mut out[first * row_bytes..next * row_bytes]
                })
                .collect();
            let mut decode = |plainly| {
                let read =
                    || Ok(self.decode_chunk(place, &stored, chunk, &mut out, cancelled, plainly));
                catching_panics(uri, read).unwrap_or_else(|error| Err(Unread::Error(error)))
            };
            let decoded = match decode(true) {
                Err(Unread::NotPlain) => decode(false),
                done => done,
            };
            match decoded {
                Ok(Some(parts)) => raw.extend(parts),
                Ok(None) => return Ok(None),
                Err(Unread::Error(error)) => return Err(error),
                Err(Unread::NotPlain) => unreachable!("no column was to be plain"),
            }
            first = next;
        }
        Ok(Some(raw))
    }

    /// Decodes rows of a row group, which `stored` holds. Where the chunk's do not follow each other there, as they are dealt or only some are
    /// read, those between them are decoded too, a batch at a time, and the chunk's are taken.
    fn decode_chunk(
        &self,
        place: Place,
        stored: &Stored,
        chunk: &Chunk,
        out: &mut [&mut [u8]],
        cancelled: &dyn Fn() -> bool,
        plainly: bool,
    ) -> Result<Option<Vec<RecordBatch>>, Unread> {
        let uri = &self.manifest.shards()[place.shard].uri;
        let rows = stored.read.span(&place.span(chunk));
        let mut group = self.open(place, stored, &rows, plainly)?;
        let mut direct: Vec<Option<PlainColumn>> = (self.tensors.iter())
            .map(|tensor| group.plain[tensor.sole?].take_if(|column| column.is(tensor.dtype)))
            .collect();
        let takes_some = chunk.dealt.is_some() || stored.read.is_partial();
        let scratch_rows = match takes_some {
            true => self.batch_rows.min(rows.len()),
            false => 0,
        };
        let mut scratch: Vec<Vec<u8>> = (self.tensors.iter())
            .map(|tensor| vec![0; scratch_rows * tensor.row_bytes()])
            .collect();
        let mut own = chunk
            .rows()
            .map(|row| stored.read.place((row - place.first_row) as usize))
            .peekable();
        let (mut done, mut num_own) = (0, 0);
        let mut raw = Vec::new();
        while done < rows.len() {
            if cancelled() {
                return Ok(None);
            }
            let Some(decoded) = group.next(self.batch_rows.min(rows.len() - done), uri)? else {
                break;
            };
            let first = rows.start + done;
            done += decoded.num_rows;
            // Places of the chunk's own rows among these, where they are not all.
            let taken: Option<UInt32Array> = takes_some.then(|| {
                let here = std::iter::from_fn(|| own.next_if(|row| *row < rows.start + done));
                UInt32Array::from_iter_values(here.map(|row| (row - first) as u32))
            });
            let decoded_rows = decoded.num_rows;
            let rows_here = match &taken {
                Some(taken) => decoded.take(taken, uri)?,
                None => decoded,
            };
            // A row's number in the file.
            let number = |row: usize| {
                let row = taken
                    .as_ref()
                    .map_or(row, |taken| taken.value(row) as usize);
                place.first_stored + (first + row) as u64
            };
            let tensors = self.tensors.iter().zip(&mut direct).zip(&mut scratch);
            for (((tensor, direct), scratch), out) in tensors.zip(out.iter_mut()) {
                let row_bytes = tensor.row_bytes();
                let next_own = num_own + rows_here.num_rows;
                let out = &mut out[num_own * row_bytes..next_own * row_bytes];
                match (direct, &taken) {
                    (Some(column), None) => column.fill(out).ok_or(Unread::NotPlain)?,
                    (Some(column), Some(taken)) => {
                        let scratch = &mut scratch[..decoded_rows * row_bytes];
                        column.fill(scratch).ok_or(Unread::NotPlain)?;
                        for (out, &row) in out.chunks_exact_mut(row_bytes).zip(taken.values()) {
                            let row = row as usize * row_bytes;
                            out.copy_from_slice(&scratch[row..row + row_bytes]);
                        }
                    }
                    (None, _) => self.lay_rows(place.shard, tensor, &rows_here, number, out)?,
                }
            }
            raw.extend(self.raw_rows(uri, &rows_here, number)?);
            num_own += rows_here.num_rows;
        }
        if done != rows.len() {
            let reason = format!(
                "row group {} holds fewer rows than its footer said",
                place.row_group
            );
            let uri = uri.clone();
            return Err(DataError::ShardChanged { uri, reason }.into());
        }
        Ok(Some(raw))
    }

    /// The columns that stay as they are, where the spec has such.
    fn raw_rows(
        &self,
        uri: &str,
        rows: &Rows,
        number: impl Fn(usize) -> u64,
    ) -> Result<Option<RecordBatch>, DataError> {
        let names = &self.manifest.spec().raw_columns;
        if names.is_empty() {
            return Ok(None);
        }
        let columns = names.iter().map(|name| {
            let column = (rows.others.as_ref()).and_then(|others| others.column_by_name(name));
            let Some(array) = column else {
                return Err(Flaw::Type("none".into()).at(name, uri, 0, DType::UInt8));
            };
            match first_null(array) {
                Some(row) => Err(Flaw::Null.at(name, uri, number(row), DType::UInt8)),
                None => Ok((name, array.clone())),
            }
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        // As none holds a null, all shards' batches have one schema, whatever their footers say of that.
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns
                .into_iter()
                .map(|(name, array)| (name, array, false)),
        );
        batch.map(Some).map_err(|error| arrow_error(uri, error))
    }

    fn lay_rows(
        &self,
        shard: usize,
        tensor: &Tensor,
        rows: &Rows,
        number: impl Fn(usize) -> u64,
        out: &mut [u8],
    ) -> Result<(), DataError> {
        let shard = &self.manifest.shards()[shard];
        let mut parts = Vec::with_capacity(tensor.columns.len());
        for column in &tensor.columns {
            let info = &self.manifest.columns()[column.index];
            let other = || rows.others.as_ref()?.column_by_name(&info.name);
            let values = match (&rows.plain[column.index], info.kind) {
                (Some(values), _) => Ok(values.clone()),
                (None, ColumnKind::Partition(element)) => {
                    let text = shard.partitions.get(&info.name).map_or("", |text| text);
                    constant(element, text, rows.num_rows)
                }
                (None, _) => match other() {
                    Some(array) => extract::extract(array, &info.shape, tensor.dtype),
                    None => Err(Fault {
                        row: 0,
                        flaw: Flaw::Type("none".into()),
                    }),
                },
            };
            let values = values.and_then(|values| {
                convert::check(&values, column.width, tensor.role, tensor.dtype)?;
                Ok(values)
            });
            let values = values.map_err(|Fault { row, flaw }| {
                flaw.at(&info.name, &shard.uri, number(row), tensor.dtype)
            })?;
            parts.push(Part {
                values,
                offset: column.offset,
                width: column.width,
            });
        }
        convert::interleave(out, rows.num_rows, tensor.elements, &parts, tensor.dtype);
        Ok(())
    }

    fn footer(&self, shard: usize) -> Result<ArrowReaderMetadata, DataError> {
        if let Some(footer) = self.footers[shard].get() {
            return Ok(footer.clone());
        }
        let info = &self.manifest.shards()[shard];
        let bytes =
            ShardBytes::with_tail(&self.store, &info.uri, info.size).map_err(
                |error| match error {
                    DataError::NotFound { uri } => DataError::ShardChanged {
                        uri,
                        reason: "it is gone".into(),
                    },
                    other => other,
                },
            )?;
        let footer = read_footer(&bytes, &info.uri, PageIndexPolicy::Optional)?;
        let groups = footer.metadata().row_groups();
        let same = groups.len() == info.row_groups.len()
            && groups
                .iter()
                .zip(&info.row_groups)
                .all(|(now, then)| now.num_rows() as u64 == then.stored_rows);
        if !same {
            let reason = "its row groups are not those it had".into();
            return Err(DataError::ShardChanged {
                uri: info.uri.clone(),
                reason,
            });
        }
        Ok(self.footers[shard].get_or_init(|| footer).clone())
    }

    /// What the file has of some rows of a row group, numbered from its first that is read.
    fn fetch(&self, place: Place, spans: &[Range<usize>]) -> Result<Stored, DataError> {
        let footer = self.footer(place.shard)?;
        let shard = &self.manifest.shards()[place.shard];
        let read = self.read_rows(place)?;
        let runs: Vec<Range<usize>> = spans.iter().map(|span| read.span(span)).collect();
        let columns = self.manifest.columns().iter().filter(|info| in_file(info));
        let names: Vec<&str> = columns
            .map(|info| info.name.as_str())
            .chain(self.raw_columns())
            .collect();
        let selection = selection(&runs, place.stored_rows);
        let mask = project(&footer, &names);
        let metadata = footer.metadata();
        let ranges = stored_ranges(metadata, place.row_group, &mask, selection.as_ref());
        let num_bytes = ranges.iter().map(|range| range.end - range.start).sum();
        let charge = self.meter.charge(num_bytes);
        let bytes = match ranges.is_empty() {
            true => None,
            false => Some(ShardBytes::with_ranges(
                &self.store,
                &shard.uri,
                shard.size,
                ranges,
            )?),
        };
        Ok(Stored {
            footer,
            bytes,
            read,
            _charge: charge,
        })
    }

    fn read_rows(&self, place: Place) -> Result<ReadRows, DataError> {
        let shard = &self.manifest.shards()[place.shard];
        let num_stored = place.stored_rows as u64;
        let range = match &shard.rows {
            Some(FileRows::Bitmap(range)) if place.num_rows < num_stored => range,
            Some(FileRows::First(_)) if place.num_rows < num_stored => {
                return Ok(ReadRows(Some((0..place.num_rows as u32).collect())));
            }
            _ => return Ok(ReadRows(None)),
        };
        let bitmap = range.read_rows(&self.store, &shard.uri, place.first_stored, num_stored)?;
        let set_rows = bitmap.set_rows(0..place.stored_rows);
        let places: Vec<u32> = set_rows.map(|row| row as u32).collect();
        if places.len() as u64 != place.num_rows {
            return Err(DataError::ShardChanged {
                uri: shard.uri.clone(),
                reason: format!("{} names other rows of it than it did", range.uri),
            });
        }
        Ok(ReadRows(Some(places)))
    }

    /// Some rows of a row group. With `plainly`, what is plain is read without parquet's reader.
    fn open(
        &self,
        place: Place,
        stored: &Stored,
        rows: &Range<usize>,
        plainly: bool,
    ) -> Result<OpenGroup, DataError> {
        let Stored { footer, bytes, .. } = stored;
        let shard = &self.manifest.shards()[place.shard];
        let columns = self.manifest.columns();
        let mut group = OpenGroup {
            plain: columns.iter().map(|_| None).collect(),
            others: None,
        };
        let Some(bytes) = bytes else {
            return Ok(group);
        };
        if plainly {
            group.plain = self.plain_columns(bytes, footer, place.row_group, rows);
        }
        let others: Vec<&str> = (columns.iter().zip(&group.plain))
            .filter(|(info, plain)| plain.is_none() && in_file(info))
            .map(|(info, _)| info.name.as_str())
            .chain(self.raw_columns())
            .collect();
        if others.is_empty() {
            return Ok(group);
        }
        let mask = project(footer, &others);
        let mut builder =
            ParquetRecordBatchReaderBuilder::new_with_metadata(bytes.clone(), footer.clone())
                .with_row_groups(vec![place.row_group])
                .with_projection(mask)
                .with_batch_size(self.batch_rows);
        if let Some(selection) = selection(std::slice::from_ref(rows), place.stored_rows) {
            builder = builder.with_row_selection(selection);
        }
        let reader = builder
            .build()
            .map_err(|source| parquet_error(&shard.uri, source))?;
        group.others = Some(reader);
        Ok(group)
    }

    fn raw_columns(&self) -> impl Iterator<Item = &str> {
        let names = &self.manifest.spec().raw_columns;
        names.iter().map(String::as_str)
    }

    /// The columns of a row group that are plain, from the first of these rows on, by their places in the manifest's columns.
    fn plain_columns(
        &self,
        bytes: &ShardBytes,
        footer: &ArrowReaderMetadata,
        row_group: usize,
        rows: &Range<usize>,
    ) -> Vec<Option<PlainColumn>> {
        let bytes = Arc::new(bytes.clone());
        let fields = footer.schema().fields().iter().enumerate();
        // The first of a name counts, as it does to Arrow.
        let roots: HashMap<&str, usize> = fields
            .rev()
            .map(|(root, field)| (field.name().as_str(), root))
            .collect();
        let plain = |info: &ColumnInfo| {
            let root = *roots.get(info.name.as_str())?;
            let width = info.shape.iter().product();
            PlainColumn::open(&bytes, footer, row_group, rows, root, width)
        };
        self.manifest.columns().iter().map(plain).collect()
    }
}

impl OpenGroup {
    /// The next `num_rows` rows, of which there are as many; `None` where parquet's reader finds no more of them.
    fn next(&mut self, num_rows: usize, uri: &str) -> Result<Option<Rows>, Unread> {
        let others = match &mut self.others {
            Some(reader) => match reader.next() {
                Some(batch) => Some(batch.map_err(|error| arrow_error(uri, error))?),
                None => return Ok(None),
            },
            None => None,
        };
        let num_rows = others.as_ref().map_or(num_rows, RecordBatch::num_rows);
        let take = |column: &mut Option<PlainColumn>| match column {
            Some(column) => column.take(num_rows).map(Some).ok_or(Unread::NotPlain),
            None => Ok(None),
        };
        Ok(Some(Rows {
            num_rows,
            plain: self.plain.iter_mut().map(take).collect::<Result<_, _>>()?,
            others,
        }))
    }
}

impl Rows {
    /// Some of them.
    fn take(self, taken: &UInt32Array, uri: &str) -> Result<Rows, DataError> {
        let plain = self.plain.into_iter();
        let others = self.others.map(|others| take_record_batch(&others, taken));
        Ok(Rows {
            num_rows: taken.len(),
            plain: plain
                .map(|values| values.map(|values| values.take(taken.values(), self.num_rows)))
                .collect(),
            others: others
                .transpose()
                .map_err(|error| arrow_error(uri, error))?,
        })
    }
}

/// A footer. Arrow's own schema, which some writers add, is not looked at: types follow from Parquet's alone, whoever wrote
/// the file.
pub(crate) fn read_footer(
    bytes: &ShardBytes,
    uri: &str,
    offset_index: PageIndexPolicy,
) -> Result<ArrowReaderMetadata, DataError> {
    let options = ArrowReaderOptions::new()
        .with_skip_arrow_metadata(true)
        .with_offset_index_policy(offset_index);
    catching_panics(uri, || {
        ArrowReaderMetadata::load(bytes, options).map_err(|source| parquet_error(uri, source))
    })
}

/// The columns of these names with all that is nested in them.
pub(crate) fn project(footer: &ArrowReaderMetadata, names: &[&str]) -> ProjectionMask {
    let names: HashSet<&str> = names.iter().copied().collect();
    let fields = footer.schema().fields().iter().enumerate();
    let roots = fields.filter(|(_, field)| names.contains(field.name().as_str()));
    let roots = roots.map(|(index, _)| index);
    ProjectionMask::roots(footer.parquet_schema(), roots)
}

/// A column of a row group, or of one row of it, reading no more of the file than that takes.
pub(crate) fn read_column(
    bytes: ShardBytes,
    uri: &str,
    footer: &ArrowReaderMetadata,
    row_group: usize,
    name: &str,
    row: Option<usize>,
) -> Result<Vec<ArrayRef>, DataError> {
    catching_panics(uri, || {
        let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, footer.clone())
            .with_row_groups(vec![row_group])
            .with_projection(project(footer, &[name]));
        if let Some(row) = row {
            builder = builder.with_offset(row).with_limit(1);
        }
        let reader = builder
            .build()
            .map_err(|source| parquet_error(uri, source))?;
        let column = |batch: Result<RecordBatch, ArrowError>| {
            batch
                .map(|batch| batch.column(0).clone())
                .map_err(|error| arrow_error(uri, error))
        };
        reader.map(column).collect()
    })
}

/// Whether a column is one of the file's own.
fn in_file(info: &ColumnInfo) -> bool {
    !matches!(info.kind, ColumnKind::Partition(_))
}

/// The selection of some runs of a row group's rows; `None` for all of them.
fn selection(runs: &[Range<usize>], num_rows: usize) -> Option<RowSelection> {
    let is_all = matches!(runs, [run] if *run == (0..num_rows));
    (!is_all).then(|| RowSelection::from_consecutive_ranges(runs.iter().cloned(), num_rows))
}

/// Where in the file the projected columns' rows lie: whole column chunks, or the pages that a selection touches where the
/// file has an index of its pages.
fn stored_ranges(
    metadata: &ParquetMetaData,
    row_group: usize,
    mask: &ProjectionMask,
    selection: Option<&RowSelection>,
) -> Vec<Range<u64>> {
    let group = metadata.row_group(row_group);
    let pages = metadata.page_index_for_row_group(row_group);
    let mut ranges = Vec::new();
    for (leaf, column) in group
        .columns()
        .iter()
        .enumerate()
        .filter(|(leaf, _)| mask.leaf_included(*leaf))
    {
        let (start, length) = column.byte_range();
        match (selection, pages.offset_index(leaf)) {
            (Some(selection), Some(index)) if !index.page_locations().is_empty() => {
                let locations = index.page_locations();
                let first_page = locations[0].offset as u64;
                if first_page > start {
                    ranges.push(start..first_page); // the dictionary
                }
                ranges.extend(selection.scan_ranges(locations));
            }
            _ => ranges.push(start..start.saturating_add(length)),
        }
    }
    ranges
}

/// A `key=value` column's number for every row.
fn constant(element: Element, text: &str, num_rows: usize) -> Result<Values, Fault> {
    let changed = || Fault {
        row: 0,
        flaw: Flaw::Type(format!("`{text}`")),
    };
    match element {
        Element::Int64 => {
            let value: i64 = text.parse().map_err(|_| changed())?;
            Ok(Values::I64(vec![value; num_rows].into()))
        }
        _ => {
            let value: f64 = text.parse().map_err(|_| changed())?;
            Ok(Values::F64(vec![value; num_rows].into()))
        }
    }
}

fn parquet_error(uri: &str, source: ParquetError) -> DataError {
    match source {
        // A failure of the store that passed through parquet's reader.
        ParquetError::External(cause) => match cause.downcast::<DataError>() {
            Ok(error) => *error,
            Err(cause) => DataError::Parquet {
                uri: uri.to_owned(),
                source: ParquetError::External(cause),
            },
        },
        source => DataError::Parquet {
            uri: uri.to_owned(),
            source,
        },
    }
}

pub(crate) fn arrow_error(uri: &str, error: ArrowError) -> DataError {
    match error {
        ArrowError::ExternalError(cause) => match cause.downcast::<ParquetError>() {
            Ok(error) => parquet_error(uri, *error),
            Err(cause) => parquet_error(uri, ParquetError::External(cause)),
        },
        error => parquet_error(uri, ParquetError::ArrowError(error.to_string())),
    }
}

/// Corrupt bytes can make the decoder panic; that must end the read, not the thread.
pub(crate) fn catching_panics<T>(
    uri: &str,
    work: impl FnOnce() -> Result<T, DataError>,
) -> Result<T, DataError> {
    // What `work` leaves half done is dropped or, as rows of a window, never looked at.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = text
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic".into());
        Err(DataError::Decoder {
            uri: uri.to_owned(),
            message,
        })
    })
}
