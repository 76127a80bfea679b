//! What the caller may ask of a running training.

use std::sync::Arc;

/// A question that is asked often and from several threads.
pub type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

/// What the caller may ask of a running training.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Asked before each step. Once it says true on any rank, all ranks finish the same step and then stop with
    /// [`Cause::Cancelled`](crate::Cause::Cancelled).
    pub cancel: Option<Interrupt>,
    /// Asked at least every 100 ms while waiting for rows; true ends the wait, and with it the training of all ranks,
    /// wherever they are. Give the same to the group's options.
    pub interrupt: Option<Interrupt>,
}

impl Hooks {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel())
    }
}
