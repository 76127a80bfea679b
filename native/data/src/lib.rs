//! Flambeau's data layer: where shards lie, what they hold, in which order their rows are seen, and batches of typed tensors.
//!
//! The parts, in the order a job uses them:
//!
//! - [`Store`]: whole files under local paths, `/Volumes`, `dbfs:`, `s3`, `abfss` and `gs`.
//! - [`DatasetSpec`] and [`DataFile`]: which columns make which tensors, and which files and rows of them are read.
//! - [`Manifest`]: the shards' rows, row groups and types, read from Parquet footers and checked against the spec.
//! - [`SampleOrder`]: position to row, a pure function of seed, epoch, lane and position.
//! - [`Contents`] and [`TableWriter`]: what a Parquet file holds, and numbers written as one.
//! - [`BatchReader`]: one rank's batches, decoded by background threads, kept in memory where the share fits.
//!
//! The crate knows nothing of ranks' communication: whoever needs one manifest on all ranks sends it (it is serde).

mod batch;
mod buffer;
mod contents;
mod decode;
mod error;
mod files;
mod footers;
mod manifest;
mod memory;
mod order;
mod reader;
mod spec;
mod store;
mod table;

pub use batch::{Batch, HostTensor};
pub use buffer::AlignedBuffer;
pub use contents::{Contents, StoredColumn};
pub use error::DataError;
pub use files::{BitmapRange, DataFile, FileRows, SelectedRows};
pub use manifest::{ColumnInfo, ColumnKind, Element, Manifest, RowGroup, Shard};
pub use order::{Chunk, LaneOrder, OrderConfig, SampleOrder, WindowSpan};
pub use reader::{BatchReader, ReaderOptions};
pub use spec::{DType, DatasetSpec, TensorSpec};
pub use store::Store;
pub use table::{Numbers, TableWriter};
