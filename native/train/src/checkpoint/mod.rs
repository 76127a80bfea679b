//! Checkpoints: how they are written, found and gone on from.
//!
//! A checkpoint is a directory `<workDir>/attempts/<id>/checkpoints/<step>/` with `shared.bin` (the model and the
//! optimizer), one `rank-<rank>.bin` for each rank (random generators), `compression-<rank>.bin` too where the compression
//! of gradients carries something from step to step, the files of `best/` (the weights of the best epoch) where those are
//! kept, `average.bin` (the averaged weights) with `emaDecay`, those of `weights/` (the weights as a model reads them) with `keepCheckpoints`, `state.json` (where training is, the
//! sums of the running epoch, the history, the loss scale), and, written last, `COMMITTED`, which lists all parts with size
//! and SHA-256 and names the checkpoint before this one.
//! Without `COMMITTED` there is no checkpoint.

pub(crate) mod weights;

use std::mem;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flambeau_collective::ProcessGroup;
use flambeau_data::{DataError, Store};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checkpoint::weights::LocalWeights;
use crate::digest;
use crate::error::{Cause, error_chain};
use crate::gradients::compression::CompressionState;
use crate::job::Attempt;
use crate::job::params::GradientCompression;
use crate::record::history::{History, Traffic};
use crate::record::result::StoredFile;
use crate::record::scaler::LossScaler;
use crate::record::sums::{LossTotals, StepMean};

/// Of what lies in a checkpoint, and of the order of the rows that it was written in the middle of.
const FORMAT: u32 = 3;
const MARKER: &str = "COMMITTED";
const SHARED: &str = "shared.bin";
const STATE: &str = "state.json";
const AVERAGE: &str = "average.bin";
const BEST: &str = "best";
const WEIGHTS: &str = "weights";
/// The file of `WEIGHTS` that models of both languages read.
const WEIGHTS_FILE: &str = "weights.safetensors";

/// How many whole checkpoints an attempt keeps at least: the newest, and one more in case the newest cannot be read.
const KEPT: usize = 2;

/// How long the ranks that have written their part go without a word from one that has not. Short beside any time-out of
/// the group's.
const BETWEEN_WORDS: Duration = Duration::from_millis(200);

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
            rows_per_epoch: state.fixed.num_rows,
            step: state.position.step,
            history: state.history,
        }),
        before: marker
            .and_then(|marker| marker.before)
            .map(|before| (before.attempt, before.step)),
    }))
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

fn unfinished() -> String {
    format!("it has no {MARKER} marker, so it was never finished")
}

/// The bytes of a file of a checkpoint; none where it is not there.
fn read_if_there(store: &Store, uri: &str, name: &str) -> Result<Option<Bytes>, DataError> {
    match store.get(&format!("{uri}/{name}")) {
        Err(DataError::NotFound { .. }) => Ok(None),
        bytes => bytes.map(Some),
    }
}

/// A part of a checkpoint, or why it is lost: it is not there, no file, or on a disk that does not give it back when asked
/// again a second later.
fn read_part(store: &Store, uri: &str, name: &str) -> Result<Result<Bytes, String>, DataError> {
    const LOST: [i32; 5] = [
        libc::EISDIR,
        libc::EIO,
        libc::ENODATA,
        libc::EBADMSG,
        libc::EUCLEAN,
    ];
    let uri = format!("{uri}/{name}");
    let is_lost = |error: &DataError| match error {
        DataError::NotFound { .. } => true,
        DataError::Io { source, .. } => source
            .raw_os_error()
            .is_some_and(|code| LOST.contains(&code)),
        _ => false,
    };
    let again = |error: DataError| match &error {
        DataError::Io { .. } => {
            thread::sleep(Duration::from_secs(1));
            store.get(&uri)
        }
        _ => Err(error),
    };
    match store.get(&uri).or_else(again) {
        Err(error) if is_lost(&error) => Ok(Err(error_chain(&error))),
        bytes => Ok(Ok(bytes?)),
    }
}

fn checkpoints_directory(work_dir: &str, attempt: &str) -> String {
    format!(
        "{}/attempts/{attempt}/checkpoints",
        work_dir.trim_end_matches('/')
    )
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
    /// What to go on from where this one is damaged; none for a training's first.
    #[serde(default)]
    before: Option<Predecessor>,
}

/// Another checkpoint of the work directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Predecessor {
    attempt: String,
    step: u64,
}

impl Predecessor {
    /// The checkpoint of a URI; none for one outside the attempts of this work directory.
    fn at(uri: &str, work_dir: &str) -> Option<Predecessor> {
        let attempts = format!("{}/attempts/", work_dir.trim_end_matches('/'));
        let mut parts = uri.strip_prefix(&attempts)?.split('/');
        let (attempt, _, step) = (parts.next()?, parts.next()?, parts.next()?);
        let found = Predecessor {
            attempt: attempt.into(),
            step: step.parse().ok()?,
        };
        (found.uri(work_dir) == uri).then_some(found)
    }

    fn uri(&self, work_dir: &str) -> String {
        step_directory(&checkpoints_directory(work_dir, &self.attempt), self.step)
    }
}

impl Marker {
    /// The marker of a checkpoint, or what is wrong with it: rank 0 reads it and tells all ranks.
    fn agreed(
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
    fn parse(bytes: &[u8]) -> Result<Marker, String> {
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

/// Whether a name is one of a file in a directory, on any store: no path, nothing above, nothing that a URI escapes.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
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
    #[serde(default)]
    pub(crate) ema_decay: Option<f64>,
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
    /// The norms of the gradients in the epoch so far, where they are known.
    #[serde(default)]
    pub(crate) gradient_norm: StepMean,
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

    /// Reads a state and compares it with what must not have changed, or says what is wrong.
    fn parse(bytes: &[u8], fixed: &Fixed) -> Result<State, String> {
        let state: State =
            serde_json::from_slice(bytes).map_err(|error| format!("{STATE}: {error}"))?;
        if let Some(difference) = state.fixed.difference(fixed) {
            return Err(format!("the job has changed: {difference}"));
        }
        let num_totals = LossTotals::new(fixed.num_metric_sums).len();
        if state.world_size == 0 || state.position.totals.len() != num_totals {
            return Err(format!(
                "{STATE}: {} sums of {} ranks make no sense",
                state.position.totals.len(),
                state.world_size
            ));
        }
        let History {
            epochs, best_epoch, ..
        } = &state.history;
        let is_in_order = (0..)
            .zip(epochs)
            .all(|(epoch, record)| record.epoch == epoch);
        let num_epochs = epochs.len() as u64;
        if num_epochs != state.position.epoch || !is_in_order {
            return Err(format!(
                "{STATE}: a history of {num_epochs} epochs does not lead to epoch {}",
                state.position.epoch
            ));
        }
        if let Some(best) = best_epoch
            && *best >= num_epochs
        {
            return Err(format!(
                "{STATE}: epoch {best} cannot be the best of {num_epochs}"
            ));
        }
        if let Some(scaler) = &state.scaler {
            scaler
                .check()
                .map_err(|reason| format!("{STATE}: {reason}"))?;
        }
        Ok(state)
    }
}

/// What a rank gives to a checkpoint beside the state.
pub(crate) struct Contents {
    /// Model and optimizer; of rank 0.
    pub(crate) shared: Option<Vec<u8>>,
    /// The averaged weights; of rank 0, with `emaDecay`.
    pub(crate) average: Option<Vec<u8>>,
    /// The rank's random generators.
    pub(crate) rank: Vec<u8>,
    /// What the compression of gradients carries, if anything.
    pub(crate) compression: Option<Vec<u8>>,
    /// The weights of the best epoch; of rank 0, where they are kept.
    pub(crate) best: Option<Arc<LocalWeights>>,
    /// The weights, of rank 0, with `keepCheckpoints`.
    pub(crate) weights: Option<Arc<LocalWeights>>,
}

impl Contents {
    /// Puts the parts of one rank into the store.
    fn store(
        self,
        store: &Store,
        uri: &str,
        rank: usize,
        state: &State,
    ) -> Result<Vec<Part>, DataError> {
        let put = |name: &str, bytes: Vec<u8>| -> Result<Part, DataError> {
            let part = Part {
                name: name.into(),
                size: bytes.len() as u64,
                sha256: digest::of_bytes(&bytes),
            };
            store.put(&format!("{uri}/{name}"), bytes.into())?;
            Ok(part)
        };
        let mut parts = vec![put(&rank_part(rank), self.rank)?];
        if let Some(state) = self.compression {
            parts.push(put(&compression_part(rank), state)?);
        }
        for (name, weights) in [(BEST, self.best), (WEIGHTS, self.weights)] {
            let Some(weights) = weights else { continue };
            let stored = weights.store(store, &format!("{uri}/{name}"))?;
            parts.extend(stored.files.into_iter().map(|file| Part {
                name: format!("{name}/{}", file.name),
                size: file.size,
                sha256: file.sha256,
            }));
        }
        if let Some(average) = self.average {
            parts.push(put(AVERAGE, average)?);
        }
        if let Some(shared) = self.shared {
            parts.push(put(SHARED, shared)?);
            parts.push(put(STATE, to_json(state))?);
        }
        Ok(parts)
    }
}

/// Writes the checkpoints of an attempt and removes the old ones.
pub(crate) struct CheckpointWriter {
    store: Store,
    attempt: String,
    directory: String,
    written: Vec<String>,
    kept: usize,
    /// What comes before the next one.
    before: Option<Predecessor>,
    /// How long each of a checkpoint's two writes may take: that of the parts, and that of the marker.
    limit: Duration,
    /// A write that took longer, and may still go on.
    stuck: Option<JoinHandle<()>>,
}

impl CheckpointWriter {
    /// A writer for an attempt, which may have gone on from a checkpoint and is to keep so many, or more. It waits for a
    /// store no longer than `limit`, twice a checkpoint.
    pub(crate) fn new(
        store: Store,
        attempt: &Attempt,
        resumed: Option<&str>,
        kept: usize,
        limit: Duration,
    ) -> CheckpointWriter {
        CheckpointWriter {
            store,
            attempt: attempt.id.clone(),
            directory: checkpoints_directory(&attempt.work_dir, &attempt.id),
            written: vec![],
            kept: kept.max(KEPT),
            before: resumed.and_then(|uri| Predecessor::at(uri, &attempt.work_dir)),
            limit,
            stuck: None,
        }
    }

    /// Whether the newest that it has written is that after so many steps.
    pub(crate) fn has(&self, step: u64) -> bool {
        self.written.last() == Some(&step_directory(&self.directory, step))
    }

    /// Writes a checkpoint: all ranks call it, each with its own contents, and it returns once the checkpoint is there or
    /// has failed, at the latest after the writer's limit. However long a store takes, no rank's wait counts into the group's
    /// time-out. A write past the limit is left to itself, and as long as it goes on, further checkpoints fail at once.
    ///
    /// Returns its directory, unless it could not be written, so that there is none; and on rank 0 a warning where that is so,
    /// or where an old one could not be removed.
    ///
    /// # Errors
    ///
    /// What the group says.
    pub(crate) fn write(
        &mut self,
        group: &ProcessGroup,
        state: State,
        contents: Contents,
    ) -> Result<(Option<String>, Option<String>), Cause> {
        let (rank, step) = (group.rank(), state.position.step);
        let uri = step_directory(&self.directory, step);
        let (store, to) = (self.store.clone(), uri.clone());
        let parts = self.together(group, move || {
            contents
                .store(&store, &to, rank, &state)
                .map_err(|error| error_chain(&error))
        })?;
        let failed = parts.as_ref().err().cloned();
        // Once all ranks are here, all parts are written.
        let commit = Commit {
            store: self.store.clone(),
            uri: uri.clone(),
            parts: parts.map(|parts| parts.concat()),
            before: self.before.clone(),
            old: (self.written.len() == self.kept).then(|| self.written[0].clone()),
        };
        let committed = self.together(group, move || match rank {
            0 => commit.run(),
            _ => Ok(None),
        })?;
        match committed {
            Ok(warnings) => {
                if self.written.len() == self.kept {
                    self.written.remove(0);
                }
                self.written.push(uri.clone());
                self.before = Some(Predecessor {
                    attempt: self.attempt.clone(),
                    step,
                });
                Ok((Some(uri), warnings.into_iter().flatten().next()))
            }
            Err(reason) => {
                let warning = (rank == 0).then(|| {
                    let reason = failed.unwrap_or(reason);
                    format!(
                        "the checkpoint after {step} steps could not be written, and training goes on without it: {reason}"
                    )
                });
                Ok((None, warning))
            }
        }
    }

    /// Does on every rank what may take long, and gives what it came to on all of them, or what one of them failed with. A
    /// thread does it, and the ranks exchange a word every [`BETWEEN_WORDS`] until it is done everywhere, or has failed where
    /// it took longer than the limit.
    ///
    /// # Errors
    ///
    /// What the group says. The thread may go on then.
    fn together<T: Serialize + DeserializeOwned + Send + 'static>(
        &mut self,
        group: &ProcessGroup,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<Result<Vec<T>, String>, Cause> {
        let began = Instant::now();
        let (sender, receiver) = mpsc::channel();
        let mut thread = None;
        let mut done = None;
        if self
            .stuck
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
        {
            done = Some(Err("the store has not ended an earlier write".into()));
        } else {
            let spawned = thread::Builder::new()
                .name("flambeau-checkpoint".into())
                // Nobody hears of a write that ends too late.
                .spawn(move || drop(sender.send(work())));
            match spawned {
                Ok(spawned) => thread = Some(spawned),
                Err(error) => done = Some(Err(error.to_string())),
            }
        }
        loop {
            if done.is_none() {
                done = match receiver.recv_timeout(BETWEEN_WORDS) {
                    Ok(result) => Some(result),
                    Err(RecvTimeoutError::Timeout) if began.elapsed() > self.limit => {
                        self.stuck = thread.take();
                        let limit = self.limit;
                        Some(Err(format!(
                            "the store has not ended a write in {limit:.1?}"
                        )))
                    }
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => Some(Err("a panic".into())),
                };
            }
            let told = group.all_gather_bytes(&to_json(&done))?;
            let told: Vec<Option<Result<T, String>>> = told
                .iter()
                .map(|told| serde_json::from_slice(told))
                .collect::<Result<_, _>>()
                .map_err(|error| Cause::Version(error.to_string()))?;
            if let Some(results) = told.into_iter().collect::<Option<Vec<_>>>() {
                let of_rank = |(rank, result): (usize, Result<T, String>)| {
                    result.map_err(|reason| format!("rank {rank}: {reason}"))
                };
                return Ok(results.into_iter().enumerate().map(of_rank).collect());
            }
        }
    }
}

/// What rank 0 does once the ranks have written their parts, or could not.
struct Commit {
    store: Store,
    uri: String,
    parts: Result<Vec<Part>, String>,
    before: Option<Predecessor>,
    /// The checkpoint that goes for it.
    old: Option<String>,
}

impl Commit {
    /// Writes the marker and removes the old checkpoint, about which there may be a warning; where there can be no marker
    /// it removes the parts and says why.
    fn run(self) -> Result<Option<String>, String> {
        let Commit {
            store,
            uri,
            parts,
            before,
            old,
        } = self;
        let committed = parts.and_then(|parts| {
            let marker = Marker {
                format: FORMAT,
                parts,
                before,
            };
            store
                .put(&format!("{uri}/{MARKER}"), to_json(&marker).into())
                .map_err(|error| error_chain(&error))
        });
        if let Err(reason) = committed {
            // Parts without a marker only take room, and the first error is the one to tell.
            let _ = remove(&store, &uri);
            return Err(reason);
        }
        let removed = old.map_or(Ok(()), |old| {
            remove(&store, &old)
                .map_err(|error| format!("the old checkpoint {old} could not be removed: {error}"))
        });
        Ok(removed.err())
    }
}

fn remove(store: &Store, uri: &str) -> Result<(), DataError> {
    // The marker first: what is half removed must not count as whole.
    store.delete(&format!("{uri}/{MARKER}"))?;
    store.delete_prefix(uri)
}

/// A checkpoint that is read back.
pub(crate) struct Checkpoint {
    /// Its directory.
    pub(crate) uri: String,
    pub(crate) state: State,
    pub(crate) shared: Bytes,
    /// This rank's part; none where the checkpoint is from another number of ranks.
    pub(crate) rank_state: Option<Bytes>,
    /// What the compression of gradients carried; none where it carries nothing.
    pub(crate) compression: Option<CompressionState>,
    /// The averaged weights, with `emaDecay`.
    pub(crate) average: Option<Bytes>,
    /// On rank 0: the weights of the best epoch, where they were kept.
    pub(crate) best: Option<LocalWeights>,
    /// Why it is not the one that was asked for, where it is not.
    pub(crate) warning: Option<String>,
}

/// Why a checkpoint was not read.
enum Unread {
    /// A part is not there, not as it was written, or not what it must be.
    Damaged(String),
    Failed(Cause),
}

impl<E: Into<Cause>> From<E> for Unread {
    fn from(cause: E) -> Self {
        Unread::Failed(cause.into())
    }
}

impl Checkpoint {
    /// Reads a checkpoint on all ranks and checks it against what must not have changed. Where a part is damaged, on
    /// whatever rank, all of them take the checkpoint before it. `average_bytes` is the size of the averaged weights, with `emaDecay`.
    ///
    /// # Errors
    ///
    /// [`Cause::Checkpoint`] for one that is not whole, of another job, or damaged with no good one before it.
    pub(crate) fn read(
        store: &Store,
        group: &ProcessGroup,
        attempt: &Attempt,
        uri: &str,
        fixed: &Fixed,
        average_bytes: Option<usize>,
    ) -> Result<Checkpoint, Cause> {
        let mut uri = uri.trim_end_matches('/').to_string();
        // What is wrong with the one that was asked for, and with those before it.
        let mut damaged: Vec<(String, String)> = vec![];
        loop {
            let refuse = |reason: String| {
                let (uri, reason) = damaged.first().cloned().unwrap_or((uri.clone(), reason));
                Cause::Checkpoint { uri, reason }
            };
            let marker = Marker::agreed(store, group, &uri)?.map_err(refuse)?;
            let (checkpoint, damage) =
                match Checkpoint::read_parts(store, group, &uri, &marker, fixed, average_bytes) {
                    Ok(checkpoint) => (Some(checkpoint), String::new()),
                    Err(Unread::Damaged(reason)) => (None, reason),
                    Err(Unread::Failed(cause)) => return Err(cause),
                };
            let told = group.all_gather_bytes(damage.as_bytes())?;
            let damage = told.into_iter().find(|reason| !reason.is_empty());
            if let (Some(checkpoint), None) = (checkpoint, &damage) {
                let warning = damaged.first().map(|(damaged, reason)| {
                    format!(
                        "checkpoint {damaged} is damaged ({reason}), so training goes on from the one before it, {uri}"
                    )
                });
                return Ok(Checkpoint {
                    warning,
                    ..checkpoint
                });
            }
            let reason = String::from_utf8_lossy(&damage.unwrap_or_default()).into_owned();
            let Some(before) = marker.before else {
                return Err(refuse(reason));
            };
            let before = before.uri(&attempt.work_dir);
            let is_known = before == uri || damaged.iter().any(|(known, _)| *known == before);
            if is_known {
                return Err(refuse(reason));
            }
            damaged.push((mem::replace(&mut uri, before), reason));
        }
    }

    fn read_parts(
        store: &Store,
        group: &ProcessGroup,
        uri: &str,
        marker: &Marker,
        fixed: &Fixed,
        average_bytes: Option<usize>,
    ) -> Result<Checkpoint, Unread> {
        let refuse = |reason: String| Cause::Checkpoint {
            uri: uri.into(),
            reason,
        };
        let part = |name: &str| checked_part(store, uri, marker, name);
        let state = State::parse(&part(STATE)?, fixed).map_err(refuse)?;
        let same_world = state.world_size == group.world_size();
        let rank_state = if same_world {
            Some(part(&rank_part(group.rank()))?)
        } else {
            None
        };
        let compression_of = |rank: usize| -> Result<CompressionState, Unread> {
            let name = compression_part(rank);
            let state = CompressionState::from_bytes(&part(&name)?);
            Ok(state.ok_or_else(|| refuse(format!("its part {name} is malformed")))?)
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
        let average = average_bytes.map(|_| part(AVERAGE)).transpose()?;
        if let (Some(average), Some(expected)) = (&average, average_bytes)
            // Before the first step there is none.
            && ![0, expected].contains(&average.len())
        {
            return Err(Unread::Damaged(format!(
                "its part {AVERAGE} has {} bytes, but the trained parameters have {expected}",
                average.len()
            )));
        }
        let mut best = vec![];
        for listed in marker.parts.iter().filter(|_| group.rank() == 0) {
            if let Some(file) = file_in(BEST, &listed.name) {
                best.push((file.to_string(), part(&listed.name)?));
            }
        }
        let best = (!best.is_empty()).then(|| LocalWeights::from_files(best));
        Ok(Checkpoint {
            uri: uri.into(),
            best: best.transpose()?,
            compression,
            average,
            shared: part(SHARED)?,
            state,
            rank_state,
            warning: None,
        })
    }
}

/// The model's and the optimizer's state in a checkpoint of this or another training. All ranks call it.
///
/// # Errors
///
/// [`Cause::Checkpoint`] for one that is not whole or damaged.
pub(crate) fn read_shared(store: &Store, group: &ProcessGroup, uri: &str) -> Result<Bytes, Cause> {
    let uri = uri.trim_end_matches('/');
    let refuse = |reason: String| Cause::Checkpoint {
        uri: uri.into(),
        reason,
    };
    let marker = Marker::agreed(store, group, uri)?.map_err(refuse)?;
    checked_part(store, uri, &marker, SHARED).map_err(|unread| match unread {
        Unread::Damaged(reason) => refuse(reason),
        Unread::Failed(cause) => cause,
    })
}

/// The bytes of a part as it was written.
fn checked_part(store: &Store, uri: &str, marker: &Marker, name: &str) -> Result<Bytes, Unread> {
    let listed = marker.parts.iter().find(|part| part.name == name);
    let listed = listed.ok_or_else(|| Cause::Checkpoint {
        uri: uri.into(),
        reason: format!("it has no part {name}"),
    })?;
    let bytes = read_part(store, uri, name)?
        .map_err(|reason| Unread::Damaged(format!("its part {name} is gone: {reason}")))?;
    if digest::of_bytes(&bytes) != listed.sha256 {
        return Err(Unread::Damaged(format!(
            "the SHA-256 of its part {name} is not the one written"
        )));
    }
    Ok(bytes)
}

/// The name of a file in a directory of a checkpoint, where a part is one.
fn file_in<'a>(directory: &str, part: &'a str) -> Option<&'a str> {
    part.strip_prefix(directory)?.strip_prefix('/')
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
