//! The store of the last options, for callers that give them again and again.

use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::mem;
use std::process;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Store;
use crate::error::DataError;

/// How the variables begin that stores read, credentials among them.
const READ: [&str; 7] = [
    "AWS_",
    "AZURE_",
    "GCE_METADATA_",
    "GOOGLE_",
    "IDENTITY_",
    "MSI_",
    "SERVICE_ACCOUNT",
];
/// After this time a store is opened anew: credentials may lie in files, which it read when it began.
const LONGEST: Duration = Duration::from_secs(600);

/// A store with what it was opened for.
struct Opened {
    since: Instant,
    process: u32,
    options: HashMap<String, String>,
    environment: Vec<(OsString, OsString)>,
    store: Store,
}

impl Store {
    /// The store that was shared last, with its connections, where that was for these options, this process and what stores read in
    /// the environment, and less than ten minutes ago; else a new one.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn shared(options: &HashMap<String, String>) -> Result<Store, DataError> {
        static LAST: Mutex<Option<Opened>> = Mutex::new(None);
        let process = process::id();
        let is_read = |name: &OsString| {
            let name = name.to_string_lossy();
            READ.iter().any(|prefix| name.starts_with(prefix))
        };
        let environment: Vec<_> = env::vars_os().filter(|(name, _)| is_read(name)).collect();
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &*last
            && opened.since.elapsed() < LONGEST
            && opened.process == process
            && opened.options == *options
            && opened.environment == environment
        {
            return Ok(opened.store.clone());
        }
        let store = Store::new(options)?;
        let before = last.replace(Opened {
            since: Instant::now(),
            process,
            options: options.clone(),
            environment,
            store: store.clone(),
        });
        // Its end may wait for its threads, which others are not to wait for.
        drop(last);
        // One that a fork took along has threads that do not run here, for which its end would wait.
        mem::forget(before.filter(|before| before.process != process));
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_same_options_share_connections() {
        let of = |timeout: &str| {
            let options = HashMap::from([("timeout".to_string(), timeout.to_string())]);
            Store::shared(&options).unwrap().inner
        };
        let first = of("10 s");
        assert!(Arc::ptr_eq(&first, &of("10 s")));
        assert!(!Arc::ptr_eq(&first, &of("20 s")));
        let unknown = HashMap::from([("no_option".to_string(), String::new())]);
        assert!(Store::shared(&unknown).is_err());
    }
}
