//! Gradients: what travels of them, and how the ranks agree on them.

mod average;
pub(crate) mod buckets;
pub(crate) mod compression;
pub(crate) mod elements;
pub(crate) mod reducer;
pub(crate) mod sync;
mod usage;
