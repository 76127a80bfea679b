//! The training loop.

pub(crate) mod allocator;
mod dataset;
mod evaluation;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod hooks;
pub(crate) mod host;
pub(crate) mod monitor;
mod replicas;
pub(crate) mod result;
pub(crate) mod scaler;
mod schedule;
mod session;
mod staging;
mod state;
mod step;
pub(crate) mod sums;
pub(crate) mod worker;
