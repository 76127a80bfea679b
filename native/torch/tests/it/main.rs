//! TorchScript programs against PyTorch: optimizers, losses, metrics, trainings, scoring, refusals.

mod buckets;
mod halves;
mod losses;
mod metrics;
mod optimizers;
mod purity;
mod refusals;
mod scoring;
mod support;
mod training;
