//! Gradients as products of thin matrices: PowerSGD (Vogels et al. 2019), with error feedback and warm start, as PyTorch's
//! `powerSGD_hook` does it.

use flambeau_collective::{ProcessGroup, RawBuffer, ReduceOp, Result};

use super::matrix::{orthogonalize, outer, times, transposed_times};
use super::memory::{add, subtract};
use super::plan::{LowRank, Whole};
use super::wire::Wire;
use super::{BucketView, Compressor, Exchange, ParameterState};

/// Sends each matrix M (n × m) as two of rank r: P (n × r) and Q (m × r).
///
/// With M the mean over the ranks of the gradient and what was not sent before it, and Q from the step before: P is M Q,
/// made orthonormal; then Q is Mᵀ P, and the gradient becomes P Qᵀ. Both products are sums over the ranks, one all-reduce
/// each. What P Qᵀ lacks of a rank's own matrix is what it has not sent. Vectors, and matrices that do not become half as
/// small, travel as they are, together with the Ps. Until `start_step` everything does.
pub(super) struct PowerSgd {
    plan: LowRank,
    start_step: u64,
    /// Whether the present step's gradients are compressed.
    is_compressing: bool,
    /// The Ps, then what travels as it is.
    first: Wire<f32>,
    /// The Qs, kept from step to step.
    second: Wire<f32>,
    /// What this rank has not sent.
    unsent: Vec<f32>,
}

impl PowerSgd {
    /// A compressor to matrices of at most `rank`. A collective call.
    pub(super) fn new(
        group: &ProcessGroup,
        views: &[BucketView],
        rank: usize,
        start_step: u64,
    ) -> Result<PowerSgd> {
        let plan = LowRank::new(views, rank);
        let mut second = Wire::new(group, plan.second_len)?;
        second.elements().copy_from_slice(&plan.first_bases());
        Ok(PowerSgd {
            start_step,
            is_compressing: false,
            first: Wire::new(group, plan.first_len)?,
            second,
            unsent: vec![0.0; plan.unsent_len],
            plan,
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
        for matrix in &self.plan.matrices {
            let right = &mut second[matrix.right.clone()];
            orthogonalize(right, matrix.num_columns);
            let unsent = &mut self.unsent[matrix.unsent.clone()];
            add(unsent, &gradients[matrix.view.range.clone()]);
            let left = &mut first[matrix.left.clone()];
            times(unsent, matrix.num_columns, right, left);
        }
        for Whole { view, at } in &self.plan.whole {
            first[at.clone()].copy_from_slice(&gradients[view.range.clone()]);
        }
        Some(Exchange::Reduce(self.first.raw(), ReduceOp::Average))
    }

    fn compress_again(&mut self) -> Option<RawBuffer> {
        if !self.is_compressing || self.plan.matrices.is_empty() {
            return None;
        }
        let (first, second) = (self.first.elements(), self.second.elements());
        for matrix in &self.plan.matrices {
            let left = &mut first[matrix.left.clone()];
            orthogonalize(left, matrix.view.num_rows);
            let right = &mut second[matrix.right.clone()];
            let unsent = &self.unsent[matrix.unsent.clone()];
            transposed_times(unsent, matrix.num_columns, left, right);
        }
        Some(self.second.raw())
    }

    fn decompress(&mut self, gradients: &mut [f32]) {
        if !self.is_compressing {
            return;
        }
        let (first, second) = (self.first.elements(), self.second.elements());
        for matrix in &self.plan.matrices {
            let (left, right) = (&first[matrix.left.clone()], &second[matrix.right.clone()]);
            let gradient = &mut gradients[matrix.view.range.clone()];
            outer(left, right, matrix.num_columns, gradient);
            subtract(&mut self.unsent[matrix.unsent.clone()], gradient);
        }
        for Whole { view, at } in &self.plan.whole {
            gradients[view.range.clone()].copy_from_slice(&first[at.clone()]);
        }
    }

    fn save(&mut self, parameters: &mut [ParameterState]) {
        for matrix in &self.plan.matrices {
            parameters[matrix.view.index] = ParameterState {
                unsent: self.unsent[matrix.unsent.clone()].to_vec(),
                basis: self.second.elements()[matrix.right.clone()].to_vec(),
            };
        }
    }

    fn restore(&mut self, parameters: &[ParameterState]) {
        for matrix in &self.plan.matrices {
            let state = &parameters[matrix.view.index];
            self.unsent[matrix.unsent.clone()].copy_from_slice(&state.unsent);
            self.second.elements()[matrix.right.clone()].copy_from_slice(&state.basis);
        }
    }
}
