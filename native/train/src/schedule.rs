//! The learning rate of each step.

/// The learning rate as a function of the step. The one place for schedules: every step asks here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// The optimizer's own rate, which is left alone.
    Optimizer,
    /// The same rate at every step.
    Constant(f64),
}

impl Schedule {
    /// The schedule of a job: constant where `stepSize` is set, else the optimizer's own.
    pub fn new(step_size: Option<f64>) -> Schedule {
        step_size.map_or(Schedule::Optimizer, Schedule::Constant)
    }

    /// The rate to set before optimizer step `step` (counted from 0 over all epochs); `None` leaves the optimizer's.
    pub fn learning_rate(&self, _step: u64) -> Option<f64> {
        match *self {
            Schedule::Optimizer => None,
            Schedule::Constant(rate) => Some(rate),
        }
    }
}
