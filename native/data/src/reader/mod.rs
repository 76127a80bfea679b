//! One rank's batches.
//!
//! Where the rank's share of the rows fits the memory budget, it is decoded once, in the order in which the first epoch needs it, and
//! stays: later epochs only gather. Otherwise windows of the sample order are decoded ahead and let go once read. Either way rows lie in
//! memory as rows of tensors, so that gathering a batch is one copy a row, done on the caller's thread: handing that to
//! another thread would cost more than it takes.

mod arena;
mod cursor;
mod loader;
mod options;
mod raw;

use std::sync::Arc;

use crate::batch::{Batch, HostTensor};
use crate::buffer::{AlignedBuffer, BufferPool};
use crate::decode::Decoder;
use crate::error::DataError;
use crate::manifest::Manifest;
use crate::memory::Meter;
use crate::order::SampleOrder;
use crate::spec::TensorSpec;
use crate::store::Store;
use cursor::{Cursor, Residence};
use loader::{Limits, Load, Loader};
pub use options::ReaderOptions;
use raw::RawGather;

/// Reads the batches of one rank: of each global batch the rows of its lanes, ascending, one lane after another.
///
/// Dropping it ends its threads.
pub struct BatchReader {
    manifest: Arc<Manifest>,
    order: Arc<SampleOrder>,
    lanes: Vec<usize>,
    residence: Residence,
    options: ReaderOptions,
    row_bytes: Vec<usize>,
    memory_bound: u64,
    meter: Meter,
    pool: BufferPool,
    loader: Loader,
    /// Whether the loader holds, or is decoding, all lanes whole.
    is_loaded: bool,
    position: Option<Position>,
}

struct Position {
    epoch: u64,
    batch: u64,
    cursors: Vec<Cursor>,
}

impl BatchReader {
    /// A reader for the lanes `l` with `l % world_size == rank`. Touches no file yet; its threads wait for [`start`](Self::start).
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] where there are more ranks than lanes, or no such rank.
    pub fn new(
        store: Store,
        manifest: Arc<Manifest>,
        order: Arc<SampleOrder>,
        rank: usize,
        world_size: usize,
        options: ReaderOptions,
    ) -> Result<Self, DataError> {
        let num_lanes = order.config().num_lanes;
        let invalid = |name, value: usize, allowed| {
            Err(DataError::InvalidOption {
                name,
                value: value.to_string(),
                allowed,
            })
        };
        if world_size == 0 || world_size > num_lanes {
            return invalid(
                "world_size",
                world_size,
                format!("1 to {num_lanes}, the number of lanes"),
            );
        }
        if rank >= world_size {
            return invalid("rank", rank, format!("0 to {}", world_size - 1));
        }
        let lanes: Vec<usize> = (rank..num_lanes).step_by(world_size).collect();
        let bytes_per_row = manifest.bytes_per_row();
        let share = lanes
            .iter()
            .map(|&lane| order.lane_num_rows(lane))
            .sum::<u64>()
            .saturating_mul(bytes_per_row);
        let fits = share <= options.memory_budget
            && lanes
                .iter()
                .all(|&lane| order.lane_num_rows(lane) <= u64::from(u32::MAX));
        let largest_window = lanes
            .iter()
            .map(|&lane| order.max_window_rows(lane))
            .max()
            .unwrap_or(0)
            .saturating_mul(bytes_per_row);
        let (residence, limits, held) = if fits {
            (
                Residence::Whole,
                Limits {
                    ahead: 0,
                    arenas: lanes.len(),
                },
                share,
            )
        } else {
            let arenas = (options.memory_budget / largest_window.max(1)) as usize;
            let arenas = arenas.clamp(
                lanes.len(),
                lanes
                    .len()
                    .saturating_mul(options.prefetch.saturating_add(1)),
            );
            let limits = Limits {
                ahead: options.prefetch,
                arenas,
            };
            let held = (arenas as u64).saturating_mul(largest_window);
            (Residence::Windows, limits, held)
        };
        let largest_group = manifest
            .row_groups()
            .map(|(_, group)| group.stored_bytes)
            .max()
            .unwrap_or(0);
        let memory_bound =
            held.saturating_add((options.num_threads.max(1) as u64).saturating_mul(largest_group));

        let meter = Meter::default();
        let decoder = Decoder::new(store, manifest.clone(), meter.clone());
        let row_bytes = decoder.row_bytes();
        let loader = Loader::new(
            decoder,
            meter.clone(),
            lanes.len(),
            limits,
            options.num_threads,
        )?;
        // A few batches may be under way at once.
        let pool = BufferPool::new(4 * row_bytes.len());
        Ok(BatchReader {
            manifest,
            order,
            lanes,
            residence,
            options,
            row_bytes,
            memory_bound,
            meter,
            pool,
            loader,
            is_loaded: false,
            position: None,
        })
    }

    /// Goes to a batch of an epoch without reading what comes before it. Returns at once, decoding goes on in the background: called before
    /// an evaluation, it uses that time. Does nothing where the reader is just there.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for a batch past the epoch's end (the end itself is allowed).
    pub fn start(&mut self, epoch: u64, batch: u64) -> Result<(), DataError> {
        let batches = self.order.batches_per_epoch();
        if batch > batches {
            let allowed = format!("0 to {batches}, the batches of an epoch");
            return Err(DataError::InvalidOption {
                name: "batch",
                value: batch.to_string(),
                allowed,
            });
        }
        if self
            .position
            .as_ref()
            .is_some_and(|position| (position.epoch, position.batch) == (epoch, batch))
        {
            return Ok(());
        }
        // Windows that are still open go first, so that their memory is free before new ones are filled.
        self.position = None;
        let cursors: Vec<Cursor> = (self.lanes.iter().enumerate())
            .map(|(place, &lane)| Cursor::new(&self.order, epoch, lane, place, self.residence))
            .collect();
        if self.residence == Residence::Windows || !self.is_loaded {
            let mut loads: Vec<Load> = cursors
                .iter()
                .flat_map(|cursor| cursor.loads(&self.order, batch))
                .collect();
            loads.sort_by_key(|load| load.units.iter().map(|(batch, _)| *batch).min());
            self.loader.reset(loads);
            self.is_loaded = true;
        }
        self.position = Some(Position {
            epoch,
            batch,
            cursors,
        });
        Ok(())
    }

    /// The next batch; `None` at the epoch's end. Waits for rows that are not decoded yet, at most `timeout`. After an error the reader
    /// needs a new [`start`](Self::start).
    ///
    /// # Errors
    /// [`DataError`] for the first bad value that a thread came upon, naming column, shard and row.
    #[allow(clippy::should_implement_trait)] // an iterator would have to go on after an error
    pub fn next(&mut self) -> Result<Option<Batch>, DataError> {
        let mut position = self.position.take().ok_or(DataError::NotStarted)?;
        if position.batch == self.order.batches_per_epoch() {
            self.position = Some(position);
            return Ok(None);
        }
        match self.gather(&mut position) {
            Ok(batch) => {
                position.batch += 1;
                self.position = Some(position);
                Ok(Some(batch))
            }
            Err(error) => {
                self.is_loaded = false;
                Err(error)
            }
        }
    }

    fn gather(&mut self, position: &mut Position) -> Result<Batch, DataError> {
        let batch = position.batch;
        let num_rows = self
            .lanes
            .iter()
            .map(|&lane| self.order.lane_rows(lane, batch))
            .sum();
        let mut buffers: Vec<AlignedBuffer> = self
            .row_bytes
            .iter()
            .map(|bytes| self.pool.take(num_rows * bytes))
            .collect();
        let mut row_ids = Vec::with_capacity(num_rows);
        let has_raw = !self.manifest.spec().raw_columns.is_empty();
        let mut raw = has_raw.then(|| RawGather::new(num_rows));
        for cursor in &mut position.cursors {
            let positions = self.order.positions(cursor.lane(), batch);
            let mut next = positions.start;
            while next < positions.end {
                let stretch = cursor.stretch(next, positions.end, &self.loader, &self.options)?;
                let first = row_ids.len();
                let last = first + stretch.rows.len();
                for (tensor, (buffer, bytes)) in buffers.iter_mut().zip(&self.row_bytes).enumerate()
                {
                    let out = &mut buffer.as_bytes_mut()[first * bytes..last * bytes];
                    // SAFETY: a stretch's rows are ready, those that follow are of its arena, and `out` is as long as the rows.
                    unsafe { (stretch.arena).gather(tensor, stretch.rows, stretch.next, out) };
                }
                if let Some(raw) = &mut raw {
                    raw.extend(stretch.arena, stretch.rows);
                }
                stretch.extend_ids(&mut row_ids);
                next += (last - first) as u64;
                cursor.passed(next, &self.loader);
            }
        }
        let spec = self.manifest.spec();
        let mut tensors = spec
            .tensors()
            .zip(buffers)
            .map(|(tensor, buffer)| host_tensor(tensor, num_rows, buffer));
        Ok(Batch {
            epoch: position.epoch,
            index: batch,
            num_rows,
            raw: raw.map(RawGather::finish).transpose()?.flatten(),
            inputs: tensors.by_ref().take(spec.inputs.len()).collect(),
            labels: tensors.by_ref().take(spec.labels.len()).collect(),
            weight: tensors.next(),
            row_ids,
        })
    }

    /// The order that it reads in.
    pub fn order(&self) -> &Arc<SampleOrder> {
        &self.order
    }

    /// Whether the rank's share fits the budget, so that it is decoded once and stays.
    pub fn is_resident(&self) -> bool {
        self.residence == Residence::Whole
    }

    /// The most bytes that decoded rows and undecoded row groups take at any time: the whole share where that fits the budget; otherwise as
    /// many of the largest windows as fit the budget, at least one a lane and at most `1 + prefetch` a lane, where rows of columns that stay
    /// as they are count by what they take on average; in both cases for each
    /// thread the columns of the largest row group as they lie in the file. Not counted are a few thousand rows a thread
    /// between file and tensor, 4 bytes a row for each open window's order, and batches handed out.
    pub fn memory_bound(&self) -> u64 {
        self.memory_bound
    }

    /// The most of these bytes that were held so far.
    pub fn peak_memory(&self) -> u64 {
        self.meter.peak()
    }
}

fn host_tensor(spec: &TensorSpec, num_rows: usize, buffer: AlignedBuffer) -> HostTensor {
    let mut shape = vec![num_rows];
    shape.extend(spec.shape.iter().flatten());
    HostTensor::new(spec.dtype, shape, buffer)
}
