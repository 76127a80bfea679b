//! Rows of all tensors, filled by several threads at once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arrow_array::RecordBatch;

use crate::buffer::AlignedBuffer;
use crate::decode::Decoder;
use crate::error::DataError;
use crate::memory::{Charge, Meter};
use crate::order::Chunk;

/// Rows of a row group that one task decodes.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) row_group: usize,
    /// Ascending; at least one.
    pub(super) chunks: Vec<Chunk>,
    /// Its first row in the arena, where the chunks follow each other.
    pub(super) first: usize,
}

impl Unit {
    pub(super) fn num_rows(&self) -> usize {
        (self.chunks.iter().map(|chunk| chunk.num_rows).sum::<u64>()) as usize
    }
}

/// Memory for the rows of some units, each tensor's rows contiguous. A unit's rows are written by the one task that claims it, and read
/// only once it is ready.
pub(super) struct Arena {
    units: Vec<Unit>,
    ready: Vec<AtomicBool>,
    claimed: Vec<AtomicBool>,
    num_pending: AtomicUsize,
    row_bytes: Vec<usize>,
    /// Where each tensor's rows begin, kept as pointers because parts of one buffer are written while others are read.
    bases: Vec<*mut u8>,
    /// Of each unit that is ready, the columns that stay as they are.
    raw: Vec<OnceLock<RawRows>>,
    meter: Meter,
    // What the pointers point into; touched by nothing else until it is dropped.
    _buffers: Vec<AlignedBuffer>,
    _charge: Charge,
}

/// A unit's rows of the columns that stay as they are.
struct RawRows {
    /// One after another, each with its first row within the unit.
    parts: Vec<(usize, RecordBatch)>,
    _charge: Charge,
}

impl RawRows {
    fn new(batches: Vec<RecordBatch>, meter: &Meter) -> Self {
        let bytes: usize = batches.iter().map(RecordBatch::get_array_memory_size).sum();
        let mut first = 0;
        let parts = batches.into_iter().map(|batch| {
            first += batch.num_rows();
            (first - batch.num_rows(), batch)
        });
        RawRows {
            parts: parts.collect(),
            _charge: meter.charge(bytes as u64),
        }
    }
}

// SAFETY: `bases` point into buffers that the arena owns. Their bytes are written only through `fill`, where the `claimed` flag gives each
// unit's disjoint rows to one thread once, and read only through `tensor`, whose callers wait for `ready`.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Zeroed memory for units that follow each other from row 0 on.
    pub(super) fn new(units: Vec<Unit>, row_bytes: &[usize], meter: &Meter) -> Self {
        let num_rows = units
            .iter()
            .map(|unit| unit.first + unit.num_rows())
            .max()
            .unwrap_or(0);
        let charge = meter.charge((num_rows * row_bytes.iter().sum::<usize>()) as u64);
        let mut buffers: Vec<_> = row_bytes
            .iter()
            .map(|bytes| AlignedBuffer::zeroed(num_rows * bytes))
            .collect();
        Arena {
            ready: units.iter().map(|_| AtomicBool::new(false)).collect(),
            claimed: units.iter().map(|_| AtomicBool::new(false)).collect(),
            num_pending: AtomicUsize::new(units.len()),
            raw: units.iter().map(|_| OnceLock::new()).collect(),
            meter: meter.clone(),
            units,
            row_bytes: row_bytes.to_vec(),
            bases: buffers.iter_mut().map(AlignedBuffer::as_mut_ptr).collect(),
            _buffers: buffers,
            _charge: charge,
        }
    }

    pub(super) fn units(&self) -> &[Unit] {
        &self.units
    }

    /// Decodes a unit into its rows. A unit is filled once: a second call does nothing. `false` where it was cancelled.
    pub(super) fn fill(
        &self,
        unit: usize,
        decoder: &Decoder,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<bool, DataError> {
        if self.claimed[unit].swap(true, Ordering::Relaxed) {
            return Ok(true);
        }
        let num_rows = self.units[unit].num_rows();
        let Unit {
            row_group,
            chunks,
            first,
        } = &self.units[unit];
        let mut out: Vec<&mut [u8]> = (self.bases.iter().zip(&self.row_bytes))
            .map(|(&base, &bytes)| {
                // SAFETY: the buffer holds all units' rows, so these lie within it; units are disjoint, this one was claimed
                // by this call alone, and nobody reads it before `ready` is set below.
                unsafe { std::slice::from_raw_parts_mut(base.add(first * bytes), num_rows * bytes) }
            })
            .collect();
        let Some(raw) = decoder.decode(*row_group, chunks, &mut out, cancelled)? else {
            return Ok(false);
        };
        // The one call that claimed the unit.
        let _ = self.raw[unit].set(RawRows::new(raw, &self.meter));
        self.ready[unit].store(true, Ordering::Release);
        self.num_pending.fetch_sub(1, Ordering::Release);
        Ok(true)
    }

    /// Where the columns that stay as they are have a row of a unit that is ready: the part, its address telling it from others,
    /// and the row in that.
    pub(super) fn raw_row(&self, row: u32) -> Option<(&RecordBatch, usize)> {
        let unit = self.unit_of(row as usize)?;
        let parts = &self.raw[unit].get()?.parts;
        let row = row as usize - self.units[unit].first;
        let part = parts.partition_point(|(first, _)| *first <= row);
        let (first, batch) = parts.get(part.checked_sub(1)?)?;
        Some((batch, row - first))
    }

    /// The unit that holds a row of the arena.
    fn unit_of(&self, row: usize) -> Option<usize> {
        let past = self.units.partition_point(|unit| unit.first <= row);
        past.checked_sub(1)
    }

    /// Whether all units of these row groups, ascending, may be read.
    pub(super) fn are_ready(&self, row_groups: &[usize]) -> bool {
        self.num_pending.load(Ordering::Acquire) == 0
            || (self.units.iter().zip(&self.ready)).all(|(unit, ready)| {
                ready.load(Ordering::Acquire) || row_groups.binary_search(&unit.row_group).is_err()
            })
    }

    /// Copies rows of one tensor to `out`, one after another, and asks for the rows `next` ahead of the call that copies them: shuffled
    /// rows are in no cache, and their latencies overlap this way.
    ///
    /// # Safety
    /// Each of `rows` is of a unit for which [`are_ready`](Self::are_ready) held, `out` is as long as the rows, and `next` are rows of the
    /// arena.
    pub(super) unsafe fn gather(&self, tensor: usize, rows: &[u32], next: &[u32], out: &mut [u8]) {
        let base = self.bases[tensor].cast_const();
        let bytes = self.row_bytes[tensor];
        debug_assert_eq!(out.len(), rows.len() * bytes);
        // SAFETY: `next` are rows of the arena, so of this buffer.
        let ahead = |index: usize| unsafe {
            if let Some(&row) = next.get(index) {
                let row = base.add(row as usize * bytes);
                prefetch(row);
                prefetch(row.add(bytes - 1));
            }
        };
        match bytes {
            // SAFETY: the caller's promise is that of `gather_as`, and rows of this size hold whole elements of it.
            1 => unsafe { gather_as::<u8>(base, rows, ahead, out) },
            // SAFETY: as above.
            4 => unsafe { gather_as::<u32>(base, rows, ahead, out) },
            // SAFETY: as above.
            8 => unsafe { gather_as::<u64>(base, rows, ahead, out) },
            _ => {
                for (index, (&row, out)) in rows.iter().zip(out.chunks_exact_mut(bytes)).enumerate()
                {
                    ahead(index);
                    let row = row as usize * bytes;
                    // SAFETY: the row lies in the buffer and is ready; `out` is elsewhere and as long as it.
                    unsafe {
                        std::ptr::copy_nonoverlapping(base.add(row), out.as_mut_ptr(), bytes);
                    }
                }
            }
        }
    }
}

/// Asks for a cache line, on processors where we know how, into the second-level cache: a batch of rows may be more than the first
/// level holds.
///
/// # Safety
/// `address` lies within an allocation.
#[inline(always)]
unsafe fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program could see.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Copies rows that are one `T` each, calling `ahead` before each copy.
///
/// # Safety
/// As for [`Arena::gather`]; `base` is aligned for `T`.
unsafe fn gather_as<T: bytemuck::Pod>(
    base: *const u8,
    rows: &[u32],
    ahead: impl Fn(usize),
    out: &mut [u8],
) {
    let base = base.cast::<T>();
    let out = bytemuck::cast_slice_mut::<u8, T>(out);
    for (index, (&row, out)) in rows.iter().zip(out).enumerate() {
        ahead(index);
        // SAFETY: the row lies in the buffer and is ready, by the caller's promise.
        *out = unsafe { *base.add(row as usize) };
    }
}
