//! A libnccl for tests on machines without a GPU.
//!
//! The shared library has the C functions of NCCL that Flambeau binds. It carries collectives out for real, between threads or
//! processes, on memory of the host and on streams that are threads ([`HostStream`]). Like NCCL's, its communicators are
//! non-blocking, and it refuses what NCCL refuses: a config without the magic number, and a call on a communicator that is in
//! progress. Environment variables have it misbehave ([`control`]).

#[cfg(not(target_os = "linux"))]
compile_error!("the stand-in shares memory as Linux does");

mod api;
mod arithmetic;
mod communicator;
pub mod control;
mod runtime;
mod stream;
mod world;

pub use runtime::{HostRuntime, buffer, framework_stream};
pub use stream::{HostEvent, HostStream};
