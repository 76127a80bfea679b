//! Gradients as products of thin matrices: PowerSGD (Vogels et al. 2019), with error feedback and warm start, as PyTorch's
//! `powerSGD_hook` does it.

use std::ops::Range;

use flambeau_collective::{ProcessGroup, RawBuffer, ReduceOp, Result};

use super::matrix::{orthogonalize, outer, times, transposed_times};
use super::memory::{add, subtract};
use super::wire::Wire;
use super::{BucketView, Compressor, Exchange, ParameterState};

/// How many times smaller a matrix must become for it to be compressed; as in PyTorch.
const LEAST_RATE: usize = 2;

/// Sends each matrix M (n × m) as two of rank r: P (n × r) and Q (m × r).
///
/// With M the mean over the ranks of the gradient and what was not sent before it, and Q from the step before: P is M Q,
/// made orthonormal; then Q is Mᵀ P, and the gradient becomes P Qᵀ. Both products are sums over the ranks, one all-reduce
/// each. What P Qᵀ lacks of a rank's own matrix is what it has not sent. Vectors, and matrices that do not become half as
/// small, travel as they are, together with the Ps. Until `start_step` everything does.
pub(super) struct PowerSgd {
    matrices: Vec<Matrix>,
    whole: Vec<Whole>,
    start_step: u64,
    /// Whether the present step's gradients are compressed.
    is_compressing: bool,
    /// The Ps, then what travels as it is.
    first: Wire<f32>,
    /// The Qs, kept from step to step.
    second: Wire<f32>,
}

/// A parameter that is compressed.
struct Matrix {
    view: BucketView,
    num_columns: usize,
    /// Its P in the first wire, column after column.
    left: Range<usize>,
    /// Its Q in the second, column after column.
    right: Range<usize>,
    /// What this rank has not sent.
    unsent: Vec<f32>,
}

/// A parameter that travels as it is, and where in the first wire.
struct Whole {
    view: BucketView,
    at: Range<usize>,
}

impl PowerSgd {
    /// A compressor to matrices of at most `rank`. A collective call.
    pub(super) fn new(
        group: &ProcessGroup,
        views: &[BucketView],
        rank: usize,
        start_step: u64,
    ) -> Result<PowerSgd> {
        let (mut matrices, mut whole) = (vec![], vec![]);
        let (mut first, mut second) = (0, 0);
        for view in views {
            let (num_rows, numel) = (view.num_rows, view.range.len());
            let num_columns = numel / num_rows;
            let rank = rank.min(num_rows).min(num_columns);
            let (left, right) = (rank * num_rows, rank * num_columns);
            if (left + right) * LEAST_RATE < numel {
                matrices.push(Matrix {
                    view: view.clone(),
                    num_columns,
                    left: first..first + left,
                    right: second..second + right,
                    unsent: vec![0.0; numel],
                });
                (first, second) = (first + left, second + right);
            } else {
                whole.push(Whole {
                    view: view.clone(),
                    at: 0..numel,
                });
            }
        }
        for parameter in &mut whole {
            let end = first + parameter.at.len();
            parameter.at = first..end;
            first = end;
        }
        let mut second = Wire::new(group, second)?;
        for matrix in &matrices {
            randomize(
                &mut second.elements()[matrix.right.clone()],
                matrix.view.index,
            );
        }
        Ok(PowerSgd {
            matrices,
            whole,
            start_step,
            is_compressing: false,
            first: Wire::new(group, first)?,
            second,
        })
    }
}

impl Compressor for PowerSgd {
    fn compress(&mut self, step: u64, gradients: &mut [f32]) -> Option<Exchange> {
        self.is_compressing = step >= self.start_step;
        if !self.is_compressing {
            return None;
        }
        let (first, second) = (self.first.elements(), self.second.elements());
        for matrix in &mut self.matrices {
            let right = &mut second[matrix.right.clone()];
            orthogonalize(right, matrix.num_columns);
            add(&mut matrix.unsent, &gradients[matrix.view.range.clone()]);
            let left = &mut first[matrix.left.clone()];
            times(&matrix.unsent, matrix.num_columns, right, left);
        }
        for Whole { view, at } in &self.whole {
            first[at.clone()].copy_from_slice(&gradients[view.range.clone()]);
        }
        Some(Exchange::Reduce(self.first.raw(), ReduceOp::Average))
    }

    fn compress_again(&mut self) -> Option<RawBuffer> {
        if !self.is_compressing || self.matrices.is_empty() {
            return None;
        }
        let (first, second) = (self.first.elements(), self.second.elements());
        for matrix in &self.matrices {
            let left = &mut first[matrix.left.clone()];
            orthogonalize(left, matrix.view.num_rows);
            let right = &mut second[matrix.right.clone()];
            transposed_times(&matrix.unsent, matrix.num_columns, left, right);
        }
        Some(self.second.raw())
    }

    fn decompress(&mut self, gradients: &mut [f32]) {
        if !self.is_compressing {
            return;
        }
        let (first, second) = (self.first.elements(), self.second.elements());
        for matrix in &mut self.matrices {
            let (left, right) = (&first[matrix.left.clone()], &second[matrix.right.clone()]);
            let gradient = &mut gradients[matrix.view.range.clone()];
            outer(left, right, matrix.num_columns, gradient);
            subtract(&mut matrix.unsent, gradient);
        }
        for Whole { view, at } in &self.whole {
            gradients[view.range.clone()].copy_from_slice(&first[at.clone()]);
        }
    }

    fn save(&mut self, parameters: &mut [ParameterState]) {
        for matrix in &self.matrices {
            parameters[matrix.view.index] = ParameterState {
                unsent: matrix.unsent.clone(),
                basis: self.second.elements()[matrix.right.clone()].to_vec(),
            };
        }
    }

    fn restore(&mut self, parameters: &[ParameterState]) {
        for matrix in &mut self.matrices {
            let state = &parameters[matrix.view.index];
            matrix.unsent.copy_from_slice(&state.unsent);
            self.second.elements()[matrix.right.clone()].copy_from_slice(&state.basis);
        }
    }
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
