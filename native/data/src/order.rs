//! In which order rows are seen: a pure function of seed, epoch, lane and position, whatever the number of workers.
//!
//! The dataset's rows, numbered in the manifest's order, are dealt to `num_lanes` lanes that differ by at most one row. A global batch
//! takes `rows_per_lane` rows of every lane. Within a lane, row groups are cut into chunks of at most `window_rows` rows; an epoch
//! permutes the chunks, takes them into windows of at least `window_rows` rows, and permutes the rows inside each window. A reader
//! needs one window in memory, and any batch is reached from its number alone.
//!
//! Rows often come sorted, by a date or as Spark's `randomSplit` leaves them. Were a lane one contiguous part of them, each rank would see
//! another distribution, of which batch normalization's statistics are. So where rows are shuffled and no more than `dealt_rows`, they are
//! dealt to the lanes one by one. For each of its lanes a rank then decodes all rows and keeps the lane's, which costs little for so few of
//! them. Of more rows a lane has a piece of each of some parts, the lanes' turn going back and forth, as teams are drafted.
//!
//! The permutations are Fisher-Yates over ChaCha8, spelled out here so that no library's next version changes a resumed run.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::error::DataError;
use crate::manifest::Manifest;

/// The largest `window_rows`: positions within a window are held in 32 bits, and a window may be almost twice as long.
const MAX_WINDOW_ROWS: usize = 1 << 30;
/// Row groups times lanes up to which rows are dealt one by one: so many are read, each lane reading all of them.
const DEALT_ROW_GROUPS: usize = 4096;
/// Chunks of dealt rows that a window has, at least: a window of one chunk would be a sorted dataset's rows of one place.
const DEALT_CHUNKS: u64 = 16;
/// Parts of a longer dataset of which each lane has a piece: at least these, and more where a piece still has [`PIECE_ROW_GROUPS`]. What a
/// piece shares with others, pages of Parquet's (20,000 rows as Spark writes them) or, in a file without an index of its pages, row
/// groups, is read for each of these.
const PARTS: RangeInclusive<usize> = 16..=2048;
const PIECE_ROW_GROUPS: usize = 4;

/// What fixes the order of a job's samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderConfig {
    /// Parts of the dataset that are read side by side; at least the number of workers. At least 1.
    pub num_lanes: usize,
    /// Rows that each lane gives to a global batch. At least 1.
    pub rows_per_lane: usize,
    /// The job's seed.
    pub seed: u64,
    /// Whether rows are permuted; without it a lane is a contiguous part of the rows, read from its first to its last.
    pub shuffle: bool,
    /// Whether an epoch ends with its last full global batch.
    pub drop_last: bool,
    /// Rows shuffled together, 1 to 2^30. Fixed by the job, never by the number of workers or by memory.
    pub window_rows: usize,
    /// The most rows of a dataset that are dealt to the lanes one by one, where rows are permuted. Fixed as `window_rows` is.
    pub dealt_rows: u64,
}

/// A lane's rows between two rows of one row group, which are decoded, and shuffled, as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The row group, counted over all shards in the manifest's order.
    pub row_group: usize,
    /// The first row's number in the manifest's order.
    pub first_row: u64,
    /// Rows, at least 1.
    pub num_rows: u64,
    /// Rows of its lane that come before it in the manifest's order: where rows are dealt, its first round.
    pub rows_before: u64,
    /// Where rows are dealt one by one; otherwise the chunk's follow each other.
    pub(crate) dealt: Option<Dealt>,
}

impl Chunk {
    /// The number of its row at `index`, from 0 on, in the manifest's order; ascending.
    #[inline]
    pub fn row(&self, index: u64) -> u64 {
        match self.dealt {
            None => self.first_row + index,
            Some(dealt) => dealt.row(self.rows_before + index),
        }
    }

    /// Rows of a round, where rows are dealt; 0 otherwise.
    pub(crate) fn round(&self) -> u64 {
        self.dealt.map_or(0, |dealt| dealt.num_lanes)
    }

    /// Its rows' numbers.
    pub fn rows(self) -> impl Iterator<Item = u64> {
        (0..self.num_rows).map(move |index| self.row(index))
    }

    /// The rows to read for it: where rows are dealt, all of its rounds, of which the first and the last may reach into other row groups.
    pub(crate) fn span(&self) -> Range<u64> {
        match self.dealt {
            None => self.first_row..self.first_row + self.num_rows,
            Some(Dealt { num_lanes, .. }) => {
                self.rows_before * num_lanes..(self.rows_before + self.num_rows) * num_lanes
            }
        }
    }

    /// Adds the rows of the lane's next chunk, where nothing but rows of other lanes lies between them. Of which row groups, is not looked at.
    pub(crate) fn join(&mut self, next: &Chunk) -> bool {
        let follows = self.rows_before + self.num_rows == next.rows_before
            && self.row(self.num_rows) == next.first_row;
        if follows {
            self.num_rows += next.num_rows;
        }
        follows
    }
}

/// Rows that are dealt one by one: of every `num_lanes` rows, a round, each lane has one. Which one, follows from a hash of the round, so that
/// no pattern of the rows is a lane's; it is the same for every seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dealt {
    num_lanes: u64,
    lane: u64,
}

impl Dealt {
    /// The row that the lane has of a round.
    #[inline]
    fn row(self, round: u64) -> u64 {
        // The hash's high half, as a number below `num_lanes` (Lemire, as below; without drawing again, since fairness to 2^-32 will do).
        let turn = self.lane + (((mix(round) >> 32) * self.num_lanes) >> 32);
        let place = if turn < self.num_lanes {
            turn
        } else {
            turn - self.num_lanes
        };
        round * self.num_lanes + place
    }

    /// Rows of the lane among the first `end`.
    fn count(self, end: u64) -> u64 {
        let round = end / self.num_lanes;
        round + u64::from(self.row(round) < end)
    }

    /// The lane's rows of all row groups, each cut evenly into chunks of at most a part of `window_rows`.
    fn cut(self, groups: &[(usize, Range<u64>)], window_rows: u64) -> Vec<Chunk> {
        let longest = window_rows.div_ceil(DEALT_CHUNKS);
        let mut chunks = Vec::new();
        for (row_group, rows) in groups {
            let rounds = self.count(rows.start)..self.count(rows.end);
            for part in pieces(&rounds, longest) {
                chunks.push(Chunk {
                    row_group: *row_group,
                    first_row: self.row(part.start),
                    num_rows: part.end - part.start,
                    rows_before: part.start,
                    dealt: Some(self),
                });
            }
        }
        chunks
    }
}

/// A number's bits mixed: the finalizer of `SplitMix64` (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[inline]
fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[derive(Debug)]
struct Lane {
    num_rows: u64,
    chunks: Arc<[Chunk]>,
}

/// The order of all samples of a job.
#[derive(Debug)]
pub struct SampleOrder {
    config: OrderConfig,
    num_rows: u64,
    lanes: Vec<Lane>,
    batches_per_epoch: u64,
}

impl SampleOrder {
    /// The order over a manifest's rows.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for a setting out of its bounds.
    pub fn new(manifest: &Manifest, config: OrderConfig) -> Result<Self, DataError> {
        Self::over_row_groups(
            manifest.row_groups().map(|(_, group)| group.num_rows),
            config,
        )
    }

    /// The order over row groups of these lengths, for whoever has no manifest.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for a setting out of its bounds.
    pub fn over_row_groups(
        row_groups: impl IntoIterator<Item = u64>,
        config: OrderConfig,
    ) -> Result<Self, DataError> {
        let at_least_one = |name: &'static str, value: usize| match value {
            0 => Err(DataError::InvalidOption {
                name,
                value: "0".into(),
                allowed: "at least 1".into(),
            }),
            _ => Ok(()),
        };
        at_least_one("num_lanes", config.num_lanes)?;
        at_least_one("rows_per_lane", config.rows_per_lane)?;
        at_least_one("window_rows", config.window_rows)?;
        if config.window_rows > MAX_WINDOW_ROWS {
            return Err(DataError::InvalidOption {
                name: "window_rows",
                value: config.window_rows.to_string(),
                allowed: format!("at most {MAX_WINDOW_ROWS}"),
            });
        }
        let mut groups = Vec::new();
        let mut num_rows = 0;
        for (row_group, length) in row_groups.into_iter().enumerate() {
            if length > 0 {
                groups.push((row_group, num_rows..num_rows + length));
            }
            num_rows += length;
        }
        let (num_lanes, window_rows) = (config.num_lanes, config.window_rows as u64);
        let chunks: Vec<Vec<Chunk>> = if config.shuffle
            && num_lanes > 1
            && num_rows <= config.dealt_rows
            && groups.len().saturating_mul(num_lanes) <= DEALT_ROW_GROUPS
        {
            let dealt = |lane| Dealt {
                num_lanes: num_lanes as u64,
                lane,
            };
            (0..num_lanes as u64)
                .map(|lane| dealt(lane).cut(&groups, window_rows))
                .collect()
        } else {
            let num_parts = match config.shuffle {
                true => (groups.len() / PIECE_ROW_GROUPS / num_lanes)
                    .clamp(*PARTS.start(), *PARTS.end())
                    .next_multiple_of(2),
                false => 1,
            };
            in_parts(num_rows, num_lanes, num_parts)
                .iter()
                .map(|runs| cut(&groups, runs, window_rows))
                .collect()
        };
        let lanes: Vec<Lane> = (chunks.into_iter())
            .map(|chunks| Lane {
                num_rows: chunks.iter().map(|chunk| chunk.num_rows).sum(),
                chunks: chunks.into(),
            })
            .collect();
        let lengths = lanes.iter().map(|lane| lane.num_rows);
        let per_lane = config.rows_per_lane as u64;
        let batches_per_epoch = if config.drop_last {
            lengths.min().unwrap_or(0) / per_lane
        } else {
            lengths.max().unwrap_or(0).div_ceil(per_lane)
        };
        Ok(SampleOrder {
            config,
            num_rows,
            lanes,
            batches_per_epoch,
        })
    }

    /// What fixed this order.
    pub fn config(&self) -> &OrderConfig {
        &self.config
    }

    /// Rows of the whole dataset.
    pub fn num_rows(&self) -> u64 {
        self.num_rows
    }

    /// Global batches in an epoch, the short last one included unless `drop_last`.
    pub fn batches_per_epoch(&self) -> u64 {
        self.batches_per_epoch
    }

    /// Rows of all lanes in a batch; 0 from `batches_per_epoch` on.
    pub fn global_rows(&self, batch: u64) -> usize {
        (0..self.config.num_lanes)
            .map(|lane| self.lane_rows(lane, batch))
            .sum()
    }

    /// Rows of one lane in a batch.
    pub fn lane_rows(&self, lane: usize, batch: u64) -> usize {
        let positions = self.positions(lane, batch);
        (positions.end - positions.start) as usize
    }

    /// Rows of a lane.
    pub fn lane_num_rows(&self, lane: usize) -> u64 {
        self.lanes[lane].num_rows
    }

    /// A lane's rows, cut into chunks: ascending, each within one row group.
    pub fn lane_chunks(&self, lane: usize) -> &[Chunk] {
        &self.lanes[lane].chunks
    }

    /// The most rows that any window of a lane can have, in any epoch.
    pub fn max_window_rows(&self, lane: usize) -> u64 {
        let Lane { num_rows, chunks } = &self.lanes[lane];
        let longest = chunks.iter().map(|chunk| chunk.num_rows).max().unwrap_or(0);
        (*num_rows).min(self.config.window_rows as u64 - 1 + longest)
    }

    /// Which positions of a lane's epoch a batch takes.
    pub fn positions(&self, lane: usize, batch: u64) -> Range<u64> {
        let length = if batch < self.batches_per_epoch {
            self.lanes[lane].num_rows
        } else {
            0
        };
        let per_lane = self.config.rows_per_lane as u64;
        let first = batch.saturating_mul(per_lane).min(length);
        first..first.saturating_add(per_lane).min(length)
    }

    /// The rows of one lane in one batch, as numbers in the manifest's order.
    ///
    /// Costs a shuffle of the windows it touches: for reading batch after batch, take [`lane_order`](Self::lane_order) once an epoch.
    pub fn row_ids(&self, epoch: u64, lane: usize, batch: u64) -> Vec<u64> {
        let positions = self.positions(lane, batch);
        let order = self.lane_order(epoch, lane);
        let mut ids = Vec::with_capacity((positions.end - positions.start) as usize);
        let mut position = positions.start;
        while position < positions.end {
            let window = order.window_of(position);
            let span = order.windows()[window].clone();
            let end = positions.end.min(span.first_position + span.num_rows);
            let mut rows = order.window_row_ids(window);
            order.permute(window, &mut rows);
            let places = position - span.first_position..end - span.first_position;
            ids.extend_from_slice(&rows[places.start as usize..places.end as usize]);
            position = end;
        }
        ids
    }

    /// The order of one lane in one epoch.
    pub fn lane_order(&self, epoch: u64, lane: usize) -> LaneOrder {
        let chunks = self.lanes[lane].chunks.clone();
        let key = Key {
            seed: self.config.seed,
            epoch,
            lane: lane as u64,
        };
        let mut permuted: Vec<u32> = (0..chunks.len() as u32).collect();
        if self.config.shuffle {
            // Windows count from 0, so no window shares the chunks' stream.
            shuffle(&mut permuted, key.stream(u64::MAX));
        }
        let mut windows: Vec<WindowSpan> = Vec::new();
        let mut position = 0;
        for (index, &chunk) in permuted.iter().enumerate() {
            let rows = chunks[chunk as usize].num_rows;
            match windows.last_mut() {
                Some(window) if window.num_rows < self.config.window_rows as u64 => {
                    window.num_rows += rows;
                    window.chunks.end = index + 1;
                }
                _ => windows.push(WindowSpan {
                    first_position: position,
                    num_rows: rows,
                    chunks: index..index + 1,
                }),
            }
            position += rows;
        }
        LaneOrder {
            chunks,
            permuted,
            windows,
            key: self.config.shuffle.then_some(key),
        }
    }
}

/// One window of a lane's epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowSpan {
    /// The lane's position at which it begins.
    pub first_position: u64,
    /// Rows: at least `window_rows` except in the last, less than twice that.
    pub num_rows: u64,
    /// Its chunks, as places in the epoch's permuted list of chunks.
    pub chunks: Range<usize>,
}

/// One lane's order in one epoch: its chunks permuted and gathered into windows.
#[derive(Debug)]
pub struct LaneOrder {
    chunks: Arc<[Chunk]>,
    permuted: Vec<u32>,
    windows: Vec<WindowSpan>,
    key: Option<Key>,
}

impl LaneOrder {
    /// The windows in the order they are read.
    pub fn windows(&self) -> &[WindowSpan] {
        &self.windows
    }

    /// The window that holds a position of the lane.
    ///
    /// # Panics
    /// If the lane has no such position.
    pub fn window_of(&self, position: u64) -> usize {
        let window = self
            .windows
            .partition_point(|window| window.first_position + window.num_rows <= position);
        assert!(
            window < self.windows.len(),
            "position {position} is past the lane's end"
        );
        window
    }

    /// A window's chunks in the epoch's order.
    pub fn window_chunks(&self, window: usize) -> impl Iterator<Item = Chunk> + '_ {
        self.permuted[self.windows[window].chunks.clone()]
            .iter()
            .map(|&chunk| self.chunks[chunk as usize])
    }

    /// The row ids of a window before they are permuted: one chunk after another.
    pub fn window_row_ids(&self, window: usize) -> Vec<u64> {
        self.window_chunks(window).flat_map(Chunk::rows).collect()
    }

    /// Permutes what stands for a window's rows, one chunk after another, into the order in which they are seen.
    pub fn permute<T>(&self, window: usize, rows: &mut [T]) {
        if let Some(key) = self.key {
            shuffle(rows, key.stream(window as u64));
        }
    }
}

/// Part `index` of `count` nearly equal parts of `0..length`.
fn share(length: u64, count: usize, index: usize) -> Range<u64> {
    let edge = |i: usize| (u128::from(length) * i as u128 / count as u128) as u64;
    edge(index)..edge(index + 1)
}

/// `range` in nearly equal parts of at most `longest`; none of an empty one.
fn pieces(range: &Range<u64>, longest: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, length) = (range.start, range.end - range.start);
    let count = length.div_ceil(longest) as usize;
    (0..count).map(move |index| {
        let part = share(length, count, index);
        start + part.start..start + part.end
    })
}

/// Which rows each lane has: the rows are cut into `num_parts` parts, and each part into a piece for every lane, in the lanes' order in one
/// part and backwards in the next. Each two parts another lane is first: no lane has the ends of all parts, were each sorted. Ascending runs;
/// lanes differ by at most one row.
fn in_parts(num_rows: u64, num_lanes: usize, num_parts: usize) -> Vec<Vec<Range<u64>>> {
    let mut lanes: Vec<Vec<Range<u64>>> = vec![Vec::new(); num_lanes];
    let mut start = 0;
    for part in 0..num_parts {
        for place in 0..num_lanes {
            let turn = if part % 2 == 0 {
                place
            } else {
                num_lanes - 1 - place
            };
            let lane = (turn + part / 2) % num_lanes;
            let of_lane = share(num_rows, num_lanes, lane);
            let piece = share(of_lane.end - of_lane.start, num_parts, part);
            let end = start + (piece.end - piece.start);
            match lanes[lane].last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ if start < end => lanes[lane].push(start..end),
                _ => {}
            }
            start = end;
        }
    }
    lanes
}

/// The pieces of row groups that lie in a lane's runs, each cut evenly into chunks of at most `window_rows`.
fn cut(groups: &[(usize, Range<u64>)], runs: &[Range<u64>], window_rows: u64) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut rows_before = 0;
    for run in runs {
        let first = groups.partition_point(|(_, rows)| rows.end <= run.start);
        let reached = groups[first..]
            .iter()
            .take_while(|(_, rows)| rows.start < run.end);
        for (row_group, rows) in reached {
            let here = rows.start.max(run.start)..rows.end.min(run.end);
            for part in pieces(&here, window_rows) {
                let num_rows = part.end - part.start;
                chunks.push(Chunk {
                    row_group: *row_group,
                    first_row: part.start,
                    num_rows,
                    rows_before,
                    dealt: None,
                });
                rows_before += num_rows;
            }
        }
    }
    chunks
}

/// Which stream of random numbers a permutation draws from.
#[derive(Debug, Clone, Copy)]
struct Key {
    seed: u64,
    epoch: u64,
    lane: u64,
}

impl Key {
    fn stream(self, window: u64) -> ChaCha8Rng {
        let mut seed = [0u8; 32];
        for (bytes, word) in seed
            .chunks_exact_mut(8)
            .zip([self.seed, self.epoch, self.lane, window])
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        ChaCha8Rng::from_seed(seed)
    }
}

/// Fisher-Yates, from the last place down. A place below `n` is drawn as the high half of `u32 * n`, the few draws that would
/// favour some places being drawn again (Lemire, "Fast random integer generation in an interval", 2019).
fn shuffle<T>(items: &mut [T], mut random: ChaCha8Rng) {
    for last in (1..items.len()).rev() {
        let bound = last as u32 + 1;
        let mut product = u64::from(random.next_u32()) * u64::from(bound);
        if (product as u32) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u32) < threshold {
                product = u64::from(random.next_u32()) * u64::from(bound);
            }
        }
        items.swap(last, (product >> 32) as usize);
    }
}
