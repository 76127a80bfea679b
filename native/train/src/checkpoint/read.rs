//! How all ranks read a checkpoint, to go on from it or to start from its state of the optimizer.

use std::mem;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use flambeau_collective::ProcessGroup;
use flambeau_data::{DataError, Store};

use super::files::{AVERAGE, BEST, SHARED, STATE, compression_part, file_in, rank_part};
use super::marker::Marker;
use super::state::{Invariants, State};
use super::weights::LocalWeights;
use crate::digest;
use crate::error::{Cause, error_chain};
use crate::gradients::compression::CompressionState;
use crate::job::Attempt;

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
        invariants: &Invariants,
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
            let (checkpoint, damage) = match Checkpoint::read_parts(
                store,
                group,
                &uri,
                &marker,
                invariants,
                average_bytes,
            ) {
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
        invariants: &Invariants,
        average_bytes: Option<usize>,
    ) -> Result<Checkpoint, Unread> {
        let refuse = |reason: String| Cause::Checkpoint {
            uri: uri.into(),
            reason,
        };
        let part = |name: &str| checked_part(store, uri, marker, name);
        let state = State::parse(&part(STATE)?, invariants).map_err(refuse)?;
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
        let compression = match invariants.gradient_compression.has_state() {
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
