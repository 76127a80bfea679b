//! Where a lane is being read.

use std::ops::Range;
use std::sync::Arc;

use super::arena::{Arena, Unit};
use super::loader::{Load, Loader};
use super::options::ReaderOptions;
use crate::error::DataError;
use crate::order::{Chunk, LaneOrder, SampleOrder, WindowSpan};

/// What a lane's arenas hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Residence {
    /// One arena holds all rows of the lane, row by row.
    Whole,
    /// Each arena holds one window, chunk by chunk.
    Windows,
}

/// One lane in one epoch.
pub(super) struct Cursor {
    /// Its place among the rank's lanes.
    place: usize,
    lane: usize,
    order: LaneOrder,
    residence: Residence,
    open: Option<OpenWindow>,
}

/// A window whose rows are all in memory.
pub(super) struct OpenWindow {
    index: usize,
    span: WindowSpan,
    pub(super) arena: Arc<Arena>,
    /// For each position of the window, its row in the arena.
    rows: Vec<u32>,
    /// Runs of the arena's rows whose ids follow each other: the first one's place and its id.
    runs: Vec<(u32, u64)>,
}

/// A stretch of a window's positions.
pub(super) struct Stretch<'a> {
    pub(super) arena: &'a Arena,
    /// Their rows in the arena, all ready.
    pub(super) rows: &'a [u32],
    /// The rows that follow within the window, at most as many.
    pub(super) next: &'a [u32],
    runs: &'a [(u32, u64)],
}

impl Cursor {
    pub(super) fn new(
        order: &SampleOrder,
        epoch: u64,
        lane: usize,
        place: usize,
        residence: Residence,
    ) -> Self {
        Cursor {
            place,
            lane,
            order: order.lane_order(epoch, lane),
            residence,
            open: None,
        }
    }

    pub(super) fn lane(&self) -> usize {
        self.lane
    }

    /// What has to be decoded to read on from a batch to the epoch's end, in the order in which it is needed.
    pub(super) fn loads(&self, order: &SampleOrder, from_batch: u64) -> Vec<Load> {
        let rows_per_lane = order.config().rows_per_lane as u64;
        let first_position = from_batch.saturating_mul(rows_per_lane);
        let last_position = order.batches_per_epoch().saturating_mul(rows_per_lane);
        let batch_of =
            |window: &WindowSpan| (window.first_position / rows_per_lane).max(from_batch);
        let windows = self.order.windows().iter().enumerate();
        match self.residence {
            Residence::Windows => windows
                .filter(|(_, window)| {
                    window.first_position + window.num_rows > first_position
                        && window.first_position < last_position
                })
                .map(|(index, window)| {
                    let mut first = 0;
                    let units = self.order.window_chunks(index).map(
                        |Chunk {
                             row_group,
                             first_row,
                             num_rows,
                             ..
                         }| {
                            let run = first_row..first_row + num_rows;
                            let unit = Unit {
                                row_group,
                                runs: vec![run],
                                first,
                            };
                            first += num_rows as usize;
                            (batch_of(window), unit)
                        },
                    );
                    Load {
                        lane: self.place,
                        index,
                        units: units.collect(),
                    }
                })
                .collect(),
            Residence::Whole => {
                let mut units = self.whole_units(order);
                for (index, window) in windows {
                    // What only another epoch needs comes last.
                    let passed = window.first_position + window.num_rows <= first_position;
                    let batch = if passed { u64::MAX } else { batch_of(window) };
                    for chunk in self.order.window_chunks(index) {
                        let unit = unit_of(&units, chunk.first_row);
                        units[unit].0 = units[unit].0.min(batch);
                    }
                }
                if units.is_empty() {
                    Vec::new()
                } else {
                    vec![Load {
                        lane: self.place,
                        index: 0,
                        units,
                    }]
                }
            }
        }
    }

    /// The lane's rows of each row group, read at once even where they are several pieces, cut into several chunks: a file without an
    /// index of its pages gives a row group's columns as a whole or not at all.
    fn whole_units(&self, order: &SampleOrder) -> Vec<(u64, Unit)> {
        let mut units: Vec<(u64, Unit)> = Vec::new();
        for chunk in order.lane_chunks(self.lane) {
            let end = chunk.first_row + chunk.num_rows;
            let run = chunk.first_row..end;
            match units.last_mut() {
                Some((_, unit)) if unit.row_group == chunk.row_group => {
                    match unit.runs.last_mut() {
                        Some(last) if last.end == run.start => last.end = end,
                        _ => unit.runs.push(run),
                    }
                }
                _ => units.push((
                    u64::MAX,
                    Unit {
                        row_group: chunk.row_group,
                        runs: vec![run],
                        first: chunk.rows_before as usize,
                    },
                )),
            }
        }
        units
    }

    /// The rows at `position` and after it, up to `end` or the window's end, waiting for them where they are not decoded yet.
    pub(super) fn stretch(
        &mut self,
        position: u64,
        end: u64,
        loader: &Loader,
        options: &ReaderOptions,
    ) -> Result<Stretch<'_>, DataError> {
        let is_open = self
            .open
            .as_ref()
            .is_some_and(|open| open.places(position, end).is_some());
        if !is_open {
            self.open = None;
            let window = self.order.window_of(position);
            self.open = Some(self.open(window, loader, options)?);
        }
        let open = self.open.as_ref().expect("a window was opened above");
        let places = open
            .places(position, end)
            .expect("the window holds the position");
        let following = &open.rows[places.end..];
        Ok(Stretch {
            arena: &open.arena,
            next: &following[..following.len().min(places.len())],
            rows: &open.rows[places],
            runs: &open.runs,
        })
    }

    /// Lets go of the window where `position` has passed its end.
    pub(super) fn passed(&mut self, position: u64, loader: &Loader) {
        let over = |open: &OpenWindow| open.span.first_position + open.span.num_rows <= position;
        if let Some(open) = self.open.take_if(|open| over(open))
            && self.residence == Residence::Windows
        {
            let index = open.index;
            drop(open);
            loader.release(self.place, index);
        }
    }

    fn open(
        &self,
        index: usize,
        loader: &Loader,
        options: &ReaderOptions,
    ) -> Result<OpenWindow, DataError> {
        let chunks = || self.order.window_chunks(index);
        let span = self.order.windows()[index].clone();
        let (load, first_rows): (usize, Vec<u32>) = match self.residence {
            Residence::Whole => (0, chunks().map(|chunk| chunk.rows_before as u32).collect()),
            Residence::Windows => {
                let mut first = 0;
                let firsts = chunks().map(|chunk| {
                    first += chunk.num_rows as u32;
                    first - chunk.num_rows as u32
                });
                (index, firsts.collect())
            }
        };
        let mut rows = Vec::with_capacity(span.num_rows as usize);
        for (chunk, first) in chunks().zip(&first_rows) {
            rows.extend(*first..*first + chunk.num_rows as u32);
        }
        self.order.permute(index, &mut rows);
        let mut runs: Vec<(u32, u64)> = first_rows
            .into_iter()
            .zip(chunks().map(|chunk| chunk.first_row))
            .collect();
        // In the order of the arena, which is not the epoch's where it holds the whole lane. Runs that go on where the last one ends
        // are one with it.
        runs.sort_unstable();
        runs.dedup_by(|(first, id), (last_first, last_id)| {
            u64::from(*first - *last_first) == id.wrapping_sub(*last_id)
        });
        let needed: Vec<Range<u64>> = chunks()
            .map(|chunk| chunk.first_row..chunk.first_row + chunk.num_rows)
            .collect();
        let arena = loader.wait(self.place, load, &needed, options)?;
        Ok(OpenWindow {
            index,
            span,
            arena,
            rows,
            runs,
        })
    }
}

impl OpenWindow {
    /// Which of the window's places `position..end` covers; `None` where it does not begin within the window.
    fn places(&self, position: u64, end: u64) -> Option<Range<usize>> {
        let from = position
            .checked_sub(self.span.first_position)
            .filter(|&from| from < self.span.num_rows)?;
        let to = (end - self.span.first_position).min(self.span.num_rows);
        Some(from as usize..to as usize)
    }
}

impl Stretch<'_> {
    /// The rows' ids.
    pub(super) fn extend_ids(&self, ids: &mut Vec<u64>) {
        if let [(first, id)] = self.runs {
            ids.extend(self.rows.iter().map(|row| id + u64::from(row - first)));
            return;
        }
        ids.extend(self.rows.iter().map(|row| {
            let (first, id) = self.runs[self.runs.partition_point(|(first, _)| first <= row) - 1];
            id + u64::from(row - first)
        }));
    }
}

/// The unit that holds a row.
fn unit_of(units: &[(u64, Unit)], row: u64) -> usize {
    units.partition_point(|(_, unit)| unit.end() <= row)
}
