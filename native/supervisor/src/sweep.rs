//! The removal of what fits left behind in a work directory.

use chrono::{DateTime, TimeDelta, Utc};
use flambeau_data::DataError;
use flambeau_train::error_chain;
use serde::Serialize;

use crate::id::age_of;
use crate::prepared::MANIFEST;
use crate::run;
use crate::work_directory::{KEPT, LEASES, PROBES, WorkDirectory};

/// What is older than this, and than each fit that holds a lease, was left behind.
const SWEEP_AGE: TimeDelta = TimeDelta::days(7);
/// Ids have whole seconds, and the clocks of two drivers may part.
const CLOCKS: TimeDelta = TimeDelta::minutes(1);
const SWEPT: [&str; 7] = [
    "shards",
    "programs",
    "attempts",
    PROBES,
    "runs",
    "prepared",
    "timelines",
];

/// What a sweep removed, or tried to.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Swept {
    uri: String,
    days: i64,
    /// Why it could not be removed; none where it was.
    error: Option<String>,
}

impl WorkDirectory<'_> {
    /// Removes what fits left behind, and tells what that was.
    ///
    /// A lease counts until `SWEEP_AGE` after it was last written: as long do the checkpoints stay that a fit without success
    /// has kept. Those of `keepCheckpoints` stay, and prepared data that is whole. A run is as old as its newest attempt, and so are its attempts. What can't be
    /// removed, such as another user's, stays too, and is told.
    pub(crate) fn sweep(&self, now: DateTime<Utc>) -> Result<Vec<Swept>, DataError> {
        let mut swept = vec![];
        let began = self.leases(now, &mut swept)?;
        let oldest = began.into_iter().fold(SWEEP_AGE, TimeDelta::max) + CLOCKS;
        let is_recent = |name: &str| age_of(name, now).is_some_and(|age| age <= oldest);
        let recent = run::recent(self, is_recent)?;
        for kind in SWEPT {
            let root = self.path(kind);
            for name in self.store.names(&root)? {
                let Some(age) = age_of(&name, now).filter(|age| *age > oldest) else {
                    continue;
                };
                let uri = format!("{root}/{name}");
                // What can't be looked at is left alone.
                let may_have =
                    |file| !matches!(self.store.size(&format!("{uri}/{file}")), Ok(None));
                let is_kept = match kind {
                    "attempts" | "runs" if recent.is_partial => true,
                    "attempts" => recent.attempts.contains(&name) || may_have(KEPT),
                    // The user's, who removes it, unless it was not written to its end.
                    "prepared" => may_have(MANIFEST),
                    "runs" => recent.files.contains(&name),
                    _ => false,
                };
                if !is_kept {
                    let removed = self.store.delete_prefix(&uri);
                    swept.push(Swept {
                        uri,
                        days: age.num_days(),
                        error: removed.err().map(|error| error_chain(&error)),
                    });
                }
            }
        }
        Ok(swept)
    }

    /// How long ago the fits began that hold leases. Removes leases that no longer count, and tells of those that can't be read,
    /// which count.
    fn leases(
        &self,
        now: DateTime<Utc>,
        swept: &mut Vec<Swept>,
    ) -> Result<Vec<TimeDelta>, DataError> {
        let mut began = vec![];
        for uri in self.store.list(&self.path(LEASES))? {
            let written = self.settled(&uri, |bytes| age_of(&String::from_utf8_lossy(bytes), now));
            let name = uri.rsplit('/').next().unwrap_or_default();
            match (age_of(name, now), written) {
                (Some(age), Err(error)) => {
                    began.push(age);
                    let (days, error) = (age.num_days(), Some(error_chain(&error)));
                    swept.push(Swept { uri, days, error });
                }
                (Some(age), Ok(Some(written))) if written <= SWEEP_AGE => began.push(age),
                // One that can't be removed counts no more than one that was.
                _ => drop(self.store.delete(&uri)),
            }
        }
        Ok(began)
    }
}
