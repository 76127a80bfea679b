//! What can go wrong in a training, and who is to blame.

use std::fmt;
use std::sync::Arc;

use flambeau_collective::CollectiveError;
use flambeau_data::DataError;

/// An error of a model's own, such as a Python exception. The loop keeps it whole as the cause of its own error.
pub type ModelError = Box<dyn std::error::Error + Send + Sync>;

/// An error of a hook's own, such as the exception of a callback, kept whole like a model's.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

/// What a failed reduction gives: shared, since the first failure is what every later call reports.
pub type ReduceError = Arc<CollectiveError>;

/// Why a job is refused.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The text is not JSON, or a field outside the params is missing, unknown or of another type.
    #[error("the training job cannot be read: {0}")]
    Malformed(#[source] serde_json::Error),
    /// The tensors make no sense.
    #[error("data.spec: {0}")]
    Spec(#[source] DataError),
    /// A param that does not exist.
    #[error("there is no param {param} (given as {value}); the params are {allowed}")]
    Unknown {
        /// The name given.
        param: String,
        /// The value given.
        value: String,
        /// The names that exist.
        allowed: String,
    },
    /// A value that is not allowed, by itself or with the others.
    #[error("{param} is {value}, but must be {allowed}")]
    Invalid {
        /// The param or field.
        param: String,
        /// The value given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
}

impl JobError {
    /// [`JobError::Invalid`] of a param or field that is `value`.
    pub(crate) fn invalid(
        param: impl Into<String>,
        value: impl ToString,
        allowed: impl Into<String>,
    ) -> JobError {
        JobError::Invalid {
            param: param.into(),
            value: value.to_string(),
            allowed: allowed.into(),
        }
    }
}

/// What sort of error ended a training; front ends map these to their own classes and decide on restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The job, or a checkpoint that does not fit it.
    Job,
    /// The rows, or a file that is not there or not what it should be.
    Data,
    /// The store: it throttled, timed out or could not be reached. Another attempt may go better.
    Store,
    /// Communication between ranks: lost, slow or aborted peers.
    Collective,
    /// The model, or a hook: a user's exception.
    Model,
    /// The loss is not a finite number, or its gradients are not.
    Diverged,
    /// Cancelled by the driver or interrupted.
    Cancelled,
    /// Replicas are not bitwise equal.
    Replicas,
    /// A defect: ranks that ask each other for different things, batches out of order, a panic.
    Internal,
}

impl ErrorKind {
    /// What it is called where it is told to a launcher and to the supervisor.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Job => "job",
            ErrorKind::Data => "data",
            ErrorKind::Store => "store",
            ErrorKind::Collective => "collective",
            ErrorKind::Model => "model",
            ErrorKind::Diverged => "diverged",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Replicas => "replicas",
            ErrorKind::Internal => "internal",
        }
    }
}

/// The cause of a [`TrainError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The job does not fit the data, the group or the model.
    #[error(transparent)]
    Job(#[from] JobError),
    /// Rows or the store.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Communication.
    #[error(transparent)]
    Collective(Arc<CollectiveError>),
    /// The model's own error.
    #[error("{0}")]
    Model(#[source] ModelError),
    /// A hook's own error.
    #[error("{0}")]
    Hook(#[source] HookError),
    /// TensorBoard's files cannot be written, as is found before the first step.
    #[error("tensorBoardDir {directory} cannot be written: {source}")]
    TensorBoard {
        /// The directory.
        directory: String,
        /// The store's error. Boxed, since results are rarely errors.
        source: Box<DataError>,
    },
    /// The loss of the step, over all ranks, is NaN or infinite. All ranks report the same step.
    #[error(
        "the loss is {loss} at this step; a smaller learningRate, gradientClipNorm or scaled features may help{}",
        if *.in_float16 { ", or precision bf16: float16 ends at 65504" } else { "" }
    )]
    Diverged {
        /// The loss.
        loss: f64,
        /// Whether precision is fp16.
        in_float16: bool,
    },
    /// Gradients overflow float16, or are no numbers, however small the scale of the loss. All ranks report the same
    /// step.
    #[error(
        "the gradients are not finite at this step, even with the loss scaled by {scale}; precision bf16 or float32, \
         a smaller learningRate or scaled features may help"
    )]
    Overflow {
        /// The loss scale.
        scale: f64,
    },
    /// Cancelled; all ranks stopped after the same step.
    #[error("training was cancelled")]
    Cancelled,
    /// A tensor that is not the same on all ranks.
    #[error("replicas differ: tensor {tensor} has other bits on ranks {ranks:?} than on rank 0")]
    Replicas {
        /// Name of the first tensor that differs.
        tensor: String,
        /// The ranks whose bits are not rank 0's.
        ranks: Vec<usize>,
    },
    /// The parameters or tensors of this rank's model are not those of rank 0's.
    #[error("the model of this rank differs from that of rank 0: {0}")]
    ModelMismatch(String),
    /// Rank 0 runs another version of Flambeau.
    #[error("rank 0 runs another version of Flambeau: {0}")]
    Version(String),
    /// A checkpoint that cannot be gone on from.
    #[error("checkpoint {uri} cannot be used: {reason}")]
    Checkpoint {
        /// The checkpoint's directory.
        uri: String,
        /// Why.
        reason: String,
    },
    /// The reader did not give the batch that the order says comes next.
    #[error("the reader gave another batch than number {0} of the epoch")]
    BatchLost(u64),
    /// A file of this machine, such as the weights before they are stored.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The error.
        source: std::io::Error,
    },
}

impl Cause {
    /// The sort of error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Cause::Job(_) | Cause::Version(_) | Cause::Checkpoint { .. } => ErrorKind::Job,
            Cause::Data(DataError::Interrupted) => ErrorKind::Cancelled,
            Cause::Data(error) if error.is_transient() => ErrorKind::Store,
            Cause::TensorBoard { source, .. } if source.is_transient() => ErrorKind::Store,
            Cause::Data(_) | Cause::TensorBoard { .. } | Cause::Io { .. } => ErrorKind::Data,
            Cause::BatchLost(_) => ErrorKind::Internal,
            Cause::Collective(source) => match &**source {
                CollectiveError::Interrupted => ErrorKind::Cancelled,
                CollectiveError::Terms { .. } | CollectiveError::InvalidArgument { .. } => {
                    ErrorKind::Job
                }
                CollectiveError::Mismatch { .. } => ErrorKind::Internal,
                _ => ErrorKind::Collective,
            },
            Cause::Model(_) | Cause::Hook(_) | Cause::ModelMismatch(_) => ErrorKind::Model,
            Cause::Diverged { .. } | Cause::Overflow { .. } => ErrorKind::Diverged,
            Cause::Cancelled => ErrorKind::Cancelled,
            Cause::Replicas { .. } => ErrorKind::Replicas,
        }
    }
}

impl Cause {
    /// Whether every rank finds this by itself, at the same place: from the job, the manifest and the parameters that
    /// all have alike, or from reduced values.
    pub(crate) fn is_common(&self) -> bool {
        matches!(
            self,
            Cause::Job(_)
                | Cause::Diverged { .. }
                | Cause::Overflow { .. }
                | Cause::Cancelled
                | Cause::Replicas { .. }
        )
    }
}

impl From<CollectiveError> for Cause {
    fn from(source: CollectiveError) -> Self {
        Cause::Collective(Arc::new(source))
    }
}

impl From<Arc<CollectiveError>> for Cause {
    fn from(source: Arc<CollectiveError>) -> Self {
        Cause::Collective(source)
    }
}

/// Why a training ended early, on one rank.
#[derive(Debug)]
pub struct TrainError {
    /// The rank that reports this.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// The epoch it was in, counted from 0; none before the first.
    pub epoch: Option<u64>,
    /// The optimizer step it was in, counted from 0 over all epochs; none before the first.
    pub step: Option<u64>,
    /// What went wrong. Boxed, since errors are rare and results are not.
    pub cause: Box<Cause>,
}

impl TrainError {
    /// The sort of error.
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind()
    }

    /// Whether the error began on this rank. False where this rank only learnt of another's failure: an abort or a
    /// lost peer.
    pub fn is_cause(&self) -> bool {
        !matches!(&*self.cause, Cause::Collective(source)
            if matches!(**source, CollectiveError::Aborted { .. } | CollectiveError::PeerLost { .. }))
    }
}

impl fmt::Display for TrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} on {}", self.rank, self.host)?;
        if let Some(epoch) = self.epoch {
            write!(f, ", epoch {epoch}")?;
        }
        if let Some(step) = self.step {
            write!(f, ", step {step}")?;
        }
        write!(f, ": {}", self.cause)
    }
}

impl std::error::Error for TrainError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.cause)
    }
}

/// An error's message followed by those of its causes that it doesn't already quote.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let below = error.to_string();
        if !text.contains(&below) {
            text = format!("{text}: {below}");
        }
        cause = error.source();
    }
    text
}
