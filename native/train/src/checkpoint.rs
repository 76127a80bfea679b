//! Checkpoints: how they are written, found and gone on from.
//!
//! A checkpoint is a directory `<workDir>/attempts/<id>/checkpoints/<step>/` with `shared.bin` (the model and the
//! optimizer), one `rank-<rank>.bin` for each rank (random generators), `compression-<rank>.bin` too where the compression
//! of gradients carries something from step to step, the files of `best/` (the weights of the best epoch) where those are
//! kept, those of `weights/` (the weights as a model reads them) with `keepCheckpoints`, `state.json` (where training is, the sums of the running epoch, the history, the loss scale), and, written last,
//! `COMMITTED`, which lists all parts with size and SHA-256.
//! Without `COMMITTED` there is no checkpoint.

use bytes::Bytes;
use flambeau_collective::ProcessGroup;
use flambeau_data::{DataError, Store};
use serde::{Deserialize, Serialize};

use crate::compression::CompressionState;
use crate::digest;
use crate::error::Cause;
use crate::history::{History, Traffic};
use crate::params::GradientCompression;
use crate::scaler::LossScaler;
use crate::weights::LocalWeights;

const FORMAT: u32 = 1;
const MARKER: &str = "COMMITTED";
const SHARED: &str = "shared.bin";
const STATE: &str = "state.json";
const BEST: &str = "best";
const WEIGHTS: &str = "weights";

/// How many whole checkpoints an attempt keeps at least: the newest, and one more in case the newest cannot be read.
const KEPT: usize = 2;

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
        let directory = format!(
            "{}/attempts/{attempt}/checkpoints",
            work_dir.trim_end_matches('/')
        );
        for uri in store.list(&directory)? {
            let mut parts = uri.rsplit('/');
            let (file, step) = (
                parts.next(),
                parts.next().and_then(|name| name.parse().ok()),
            );
            if let (Some(MARKER), Some(step)) = (file, step) {
                found.push(CheckpointInfo {
                    uri: step_directory(&directory, step),
                    attempt: attempt.clone(),
                    step,
                });
            }
        }
    }
    // Stable, so that a later attempt stays behind an earlier one with as many steps.
    found.sort_by_key(|info| info.step);
    while let Some(info) = found.pop() {
        if is_whole(store, &info.uri)? {
            return Ok(Some(info));
        }
    }
    Ok(None)
}

fn is_whole(store: &Store, uri: &str) -> Result<bool, DataError> {
    let Ok(marker) = serde_json::from_slice::<Marker>(&store.get(&format!("{uri}/{MARKER}"))?)
    else {
        return Ok(false);
    };
    for part in &marker.parts {
        if store.size(&format!("{uri}/{}", part.name))? != Some(part.size) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn step_directory(directory: &str, step: u64) -> String {
    format!("{directory}/{step:010}")
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Part {
    name: String,
    size: u64,
    sha256: String,
}

/// The contents of `COMMITTED`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Marker {
    format: u32,
    parts: Vec<Part>,
}

/// What of a job, its data and its model fixes the meaning of a position and its sums: a resume keeps all of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fixed {
    pub(crate) num_rows: u64,
    pub(crate) global_batch: usize,
    pub(crate) data_lanes: usize,
    pub(crate) seed: i64,
    pub(crate) shuffle: bool,
    pub(crate) shuffle_window: usize,
    pub(crate) drop_last: bool,
    pub(crate) gradient_accumulation_steps: u32,
    pub(crate) num_metric_sums: usize,
    #[serde(default)]
    pub(crate) gradient_compression: GradientCompression,
}

impl Fixed {
    /// The first field in which another differs: its name, this value and that one.
    fn difference(&self, other: &Fixed) -> Option<String> {
        let of = |fixed| match serde_json::to_value(fixed) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => unreachable!("a struct is an object"),
        };
        let (ours, theirs) = (of(self), of(other));
        ours.iter()
            .find(|(name, value)| theirs.get(*name) != Some(value))
            .map(|(name, value)| {
                format!(
                    "{name} was {value} and is now {}",
                    theirs.get(name).unwrap_or(&().into())
                )
            })
    }
}

/// Where training is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Position {
    /// The epoch.
    pub(crate) epoch: u64,
    /// The next batch of the epoch.
    pub(crate) batch: u64,
    /// Optimizer steps taken since the training began.
    pub(crate) step: u64,
    /// Rows of the epoch so far.
    pub(crate) num_rows: u64,
    /// The gradients sent in the epoch so far.
    #[serde(default)]
    pub(crate) traffic: Traffic,
    /// The bits of the epoch's loss totals so far, which may be beyond what JSON's numbers hold.
    pub(crate) totals: Vec<u64>,
}

/// The contents of `state.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct State {
    pub(crate) format: u32,
    pub(crate) version: String,
    pub(crate) world_size: usize,
    pub(crate) fixed: Fixed,
    pub(crate) position: Position,
    pub(crate) history: History,
    /// With precision fp16.
    pub(crate) scaler: Option<LossScaler>,
}

impl State {
    pub(crate) fn new(
        world_size: usize,
        fixed: Fixed,
        position: Position,
        history: History,
        scaler: Option<LossScaler>,
    ) -> State {
        State {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            world_size,
            fixed,
            position,
            history,
            scaler,
        }
    }
}

/// What a rank gives to a checkpoint beside the state.
pub(crate) struct Contents<'a> {
    /// Model and optimizer; of rank 0.
    pub(crate) shared: Option<Vec<u8>>,
    /// The rank's random generators.
    pub(crate) rank: Vec<u8>,
    /// What the compression of gradients carries, if anything.
    pub(crate) compression: Option<Vec<u8>>,
    /// The weights of the best epoch; of rank 0, where they are kept.
    pub(crate) best: Option<&'a LocalWeights>,
    /// The weights, of rank 0, with `keepCheckpoints`.
    pub(crate) weights: Option<LocalWeights>,
}

/// Writes the checkpoints of an attempt and removes the old ones.
pub(crate) struct CheckpointWriter {
    store: Store,
    directory: String,
    written: Vec<String>,
    kept: usize,
}

impl CheckpointWriter {
    /// A writer for the attempt of this directory, which is to keep so many checkpoints, or more.
    pub(crate) fn new(store: Store, attempt_directory: &str, kept: usize) -> CheckpointWriter {
        CheckpointWriter {
            store,
            directory: format!("{attempt_directory}/checkpoints"),
            written: vec![],
            kept: kept.max(KEPT),
        }
    }

    /// Writes a checkpoint: all ranks call it, each with its own contents. Returns a warning where an old checkpoint
    /// could not be removed.
    ///
    /// # Errors
    ///
    /// What the store or the group says; the checkpoint then does not exist.
    pub(crate) fn write(
        &mut self,
        group: &ProcessGroup,
        state: &State,
        contents: Contents<'_>,
    ) -> Result<Option<String>, Cause> {
        let uri = step_directory(&self.directory, state.position.step);
        let mut parts = vec![self.put(&uri, &rank_part(group.rank()), contents.rank)?];
        if let Some(state) = contents.compression {
            parts.push(self.put(&uri, &compression_part(group.rank()), state)?);
        }
        for (name, weights) in [(BEST, contents.best), (WEIGHTS, contents.weights.as_ref())] {
            let Some(weights) = weights else { continue };
            let stored = weights.store(&self.store, &format!("{uri}/{name}"))?;
            parts.extend(stored.files.into_iter().map(|file| Part {
                name: format!("{name}/{}", file.name),
                size: file.size,
                sha256: file.sha256,
            }));
        }
        if let Some(shared) = contents.shared {
            parts.push(self.put(&uri, SHARED, shared)?);
            parts.push(self.put(&uri, STATE, to_json(state))?);
        }
        // Once all ranks are here, all parts are written.
        let gathered = group.all_gather_bytes(&to_json(&parts))?;
        if group.rank() != 0 {
            return Ok(None);
        }
        let mut marker = Marker {
            format: FORMAT,
            parts: vec![],
        };
        for parts in &gathered {
            let parts: Vec<Part> =
                serde_json::from_slice(parts).map_err(|error| Cause::Version(error.to_string()))?;
            marker.parts.extend(parts);
        }
        self.store
            .put(&format!("{uri}/{MARKER}"), to_json(&marker).into())?;
        self.written.push(uri);
        Ok(self.remove_old())
    }

    fn put(&self, uri: &str, name: &str, bytes: Vec<u8>) -> Result<Part, DataError> {
        let part = Part {
            name: name.into(),
            size: bytes.len() as u64,
            sha256: digest::of_bytes(&bytes),
        };
        self.store.put(&format!("{uri}/{name}"), bytes.into())?;
        Ok(part)
    }

    fn remove_old(&mut self) -> Option<String> {
        let mut warning = None;
        while self.written.len() > self.kept {
            let uri = self.written.remove(0);
            // The marker first: what is half removed must not count as whole.
            let removed = self
                .store
                .delete(&format!("{uri}/{MARKER}"))
                .and_then(|()| self.store.delete_prefix(&uri));
            if let Err(error) = removed {
                warning = Some(format!(
                    "the old checkpoint {uri} could not be removed: {error}"
                ));
            }
        }
        warning
    }
}

/// A checkpoint that is read back.
pub(crate) struct Checkpoint {
    pub(crate) state: State,
    pub(crate) shared: Bytes,
    /// This rank's part; none where the checkpoint is from another number of ranks.
    pub(crate) rank_state: Option<Bytes>,
    /// What the compression of gradients carried; none where it carries nothing.
    pub(crate) compression: Option<CompressionState>,
    /// On rank 0: the weights of the best epoch, where they were kept.
    pub(crate) best: Option<LocalWeights>,
}

impl Checkpoint {
    /// Reads a checkpoint on all ranks and checks it against what must not have changed.
    ///
    /// # Errors
    ///
    /// [`Cause::Checkpoint`] for one that is not whole, damaged, or of another job.
    pub(crate) fn read(
        store: &Store,
        group: &ProcessGroup,
        uri: &str,
        fixed: &Fixed,
    ) -> Result<Checkpoint, Cause> {
        let uri = uri.trim_end_matches('/');
        let refuse = |reason: String| Cause::Checkpoint {
            uri: uri.into(),
            reason,
        };
        let marker_uri = format!("{uri}/{MARKER}");
        if store.size(&marker_uri)?.is_none() {
            return Err(refuse(format!(
                "it has no {MARKER} marker, so it was never finished"
            )));
        }
        let marker: Marker = serde_json::from_slice(&store.get(&marker_uri)?)
            .map_err(|error| refuse(format!("{MARKER}: {error}")))?;
        if marker.format != FORMAT {
            return Err(refuse(format!(
                "its format is {}, this version reads {FORMAT}",
                marker.format
            )));
        }
        let part = |name: &str| -> Result<Bytes, Cause> {
            let listed = marker.parts.iter().find(|part| part.name == name);
            let listed = listed.ok_or_else(|| refuse(format!("it has no part {name}")))?;
            let bytes = store.get(&format!("{uri}/{name}"))?;
            if digest::of_bytes(&bytes) != listed.sha256 {
                return Err(refuse(format!(
                    "its part {name} is damaged: its SHA-256 is not the one written"
                )));
            }
            Ok(bytes)
        };
        let state: State = serde_json::from_slice(&part(STATE)?)
            .map_err(|error| refuse(format!("{STATE}: {error}")))?;
        if let Some(difference) = state.fixed.difference(fixed) {
            return Err(refuse(format!("the job has changed: {difference}")));
        }
        let same_world = state.world_size == group.world_size();
        let rank_state = if same_world {
            Some(part(&rank_part(group.rank()))?)
        } else {
            None
        };
        let compression_of = |rank: usize| -> Result<CompressionState, Cause> {
            let name = compression_part(rank);
            CompressionState::from_bytes(&part(&name)?)
                .ok_or_else(|| refuse(format!("its part {name} is damaged")))
        };
        let compression = match fixed.gradient_compression.has_state() {
            false => None,
            true => Some(CompressionState::dealt(
                group.rank(),
                group.world_size(),
                state.world_size,
                compression_of,
            )?),
        };
        let kept = |part: &Part| Some(part.name.strip_prefix(BEST)?.strip_prefix('/')?.to_string());
        let mut best = vec![];
        for listed in marker.parts.iter().filter(|_| group.rank() == 0) {
            if let Some(file) = kept(listed) {
                best.push((file, part(&listed.name)?));
            }
        }
        let best = (!best.is_empty()).then(|| LocalWeights::from_files(best));
        Ok(Checkpoint {
            best: best.transpose()?,
            compression,
            shared: part(SHARED)?,
            state,
            rank_state,
        })
    }
}

fn compression_part(rank: usize) -> String {
    format!("compression-{rank}.bin")
}

fn rank_part(rank: usize) -> String {
    format!("rank-{rank}.bin")
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain structs are JSON")
}
