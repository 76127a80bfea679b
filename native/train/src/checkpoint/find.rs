//! Which checkpoints there are, whether they are whole, and what lies in them.

use flambeau_data::{DataError, Store};
use serde::{Deserialize, Serialize};

use super::files::{
    MARKER, SHARED, STATE, WEIGHTS, WEIGHTS_FILE, checkpoints_directory, file_in, read_if_there,
    step_directory,
};
use super::marker::{Marker, Part, unfinished};
use super::state::State;
use crate::record::history::History;
use crate::record::result::StoredFile;

/// A whole checkpoint in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointInfo {
    /// Its directory; what [`Attempt::resume`](crate::Attempt::resume) takes.
    pub uri: String,
    /// The attempt that wrote it.
    pub attempt: String,
    /// Optimizer steps taken before it.
    pub step: u64,
}

/// The newest whole checkpoint of some attempts of a job: that with the most steps, of the last attempt named where
/// two have as many. Whole means that its marker is there and every part has its size.
///
/// # Errors
///
/// What the store says. A work directory or an attempt without checkpoints is none.
pub fn newest(
    store: &Store,
    work_dir: &str,
    attempts: &[String],
) -> Result<Option<CheckpointInfo>, DataError> {
    let mut found: Vec<CheckpointInfo> = vec![];
    for attempt in attempts {
        found.extend(finished(store, work_dir, attempt)?);
    }
    // Stable, so that a later attempt stays behind an earlier one with as many steps.
    found.sort_by_key(|info| info.step);
    while let Some(info) = found.pop() {
        if objection(store, &info.uri)?.is_none() {
            return Ok(Some(info));
        }
    }
    Ok(None)
}

/// The checkpoints of an attempt that have their marker, those with fewer steps first. Whether they are whole is not looked at.
///
/// # Errors
///
/// What the store says. A work directory or an attempt without checkpoints has none.
pub fn finished(
    store: &Store,
    work_dir: &str,
    attempt: &str,
) -> Result<Vec<CheckpointInfo>, DataError> {
    let directory = checkpoints_directory(work_dir, attempt);
    let mut found = vec![];
    for uri in store.list(&directory)? {
        let mut parts = uri.rsplit('/');
        let (file, step) = (
            parts.next(),
            parts.next().and_then(|name| name.parse().ok()),
        );
        if let (Some(MARKER), Some(step)) = (file, step) {
            found.push(CheckpointInfo {
                uri: step_directory(&directory, step),
                attempt: attempt.into(),
                step,
            });
        }
    }
    found.sort_by_key(|info| info.step);
    Ok(found)
}

/// What keeps a training from starting from the state in a directory; none where a whole checkpoint is there.
///
/// # Errors
///
/// What the store says.
pub fn objection(store: &Store, uri: &str) -> Result<Option<String>, DataError> {
    let uri = uri.trim_end_matches('/');
    let marker = read_if_there(store, uri, MARKER)?;
    if marker.is_none() && store.size(&format!("{uri}/{SHARED}"))?.is_none() {
        return Ok(Some("there is none".into()));
    }
    lack(store, uri, marker.as_deref())
}

/// What lies in the directory of a checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointContents {
    /// Why nothing goes on from it; none where it is whole: its marker is there and every part has its size.
    pub lack: Option<String>,
    /// Its files by their names in it, with their sizes in bytes.
    pub files: Vec<(String, u64)>,
    /// Where training was; none where the file that says so is missing or cannot be read.
    pub state: Option<CheckpointState>,
    /// The attempt and the steps of the checkpoint before it; none for a training's first.
    pub before: Option<(String, u64)>,
}

/// Where a training was at a checkpoint, and what it had come to.
#[derive(Clone, Debug)]
pub struct CheckpointState {
    /// The version of Flambeau that wrote it.
    pub version: String,
    /// The number of ranks that wrote it.
    pub world_size: usize,
    /// The epoch, counted from 0, that training goes on with from here.
    pub epoch: u64,
    /// The next batch of the epoch, counted from 0.
    pub batch: u64,
    /// Rows of the epoch so far.
    pub num_rows: u64,
    /// Rows of an epoch.
    pub rows_per_epoch: u64,
    /// Optimizer steps taken before it.
    pub step: u64,
    /// Losses and metrics of the epochs before it.
    pub history: History,
}

/// What lies in a directory; none where it has no file of a checkpoint.
///
/// # Errors
///
/// What the store says.
pub fn describe(store: &Store, uri: &str) -> Result<Option<CheckpointContents>, DataError> {
    let uri = uri.trim_end_matches('/');
    let marker = read_if_there(store, uri, MARKER)?;
    let state = read_if_there(store, uri, STATE)?;
    if marker.is_none() && state.is_none() && store.size(&format!("{uri}/{SHARED}"))?.is_none() {
        return Ok(None);
    }
    let mut lack = lack(store, uri, marker.as_deref())?;
    let state = match state.map(|bytes| serde_json::from_slice::<State>(&bytes)) {
        Some(Ok(state)) => Some(state),
        Some(Err(error)) => {
            lack.get_or_insert_with(|| format!("{STATE}: {error}"));
            None
        }
        None => None,
    };
    let mut files = vec![];
    for file in store.list(uri)? {
        // One that a running training removes meanwhile is none of it any more.
        if let (Some(name), Some(size)) = (file.strip_prefix(uri), store.size(&file)?) {
            files.push((name.trim_start_matches('/').to_owned(), size));
        }
    }
    let marker = marker.and_then(|bytes| Marker::parse(&bytes).ok());
    Ok(Some(CheckpointContents {
        lack,
        files,
        state: state.map(|state| CheckpointState {
            version: state.version,
            world_size: state.world_size,
            epoch: state.position.epoch,
            batch: state.position.batch,
            num_rows: state.position.num_rows,
            rows_per_epoch: state.invariants.num_rows,
            step: state.position.step,
            history: state.history,
        }),
        before: marker
            .and_then(|marker| marker.before)
            .map(|before| (before.attempt, before.step)),
    }))
}

/// The epoch, counted from 0, that training goes on with from a checkpoint; none where its state cannot be told.
///
/// # Errors
///
/// What the store says.
pub fn epoch(store: &Store, uri: &str) -> Result<Option<u64>, DataError> {
    let state = read_if_there(store, uri, STATE)?;
    let state = state.and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok());
    Ok(state.map(|state| state.position.epoch))
}

/// A checkpoint that has the weights as a model reads them.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptCheckpoint {
    /// Its directory.
    pub uri: String,
    /// The epoch, counted from 0, that training goes on with from here.
    pub epoch: u64,
    /// Optimizer steps taken before it.
    pub step: u64,
    /// The file with the weights.
    pub weights: StoredFile,
    /// Losses and metrics of the epochs before it.
    pub history: History,
}

/// Describes a checkpoint that has weights; none for one without, and for one that is damaged.
///
/// # Errors
///
/// What the store says.
pub fn with_weights(store: &Store, uri: &str) -> Result<Option<KeptCheckpoint>, DataError> {
    let (Some(marker), Some(state)) = (
        read_if_there(store, uri, MARKER)?,
        read_if_there(store, uri, STATE)?,
    ) else {
        return Ok(None);
    };
    let (Ok(marker), Ok(state)) = (
        Marker::parse(&marker),
        serde_json::from_slice::<State>(&state),
    ) else {
        return Ok(None);
    };
    let listed = marker
        .parts
        .into_iter()
        .find(|part| file_in(WEIGHTS, &part.name) == Some(WEIGHTS_FILE));
    Ok(listed.map(|part| KeptCheckpoint {
        uri: uri.to_owned(),
        epoch: state.position.epoch,
        step: state.position.step,
        weights: StoredFile {
            uri: format!("{uri}/{}", part.name),
            name: WEIGHTS_FILE.into(),
            size: part.size,
            sha256: part.sha256,
        },
        history: state.history,
    }))
}

/// What a marker, or that there is none, says against a checkpoint, and what its parts do; none where it is whole.
fn lack(store: &Store, uri: &str, marker: Option<&[u8]>) -> Result<Option<String>, DataError> {
    let Some(marker) = marker else {
        return Ok(Some(unfinished()));
    };
    let marker = match Marker::parse(marker) {
        Ok(marker) => marker,
        Err(reason) => return Ok(Some(reason)),
    };
    for Part { name, size, .. } in &marker.parts {
        match store.size(&format!("{uri}/{name}"))? {
            Some(found) if found == *size => {}
            Some(found) => {
                return Ok(Some(format!("its part {name} has {found} bytes of {size}")));
            }
            None => return Ok(Some(format!("its part {name} is gone"))),
        }
    }
    Ok(None)
}
