//! Whose a named run is: one fit at a time writes its checkpoints and goes on from them.
//!
//! The driver that has a run writes `runs/<id>.owner` anew with each beat: a name of its own and a number. Another one
//! watches the file for a while, so that no clocks are compared.

use std::time::Instant;

use flambeau_data::DataError;
use serde::{Deserialize, Serialize};

use crate::error::SupervisorError;
use crate::work_directory::WorkDirectory;

/// Looks at the file in a beat.
const LOOKS: f64 = 10.0;
/// A driver that is not heard of for so many beats has ended: longer than mounts of object stores show what was.
const FRESH_BEATS: f64 = 7.0;
/// For so many beats looks may fail one after another before the failure is told: mounts and network file systems have moments.
const UNREAD_BEATS: f64 = 7.0;
/// Of two drivers that saw nobody, the one that wrote last is seen by both so many beats later.
const SETTLE_BEATS: f64 = 0.05;

/// A driver that wants a run, or has it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Claim {
    /// What names this driver: random, and the same in each step.
    own: String,
    /// Seconds between two beats.
    beat_seconds: f64,
    #[serde(default)]
    phase: Phase,
    /// Seconds until the next step; set by each.
    #[serde(default)]
    wait_seconds: f64,
}

/// How far a claim has come.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
enum Phase {
    /// Nothing was done yet.
    #[default]
    New,
    /// Another driver's file is watched: what it holds, nothing while it is being written in place, and for how many seconds
    /// it has been found with that.
    Watching {
        seen: String,
        seconds: f64,
        /// For how many seconds looks have failed since the last one that did not.
        #[serde(default)]
        unread: f64,
    },
    /// The file is written, and may be written over by one that saw nobody either.
    Settling,
    /// The run is this driver's; beats so far.
    Held { beats: u64 },
    /// Another driver writes the file, though this one had the run.
    Lost,
}

/// Takes the next step of a claim: the first ones take the run, those after that are its beats.
///
/// # Errors
///
/// A refusal where another driver has the run; what the store says where the file can't be written, or not be read by one that
/// does not have the run yet.
pub(crate) fn advance(
    work: &WorkDirectory<'_>,
    id: &str,
    claim: Claim,
) -> Result<Claim, SupervisorError> {
    let file = uri_of(work, id);
    let beat = claim.beat_seconds;
    let look = beat / LOOKS;
    let began = Instant::now();
    let (phase, wait_seconds) = match &claim.phase {
        Phase::New => match read(work, &file)? {
            Some(seen) => (watching(seen, 0.0), look),
            None => settle(work, &file, &claim)?,
        },
        Phase::Watching {
            seen,
            seconds,
            unread,
        } => match read(work, &file) {
            Err(error) => {
                let unread = unread + claim.wait_seconds + began.elapsed().as_secs_f64();
                if !error.is_transient() || unread >= UNREAD_BEATS * beat {
                    return Err(error.into());
                }
                let phase = Phase::Watching {
                    seen: seen.clone(),
                    seconds: *seconds,
                    unread,
                };
                (phase, look)
            }
            Ok(None) => settle(work, &file, &claim)?,
            Ok(Some(now)) if now == *seen => {
                // A store may be slow to answer. By a hundredth of a look, since the waits are rounded.
                let seconds = seconds + claim.wait_seconds + began.elapsed().as_secs_f64();
                if seconds >= FRESH_BEATS * beat - look / 100.0 {
                    settle(work, &file, &claim)?
                } else {
                    (watching(now, seconds), look)
                }
            }
            // What is seen for the first time, or gone from sight, is watched from then on.
            Ok(Some(now)) if seen.is_empty() || now.is_empty() => (watching(now, 0.0), look),
            Ok(Some(_)) => return Err(refusal(work, id)),
        },
        Phase::Settling if is_others(work, &file, &claim.own) => return Err(refusal(work, id)),
        Phase::Settling => (Phase::Held { beats: 0 }, beat),
        Phase::Held { .. } | Phase::Lost if is_others(work, &file, &claim.own) => {
            (Phase::Lost, beat)
        }
        Phase::Held { beats } => {
            let beats = beats + 1;
            work.store
                .put(&file, format!("{} {beats}", claim.own).into_bytes().into())?;
            (Phase::Held { beats }, beat)
        }
        Phase::Lost => (Phase::Lost, beat),
    };
    Ok(Claim {
        phase,
        wait_seconds,
        ..claim
    })
}

/// Gives a run up: its file goes, unless it is another driver's.
pub(crate) fn release(work: &WorkDirectory<'_>, id: &str, own: &str) -> Result<(), DataError> {
    let file = uri_of(work, id);
    match read(work, &file)? {
        Some(now) if now.starts_with(own) => work.store.delete(&file),
        _ => Ok(()),
    }
}

fn watching(seen: String, seconds: f64) -> Phase {
    Phase::Watching {
        seen,
        seconds,
        unread: 0.0,
    }
}

fn settle(work: &WorkDirectory<'_>, file: &str, claim: &Claim) -> Result<(Phase, f64), DataError> {
    work.store
        .put(file, claim.own.clone().into_bytes().into())?;
    Ok((Phase::Settling, claim.beat_seconds * SETTLE_BEATS))
}

/// What the file holds; none where there is none. A failure to read it is no silence of its driver's.
fn read(work: &WorkDirectory<'_>, file: &str) -> Result<Option<String>, DataError> {
    match work.store.get(file) {
        Err(DataError::NotFound { .. }) => Ok(None),
        bytes => Ok(Some(String::from_utf8_lossy(&bytes?).into_owned())),
    }
}

/// Whether another driver's name is in the file, as far as it can be read.
fn is_others(work: &WorkDirectory<'_>, file: &str, own: &str) -> bool {
    let held = read(work, file).ok().flatten().unwrap_or_default();
    !held.is_empty() && !held.starts_with(own)
}

fn refusal(work: &WorkDirectory<'_>, id: &str) -> SupervisorError {
    SupervisorError::RunInUse(format!(
        "runId {id:?} in {} is being trained by another driver: wait until that fit has ended, interrupt it, or take \
         another runId",
        work.uri()
    ))
}

fn uri_of(work: &WorkDirectory<'_>, id: &str) -> String {
    work.path(&format!("runs/{id}.owner"))
}
