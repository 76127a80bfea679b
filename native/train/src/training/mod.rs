//! The training loop.

pub(crate) mod allocator;
mod average;
mod dataset;
mod evaluation;
pub(crate) mod events;
pub(crate) mod hooks;
pub(crate) mod host;
mod phases;
mod range_test;
mod replicas;
mod schedule;
mod session;
mod staging;
mod state;
mod step;
mod tensorboard;
mod timeline;
mod trace;
mod usage;
pub(crate) mod worker;
mod writer;
