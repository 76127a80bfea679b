//! Collective operations between the ranks of a training job: shared memory on one host, TCP between hosts, and both; and
//! NCCL between GPUs.
//!
//! Ranks meet through a [`Rendezvous`], connect as a [`ProcessGroup`], and call its operations on plain memory
//! ([`RawBuffer`]), most quickly on memory that the group allocated ([`GroupBuffer`]). A connected group is what an
//! [`NcclGroup`] is made from. The crate knows nothing of tensors, data or training.
//!
//! | module | what it is about |
//! |---|---|
//! | `bootstrap` | from a rendezvous to connections that have proved themselves |
//! | `liveness` | who is alive, and the first cause of a failure |
//! | `group` | the operations, their order, and the thread that carries out asynchronous ones |
//! | `transport` | the trait between a group and the ways of its bytes: `shared_memory`, `tcp`, and `hierarchical` over both |
//! | `memory` | buffers that the group owns, which ranks of a host reach without a copy |
//! | `reduce` | the arithmetic, in rank order |
//! | `nccl` | collectives between GPUs, which are NCCL's own |
//!
//! What waits says for how long in its docs. No wait outlasts its deadline, which a call has from its turn on, and each looks every 50 ms
//! whether the group has failed and, on the caller's thread, whether the caller's [`Interrupt`] wants it to end.
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

mod bell;
mod bootstrap;
mod buffer;
mod call;
#[cfg(test)]
mod corpus;
mod deadline;
mod error;
mod group;
mod hierarchical;
mod liveness;
mod lock;
mod memory;
mod nccl;
mod options;
mod peer;
mod phase;
mod poll;
mod reduce;
mod shared_memory;
mod task;
mod tcp;
mod transport;
mod wire;

pub use bootstrap::{Rendezvous, TcpRendezvous, host_name};
pub use buffer::{DType, Device, RawBuffer, ReduceOp, Stream};
pub use call::part_of;
pub use error::{CollectiveError, LossCause, Result};
pub use group::{CallRecord, ProcessGroup, Work};
pub use memory::GroupBuffer;
pub use nccl::{
    CudaRuntime, DeviceRuntime, Event, Gpu, NcclGroup, NcclLibrary, NcclMeeting, NcclOptions,
    NcclVersion, NcclWork, UniqueId, WeakNcclGroup,
};
pub use options::{GroupOptions, Interrupt, TransportChoice};
pub use peer::{Connections, Peer};
pub use phase::{LateRank, Phase, Stall};
pub use reduce::{Half, Kernel, narrow, widen};
// For the benches of this crate.
#[doc(hidden)]
pub use reduce::reduce_in_place;
