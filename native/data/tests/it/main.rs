//! Tests of flambeau-data against what arrow's writer wrote and against plain arithmetic.

mod fixtures;
mod malformed;
mod order;
mod partitions;
mod reader;
mod s3;
mod store;
mod table;
mod types;
