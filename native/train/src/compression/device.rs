//! Compression where the gradients lie, on a device, by the model's framework.

use std::ops::Range;
use std::sync::Mutex;

use flambeau_collective::{CollectiveError, DType, Device, RawBuffer, ReduceOp, Result, Stream};

use super::operation::DevicePrograms;
use super::plan::LowRank;
use super::planner::{Bucket, Planner};
use super::{BucketView, Compression, CompressionState, Exchange, ParameterState, is_compressible};
use crate::buckets::lock;
use crate::error::Cause;
use crate::layout::BucketInfo;
use crate::model::{Model, ModelError};

/// The compressors of all buckets on a device. The counterpart there of a [`Compressor`](super::Compressor) for each bucket,
/// whose arithmetic it has in another order.
pub(crate) struct DeviceCompressors {
    /// None for a bucket that travels as it is.
    buckets: Vec<Option<DeviceCompressor>>,
    programs: Box<dyn DevicePrograms>,
    device: Device,
    stream: Stream,
    /// The model's own error, where a program failed.
    failure: Mutex<Option<ModelError>>,
}

/// What is done in a step with a bucket, by the numbers of the plan's tensors and programs.
pub(super) struct DeviceCompressor {
    /// The first step, counted from 0, in which it is compressed.
    pub(super) start_step: u64,
    /// The program that makes `first`.
    pub(super) compress: usize,
    /// What travels in place of the bucket: averaged, or gathered where it is entries, of which each rank has as many.
    pub(super) first: PlanTensor,
    /// What is averaged after that, if anything, and the program that makes it.
    pub(super) again: Option<(usize, PlanTensor)>,
    /// The program that makes gradients of what came.
    pub(super) decompress: usize,
    pub(super) carried: Carried,
}

/// A tensor of the plan.
#[derive(Clone, Copy)]
pub(super) struct PlanTensor {
    pub(super) number: usize,
    pub(super) dtype: DType,
    pub(super) len: usize,
}

/// What is kept from step to step; nothing of what does not remember.
#[derive(Default)]
pub(super) struct Carried {
    pub(super) unsent: Option<PlanTensor>,
    pub(super) bases: Option<PlanTensor>,
    /// For each parameter that it is of, its numbers in both.
    pub(super) parameters: Vec<(usize, Range<usize>, Range<usize>)>,
}

impl DeviceCompressors {
    /// Compressors of buckets with these views, on a device and the stream of the model there. None where nothing is to be
    /// compressed.
    ///
    /// # Errors
    ///
    /// The model's.
    pub(crate) fn new(
        compression: Compression,
        buckets: &[BucketInfo],
        views: &[Vec<BucketView>],
        (rank, num_ranks): (usize, usize),
        (device, stream): (Device, Stream),
        model: &mut dyn Model,
    ) -> std::result::Result<Option<DeviceCompressors>, Cause> {
        let mut planner = Planner::new(buckets.len(), rank, num_ranks);
        let mut first_bases = vec![];
        let compressors: Vec<Option<DeviceCompressor>> = buckets
            .iter()
            .zip(views)
            .enumerate()
            .map(|(number, (bucket, views))| {
                if !is_compressible(bucket) {
                    return None;
                }
                let bucket = Bucket {
                    number,
                    numel: bucket.numel,
                    views,
                };
                match compression {
                    Compression::None => None,
                    Compression::Fp16 => Some(planner.halves(&bucket, DType::Float16)),
                    Compression::Bf16 => Some(planner.halves(&bucket, DType::BFloat16)),
                    Compression::PowerSgd { rank, start_step } => {
                        let plan = LowRank::new(views, rank);
                        let compressor = planner.power_sgd(&bucket, &plan, start_step);
                        let bases = compressor.carried.bases;
                        first_bases.extend(bases.map(|bases| (bases, plan.first_bases())));
                        Some(compressor)
                    }
                    Compression::TopK { ratio } => Some(planner.top_k(&bucket, ratio)),
                }
            })
            .collect();
        if compressors.iter().all(Option::is_none) {
            return Ok(None);
        }
        let prepared = model.prepare_programs(&planner.plan);
        let programs = prepared.map_err(Cause::Model)?;
        for (tensor, values) in first_bases {
            let written = programs.write(tensor.number, &values);
            written.map_err(Cause::Model)?;
        }
        Ok(Some(DeviceCompressors {
            buckets: compressors,
            programs,
            device,
            stream,
            failure: Mutex::new(None),
        }))
    }

    /// Has the device make what is to travel of a full bucket in a step, counted from 0. None where the bucket itself is.
    pub(crate) fn compress(&self, bucket: usize, step: u64) -> Result<Option<Exchange>> {
        let Some(compressor) = self.at_work(bucket, step) else {
            return Ok(None);
        };
        self.run(compressor.compress)?;
        let first = self.raw(compressor.first);
        Ok(Some(match first.dtype {
            DType::Int64 => Exchange::Gather(first),
            _ => Exchange::Reduce(first, ReduceOp::Average),
        }))
    }

    /// Has the device make what is to be averaged once the stream has come to the end of the first exchanges, of all buckets.
    pub(crate) fn compress_again(&self, step: u64) -> Result<Vec<(RawBuffer, ReduceOp)>> {
        let mut buffers = vec![];
        for bucket in 0..self.buckets.len() {
            let compressor = self.at_work(bucket, step);
            if let Some((program, second)) = compressor.and_then(|compressor| compressor.again) {
                self.run(program)?;
                buffers.push((self.raw(second), ReduceOp::Average));
            }
        }
        Ok(buffers)
    }

    /// Has the device write what came of the exchanges over the buckets that were compressed.
    pub(crate) fn decompress(&self, step: u64) -> Result<()> {
        (0..self.buckets.len())
            .filter_map(|bucket| self.at_work(bucket, step))
            .try_for_each(|compressor| self.run(compressor.decompress))
    }

    /// Copies what is carried to the next step to the parameters' places. Waits for the device.
    pub(crate) fn save(&self, parameters: &mut [ParameterState]) -> Result<()> {
        for Carried {
            unsent,
            bases,
            parameters: own,
        } in self.carried()
        {
            let (unsent, bases) = (self.read(*unsent)?, self.read(*bases)?);
            for (index, of_unsent, of_bases) in own {
                parameters[*index] = ParameterState {
                    unsent: unsent[of_unsent.clone()].to_vec(),
                    basis: bases[of_bases.clone()].to_vec(),
                };
            }
        }
        Ok(())
    }

    /// Goes on from what was saved, which is of as many numbers.
    pub(crate) fn restore(&self, state: &CompressionState) -> Result<()> {
        for Carried {
            unsent,
            bases,
            parameters,
        } in self.carried()
        {
            let zeros = |tensor: &Option<PlanTensor>| vec![0.0; tensor.map_or(0, |t| t.len)];
            let (mut unsent_values, mut bases_values) = (zeros(unsent), zeros(bases));
            for (index, of_unsent, of_bases) in parameters {
                let state = &state.parameters[*index];
                unsent_values[of_unsent.clone()].copy_from_slice(&state.unsent);
                bases_values[of_bases.clone()].copy_from_slice(&state.basis);
            }
            for (tensor, values) in [(unsent, unsent_values), (bases, bases_values)] {
                if let Some(tensor) = tensor {
                    let written = self.programs.write(tensor.number, &values);
                    written.map_err(|error| self.keep(error))?;
                }
            }
        }
        Ok(())
    }

    fn at_work(&self, bucket: usize, step: u64) -> Option<&DeviceCompressor> {
        let compressor = self.buckets[bucket].as_ref();
        compressor.filter(|compressor| step >= compressor.start_step)
    }

    fn carried(&self) -> impl Iterator<Item = &Carried> {
        self.buckets.iter().flatten().map(|bucket| &bucket.carried)
    }

    fn run(&self, program: usize) -> Result<()> {
        let run = self.programs.run(program);
        run.map_err(|error| self.keep(error))
    }

    /// The error of the model that a failure here came from.
    pub(crate) fn take_failure(&self) -> Option<ModelError> {
        lock(&self.failure).take()
    }

    fn keep(&self, error: ModelError) -> CollectiveError {
        let message = error.to_string();
        lock(&self.failure).get_or_insert(error);
        CollectiveError::Device {
            call: "the compression of gradients".into(),
            message,
        }
    }

    fn read(&self, tensor: Option<PlanTensor>) -> Result<Vec<f32>> {
        match tensor {
            None => Ok(vec![]),
            Some(tensor) => {
                let numbers = self.programs.read(tensor.number);
                numbers.map_err(|error| self.keep(error))
            }
        }
    }

    fn raw(&self, tensor: PlanTensor) -> RawBuffer {
        RawBuffer {
            ptr: self.programs.address(tensor.number),
            len: tensor.len,
            dtype: tensor.dtype,
            device: self.device,
            stream: Some(self.stream),
        }
    }
}
