//! What the caller may ask of a running training, and what it is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Cause, HookError};
use crate::training::events::Event;

/// A question that is asked often and from several threads.
pub type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

/// What is told as it happens, on the thread that trains: it must be quick. An error ends the training of all ranks.
pub type Hook<T> = Arc<dyn Fn(&T) -> Result<(), HookError> + Send + Sync>;

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
    /// 2-norm of all gradients before clipping; `None` where neither `gradientClipNorm` nor `logGradientNorm` is set, where it
    /// is not finite, and on a device, which would have to be waited for.
    pub gradient_norm: Option<f64>,
    /// The learning rate that the step was taken with, of the optimizer's first group of parameters; `None` where that has none.
    pub learning_rate: Option<f64>,
}

/// What the caller may ask of a running training, and what it is told.
#[derive(Clone)]
pub struct Hooks {
    /// Asked before each step. Once it says true on any rank, all ranks finish the same step and then stop with
    /// [`Cause::Cancelled`].
    pub cancel: Option<Interrupt>,
    /// Asked at least every 100 ms while waiting for rows; true ends the wait, and with it the training of all ranks,
    /// wherever they are. Give the same to the group's options.
    pub interrupt: Option<Interrupt>,
    /// Asked in each step and, with the attempt's `callbacks`, after each epoch. Once it says true on any rank, all ranks finish
    /// the same step, and training ends as early stopping ends it: the epoch is evaluated and recorded with the steps that it
    /// had, and the weights are stored.
    pub stop: Option<Interrupt>,
    /// Told of each event when it happens, on this rank: [`Event::Progress`] on rank 0 alone, [`Event::Stall`] on none, all others
    /// on every rank. The attempt's files hold those of rank 0.
    pub on_event: Option<Hook<Event>>,
    /// Told of each step that ends so many.
    pub on_step: Option<Hook<StepReport>>,
    /// Steps from one that `on_step` is told of to the next, at least 1.
    pub step_interval: u64,
}

impl Default for Hooks {
    fn default() -> Hooks {
        Hooks {
            cancel: None,
            interrupt: None,
            stop: None,
            on_event: None,
            on_step: None,
            step_interval: 1,
        }
    }
}

impl Hooks {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel())
    }

    pub(crate) fn asks_to_stop(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop())
    }

    /// The same, asking for a stop once `flag` is set too.
    pub(crate) fn stopped_by(self, flag: Arc<AtomicBool>) -> Hooks {
        let asked = self.stop;
        let stop =
            move || flag.load(Ordering::Relaxed) || asked.as_ref().is_some_and(|stop| stop());
        Hooks {
            stop: Some(Arc::new(stop)),
            ..self
        }
    }

    /// Who is to be told of a step, if anybody is.
    pub(crate) fn step_hook(&self, step: u64) -> Option<&Hook<StepReport>> {
        let hook = self.on_step.as_ref();
        hook.filter(|_| (step + 1).is_multiple_of(self.step_interval))
    }

    pub(crate) fn tell(&self, event: &Event) -> Result<(), Cause> {
        match &self.on_event {
            Some(on_event) => on_event(event).map_err(Cause::Hook),
            None => Ok(()),
        }
    }
}
