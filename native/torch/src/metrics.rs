//! Metrics as sums and a finish.
//!
//! A metric of an epoch is never an average of the metrics of its batches: each adds up a fixed number of sums over
//! rows, which are summed over batches and ranks, and then makes one number of them.

use tch::{Kind, Tensor};

use crate::error::TorchError;
use crate::loss::{ClassTarget, class_target_of, regression_target, single_label, single_output};
use crate::program::Outputs;
use crate::rows::Targets;

/// One metric.
pub(crate) struct Metric {
    /// The name that it has in the history.
    pub(crate) name: String,
    kind: MetricKind,
    /// What separates the two classes of a one-column output.
    threshold: f64,
    /// The label that does not count.
    ignore_index: Option<i64>,
}

enum MetricKind {
    Mse,
    Rmse,
    Mae,
    R2,
    /// The part of the labels that are among so many most probable classes.
    Accuracy {
        top: i64,
    },
    Precision,
    Recall,
    F1,
}

/// The metrics of those names. `threshold` and `ignore_index` are the loss's.
///
/// # Errors
///
/// [`TorchError::Param`] for what is unknown or named twice.
pub(crate) fn build(
    names: &[String],
    threshold: f64,
    ignore_index: Option<i64>,
) -> Result<Vec<Metric>, TorchError> {
    let mut metrics: Vec<Metric> = vec![];
    for name in names {
        if metrics.iter().any(|metric| metric.name == *name) {
            return Err(TorchError::Param(format!(
                "metrics: {name:?} is given twice"
            )));
        }
        metrics.push(Metric {
            name: name.clone(),
            kind: MetricKind::of_name(name)?,
            threshold,
            ignore_index,
        });
    }
    Ok(metrics)
}

impl MetricKind {
    fn of_name(name: &str) -> Result<MetricKind, TorchError> {
        let top = || {
            let digits = name.strip_prefix("top")?.strip_suffix("_accuracy")?;
            let is_number =
                !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| is_number)
        };
        Ok(match name {
            "mse" => MetricKind::Mse,
            "rmse" => MetricKind::Rmse,
            "mae" => MetricKind::Mae,
            "r2" => MetricKind::R2,
            "accuracy" => MetricKind::Accuracy { top: 1 },
            "precision" => MetricKind::Precision,
            "recall" => MetricKind::Recall,
            "f1" => MetricKind::F1,
            _ => match top() {
                Some(top) => MetricKind::Accuracy { top },
                None => {
                    return Err(TorchError::Param(format!(
                        "metrics: unknown name {name:?}; the names are mse, rmse, mae, r2, accuracy, top<k>_accuracy, \
                         precision, recall and f1"
                    )));
                }
            },
        })
    }
}

impl Metric {
    /// The number of its sums.
    pub(crate) fn num_sums(&self) -> usize {
        match self.kind {
            MetricKind::Mse | MetricKind::Rmse | MetricKind::Mae | MetricKind::Accuracy { .. } => 2,
            MetricKind::Precision | MetricKind::Recall | MetricKind::F1 => 3,
            MetricKind::R2 => 4,
        }
    }

    /// Appends what these rows add to its sums: float64 tensors of one element, where the program computes.
    pub(crate) fn update(
        &self,
        output: &Outputs,
        targets: &Targets,
        sums: &mut Vec<Tensor>,
    ) -> Result<(), TorchError> {
        let name = format!("metric {}", self.name);
        let values = match self.kind {
            MetricKind::Mse | MetricKind::Rmse | MetricKind::Mae => {
                self.error(output, targets, &name)?
            }
            MetricKind::R2 => squares(output, targets, &name)?,
            MetricKind::Accuracy { top } => self.hits(output, targets, top, &name)?,
            MetricKind::Precision | MetricKind::Recall | MetricKind::F1 => {
                self.counts(output, targets, &name)?
            }
        };
        for value in values {
            sums.push(value.f_sum(Kind::Double)?);
        }
        Ok(())
    }

    /// The metric from its sums over all rows.
    pub(crate) fn finish(&self, sums: &[f64]) -> f64 {
        match self.kind {
            MetricKind::Mse | MetricKind::Mae | MetricKind::Accuracy { .. } => {
                ratio(sums[0], sums[1])
            }
            MetricKind::Rmse => ratio(sums[0], sums[1]).sqrt(),
            MetricKind::R2 => {
                let (count, total, squares, residual) = (sums[0], sums[1], sums[2], sums[3]);
                let spread = squares - total * ratio(total, count);
                if spread > 0.0 {
                    1.0 - residual / spread
                } else {
                    f64::NAN
                }
            }
            MetricKind::Precision => ratio(sums[0], sums[1]),
            MetricKind::Recall => ratio(sums[0], sums[2]),
            MetricKind::F1 => ratio(sums[0], (sums[1] + sums[2]) / 2.0),
        }
    }

    /// Errors of all elements and their weights.
    fn error(
        &self,
        output: &Outputs,
        targets: &Targets,
        name: &str,
    ) -> Result<Vec<Tensor>, TorchError> {
        let (output, label) = regression_target(output, &targets.labels, name)?;
        let error = output
            .f_totype(Kind::Double)?
            .f_sub(&label.f_totype(Kind::Double)?)?;
        let error = match self.kind {
            MetricKind::Mae => error.f_abs()?,
            _ => error.f_mul(&error)?,
        };
        let weights = row_weights(targets, &error)?;
        Ok(vec![error.f_mul(&weights)?, weights])
    }

    /// Weights of the labels that are hit, and of all.
    fn hits(
        &self,
        output: &Outputs,
        targets: &Targets,
        top: i64,
        name: &str,
    ) -> Result<Vec<Tensor>, TorchError> {
        let (predicted, label) = self.predicted_classes(output, targets, top, name)?;
        let weights = self.counted_weights(targets, &label)?;
        let hit = predicted
            .f_eq_tensor(&label.f_unsqueeze(1)?)?
            .f_any_dim(1, false)?;
        Ok(vec![hit.f_mul(&weights)?, weights])
    }

    /// Weights of the true positives, the predicted and the actual ones.
    fn counts(
        &self,
        output: &Outputs,
        targets: &Targets,
        name: &str,
    ) -> Result<Vec<Tensor>, TorchError> {
        let size = single_output(output, name)?.size();
        if size.len() >= 2 && size[1] > 2 {
            return Err(TorchError::Data(format!(
                "{name} is for two classes, but the output has shape {size:?}"
            )));
        }
        let (predicted, label) = self.predicted_classes(output, targets, 1, name)?;
        let weights = self.counted_weights(targets, &label)?;
        let is_actual = label.f_eq(1)?;
        let positive = predicted.f_squeeze_dim(1)?.f_eq(1)?.f_mul(&weights)?;
        let actual = is_actual.f_mul(&weights)?;
        Ok(vec![positive.f_mul(&is_actual)?, positive, actual])
    }

    /// The predicted classes `[rows, top, ...]` and the labels `[rows, ...]`; one-column outputs are cut at the
    /// threshold.
    fn predicted_classes(
        &self,
        outputs: &Outputs,
        targets: &Targets,
        top: i64,
        name: &str,
    ) -> Result<(Tensor, Tensor), TorchError> {
        let output = single_output(outputs, name)?;
        let size = output.size();
        if size.len() < 2 || size[1] == 1 {
            let (output, label) = regression_target(outputs, &targets.labels, name)?;
            let predicted = output
                .f_gt(self.threshold)?
                .f_totype(Kind::Int64)?
                .f_unsqueeze(1)?;
            return Ok((predicted, label.f_totype(Kind::Int64)?));
        }
        let labels = targets.both(|labels| {
            let label = single_label(labels, output, name)?;
            // Class probabilities, or one-hot.
            match label.size() == size {
                true => Ok(label.f_argmax(1, false)?),
                false => Ok(label),
            }
        })?;
        let ClassTarget { output, label, .. } = class_target_of(output, labels, name)?;
        let (_, indices) = output.f_topk(top.min(size[1]), 1, true, true)?;
        Ok((indices, label))
    }

    /// One float64 weight per label; 0 where it is ignored.
    fn counted_weights(&self, targets: &Targets, label: &Tensor) -> Result<Tensor, TorchError> {
        let weights = row_weights(targets, label)?;
        match self.ignore_index {
            None => Ok(weights),
            Some(index) => Ok(weights.f_mul(&label.f_ne(index)?)?),
        }
    }
}

/// What the coefficient of determination of one output column is made of: 1 - Σ(y - ŷ)² / Σ(y - ȳ)².
fn squares(output: &Outputs, targets: &Targets, name: &str) -> Result<Vec<Tensor>, TorchError> {
    let (output, label) = regression_target(output, &targets.labels, name)?;
    if label.numel() != targets.num_rows {
        return Err(TorchError::Data(format!(
            "{name} is for one output column, but the output has shape {:?}",
            output.size()
        )));
    }
    let label = label.f_totype(Kind::Double)?;
    let weights = row_weights(targets, &label)?;
    let residual = label.f_sub(&output.f_totype(Kind::Double)?)?;
    let weighted = weights.f_mul(&label)?;
    let squares = weighted.f_mul(&label)?;
    let residuals = weights.f_mul(&residual)?.f_mul(&residual)?;
    Ok(vec![weights, weighted, squares, residuals])
}

/// One float64 weight per element of `like`, whose first dimension is the rows.
fn row_weights(targets: &Targets, like: &Tensor) -> Result<Tensor, TorchError> {
    let size = like.size();
    let weights = match &targets.weight {
        None => Tensor::f_ones([0i64; 0], (Kind::Double, like.device()))?,
        Some(weight) => {
            let mut shape = vec![1; size.len()];
            shape[0] = -1;
            weight.f_totype(Kind::Double)?.f_reshape(&shape)?
        }
    };
    Ok(weights.f_expand(&size, false)?)
}

/// The metrics by name, from their sums over all rows, one after another.
pub(crate) fn finish(metrics: &[Metric], sums: &[f64]) -> Vec<(String, f64)> {
    let mut rest = sums;
    let finish = |metric: &Metric| {
        let (own, others) = rest.split_at(metric.num_sums());
        rest = others;
        (metric.name.clone(), metric.finish(own))
    };
    metrics.iter().map(finish).collect()
}

/// NaN where there is nothing to divide by.
pub(crate) fn ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator == 0.0 {
        f64::NAN
    } else {
        numerator / denominator
    }
}
