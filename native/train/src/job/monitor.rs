//! Which epoch was the best, and when to stop early.

use std::iter;

use crate::error::JobError;
use crate::job::params::{MonitorMode, TrainingParams};
use crate::model::MetricNames;
use crate::record::history::{EpochRecord, History, VALIDATION};

/// Says which epoch was the best, by one number of its record. It keeps nothing: all that it knows lies in the history,
/// which is the same on every rank and part of each checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Monitor {
    name: String,
    pub(crate) is_larger_better: bool,
    min_delta: f64,
    patience: Option<u64>,
}

impl Monitor {
    /// The monitor of a job whose model has these metrics.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] where there is nothing of the name, and where its name alone does not say what is better.
    pub(crate) fn new(params: &TrainingParams, metrics: &MetricNames) -> Result<Monitor, JobError> {
        let validates = params.validates();
        let name = match &params.monitor {
            Some(name) => name.clone(),
            None if validates => "val_loss".into(),
            None => "loss".into(),
        };
        let mut names: Vec<String> = vec!["loss".into()];
        names.extend_from_slice(&metrics.training);
        if validates {
            let of_validation =
                iter::once("loss").chain(metrics.validation.iter().map(|name| &**name));
            names.extend(of_validation.map(|name| format!("{VALIDATION}{name}")));
        }
        if !names.contains(&name) {
            let without = match validates {
                true => "",
                false => {
                    "; those of validation rows need validationFraction or validationIndicatorCol"
                }
            };
            return Err(JobError::invalid(
                "monitor",
                format!("{name:?}"),
                format!("one of {}{without}", names.join(", ")),
            ));
        }
        let is_larger_better = match params.monitor_mode {
            MonitorMode::Min => false,
            MonitorMode::Max => true,
            MonitorMode::Auto => is_larger_better(&name).ok_or_else(|| {
                JobError::invalid(
                    "monitorMode",
                    "auto",
                    format!("min or max for {name}, whose name does not say what is better"),
                )
            })?,
        };
        Ok(Monitor {
            name,
            is_larger_better,
            min_delta: params.min_delta,
            patience: params.early_stopping_patience,
        })
    }

    /// Whether an epoch is better than the best of the history, which it is not yet part of.
    pub(crate) fn is_best(&self, record: &EpochRecord, history: &History) -> bool {
        let Some(value) = self.value(record) else {
            return false;
        };
        let best = history
            .best_epoch
            .map(|epoch| &history.epochs[epoch as usize]);
        match best.and_then(|record| self.value(record)) {
            None => true,
            Some(best) if self.is_larger_better => value > best + self.min_delta,
            Some(best) => value < best - self.min_delta,
        }
    }

    /// Whether training has gone on for `earlyStoppingPatience` epochs without getting better.
    pub(crate) fn is_over(&self, history: &History) -> bool {
        let until_best = history.best_epoch.map_or(0, |epoch| epoch + 1);
        self.patience
            .is_some_and(|patience| history.epochs.len() as u64 - until_best >= patience)
    }

    /// The monitored number of an epoch; `None` where it is no number.
    pub(crate) fn value(&self, record: &EpochRecord) -> Option<f64> {
        let figures = record.figures();
        figures
            .iter()
            .find(|(name, _)| *name == self.name)
            .and_then(|(_, value)| *value)
    }
}

/// Whether the loss or metric of this name is better when it is larger; `None` where the name does not say.
fn is_larger_better(name: &str) -> Option<bool> {
    match name.strip_prefix(VALIDATION).unwrap_or(name) {
        "loss" | "mse" | "rmse" | "mae" => Some(false),
        "r2" | "accuracy" | "auc" | "average_precision" => Some(true),
        name => match name.rsplit_once('_').unwrap_or(("", name)) {
            (top, "accuracy") if top.starts_with("top") => Some(true),
            ("" | "macro", "precision" | "recall" | "f1") => Some(true),
            (class, "precision" | "recall" | "f1") if class.starts_with("class") => Some(true),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The monitor's history of epochs with these validation losses, to where it stops.
    fn run(params: TrainingParams, losses: &[Option<f64>]) -> History {
        let monitor = Monitor::new(&params, &MetricNames::default()).unwrap();
        let mut history = History::default();
        for (epoch, &validation_loss) in losses.iter().enumerate() {
            let record = EpochRecord {
                validation_loss,
                ..EpochRecord::empty(epoch as u64)
            };
            if monitor.is_best(&record, &history) {
                history.best_epoch = Some(record.epoch);
            }
            history.epochs.push(record);
            if monitor.is_over(&history) {
                break;
            }
        }
        history
    }

    fn stopping(patience: u64, min_delta: f64) -> TrainingParams {
        TrainingParams {
            validation_fraction: 0.5,
            early_stopping_patience: Some(patience),
            min_delta,
            ..TrainingParams::default()
        }
    }

    #[test]
    fn training_stops_when_the_patience_is_used_up() {
        let losses = [3.0, 2.0, 2.5, 2.0, 1.0, 1.5].map(Some);
        let history = run(stopping(2, 0.0), &losses);
        assert_eq!((history.epochs.len(), history.best_epoch), (4, Some(1)));
        let history = run(stopping(3, 0.0), &losses);
        assert_eq!((history.epochs.len(), history.best_epoch), (6, Some(4)));
    }

    #[test]
    fn less_than_the_least_change_is_no_improvement() {
        let history = run(stopping(2, 0.5), &[3.0, 2.8, 2.6, 2.4].map(Some));
        assert_eq!((history.epochs.len(), history.best_epoch), (3, Some(0)));
    }

    #[test]
    fn a_metric_of_validation_rows_alone_has_no_value_in_training() {
        let named = |name: &str| TrainingParams {
            monitor: Some(name.into()),
            ..stopping(2, 0.0)
        };
        let auc = MetricNames {
            validation: vec!["auc".into()],
            ..MetricNames::default()
        };
        assert!(Monitor::new(&named("val_auc"), &auc).is_ok());
        assert!(Monitor::new(&named("auc"), &auc).is_err());
        let unvalidated = TrainingParams {
            validation_fraction: 0.0,
            ..named("val_auc")
        };
        assert!(Monitor::new(&unvalidated, &auc).is_err());
    }

    #[test]
    fn a_metric_of_training_rows_alone_has_no_value_in_validation() {
        let named = |name: &str| TrainingParams {
            monitor: Some(name.into()),
            monitor_mode: MonitorMode::Min,
            ..stopping(2, 0.0)
        };
        let names = MetricNames {
            training: vec!["norm".into()],
            validation: vec!["worst".into()],
        };
        assert!(Monitor::new(&named("norm"), &names).is_ok());
        let error = Monitor::new(&named("val_norm"), &names).unwrap_err();
        let allowed = "one of loss, norm, val_loss, val_worst";
        assert!(error.to_string().ends_with(allowed), "{error}");
    }

    #[test]
    fn what_is_no_number_is_never_the_best() {
        let history = run(stopping(2, 0.0), &[None, None, Some(1.0)]);
        assert_eq!((history.epochs.len(), history.best_epoch), (2, None));
        let history = run(stopping(2, 0.0), &[None, Some(1.0), None, Some(0.5)]);
        assert_eq!((history.epochs.len(), history.best_epoch), (4, Some(3)));
    }
}
