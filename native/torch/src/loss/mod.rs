//! Losses as a value and a denominator.
//!
//! The gradient that is applied is that of the global batch, so a rank must say not only its loss but over what it is
//! the mean. The value is a scalar tensor, the mean as torch itself computes it, so that its bits are torch's; the
//! denominator is rows, sums of weights, targets that are not ignored or sums of class weights.

mod classes;
mod elementwise;
mod scripted;
mod targets;

use flambeau_data::Store;
use flambeau_train::{LossSpec, NamedOptions};
use tch::{Device, Kind, Reduction, Tensor};

use crate::error::TorchError;
use crate::options::Options;
use crate::program::Outputs;
use crate::rows::Targets;
use classes::ClassLoss;
use elementwise::ElementwiseLoss;
use scripted::ScriptedLoss;

pub(crate) use targets::{
    ClassTarget, class_target, class_target_of, regression_target, single_label, single_output,
};

/// The names of the losses that torch has.
const NAMES: &str = "bce, bce_with_logits, cross_entropy, huber, l1, mae, mse, nll, poisson_nll, smooth_l1, soft_margin";

/// The mean over what counts, and how much counts. Where that is 0 the value means nothing.
pub(crate) struct LossValue {
    /// A scalar that backward can start from.
    pub(crate) value: Tensor,
    /// Rows, sums of weights, or targets.
    pub(crate) denominator: f64,
}

/// A loss. None of its methods waits for a device: what is read of labels and weights is read in main memory.
pub(crate) trait Loss: Send {
    /// `loss` and its name, for messages.
    fn name(&self) -> &str;

    fn evaluate(&self, output: &Outputs, targets: &Targets) -> Result<LossValue, TorchError>;

    /// Moves what it computes with from one device to another.
    fn move_to(&mut self, from: Device, to: Device) -> Result<(), TorchError>;

    /// What separates the two classes of a one-column output: 0 for logits, 0.5 for probabilities.
    fn threshold(&self) -> f64 {
        0.0
    }

    /// The label that does not count.
    fn ignore_index(&self) -> Option<i64> {
        None
    }
}

/// The loss of a job.
///
/// # Errors
///
/// [`TorchError::Param`] for an unknown name or option, and for a scripted loss that is none.
pub(crate) fn build(spec: &LossSpec, store: &Store) -> Result<Box<dyn Loss>, TorchError> {
    let named = match spec {
        LossSpec::Named(named) => named,
        LossSpec::Scripted(scripted) => {
            let bytes = store.get(&scripted.script)?;
            return Ok(Box::new(ScriptedLoss::load(&bytes, &scripted.script)?));
        }
    };
    if matches!(named.name.as_str(), "cross_entropy" | "nll") {
        return Ok(Box::new(ClassLoss::new(named)?));
    }
    match ElementwiseLoss::new(named)? {
        Some(loss) => Ok(Box::new(loss)),
        None => Err(TorchError::Param(format!(
            "loss: unknown name {:?}; the names are {NAMES}",
            named.name
        ))),
    }
}

/// The keywords of a loss; `reduction`, which every loss of torch has, may only be the mean.
fn options<'a>(spec: &'a NamedOptions, own: &[&str]) -> Result<Options<'a>, TorchError> {
    let allowed: Vec<&str> = own.iter().copied().chain(["reduction"]).collect();
    let options = Options::new("loss", spec, &allowed)?;
    match options.given("reduction").map(|value| (value, value.as_str())) {
        None | Some((_, Some("mean" | "none"))) => Ok(options),
        Some((_, Some("sum"))) => Err(options.conflict(
            "reduction='sum' would make a step depend on how many rows its batch has; use reduction='mean'",
        )),
        Some((value, _)) => Err(options.refuse("reduction", value, "\"mean\"")),
    }
}

/// One value a row: the mean over a row's elements.
fn per_row(values: Tensor) -> Result<Tensor, TorchError> {
    match values.dim() {
        1 => Ok(values),
        _ => Ok(values
            .f_flatten(1, -1)?
            .f_mean_dim(Some([1i64].as_slice()), false, None)?),
    }
}

/// The mean over the rows, or with row weights the weighted mean of the rows' own means. `reduced` computes the loss
/// with a reduction of torch's.
fn mean_or_weighted(
    targets: &Targets,
    reduced: impl Fn(Reduction) -> Result<Tensor, TorchError>,
) -> Result<LossValue, TorchError> {
    match (&targets.weight, targets.host_weight()) {
        (Some(weight), Some(host_weight)) => {
            let per_row = per_row(reduced(Reduction::None)?)?;
            weighted(&per_row, weight, total(host_weight)?)
        }
        _ => Ok(LossValue {
            value: reduced(Reduction::Mean)?,
            denominator: targets.num_rows as f64,
        }),
    }
}

/// The sum of numbers in main memory, in float64.
fn total(numbers: &Tensor) -> Result<f64, TorchError> {
    Ok(numbers.f_sum(Kind::Double)?.f_double_value(&[])?)
}

/// The sum of the rows' losses, each counted by its weight, over the denominator.
fn weighted(per_row: &Tensor, weight: &Tensor, denominator: f64) -> Result<LossValue, TorchError> {
    let numerator = per_row
        .f_mul(&weight.f_totype(per_row.kind())?)?
        .f_sum(None)?;
    Ok(LossValue {
        value: numerator.f_div_scalar(denominator)?,
        denominator,
    })
}
