//! Memory that the group owns: mappings, which processes can share, and the allocations that are made of them.

pub(crate) mod mapping;
pub(crate) mod region;

pub use region::GroupBuffer;
