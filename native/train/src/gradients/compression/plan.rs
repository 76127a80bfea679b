//! Which numbers of a bucket travel as what.

use std::ops::Range;

use super::BucketView;

/// How many times smaller a matrix must become for PowerSGD to compress it; as in PyTorch.
const LEAST_RATE: usize = 2;

/// A bucket as PowerSGD sends it.
pub(super) struct LowRank {
    /// The parameters that are compressed. Those of one shape follow each other, and so do their Ps, Qs and what is not sent
    /// of them.
    pub(super) matrices: Vec<Matrix>,
    /// The others.
    pub(super) whole: Vec<Whole>,
    /// What is sent first: the numbers of the Ps, then of what travels as it is.
    pub(super) first_len: usize,
    /// The numbers of the Qs, which are sent after that.
    pub(super) second_len: usize,
    /// The numbers of the matrices.
    pub(super) unsent_len: usize,
}

/// A parameter that is compressed: a matrix of n rows and m columns.
pub(super) struct Matrix {
    pub(super) view: BucketView,
    pub(super) num_columns: usize,
    /// Its P (n × r) in what is sent first, column after column.
    pub(super) left: Range<usize>,
    /// Its Q (m × r) in what is sent then, column after column.
    pub(super) right: Range<usize>,
    /// Its place in what is not sent.
    pub(super) unsent: Range<usize>,
}

/// A parameter that travels as it is, and where in what is sent first.
pub(super) struct Whole {
    pub(super) view: BucketView,
    pub(super) at: Range<usize>,
}

impl LowRank {
    /// Matrices of at most `rank` for the parameters that become small enough by it.
    pub(super) fn new(views: &[BucketView], rank: usize) -> LowRank {
        let mut plan = LowRank {
            matrices: vec![],
            whole: vec![],
            first_len: 0,
            second_len: 0,
            unsent_len: 0,
        };
        let mut views: Vec<&BucketView> = views.iter().collect();
        views.sort_by_key(|view| (view.num_rows, view.range.len()));
        for view in views {
            let (num_rows, numel) = (view.num_rows, view.range.len());
            let num_columns = numel / num_rows;
            let rank = rank.min(num_rows).min(num_columns);
            let (left, right) = (rank * num_rows, rank * num_columns);
            if (left + right) * LEAST_RATE < numel {
                plan.matrices.push(Matrix {
                    view: view.clone(),
                    num_columns,
                    left: after(&mut plan.first_len, left),
                    right: after(&mut plan.second_len, right),
                    unsent: after(&mut plan.unsent_len, numel),
                });
            } else {
                plan.whole.push(Whole {
                    view: view.clone(),
                    at: 0..numel,
                });
            }
        }
        for Whole { at, .. } in &mut plan.whole {
            *at = after(&mut plan.first_len, at.len());
        }
        plan
    }

    /// The first Qs.
    pub(super) fn first_bases(&self) -> Vec<f32> {
        let mut bases = vec![0.0; self.second_len];
        for matrix in &self.matrices {
            randomize(&mut bases[matrix.right.clone()], matrix.view.index);
        }
        bases
    }
}

/// The next `len` numbers behind `end`, which moves there.
fn after(end: &mut usize, len: usize) -> Range<usize> {
    let start = *end;
    *end += len;
    start..*end
}

/// Fills a first Q with numbers between -1 and 1 that are the same on every rank and differ between parameters: the
/// splitmix64 sequence (Steele et al. 2014) seeded with the parameter's index, of which the upper 24 bits are taken.
fn randomize(values: &mut [f32], index: usize) {
    let mut state = (index as u64 + 1) << 32;
    for value in values {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = state;
        bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        *value = (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    }
}

/// What one parameter sends as its largest entries.
pub(super) struct Entries {
    pub(super) view: BucketView,
    /// How many, at least one.
    pub(super) num: usize,
}

impl Entries {
    /// `ratio` of each parameter's elements, rounded up.
    pub(super) fn of(views: &[BucketView], ratio: f64) -> Vec<Entries> {
        let entries = |view: &BucketView| Entries {
            num: (view.range.len() as f64 * ratio).ceil() as usize,
            view: view.clone(),
        };
        views.iter().map(entries).collect()
    }
}
