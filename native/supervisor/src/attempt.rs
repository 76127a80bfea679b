//! The attempts of a fit.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flambeau_data::DataError;
use flambeau_train::checkpoint;
use serde::{Deserialize, Serialize};

use crate::run::{self, Identity};
use crate::work_directory::WorkDirectory;

const SECRET_BYTES: usize = 32;

/// Those that live notice a failure in less than a second, or at the end of the forward or backward that they are in.
const GRACE_SECONDS: u64 = 30;

/// The run that an attempt is one of.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OfRun {
    id: String,
    what: Identity,
}

/// An attempt that a launcher is to run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attempt {
    /// Its name in the work directory.
    id: String,
    /// The URI of the checkpoint that it goes on from: the newest whole one of the attempts before it.
    resume: Option<String>,
    /// The epoch, counted from 0, that it goes on with from there; none without a checkpoint, or where it cannot be told.
    epoch: Option<u64>,
    /// The digest of the rows that the run is compared by; none of a fit that is none's.
    rows: Option<String>,
    /// Base64 of what proves that ranks belong to it. Every attempt has its own, so that a rank that an earlier one left behind meets
    /// no one.
    secret: String,
    /// For how long ranks may go on after one of them has failed. Then the attempt is given up without them.
    grace_seconds: u64,
}

/// Begins the attempt `id` after those, and notes it where the fit is one of a run. To be asked twice does no harm: Spark may run
/// a task again that asks for a driver.
pub(crate) fn begin(
    work: &WorkDirectory<'_>,
    id: String,
    mut attempts: Vec<String>,
    run: Option<OfRun>,
) -> Result<Attempt, DataError> {
    let newest = if attempts.is_empty() {
        None
    } else {
        checkpoint::newest(work.store, work.uri(), &attempts)?
    };
    let mut rows = None;
    if let Some(run) = run {
        attempts.push(id.clone());
        rows = Some(run::write(work, &run.id, attempts, run.what)?);
    }
    // It is only told: a store that does not answer is no reason to end the attempt.
    let epoch = newest
        .as_ref()
        .and_then(|found| checkpoint::epoch(work.store, &found.uri).ok()?);
    Ok(Attempt {
        id,
        epoch,
        resume: newest.map(|found| found.uri),
        rows,
        secret: BASE64.encode(rand::random::<[u8; SECRET_BYTES]>()),
        grace_seconds: GRACE_SECONDS,
    })
}
