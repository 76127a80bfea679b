//! Why a question has no answer.

use flambeau_data::DataError;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// The store, or what lies in it.
    #[error(transparent)]
    Data(#[from] DataError),
    /// What the user asked for does not go with what is there; the text says what to do.
    #[error("{0}")]
    Refused(String),
    /// A run that another driver trains now, as the text says.
    #[error("{0}")]
    RunInUse(String),
    /// A question that is none.
    #[error("the question cannot be read: {0}")]
    Malformed(#[source] serde_json::Error),
}
