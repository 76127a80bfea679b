//! What the caller may ask of a running training, and what it is told.

use std::sync::Arc;

use crate::training::events::Event;

/// A question that is asked often and from several threads.
pub type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

/// What is told as it happens, on the thread that trains: it must be quick.
pub type Listener<T> = Arc<dyn Fn(&T) + Send + Sync>;

/// What an optimizer step came to, over all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The optimizer step, counted from 0 over all epochs.
    pub step: u64,
    /// Optimizer steps in an epoch.
    pub steps_per_epoch: u64,
    /// Rows of the step over all ranks.
    pub num_rows: u64,
    /// The mean loss of the step. `None` where the denominator is 0, in which case the optimizer took no step.
    pub loss: Option<f64>,
    /// 2-norm of all gradients before clipping; `None` where `gradientClipNorm` is not set, where the gradients
    /// overflowed, and on a device, which would have to be waited for.
    pub gradient_norm: Option<f64>,
}

/// What the caller may ask of a running training, and what it is told.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Asked before each step. Once it says true on any rank, all ranks finish the same step and then stop with
    /// [`Cause::Cancelled`](crate::Cause::Cancelled).
    pub cancel: Option<Interrupt>,
    /// Asked at least every 100 ms while waiting for rows; true ends the wait, and with it the training of all ranks,
    /// wherever they are. Give the same to the group's options.
    pub interrupt: Option<Interrupt>,
    /// Told on rank 0 of each event when it happens; the attempt's files hold the same ones.
    pub on_event: Option<Listener<Event>>,
    /// Told on every rank of each step.
    pub on_step: Option<Listener<StepReport>>,
}

impl Hooks {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel())
    }
}
