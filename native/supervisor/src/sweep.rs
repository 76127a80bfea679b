//! The removal of what fits left behind in a work directory.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use flambeau_data::DataError;
use serde::Serialize;

use crate::id::age_of;
use crate::run;
use crate::work_directory::{KEPT, LEASES, WorkDirectory};

/// What is older than this, and than each fit that holds a lease, was left behind.
const SWEEP_AGE: TimeDelta = TimeDelta::days(7);
/// Ids have whole seconds, and the clocks of two drivers may part.
const CLOCKS: TimeDelta = TimeDelta::minutes(1);
const SWEPT: [&str; 4] = ["shards", "attempts", "probes", "runs"];
/// After this time a file that was being written in place can be read.
const WRITING: Duration = Duration::from_secs(1);

/// What a sweep removed.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Swept {
    uri: String,
    days: i64,
}

impl WorkDirectory<'_> {
    /// Removes what fits left behind, and tells what that was.
    ///
    /// A lease counts until `SWEEP_AGE` after it was last written: as long do the checkpoints stay that a fit without success
    /// has kept. Those of `keepCheckpoints` stay. A run is as old as its newest attempt, and so are its attempts.
    pub(crate) fn sweep(&self, now: DateTime<Utc>) -> Result<Vec<Swept>, DataError> {
        let oldest = self
            .leases(now)?
            .into_iter()
            .fold(SWEEP_AGE, TimeDelta::max)
            + CLOCKS;
        let is_recent = |name: &str| age_of(name, now).is_some_and(|age| age <= oldest);
        let recent = run::recent(self, is_recent)?;
        let mut swept = vec![];
        for kind in SWEPT {
            let root = self.path(kind);
            let files = self.store.list(&root)?;
            let first_below = |uri: &String| {
                let below = uri.strip_prefix(&root)?.strip_prefix('/')?;
                below.split('/').next().map(str::to_owned)
            };
            let names: BTreeSet<String> = files.iter().filter_map(first_below).collect();
            let kept: BTreeSet<String> = files
                .iter()
                .filter(|uri| uri.ends_with(&format!("/{KEPT}")))
                .filter_map(first_below)
                .chain(match kind {
                    "attempts" => recent.attempts.clone(),
                    "runs" => recent.files.clone(),
                    _ => vec![],
                })
                .collect();
            for name in names.difference(&kept) {
                if let Some(age) = age_of(name, now).filter(|age| *age > oldest) {
                    let uri = format!("{root}/{name}");
                    self.store.delete_prefix(&uri)?;
                    let days = age.num_days();
                    swept.push(Swept { uri, days });
                }
            }
        }
        Ok(swept)
    }

    /// How long ago the fits began that hold leases. Removes leases that no longer count.
    fn leases(&self, now: DateTime<Utc>) -> Result<Vec<TimeDelta>, DataError> {
        let mut began = vec![];
        for uri in self.store.list(&self.path(LEASES))? {
            let mut written = None;
            for attempt in 0..2 {
                if attempt > 0 {
                    thread::sleep(WRITING);
                }
                written = match self.store.get(&uri) {
                    Err(DataError::NotFound { .. }) => break,
                    bytes => age_of(&String::from_utf8_lossy(&bytes?), now),
                };
                if written.is_some() {
                    break;
                }
            }
            let name = uri.rsplit('/').next().unwrap_or_default();
            match (age_of(name, now), written) {
                (Some(age), Some(written)) if written <= SWEEP_AGE => began.push(age),
                _ => self.store.delete(&uri)?,
            }
        }
        Ok(began)
    }
}
