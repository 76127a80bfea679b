//! The columns that stay as they are, in a batch's order.

use std::collections::HashMap;

use arrow_array::RecordBatch;
use arrow_select::interleave::interleave_record_batch;

use super::arena::Arena;
use crate::error::DataError;

/// Rows of such columns, noted one after another and then copied together.
pub(super) struct RawGather {
    /// What the rows are of, each once: its buffers are shared.
    parts: Vec<RecordBatch>,
    /// The places in `parts` by the addresses at which arenas hold these.
    places: HashMap<usize, usize>,
    /// For each row of the batch its part, and its row in that.
    rows: Vec<(usize, usize)>,
}

impl RawGather {
    pub(super) fn new(num_rows: usize) -> Self {
        RawGather {
            parts: Vec::new(),
            places: HashMap::new(),
            rows: Vec::with_capacity(num_rows),
        }
    }

    /// Notes rows of an arena, whose units are ready.
    ///
    /// # Panics
    /// If the arena holds no such columns of a row.
    pub(super) fn extend(&mut self, arena: &Arena, rows: &[u32]) {
        // An arena that was let go leaves its addresses to others.
        self.places.clear();
        for &row in rows {
            let (part, row) = arena.raw_row(row).expect("a ready unit holds its rows");
            let place = *self
                .places
                .entry(std::ptr::from_ref(part) as usize)
                .or_insert_with(|| {
                    self.parts.push(part.clone());
                    self.parts.len() - 1
                });
            self.rows.push((place, row));
        }
    }

    /// The rows; `None` where none was noted.
    ///
    /// # Errors
    /// [`DataError::BatchTooLarge`] where a column's values take more than Arrow's 32 bits count.
    pub(super) fn finish(self) -> Result<Option<RecordBatch>, DataError> {
        if self.rows.is_empty() {
            return Ok(None);
        }
        let parts: Vec<&RecordBatch> = self.parts.iter().collect();
        let gathered = interleave_record_batch(&parts, &self.rows);
        gathered
            .map(Some)
            .map_err(|source| DataError::BatchTooLarge {
                num_rows: self.rows.len(),
                reason: source.to_string(),
            })
    }
}
