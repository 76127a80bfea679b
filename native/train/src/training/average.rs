//! The exponential moving average of the weights.

use std::collections::HashSet;
use std::ptr;

use flambeau_data::AlignedBuffer;

use crate::error::Cause;
use crate::gradients::elements;
use crate::model::{Model, TensorRef, Tensors};

/// An exponential moving average of the parameters that are trained, as PyTorch's `AveragedModel` with `get_ema_multi_avg_fn` has
/// it: after the first step it is the weights, after each further one `decay` of itself and the rest of the weights. Buffers are no
/// part of it. The same on every rank, since the weights are.
pub(crate) struct WeightAverage {
    decay: f64,
    /// The parameters' names.
    names: HashSet<String>,
    /// One for each parameter, as long as that is; none before the first step.
    values: Vec<AlignedBuffer>,
}

impl WeightAverage {
    /// That of a model which computes on the CPU, before the first step; or as [`to_bytes`](Self::to_bytes) gave it, which is
    /// empty before the first step.
    ///
    /// # Errors
    ///
    /// The model's, and bytes that are another model's.
    pub(crate) fn new(
        decay: f64,
        model: &mut dyn Model,
        saved: &[u8],
    ) -> Result<WeightAverage, Cause> {
        let parameters = model.parameters().map_err(Cause::Model)?;
        let mut average = WeightAverage {
            decay,
            names: parameters.into_iter().map(|info| info.name).collect(),
            values: vec![],
        };
        if saved.is_empty() {
            return Ok(average);
        }
        let mut rest = saved;
        for weights in average.weights(model)? {
            let Some((own, others)) = rest.split_at_checked(num_bytes(&weights)) else {
                break;
            };
            average.values.push(copied(own));
            rest = others;
        }
        if average.values.len() != average.names.len() || !rest.is_empty() {
            return Err(Cause::Model(
                "the averaged weights of the checkpoint are another model's".into(),
            ));
        }
        Ok(average)
    }

    /// Takes the weights in, after a step of the optimizer.
    pub(crate) fn update(&mut self, model: &mut dyn Model) -> Result<(), Cause> {
        let weights = self.weights(model)?;
        if self.values.is_empty() {
            // SAFETY: the model keeps as many bytes there until its next call.
            let bytes = |weights: &TensorRef| unsafe {
                copied(std::slice::from_raw_parts(
                    weights.ptr.cast(),
                    num_bytes(weights),
                ))
            };
            self.values = weights.iter().map(bytes).collect();
            return Ok(());
        }
        for (average, weights) in self.values.iter_mut().zip(&weights) {
            let (numel, dtype) = (weights.numel, weights.dtype);
            // SAFETY: both have that many elements of the type, the average's own and those of the model, which nobody writes.
            unsafe {
                elements::lerp(
                    average.as_mut_ptr().cast(),
                    weights.ptr,
                    numel,
                    dtype,
                    1.0 - self.decay,
                );
            }
        }
        Ok(())
    }

    /// Exchanges the average with the model's weights; before the first step they are the same.
    pub(crate) fn exchange(&mut self, model: &mut dyn Model) -> Result<(), Cause> {
        if self.values.is_empty() {
            return Ok(());
        }
        let weights = self.weights(model)?;
        for (average, weights) in self.values.iter_mut().zip(weights) {
            let num_bytes = num_bytes(&weights);
            // SAFETY: both have that many bytes, those of the model until its next call, and do not overlap.
            unsafe {
                ptr::swap_nonoverlapping(average.as_mut_ptr(), weights.ptr.cast(), num_bytes);
            }
        }
        model.take_tensors().map_err(Cause::Model)
    }

    /// The average for a checkpoint: the bytes of all parameters, one after another.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let values: Vec<&[u8]> = self.values.iter().map(AlignedBuffer::as_bytes).collect();
        values.concat()
    }

    /// The model's trained parameters, in its order.
    fn weights(&self, model: &mut dyn Model) -> Result<Vec<TensorRef>, Cause> {
        let mut tensors = model.tensors(Tensors::All).map_err(Cause::Model)?;
        tensors.retain(|tensor| self.names.contains(&tensor.name));
        Ok(tensors)
    }
}

fn num_bytes(tensor: &TensorRef) -> usize {
    tensor.numel * tensor.dtype.size()
}

fn copied(bytes: &[u8]) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(bytes.len());
    buffer.as_bytes_mut().copy_from_slice(bytes);
    buffer
}
