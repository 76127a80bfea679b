//! A loss and metrics over rows that a program scores: what `evaluate` adds up.

use std::sync::{Mutex, PoisonError};

use flambeau_data::Store;
use flambeau_train::LossSpec;
use serde::Deserialize;

use crate::error::TorchError;
use crate::loss::{self, Loss};
use crate::metrics::{self, Metric};
use crate::model::Numbers;
use crate::program::Outputs;
use crate::rows::Targets;

/// What outputs are held against, and how.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgeSpec {
    /// As a job's program has it; a script's URI is a local path.
    pub loss: LossSpec,
    /// Names of the metrics beside it.
    pub metrics: Vec<String>,
}

/// A loss and metrics. Several threads may use them at once.
pub struct Judge {
    /// Its tensors are of one thread at a time.
    loss: Mutex<Box<dyn Loss>>,
    metrics: Vec<Metric>,
}

impl Judge {
    /// The loss and the metrics of a spec.
    ///
    /// # Errors
    ///
    /// [`TorchError::Param`] for a name or an option that is unknown.
    pub fn new(spec: &JudgeSpec, store: &Store) -> Result<Judge, TorchError> {
        let loss = loss::build(&spec.loss, store)?;
        let metrics = metrics::build(&spec.metrics, loss.threshold(), loss.ignore_index())?;
        Ok(Judge {
            loss: Mutex::new(loss),
            metrics,
        })
    }

    /// What rows add to the sums: the loss's numerator and denominator, then the metrics' own. All is in main memory.
    pub(crate) fn sums(&self, output: &Outputs, targets: &Targets) -> Result<Vec<f64>, TorchError> {
        let loss = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        let loss = loss.evaluate(output, targets)?;
        let mut numbers = vec![loss.value];
        for metric in &self.metrics {
            metric.update(output, targets, &mut numbers)?;
        }
        let sums = Numbers::Here(numbers).wait(loss.denominator)?;
        let of_loss = [sums.numerator, sums.denominator];
        Ok(of_loss.into_iter().chain(sums.metrics).collect())
    }

    /// The loss and the metrics by name, from the sums over all rows; nothing from no sums.
    pub fn finish(&self, sums: &[f64]) -> Vec<(String, f64)> {
        let [numerator, denominator, rest @ ..] = sums else {
            return vec![];
        };
        let loss = ("loss".to_owned(), metrics::ratio(*numerator, *denominator));
        let metrics = metrics::finish(&self.metrics, rest);
        std::iter::once(loss).chain(metrics).collect()
    }
}
