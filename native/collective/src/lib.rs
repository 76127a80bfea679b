//! Collective operations between the ranks of a training job: shared memory on one host, TCP between hosts, and both; and
//! NCCL between GPUs.
//!
//! Ranks meet through a [`Rendezvous`], connect as a [`ProcessGroup`], and call its operations on plain memory
//! ([`RawBuffer`]), most quickly on memory that the group allocated ([`GroupBuffer`]). A connected group is what an
//! [`NcclGroup`] is made from. The crate knows nothing of tensors, data or training.
//!
//! ```
//! use flambeau_collective::{DType, GroupOptions, ProcessGroup, RawBuffer, ReduceOp, TcpRendezvous};
//! use std::time::Duration;
//!
//! // One rank of one; the other ranks of a larger world pass the address where rank 0 listens.
//! let mut rendezvous = TcpRendezvous::new("127.0.0.1:0", 0, 1, b"", Duration::from_secs(60))?;
//! let group = ProcessGroup::connect(&mut rendezvous, GroupOptions::default())?;
//! let mut gradient = vec![1.0f32, 2.0];
//! let buffer = RawBuffer::cpu(gradient.as_mut_ptr().cast(), gradient.len(), DType::Float32);
//! // SAFETY: the vector outlives the call, and nobody else uses it meanwhile.
//! unsafe { group.all_reduce(buffer, ReduceOp::Average)? };
//! assert_eq!(gradient, [1.0, 2.0]);
//! # Ok::<(), flambeau_collective::CollectiveError>(())
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("flambeau-collective shares memory through memfd and futexes, which are Linux's");

mod attach;
mod board;
mod bootstrap;
mod buffer;
mod call;
mod connection;
#[cfg(test)]
mod corpus;
mod descriptor;
mod direct;
mod error;
mod exchange;
mod futex;
mod gate;
mod greeting;
mod group;
mod halves;
mod health;
mod host;
mod identity;
mod mesh;
mod monitor;
mod nccl;
mod notice;
mod options;
mod patience;
mod poll;
mod processor;
mod reduce;
mod region;
mod rendezvous;
mod secret;
mod segment;
mod task;
mod tcp_rendezvous;
mod topology;
mod turn;
mod wire;
mod work;

pub use buffer::{DType, Device, RawBuffer, ReduceOp, Stream};
pub use call::part_of;
pub use error::{CollectiveError, LossCause, Peer, Result};
pub use group::ProcessGroup;
pub use halves::{Half, narrow, widen};
pub use identity::host_name;
pub use nccl::{
    CudaRuntime, DeviceRuntime, Event, Gpu, NcclGroup, NcclLibrary, NcclMeeting, NcclOptions,
    NcclVersion, NcclWork, UniqueId, WeakNcclGroup,
};
pub use options::{GroupOptions, Interrupt, Transport};
pub use processor::Kernel;
// For the benches of this crate.
#[doc(hidden)]
pub use reduce::reduce_in_place;
pub use region::GroupBuffer;
pub use rendezvous::Rendezvous;
pub use tcp_rendezvous::TcpRendezvous;
pub use work::Work;
