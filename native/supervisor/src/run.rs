//! A run: what a fit that did not succeed leaves for the next one to go on from.
//!
//! `runs/<id>.json` says what was trained on which rows, and which attempts have its checkpoints. Only the same job on the
//! same rows goes on from them, since anything else would not end in what either of the two had come to.

use flambeau_data::DataError;
use flambeau_train::digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::SupervisorError;
use crate::work_directory::WorkDirectory;

const FORMAT: u32 = 10;

/// What a run may change between its fits, since no bit of its result depends on it.
const FREE: [&str; 25] = [
    "checkpointInterval",
    "checkpointSteps",
    "collectiveTimeout",
    "heartbeatTimeout",
    "inferenceBatchBytes",
    "inferenceBatchSize",
    "keepCheckpoints",
    "logEveryNSteps",
    "logGradientNorm",
    "maxRestarts",
    "memoryBudget",
    "outputCols",
    "outputNames",
    "predictionCol",
    "probabilityCol",
    "profile",
    "rawPredictionCol",
    "runId",
    "slotTimeout",
    "tensorBoardDir",
    "threshold",
    "thresholds",
    "verbose",
    "verifyReplicas",
    "workDir",
];

/// What of a job is told by a digest, which says nothing to a reader.
const DIGESTED: [&str; 6] = [
    "model",
    "program",
    "loss",
    "optimizer",
    "metrics",
    "initialModel",
];

/// The contents of a run's file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunFile {
    format: u32,
    /// The attempts that have its checkpoints, oldest first.
    attempts: Vec<String>,
    /// What tells the job from others, by name.
    job: Map<String, Value>,
    /// The digest of the rows.
    rows: String,
    /// Whether that is one of all rows, and not of the ends of their files.
    reads_all: bool,
}

/// What a fit trains on which rows.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Identity {
    /// Every param by name; of objects, and of an initial model, the digest.
    job: Map<String, Value>,
    /// What `digestFiles` gave for the shards.
    rows: Vec<String>,
    /// Whether it read all of them.
    reads_all: bool,
}

impl Identity {
    /// The file of a run whose checkpoints those attempts have.
    fn file(self, attempts: Vec<String>) -> RunFile {
        let mut job = self.job;
        job.retain(|name, value| !FREE.contains(&name.as_str()) && !value.is_null());
        let rows = serde_json::to_vec(&self.rows).expect("texts are JSON");
        RunFile {
            format: FORMAT,
            attempts,
            job,
            rows: digest::of_bytes(&rows),
            reads_all: self.reads_all,
        }
    }
}

fn uri_of(work: &WorkDirectory<'_>, id: &str) -> String {
    work.path(&format!("runs/{id}.json"))
}

/// What is there of a run.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Found {
    /// Whether all rows are to be compared.
    reads_all: bool,
    /// Its file; none where that is damaged.
    run: Option<RunFile>,
}

/// What is there of a run; none where there is no file, or its attempts have no checkpoint: a sweep removes those that are
/// old, and the file has a name of the user's, without an age.
pub(crate) fn read(work: &WorkDirectory<'_>, id: &str) -> Result<Option<Found>, DataError> {
    let bytes = match work.store.get(&uri_of(work, id)) {
        Err(DataError::NotFound { .. }) => return Ok(None),
        bytes => bytes?,
    };
    let attempts = attempts_in(&bytes);
    for attempt in attempts.iter().flatten() {
        let place = work.path(&format!("attempts/{attempt}/checkpoints"));
        let files = work.store.list(&place)?;
        if files.iter().any(|file| file.ends_with("/COMMITTED")) {
            let run: Option<RunFile> = serde_json::from_slice(&bytes).ok();
            let run = run.filter(|run| run.format == FORMAT);
            return Ok(Some(Found {
                reads_all: run.as_ref().is_some_and(|run| run.reads_all),
                run,
            }));
        }
    }
    Ok(match attempts {
        Some(_) => None,
        None => Some(Found {
            reads_all: false,
            run: None,
        }),
    })
}

/// The attempts that a run's file of any format names; none where it names what is no attempt.
fn attempts_in(file: &[u8]) -> Option<Vec<String>> {
    let file: Value = serde_json::from_slice(file).ok()?;
    let names = file.get("attempts")?.as_array()?.iter();
    let names: Option<Vec<String>> = names.map(|name| name.as_str().map(str::to_owned)).collect();
    names.filter(|names| names.iter().all(|name| is_plain(name)))
}

/// Whether a name is that of one file or directory: what a file holds, others may have written.
pub(crate) fn is_plain(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.chars().all(is_allowed)
}

/// The runs of which an attempt is recent.
#[derive(Default)]
pub(crate) struct Recent {
    /// Their files' names.
    pub(crate) files: Vec<String>,
    /// All their attempts.
    pub(crate) attempts: Vec<String>,
    /// Whether a run's file could not be read, so that its attempts are not known.
    pub(crate) is_partial: bool,
}

/// The runs of which an attempt is recent: a fit may go on from any of theirs.
pub(crate) fn recent(
    work: &WorkDirectory<'_>,
    is_recent: impl Fn(&str) -> bool,
) -> Result<Recent, DataError> {
    let mut found = Recent::default();
    for uri in work.store.list(&work.path("runs"))? {
        let file = uri.rsplit('/').next().unwrap_or_default();
        if !file.ends_with(".json") {
            continue;
        }
        let attempts = match work.settled(&uri, attempts_in) {
            Ok(attempts) => attempts.unwrap_or_default(),
            Err(_) => {
                found.is_partial = true;
                continue;
            }
        };
        if attempts.iter().any(|attempt| is_recent(attempt)) {
            found.files.push(file.to_owned());
            found.attempts.extend(attempts);
        }
    }
    Ok(found)
}

/// The attempts of a run, for a fit that trains the same on the same rows; others are refused, and a file that is damaged.
pub(crate) fn compare(
    work: &WorkDirectory<'_>,
    id: &str,
    then: Option<RunFile>,
    now: Identity,
) -> Result<Vec<String>, SupervisorError> {
    let Some(then) = then else {
        let uri = uri_of(work, id);
        return Err(SupervisorError::Refused(format!(
            "runId {id:?}: {uri} is damaged, or another version of flambeau wrote it: remove it to train anew, or take \
             another runId"
        )));
    };
    let now = now.file(vec![]);
    let names = then.job.keys().chain(now.job.keys());
    let mut different: Vec<&String> = names
        .filter(|name| then.job.get(*name) != now.job.get(*name))
        .collect();
    different.sort();
    let said = match different.first() {
        Some(name) if DIGESTED.contains(&name.as_str()) => format!("its {name} was another"),
        Some(name) => {
            let shown = |value: Option<&Value>| value.map_or("not set".into(), Value::to_string);
            format!(
                "{name} was {} and is {}",
                shown(then.job.get(*name)),
                shown(now.job.get(*name))
            )
        }
        None if then.rows != now.rows => {
            "its rows were others, or in another order (sort them, or use fitOnParquet on files)"
                .into()
        }
        None => return Ok(then.attempts),
    };
    Err(SupervisorError::Refused(format!(
        "runId {id:?} in {} is a run of another job: {said}; take another runId to train anew, or give what it was",
        work.uri()
    )))
}

/// Writes a run's file, and returns the digest of its rows.
pub(crate) fn write(
    work: &WorkDirectory<'_>,
    id: &str,
    attempts: Vec<String>,
    what: Identity,
) -> Result<String, DataError> {
    let file = what.file(attempts);
    let bytes = serde_json::to_vec(&file).expect("a run's file is JSON");
    work.store.put(&uri_of(work, id), bytes.into())?;
    Ok(file.rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that is no param's any more would be compared, and refuse runs that are the same.
    #[test]
    fn what_a_run_may_change_are_params() {
        let schema: Value =
            serde_json::from_str(include_str!("../../../docs/training-job.schema.json")).unwrap();
        let params = schema["$defs"]["TrainingParams"]["properties"]
            .as_object()
            .unwrap();
        let unknown: Vec<_> = FREE
            .iter()
            .filter(|name| !params.contains_key(**name))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
