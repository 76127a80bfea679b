//! Signals of the interpreter, asked for by waits that run without it.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

/// Keeps the exception that a signal handler raised (KeyboardInterrupt, say), which ends every wait that asks here.
#[derive(Clone, Default)]
pub(crate) struct Signals {
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Signals {
    /// Runs pending signal handlers; true once one has raised. Attaches to the interpreter, so the caller must not be one that
    /// the interpreter waits for. Only the main thread runs handlers; elsewhere this tells what happened there.
    pub(crate) fn interrupted(&self) -> bool {
        if self.lock().is_some() {
            return true;
        }
        // The lock is not held while handlers run.
        match Python::attach(|py| py.check_signals()) {
            Ok(()) => false,
            Err(error) => {
                self.lock().get_or_insert(error);
                true
            }
        }
    }

    /// The same as a function, for the options of whoever waits.
    pub(crate) fn callback(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let signals = self.clone();
        Arc::new(move || signals.interrupted())
    }

    /// The exception that a handler raised, if one did.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.lock().take()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<PyErr>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
