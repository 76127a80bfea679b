//! A Python object that is told what a rank comes to, and may ask for a stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flambeau_train::{Event, HookError, Hooks, StepReport};
use pyo3::prelude::*;

/// An object with `on_event(json)`, `on_step(epoch, step, steps_per_epoch, num_rows, loss, gradient_norm, learning_rate)`, both of
/// which return whether the rank asks for a stop, and `step_interval`, the steps from one that it is told of to the next, None
/// where it is told of none.
pub(crate) struct Listener {
    object: Py<PyAny>,
    step_interval: Option<u64>,
}

impl Listener {
    /// The adapter's, if it has one.
    pub(crate) fn of(adapter: &Bound<'_, PyAny>) -> PyResult<Option<Listener>> {
        let object = adapter.getattr("listener")?;
        if object.is_none() {
            return Ok(None);
        }
        Ok(Some(Listener {
            step_interval: object.getattr("step_interval")?.extract()?,
            object: object.unbind(),
        }))
    }

    /// What the training loop calls. An exception is the rank's error.
    pub(crate) fn hooks(self) -> Hooks {
        let asked = Arc::new(Asked {
            object: self.object,
            stop: AtomicBool::new(false),
        });
        let (of_events, of_steps, of_stop) = (asked.clone(), asked.clone(), asked);
        let on_step = move |report: &StepReport| {
            let arguments = (
                report.epoch,
                report.step,
                report.steps_per_epoch,
                report.num_rows,
                report.loss,
                report.gradient_norm,
                report.learning_rate,
            );
            of_steps.call(|py, object| object.call_method1(py, "on_step", arguments))
        };
        Hooks {
            on_event: Some(Arc::new(move |event: &Event| {
                let json = serde_json::to_string(event).expect("events have string keys");
                of_events.call(|py, object| object.call_method1(py, "on_event", (json,)))
            })),
            on_step: self.step_interval.map(|_| Arc::new(on_step) as _),
            step_interval: self.step_interval.unwrap_or(1),
            stop: Some(Arc::new(move || of_stop.stop.load(Ordering::Relaxed))),
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
    fn call(
        &self,
        call: impl FnOnce(Python<'_>, &Py<PyAny>) -> PyResult<Py<PyAny>>,
    ) -> Result<(), HookError> {
        Python::attach(|py| {
            if call(py, &self.object)?.extract(py)? {
                self.stop.store(true, Ordering::Relaxed);
            }
            Ok(())
        })
    }
}
