//! Mutexes without poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock that a panicking holder does not take along: what it guards is whole after every statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
