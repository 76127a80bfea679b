//! Checkpoints: how they are written, found and gone on from.
//!
//! A checkpoint is a directory `<workDir>/attempts/<id>/checkpoints/<step>/` with `shared.bin` (the model and the
//! optimizer), one `rank-<rank>.bin` for each rank (random generators), `compression-<rank>.bin` too where the compression
//! of gradients carries something from step to step, the files of `best/` (the weights of the best epoch) where those are
//! kept, `average.bin` (the averaged weights) with `emaDecay`, those of `weights/` (the weights as a model reads them) with `keepCheckpoints`, `state.json` (where training is, the
//! sums of the running epoch, the history, the loss scale), and, written last, `COMMITTED`, which lists all parts with size
//! and SHA-256 and names the checkpoint before this one.
//! Without `COMMITTED` there is no checkpoint.

mod files;
mod find;
mod marker;
mod read;
mod state;
pub(crate) mod weights;
mod write;

pub use find::{
    CheckpointContents, CheckpointInfo, CheckpointState, KeptCheckpoint, describe, epoch, finished,
    newest, objection, with_weights,
};
pub(crate) use read::{Checkpoint, read_shared};
pub(crate) use state::{Invariants, Position, State};
pub(crate) use write::{CheckpointWriter, Contents};
