//! Collective operations between the ranks of a training job: shared memory on one host, TCP between hosts.

#[cfg(not(target_os = "linux"))]
compile_error!("flambeau-collective shares memory through memfd and futexes, which are Linux's");

mod buffer;
mod error;
mod group;
mod options;
mod rendezvous;
mod tcp_rendezvous;
mod work;

pub use buffer::{DType, Device, RawBuffer, ReduceOp, Stream};
pub use error::{CollectiveError, LossCause, Peer, Result};
pub use group::{GroupBuffer, ProcessGroup};
pub use options::{GroupOptions, Interrupt, Transport};
pub use rendezvous::Rendezvous;
pub use tcp_rendezvous::TcpRendezvous;
pub use work::Work;
