//! What compression's part in a step is on a device, told as a [`DevicePlan`].

use std::ops::Range;

use flambeau_collective::DType;

use super::BucketView;
use super::device::{Carried, DeviceCompressor, PlanTensor};
use super::operation::{DeviceOperation, DevicePlan, Matrices, TensorPart};
use super::plan::{Entries, LowRank, Matrix};

/// A bucket that is compressed.
pub(super) struct Bucket<'a> {
    pub(super) number: usize,
    pub(super) numel: usize,
    pub(super) views: &'a [BucketView],
}

impl Bucket<'_> {
    fn part(&self, range: &Range<usize>) -> TensorPart {
        TensorPart {
            tensor: self.number,
            range: range.clone(),
        }
    }

    fn whole(&self) -> TensorPart {
        self.part(&(0..self.numel))
    }
}

impl PlanTensor {
    fn part(self, range: Range<usize>) -> TensorPart {
        TensorPart {
            tensor: self.number,
            range,
        }
    }
}

/// Writes a plan, bucket by bucket.
pub(super) struct Planner {
    pub(super) plan: DevicePlan,
    num_buckets: usize,
    rank: usize,
    num_ranks: usize,
}

impl Planner {
    /// A plan for this rank of so many.
    pub(super) fn new(num_buckets: usize, rank: usize, num_ranks: usize) -> Planner {
        Planner {
            plan: DevicePlan::default(),
            num_buckets,
            rank,
            num_ranks,
        }
    }

    fn tensor(&mut self, dtype: DType, len: usize) -> PlanTensor {
        self.plan.tensors.push((dtype, len));
        PlanTensor {
            number: self.num_buckets + self.plan.tensors.len() - 1,
            dtype,
            len,
        }
    }

    fn program(&mut self, operations: Vec<DeviceOperation>) -> usize {
        self.plan.programs.push(operations);
        self.plan.programs.len() - 1
    }

    pub(super) fn halves(&mut self, bucket: &Bucket<'_>, dtype: DType) -> DeviceCompressor {
        let len = bucket.views.iter().map(|view| view.range.len()).sum();
        let wire = self.tensor(dtype, len);
        let mut end = 0;
        let (mut gradients, mut halves) = (vec![], vec![]);
        for view in bucket.views {
            let start = end;
            end += view.range.len();
            gradients.push(bucket.part(&view.range));
            halves.push(wire.part(start..end));
        }
        DeviceCompressor {
            start_step: 0,
            compress: self.program(vec![DeviceOperation::Copy {
                sources: gradients.clone(),
                targets: halves.clone(),
            }]),
            first: wire,
            again: None,
            decompress: self.program(vec![DeviceOperation::Copy {
                sources: halves,
                targets: gradients,
            }]),
            carried: Carried::default(),
        }
    }

    pub(super) fn power_sgd(
        &mut self,
        bucket: &Bucket<'_>,
        plan: &LowRank,
        start_step: u64,
    ) -> DeviceCompressor {
        let first = self.tensor(DType::Float32, plan.first_len);
        let second = self.tensor(DType::Float32, plan.second_len);
        let unsent = self.tensor(DType::Float32, plan.unsent_len);
        let (mut compress, mut again, mut decompress) = (vec![], vec![], vec![]);
        let gradients_of = |matrices: &[Matrix]| -> Vec<TensorPart> {
            let gradient = |matrix: &Matrix| bucket.part(&matrix.view.range);
            matrices.iter().map(gradient).collect()
        };
        if !plan.matrices.is_empty() {
            compress.push(DeviceOperation::Add {
                sources: gradients_of(&plan.matrices),
                targets: plan
                    .matrices
                    .iter()
                    .map(|matrix| unsent.part(matrix.unsent.clone()))
                    .collect(),
            });
        }
        let is_like = |a: &Matrix, b: &Matrix| {
            (a.view.num_rows, a.num_columns) == (b.view.num_rows, b.num_columns)
        };
        for alike in plan.matrices.chunk_by(is_like) {
            let (Some(start), Some(end)) = (alike.first(), alike.last()) else {
                continue;
            };
            let (num_rows, num_columns) = (start.view.num_rows, start.num_columns);
            let left = Matrices {
                part: first.part(start.left.start..end.left.end),
                num_rows: start.rank,
                num_columns: num_rows,
            };
            let right = Matrices {
                part: second.part(start.right.start..end.right.end),
                num_rows: start.rank,
                num_columns,
            };
            let unsent = Matrices {
                part: unsent.part(start.unsent.start..end.unsent.end),
                num_rows,
                num_columns,
            };
            compress.push(DeviceOperation::Orthonormalize(right.clone()));
            compress.push(DeviceOperation::Multiply {
                vectors: right.clone(),
                matrices: unsent.clone(),
                is_transposed: true,
                products: left.clone(),
            });
            again.push(DeviceOperation::Orthonormalize(left.clone()));
            again.push(DeviceOperation::Multiply {
                vectors: left.clone(),
                matrices: unsent.clone(),
                is_transposed: false,
                products: right.clone(),
            });
            decompress.push(DeviceOperation::Expand {
                left,
                right,
                unsent,
                gradients: gradients_of(alike),
            });
        }
        if !plan.whole.is_empty() {
            let whole = plan.whole.iter();
            let (gradients, sent): (Vec<_>, Vec<_>) = whole
                .map(|whole| (bucket.part(&whole.view.range), first.part(whole.at.clone())))
                .unzip();
            compress.push(DeviceOperation::Copy {
                sources: gradients.clone(),
                targets: sent.clone(),
            });
            decompress.push(DeviceOperation::Copy {
                sources: sent,
                targets: gradients,
            });
        }
        let parameters = plan.matrices.iter().map(|matrix| {
            (
                matrix.view.index,
                matrix.unsent.clone(),
                matrix.right.clone(),
            )
        });
        DeviceCompressor {
            start_step,
            compress: self.program(compress),
            first,
            again: (!again.is_empty()).then(|| (self.program(again), second)),
            decompress: self.program(decompress),
            carried: Carried {
                unsent: Some(unsent),
                bases: Some(second),
                parameters: parameters.collect(),
            },
        }
    }

    pub(super) fn top_k(&mut self, bucket: &Bucket<'_>, ratio: f64) -> DeviceCompressor {
        let chosen = Entries::of(bucket.views, ratio);
        let num = chosen.iter().map(|entries| entries.num).sum::<usize>();
        let unsent = self.tensor(DType::Float32, bucket.numel);
        let wire = self.tensor(DType::Int64, num * self.num_ranks);
        let mut compress = vec![DeviceOperation::Add {
            sources: vec![bucket.whole()],
            targets: vec![unsent.part(0..unsent.len)],
        }];
        let mut end = self.rank * num;
        for Entries { view, num } in &chosen {
            let start = end;
            end += num;
            compress.push(DeviceOperation::TakeLargest {
                unsent: unsent.part(view.range.clone()),
                entries: wire.part(start..end),
            });
        }
        let decompress = vec![DeviceOperation::Average {
            entries: wire.part(0..wire.len),
            num_ranks: self.num_ranks,
            gradients: bucket.whole(),
        }];
        let parameters = bucket.views.iter();
        DeviceCompressor {
            start_step: 0,
            compress: self.program(compress),
            first: wire,
            again: None,
            decompress: self.program(decompress),
            carried: Carried {
                unsent: Some(unsent),
                bases: None,
                parameters: parameters
                    .map(|view| (view.index, view.range.clone(), 0..0))
                    .collect(),
            },
        }
    }
}
