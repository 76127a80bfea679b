//! A rank's callbacks, a Python object that is told what the rank comes to and may ask for a stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flambeau_train::{Event, Hook, HookError, Hooks, StepReport};
use pyo3::prelude::*;
use serde::Serialize;

/// An object with `on_event` and `on_step`, which take an [`Event`] and a [`StepReport`] as JSON and return whether the rank asks
/// for a stop, and `step_interval`, the steps from one that it is told of to the next, None where it is told of none.
pub(crate) struct Callbacks {
    object: Py<PyAny>,
    step_interval: Option<u64>,
}

impl Callbacks {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Callbacks> {
        Ok(Callbacks {
            step_interval: object.getattr("step_interval")?.extract()?,
            object: object.clone().unbind(),
        })
    }

    /// What the training loop calls. An exception is the rank's error.
    pub(crate) fn hooks(self) -> Hooks {
        let asked = Arc::new(Asked {
            object: self.object,
            stop: AtomicBool::new(false),
        });
        Hooks {
            on_event: Some(asked.hook::<Event>("on_event")),
            on_step: self
                .step_interval
                .map(|_| asked.hook::<StepReport>("on_step")),
            step_interval: self.step_interval.unwrap_or(1),
            stop: Some(Arc::new(move || asked.stop.load(Ordering::Relaxed))),
            ..Hooks::default()
        }
    }
}

/// The object, and whether it has asked for a stop.
struct Asked {
    object: Py<PyAny>,
    stop: AtomicBool,
}

impl Asked {
    /// What tells a method of the object.
    fn hook<T: Serialize + 'static>(self: &Arc<Self>, method: &'static str) -> Hook<T> {
        let asked = self.clone();
        Arc::new(move |told: &T| -> Result<(), HookError> {
            let json = serde_json::to_string(told).expect("what is told has string keys");
            Python::attach(|py| {
                if asked
                    .object
                    .call_method1(py, method, (json,))?
                    .extract(py)?
                {
                    asked.stop.store(true, Ordering::Relaxed);
                }
                Ok(())
            })
        })
    }
}
