//! The training loop.

pub(crate) mod allocator;
mod dataset;
mod evaluation;
pub(crate) mod events;
pub(crate) mod hooks;
pub(crate) mod host;
mod replicas;
mod schedule;
mod session;
mod staging;
mod state;
mod step;
mod tensorboard;
pub(crate) mod worker;
mod writer;
