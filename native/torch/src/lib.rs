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

mod autocast;
mod border;
mod buckets;
mod classes;
mod cuda;
mod describe;
mod device;
mod error;
pub mod exported;
mod gradients;
mod job;
mod judge;
mod load;
mod loss;
mod metrics;
mod model;
mod optimizer;
mod options;
mod output;
mod pieces;
mod program;
mod purity;
mod random;
mod rows;
mod safetensors;
mod scores;
mod scoring;
mod script;
mod state;
mod tensor;
mod weights;

pub use classes::{ClassField, ClassOutput};
pub use cuda::{check_cuda, load_cuda};
pub use describe::{ProgramDescription, TensorDescription, describe};
pub use error::TorchError;
pub use job::{JobCheck, build, check_job};
pub use judge::{Judge, JudgeSpec};
pub use load::check_pure;
pub use model::TorchModel;
pub use output::OutputTensor;
pub use program::{NamedTensor, Outputs, Program};
pub use scores::Scores;
pub use scoring::{InputTensor, Scorer, ScorerSpec, set_num_threads};
pub use script::ScriptProgram;
