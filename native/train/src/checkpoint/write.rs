//! How all ranks write a checkpoint together.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flambeau_collective::ProcessGroup;
use flambeau_data::{DataError, Store};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::files::{
    AVERAGE, BEST, FORMAT, MARKER, SHARED, STATE, WEIGHTS, checkpoints_directory, compression_part,
    rank_part, step_directory, to_json,
};
use super::marker::{Marker, Part, Predecessor};
use super::state::State;
use super::weights::LocalWeights;
use crate::digest;
use crate::error::{Cause, error_chain};
use crate::job::Attempt;

/// How many whole checkpoints an attempt keeps at least: the newest, and one more in case the newest cannot be read.
const KEPT: usize = 2;

/// How long the ranks that have written their part go without a word from one that has not. Short beside any time-out of
/// the group's.
const BETWEEN_WORDS: Duration = Duration::from_millis(200);

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
