//! The average of the model over the ranks, every few steps that each takes on its own.

use flambeau_collective::{ProcessGroup, RawBuffer, ReduceOp};

use crate::digest;
use crate::error::Cause;
use crate::gradients::compression;
use crate::model::{Model, Tensors};

/// Local SGD: the mean of the weights and of the optimizer's state, after so many steps that each rank takes on the gradients of its own
/// rows, as in Stich, "Local SGD Converges Fast and Communicates Little" (2019), and for the momentum in Yu, Jin and Yang, "On the
/// Linear Speedup Analysis of Communication Efficient Momentum SGD" (2019).
///
/// A rank's gradient is the sum over its rows, divided by its even share of all rows, so that the average of one step of plain SGD on
/// each rank is the step on the gradient of all rows. Which parameters any rank used is agreed on in each step: all ranks step
/// the same ones, and have state of the same ones.
pub(crate) struct ModelAverage {
    group: ProcessGroup,
    /// Steps from one average to the next, more than 1.
    every: u64,
    /// Whether the ranks have stepped on their own since the last one.
    is_apart: bool,
}

impl ModelAverage {
    /// One after `every` steps.
    pub(crate) fn new(group: ProcessGroup, every: u64) -> ModelAverage {
        ModelAverage {
            group,
            every,
            is_apart: false,
        }
    }

    /// Takes note of a step of this rank's own.
    pub(crate) fn note_step(&mut self) {
        self.is_apart = true;
    }

    /// Whether it is due after that number of steps.
    pub(crate) fn is_due(&self, num_steps: u64) -> bool {
        num_steps.is_multiple_of(self.every)
    }

    /// Averages the model, where the ranks have stepped on their own since it was last done. Returns the bytes that this rank sent. All
    /// ranks call this.
    ///
    /// # Errors
    ///
    /// The model's, the group's, and state of the optimizer that is not of the same names, types and lengths on all ranks.
    pub(crate) fn take(&mut self, model: &mut dyn Model) -> Result<u64, Cause> {
        if !std::mem::take(&mut self.is_apart) {
            return Ok(0);
        }
        self.check_state(model)?;
        let travelled =
            self.average(model, Tensors::Trained)? + self.average(model, Tensors::Optimizer)?;
        Ok(compression::sent_by_each(
            travelled,
            self.group.world_size(),
        ))
    }

    fn check_state(&self, model: &mut dyn Model) -> Result<(), Cause> {
        let tensors = model.tensors(Tensors::Optimizer).map_err(Cause::Model)?;
        let told = tensors
            .iter()
            .map(|tensor| format!("{} {} {}\n", tensor.name, tensor.dtype, tensor.numel));
        let own = digest::of_bytes(told.collect::<String>().as_bytes());
        let all = self.group.all_gather_bytes(own.as_bytes())?;
        if all.iter().all(|other| other == own.as_bytes()) {
            return Ok(());
        }
        let message = "the optimizer keeps other state on one worker than on another, and syncEvery averages it: take an \
                       optimizer that keeps the same of each parameter, or set syncEvery to 1";
        Err(Cause::Model(message.into()))
    }

    /// Averages these tensors of the model over the ranks. Returns the bytes that travel.
    fn average(&self, model: &mut dyn Model, which: Tensors) -> Result<u64, Cause> {
        let group = &self.group;
        let tensors = model.tensors(which).map_err(Cause::Model)?;
        let buffers: Vec<_> = tensors
            .iter()
            .map(|tensor| {
                let buffer = RawBuffer::cpu(tensor.ptr, tensor.numel, tensor.dtype);
                (buffer, ReduceOp::Average)
            })
            .collect();
        if buffers.is_empty() {
            return Ok(0);
        }
        group.label_next_call(|| format!("the average of {which:?}"));
        // SAFETY: the model says that this memory is its own and stays until its next call.
        unsafe { group.grouped_all_reduce(&buffers) }?;
        model.take_tensors().map_err(Cause::Model)?;
        let bytes = buffers.iter().map(|(buffer, _)| 2 * buffer.bytes() as u64);
        Ok(bytes.sum())
    }
}
