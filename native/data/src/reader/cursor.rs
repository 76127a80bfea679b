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
    /// Its chunks in the order of the arena, each with its first row's place there.
    chunks: Vec<(u32, Chunk)>,
}

/// A stretch of a window's positions.
pub(super) struct Stretch<'a> {
    pub(super) arena: &'a Arena,
    /// Their rows in the arena, all ready.
    pub(super) rows: &'a [u32],
    /// The rows that follow within the window, at most as many.
    pub(super) next: &'a [u32],
    chunks: &'a [(u32, Chunk)],
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
                    let units = self.order.window_chunks(index).map(|chunk| {
                        let unit = Unit {
                            row_group: chunk.row_group,
                            chunks: vec![chunk],
                            first,
                        };
                        first += chunk.num_rows as usize;
                        (batch_of(window), unit)
                    });
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
                        let unit = units
                            .binary_search_by_key(&chunk.row_group, |(_, unit)| unit.row_group);
                        let (first, _) =
                            &mut units[unit.expect("each row group of the lane has a unit")];
                        *first = batch.min(*first);
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
        for &chunk in order.lane_chunks(self.lane) {
            match units.last_mut() {
                Some((_, unit)) if unit.row_group == chunk.row_group => {
                    if !unit.chunks.last_mut().is_some_and(|last| last.join(&chunk)) {
                        unit.chunks.push(chunk);
                    }
                }
                _ => units.push((
                    u64::MAX,
                    Unit {
                        row_group: chunk.row_group,
                        chunks: vec![chunk],
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
            chunks: &open.chunks,
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
        let mut chunks: Vec<(u32, Chunk)> = first_rows.into_iter().zip(chunks()).collect();
        // In the order of the arena, which is not the epoch's where it holds the whole lane.
        chunks.sort_unstable_by_key(|(first, _)| *first);
        let mut row_groups: Vec<usize> = chunks.iter().map(|(_, chunk)| chunk.row_group).collect();
        row_groups.sort_unstable();
        chunks.dedup_by(|(_, next), (_, last)| last.join(next));
        let arena = loader.wait(self.place, load, &row_groups, options)?;
        Ok(OpenWindow {
            index,
            span,
            arena,
            rows,
            chunks,
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
        if let [(first, chunk)] = self.chunks {
            ids.extend(
                self.rows
                    .iter()
                    .map(|row| chunk.row(u64::from(row - first))),
            );
            return;
        }
        ids.extend(self.rows.iter().map(|row| {
            let past = self.chunks.partition_point(|(first, _)| first <= row);
            let (first, chunk) = self.chunks[past - 1];
            chunk.row(u64::from(row - first))
        }));
    }
}
