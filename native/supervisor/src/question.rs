//! The questions that a driver asks.

use std::collections::HashMap;

use chrono::Utc;
use flambeau_data::{DataFile, DatasetSpec, Store};
use flambeau_train::checkpoint;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attempt::{self, OfRun};
use crate::checkpoints::{check_initial_state, keep_newest};
use crate::claim::{self, Claim};
use crate::error::SupervisorError;
use crate::failure::{Ended, judge};
use crate::id::new_id;
use crate::logs;
use crate::prepared::{self, Asked, Draft, Prepared};
use crate::rows;
use crate::run::{self, Identity, RunFile};
use crate::work_directory::WorkDirectory;

/// A question; `ask` is its name.
#[derive(Debug, Deserialize)]
#[serde(
    tag = "ask",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
enum Question {
    /// A name for what a fit makes in the work directory, with the time of another one where `since` is one.
    NewId { since: Option<String> },
    /// The attempt of that name after those, noted where the fit is one of a run: `{"id", "resume", "epoch", "rows", "secret",
    /// "graceSeconds"}`.
    BeginAttempt {
        id: String,
        attempts: Vec<String>,
        run: Option<OfRun>,
    },
    /// What comes of an attempt after so many restarts: `{"cause", "again", "backOffSeconds", "slotSeconds", "isTransient"}`. `ended` has its
    /// ranks in their order, or alone what ended them all.
    Judge {
        ended: Vec<Ended>,
        restarts: u64,
        max_restarts: u64,
    },
    /// The URI of the newest whole checkpoint of those attempts, or null.
    NewestCheckpoint { attempts: Vec<String> },
    /// Refuses the directory of an `initialState` that no training can start from.
    CheckInitialState { uri: String },
    /// Removes what those attempts left but for what their ranks wrote and their newest checkpoints, and describes these, oldest
    /// first. Models stay, but for those of the attempts that `failed`.
    KeepCheckpoints {
        attempts: Vec<String>,
        #[serde(default)]
        failed: Vec<String>,
        num: usize,
    },
    /// The ends of what the ranks of an attempt wrote: `[{"rank", "uri", "lines"}]`.
    LogEnds { attempt: String },
    /// A text for each file: a SHA-256 of its bytes, or with `ends` its size and one of its end.
    DigestFiles { files: Vec<String>, ends: bool },
    /// What a training would find in files, read as those tensors: `{"numRows", "numValidationRows", "objection", "spec"}`, in which
    /// every shape is known where there are rows, and `objection` says why they had better be written anew than be read where
    /// they lie, or is null. Refuses what it would refuse.
    InspectRows {
        train: Vec<DataFile>,
        validation: Vec<DataFile>,
        spec: DatasetSpec,
    },
    /// What is there of a run, `{"readsAll", "run"}`, or null.
    ReadRun { id: String },
    /// The attempts of a run, as `readRun` gave it; refuses what is not what it was. Reads nothing.
    CompareRun {
        id: String,
        run: Option<RunFile>,
        what: Identity,
    },
    /// Writes the file of a run.
    WriteRun {
        id: String,
        attempts: Vec<String>,
        what: Identity,
    },
    /// Takes the next step of a claim and gives it back.
    AdvanceClaim { id: String, claim: Claim },
    /// Gives a claim up.
    ReleaseClaim { id: String, own: String },
    /// Writes a lease anew.
    HoldLease { lease: String },
    /// Removes a lease.
    DropLease { lease: String },
    /// Writes the manifest of rows that were prepared in the directory, unless there are none to train on,
    /// and gives it.
    SealPrepared { draft: Draft },
    /// What was prepared in the directory, `{"prepared"}`, or null.
    ReadPrepared,
    /// What has changed in prepared files: a text for each.
    PreparedChanges { prepared: Prepared },
    /// The job's data, as prepared files hold it: `{"spec", "train", "validation", "numRows", "numValidationRows"}`. Refuses
    /// what they do not hold. Reads nothing.
    PreparedData { prepared: Prepared, asked: Asked },
    /// Removes what is empty of a directory in which rows were to be prepared, and it where nothing else is in it.
    RemoveEmptyPrepared,
    /// Removes what fits left behind, and tells what that was.
    Sweep,
    /// Removes a file or a directory of the work directory, with all that is in it.
    Remove { path: String },
}

/// The answer to a question about a work directory, both as JSON. `options` are those of the store. Waits for the store as
/// its calls do.
///
/// # Errors
///
/// What the store says, and a refusal of what the user asked for.
pub fn answer(
    work_dir: &str,
    question: &str,
    options: &HashMap<String, String>,
) -> Result<String, SupervisorError> {
    let question: Question = serde_json::from_str(question).map_err(SupervisorError::Malformed)?;
    let store = Store::shared(options)?;
    let answer = answered(&WorkDirectory::new(&store, work_dir), question)?;
    Ok(answer.to_string())
}

/// Attempts are named by files that others may write.
fn plain(attempts: Vec<String>) -> Result<Vec<String>, SupervisorError> {
    match attempts.iter().find(|name| !run::is_plain(name)) {
        None => Ok(attempts),
        Some(name) => Err(SupervisorError::Refused(format!(
            "{name:?} is no attempt: a name has letters, digits, - and _"
        ))),
    }
}

fn answered(work: &WorkDirectory<'_>, question: Question) -> Result<Value, SupervisorError> {
    Ok(match question {
        Question::NewId { since } => json(new_id(Utc::now(), since.as_deref())),
        Question::BeginAttempt { id, attempts, run } => {
            let id = plain(vec![id])?.remove(0);
            json(attempt::begin(work, id, plain(attempts)?, run)?)
        }
        Question::Judge {
            ended,
            restarts,
            max_restarts,
        } => json(judge(&ended, restarts, max_restarts)),
        Question::NewestCheckpoint { attempts } => {
            let found = checkpoint::newest(work.store, work.uri(), &plain(attempts)?)?;
            json(found.map(|found| found.uri))
        }
        Question::CheckInitialState { uri } => json(check_initial_state(work.store, &uri)?),
        Question::KeepCheckpoints {
            attempts,
            failed,
            num,
        } => json(keep_newest(work, &plain(attempts)?, &plain(failed)?, num)?),
        Question::LogEnds { attempt } => json(logs::ends(work, &plain(vec![attempt])?[0])?),
        Question::DigestFiles { files, ends } => json(rows::digests(work.store, &files, ends)?),
        Question::InspectRows {
            train,
            validation,
            spec,
        } => json(rows::inspect(work.store, &train, &validation, spec)?),
        Question::ReadRun { id } => json(run::read(work, &id)?),
        Question::CompareRun { id, run, what } => json(run::compare(work, &id, run, what)?),
        Question::WriteRun { id, attempts, what } => {
            json(run::write(work, &id, plain(attempts)?, what)?)
        }
        Question::AdvanceClaim { id, claim } => json(claim::advance(work, &id, claim)?),
        Question::ReleaseClaim { id, own } => json(claim::release(work, &id, &own)?),
        Question::HoldLease { lease } => json(work.hold_lease(&lease, Utc::now())?),
        Question::DropLease { lease } => json(work.drop_lease(&lease)?),
        Question::SealPrepared { draft } => json(prepared::seal(work, draft)?),
        Question::ReadPrepared => json(prepared::read(work)?),
        Question::PreparedChanges { prepared } => json(prepared::changes(work, &prepared)?),
        Question::PreparedData { prepared, asked } => json(prepared::data(work, &prepared, asked)?),
        Question::RemoveEmptyPrepared => json(prepared::remove_empty(work)?),
        Question::Sweep => json(work.sweep(Utc::now())?),
        Question::Remove { path } => json(work.store.delete_prefix(&work.path(&path))?),
    })
}

fn json(value: impl Serialize) -> Value {
    serde_json::to_value(value).expect("answers have string keys and finite numbers")
}
