//! The process group as its users see it: results against a sequential reference, and what happens when ranks disagree,
//! die, freeze, or take their time; and the NCCL group over a stand-in for NCCL.

mod agreement;
mod faults;
mod handles;
mod harness;
mod meeting;
mod memory;
mod namespaces;
mod nccl;
mod reductions;
mod reference;
mod stalls;
