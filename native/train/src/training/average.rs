//! The exponential moving average of the weights.

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
    /// One for each trained parameter, as long as that is; none before the first step.
    values: Vec<AlignedBuffer>,
}

impl WeightAverage {
    /// That of a model which computes on the CPU, before the first step; or as [`to_bytes`](Self::to_bytes) gave it, which is
    /// empty before the first step and otherwise has [`num_bytes`].
    pub(crate) fn new(
        decay: f64,
        model: &mut dyn Model,
        saved: &[u8],
    ) -> Result<WeightAverage, Cause> {
        let mut values = vec![];
        if !saved.is_empty() {
            let mut rest = saved;
            for weights in weights(model)? {
                let (own, others) = rest.split_at(size_of(&weights));
                values.push(copied(own));
                rest = others;
            }
        }
        Ok(WeightAverage { decay, values })
    }

    /// Takes the weights in, after a step of the optimizer.
    pub(crate) fn update(&mut self, model: &mut dyn Model) -> Result<(), Cause> {
        let weights = weights(model)?;
        if self.values.is_empty() {
            // SAFETY: the model keeps as many bytes there until its next call.
            let bytes = |weights: &TensorRef| unsafe {
                copied(std::slice::from_raw_parts(
                    weights.ptr.cast(),
                    size_of(weights),
                ))
            };
            self.values = weights.iter().map(bytes).collect();
            return Ok(());
        }
        self.check(&weights)?;
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
        let weights = weights(model)?;
        self.check(&weights)?;
        for (average, weights) in self.values.iter_mut().zip(weights) {
            let size = size_of(&weights);
            // SAFETY: both have that many bytes, those of the model until its next call, and do not overlap.
            unsafe {
                ptr::swap_nonoverlapping(average.as_mut_ptr(), weights.ptr.cast(), size);
            }
        }
        model.take_tensors().map_err(Cause::Model)
    }

    /// Refuses weights of other sizes than the averages have, as a user's code may have made them meanwhile.
    fn check(&self, weights: &[TensorRef]) -> Result<(), Cause> {
        let sizes = self.values().map(<[u8]>::len);
        if weights.iter().map(size_of).eq(sizes) {
            return Ok(());
        }
        let message = "a parameter has another size or type than at the first step, and emaDecay averages each over all steps: \
                       leave them as they are, or do without emaDecay";
        Err(Cause::Model(message.into()))
    }

    /// The average for a checkpoint: the bytes of all parameters, one after another.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.values().collect::<Vec<_>>().concat()
    }

    /// The average of each parameter in the model's order; nothing before the first step.
    pub(crate) fn values(&self) -> impl Iterator<Item = &[u8]> {
        self.values.iter().map(AlignedBuffer::as_bytes)
    }
}

/// How many bytes an average of this model's parameters has.
pub(crate) fn num_bytes(model: &mut dyn Model) -> Result<usize, Cause> {
    Ok(weights(model)?.iter().map(size_of).sum())
}

fn weights(model: &mut dyn Model) -> Result<Vec<TensorRef>, Cause> {
    model.tensors(Tensors::Trained).map_err(Cause::Model)
}

fn size_of(tensor: &TensorRef) -> usize {
    tensor.numel * tensor.dtype.size()
}

fn copied(bytes: &[u8]) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(bytes.len());
    buffer.as_bytes_mut().copy_from_slice(bytes);
    buffer
}
