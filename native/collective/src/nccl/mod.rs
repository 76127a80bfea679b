//! Collectives between GPUs through NCCL, which is opened at run time: see [`NcclGroup`].

mod abi;
mod communicator;
mod cuda;
mod device;
mod engine;
mod group;
mod library;
mod meeting;
mod symbols;
mod version;

pub use cuda::{CudaRuntime, Gpu};
pub use device::{DeviceRuntime, Event};
pub use engine::NcclWork;
pub use group::{NcclGroup, NcclOptions, WeakNcclGroup};
pub use library::NcclLibrary;
pub use meeting::{NcclMeeting, UniqueId};
pub use version::NcclVersion;
