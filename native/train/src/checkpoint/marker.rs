//! What makes a checkpoint whole: the contents of `COMMITTED`.

use flambeau_collective::ProcessGroup;
use flambeau_data::Store;
use serde::{Deserialize, Serialize};

use super::files::{
    BEST, FORMAT, MARKER, WEIGHTS, checkpoints_directory, file_in, read_if_there, step_directory,
    to_json,
};
use crate::error::Cause;

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) sha256: String,
}

/// The contents of `COMMITTED`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Marker {
    pub(super) format: u32,
    pub(super) parts: Vec<Part>,
    /// What to go on from where this one is damaged; none for a training's first.
    #[serde(default)]
    pub(super) before: Option<Predecessor>,
}

/// Another checkpoint of the work directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Predecessor {
    pub(super) attempt: String,
    pub(super) step: u64,
}

impl Predecessor {
    /// The checkpoint of a URI; none for one outside the attempts of this work directory.
    pub(super) fn at(uri: &str, work_dir: &str) -> Option<Predecessor> {
        let attempts = format!("{}/attempts/", work_dir.trim_end_matches('/'));
        let mut parts = uri.strip_prefix(&attempts)?.split('/');
        let (attempt, _, step) = (parts.next()?, parts.next()?, parts.next()?);
        let found = Predecessor {
            attempt: attempt.into(),
            step: step.parse().ok()?,
        };
        (found.uri(work_dir) == uri).then_some(found)
    }

    pub(super) fn uri(&self, work_dir: &str) -> String {
        step_directory(&checkpoints_directory(work_dir, &self.attempt), self.step)
    }
}

impl Marker {
    /// The marker of a checkpoint, or what is wrong with it: rank 0 reads it and tells all ranks.
    pub(super) fn agreed(
        store: &Store,
        group: &ProcessGroup,
        uri: &str,
    ) -> Result<Result<Marker, String>, Cause> {
        let mut message = vec![];
        if group.rank() == 0 {
            let marker = match read_if_there(store, uri, MARKER)? {
                None => Err(unfinished()),
                Some(bytes) => Marker::parse(&bytes),
            };
            message = to_json(&marker);
        }
        serde_json::from_slice(&group.broadcast_bytes(&message, 0)?)
            .map_err(|error| Cause::Version(error.to_string()))
    }

    /// Reads a marker, or says what is wrong with it. A name of a part or an attempt that leads elsewhere is refused.
    pub(super) fn parse(bytes: &[u8]) -> Result<Marker, String> {
        let marker: Marker =
            serde_json::from_slice(bytes).map_err(|error| format!("{MARKER}: {error}"))?;
        if marker.format != FORMAT {
            return Err(format!(
                "its format is {}, this version reads {FORMAT}",
                marker.format
            ));
        }
        for Part { name, .. } in &marker.parts {
            let file = [BEST, WEIGHTS]
                .iter()
                .find_map(|directory| file_in(directory, name));
            if !is_plain(file.unwrap_or(name)) {
                return Err(format!(
                    "{MARKER} lists {name:?}, which is not the plain name of a file in it"
                ));
            }
        }
        match &marker.before {
            Some(before) if !is_plain(&before.attempt) => Err(format!(
                "{MARKER} names the attempt {:?}, which is not a plain name",
                before.attempt
            )),
            _ => Ok(marker),
        }
    }
}

pub(super) fn unfinished() -> String {
    format!("it has no {MARKER} marker, so it was never finished")
}

/// Whether a name is one of a file in a directory, on any store: no path, nothing above, nothing that a URI escapes.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}
