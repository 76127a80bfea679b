//! libtorch programs as Flambeau's models: what trains and scores them without Python.
//!
//! - [`Program`]: what computes outputs, and the tensors that it computes with: [`ScriptProgram`] is a TorchScript
//!   archive, [`exported`] the graphs of `torch.export`.
//! - [`build`]: the program of a job with its loss, optimizer and metrics, as the training loop's model.
//! - [`check_job`]: what is wrong with a job's program, before any worker starts.
//! - [`Scorer`]: a program over rows in host memory.
//!
//! Semantics are those of the Python package: the same losses, denominators, metrics and seeds, so that both runtimes
//! give the same numbers.

mod error;
pub mod exported;
mod program;

pub use error::TorchError;
pub use program::{NamedTensor, Outputs, Program};
