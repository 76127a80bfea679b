//! What a training has come to: the history, the sums of the running epoch and the scale of the loss, which checkpoints keep, and
//! in the end the result.

pub(crate) mod bottleneck;
pub(crate) mod history;
pub(crate) mod resources;
pub(crate) mod result;
pub(crate) mod scaler;
pub(crate) mod sums;
