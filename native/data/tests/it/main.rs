//! Tests of flambeau-data against what arrow's writer wrote and against plain arithmetic.

mod bucket;
mod fixtures;
mod malformed;
mod mutation;
mod order;
mod partitions;
mod parts;
mod raw;
mod reader;
mod s3;
mod store;
mod strangers;
mod table;
mod types;
