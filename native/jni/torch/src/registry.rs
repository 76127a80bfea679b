//! What the JVM holds by a number rather than an address.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Objects by their handles. A handle that was closed is never given again, so that its use is an error and no crash.
pub(crate) struct Registry<T> {
    entries: Mutex<Entries<T>>,
}

struct Entries<T> {
    last: i64,
    by_handle: Option<HashMap<i64, Arc<T>>>,
}

impl<T> Registry<T> {
    /// An empty registry.
    pub(crate) const fn new() -> Self {
        Registry {
            entries: Mutex::new(Entries {
                last: 0,
                by_handle: None,
            }),
        }
    }

    /// Keeps an object and gives the handle for it, which is never 0.
    pub(crate) fn insert(&self, object: T) -> i64 {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.last += 1;
        let handle = entries.last;
        let by_handle = entries.by_handle.get_or_insert_default();
        by_handle.insert(handle, Arc::new(object));
        handle
    }

    /// The object; none for a handle that was never given, or is closed.
    pub(crate) fn get(&self, handle: i64) -> Option<Arc<T>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.by_handle.as_ref()?.get(&handle).cloned()
    }

    /// Closes a handle. The object lives until the calls that use it are done.
    pub(crate) fn remove(&self, handle: i64) -> Option<Arc<T>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.by_handle.as_mut()?.remove(&handle)
    }
}
