//! How many rows a program gets at once: fewer where memory does not suffice.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::TorchError;

/// Runs over rows in pieces. Where main memory does not suffice for one it is halved, and so are those after it, of all threads.
pub(crate) struct Pieces {
    num_rows: AtomicUsize,
}

impl Pieces {
    /// Pieces of up to so many rows.
    pub(crate) fn of(num_rows: usize) -> Pieces {
        Pieces {
            num_rows: AtomicUsize::new(num_rows),
        }
    }

    /// Rows of a piece at present.
    pub(crate) fn num_rows(&self) -> usize {
        self.num_rows.load(Ordering::Relaxed)
    }

    /// Calls `run` with the bounds of each piece, and again with closer ones where memory ran out.
    ///
    /// # Errors
    ///
    /// What `run` fails with otherwise, and for a single row.
    pub(crate) fn over(
        &self,
        num_rows: usize,
        mut run: impl FnMut(usize, usize) -> Result<(), TorchError>,
    ) -> Result<(), TorchError> {
        let mut start = 0;
        while start < num_rows {
            let stop = num_rows.min(start + self.num_rows());
            match run(start, stop) {
                Err(error) if stop - start > 1 && error.is_out_of_memory() => {
                    let half = (stop - start) / 2;
                    self.num_rows.fetch_min(half, Ordering::Relaxed);
                }
                result => {
                    result?;
                    start = stop;
                }
            }
        }
        Ok(())
    }
}
