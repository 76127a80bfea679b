//! Trainings of real models over real process groups and Parquet files, ranks as threads.

mod checkpoints;
mod compression;
mod devices;
mod dual;
mod failures;
mod host_device;
mod host_programs;
mod job;
mod loop_order;
mod model;
mod parity;
mod records;
mod reducer;
mod reference;
mod scaling;
mod support;
