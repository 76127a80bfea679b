//! What may go wrong.

use tch::TchError;

/// Why a program could not be loaded, run, trained or saved.
#[derive(Debug, thiserror::Error)]
pub enum TorchError {
    /// The job asks for what cannot be: an unknown option, a program that cannot be trained.
    #[error("{0}")]
    Param(String),
    /// The rows are not what the program, the loss or a metric takes.
    #[error("{0}")]
    Data(String),
    /// libtorch failed; its own message, without its stack of C++ calls.
    #[error("{0}")]
    Torch(String),
    /// A file could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] flambeau_data::DataError),
}

impl TorchError {
    /// libtorch's error, from the text of its exception.
    pub(crate) fn of_exception(text: &str) -> TorchError {
        TorchError::Torch(without_backtrace(text))
    }

    /// Whether main memory did not suffice. libtorch tells it in the text alone, in another one on each system.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        const TEXTS: [&str; 3] = ["DefaultCPUAllocator", "not enough memory", "bad_alloc"];
        matches!(self, TorchError::Torch(said) if TEXTS.iter().any(|text| said.contains(text)))
    }
}

impl From<TchError> for TorchError {
    fn from(error: TchError) -> Self {
        match error {
            TchError::Torch(text) => TorchError::of_exception(&text),
            other => TorchError::of_exception(&other.to_string()),
        }
    }
}

/// The message alone: torch appends the stack of C++ calls, one frame a line, after a line that announces it.
fn without_backtrace(text: &str) -> String {
    let is_frame =
        |line: &str| line.starts_with("Exception raised from ") || line.starts_with("frame #");
    let lines: Vec<&str> = text.lines().take_while(|line| !is_frame(line)).collect();
    lines.join("\n").trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_of_calls_is_cut_off() {
        let text = "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x1)\nException raised from meta at x.cpp:1 (most \
                    recent call first):\nframe #0: c10::Error::Error(...)\n";
        assert_eq!(
            TorchError::of_exception(text).to_string(),
            "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x1)"
        );
    }
}
