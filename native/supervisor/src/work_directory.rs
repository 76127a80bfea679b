//! The work directory: shards, attempts and models of trainings, and what keeps and removes them.
//!
//! `shards/<id>` and `programs/<id>`, the large files of what is trained, live for one fit; of `attempts/<id>` the logs outlive it, and checkpoints that are kept, for a run or as models;
//! so do `models/<id>` and `timelines/<id>.json`. A fit that runs holds a lease, a file that its driver writes anew every hour: nothing that
//! was made since it began is removed.

use std::thread;
use std::time::Duration;

use chrono::{DateTime, Utc};
use flambeau_data::{DataError, Store};

use crate::id::new_id;

pub(crate) const LEASES: &str = "leases";
/// Where a fit tries who sees what.
pub(crate) const PROBES: &str = "probes";
/// The file of an attempt that no sweep removes.
pub(crate) const KEPT: &str = "KEPT";

/// After this time a file that was being written in place can be read.
const WRITING: Duration = Duration::from_secs(1);

/// A work directory in the store.
pub(crate) struct WorkDirectory<'a> {
    pub(crate) store: &'a Store,
    uri: &'a str,
}

impl<'a> WorkDirectory<'a> {
    pub(crate) fn new(store: &'a Store, uri: &'a str) -> Self {
        WorkDirectory {
            store,
            uri: uri.trim_end_matches('/'),
        }
    }

    /// Its own URI.
    pub(crate) fn uri(&self) -> &str {
        self.uri
    }

    /// The URI of something in it.
    pub(crate) fn path(&self, below: &str) -> String {
        format!("{}/{below}", self.uri)
    }

    /// What a file says by `read`, asked again a moment later where that makes nothing of it: it may be being written in
    /// place. None where there is no file.
    pub(crate) fn settled<T>(
        &self,
        uri: &str,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, DataError> {
        let get = || match self.store.get(uri) {
            Err(DataError::NotFound { .. }) => Ok(None),
            bytes => bytes.map(Some),
        };
        let Some(bytes) = get()? else {
            return Ok(None);
        };
        if let Some(said) = read(&bytes) {
            return Ok(Some(said));
        }
        thread::sleep(WRITING);
        Ok(get()?.and_then(|bytes| read(&bytes)))
    }

    /// Writes a lease anew; its name tells when the fit began.
    pub(crate) fn hold_lease(&self, name: &str, now: DateTime<Utc>) -> Result<(), DataError> {
        self.store
            .put(&self.lease(name), new_id(now, None).into_bytes().into())
    }

    /// Removes a lease.
    pub(crate) fn drop_lease(&self, name: &str) -> Result<(), DataError> {
        self.store.delete(&self.lease(name))
    }

    fn lease(&self, name: &str) -> String {
        self.path(&format!("{LEASES}/{name}"))
    }
}
