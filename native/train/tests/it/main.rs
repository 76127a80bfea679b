//! Trainings of real models over real process groups and Parquet files, ranks as threads.

#[path = "../../../data/tests/it/bucket.rs"]
mod bucket;
mod checkpoints;
mod compression;
mod devices;
mod dual;
mod failures;
mod hooks;
mod host_device;
mod job;
mod loop_order;
mod model;
#[path = "../../../data/tests/it/mutation.rs"]
mod mutation;
mod parity;
mod records;
mod reducer;
mod reference;
mod scaling;
mod stalls;
mod strangers;
mod support;
mod tensorboard;
mod timeline;
