//! Losses whose mean is over all elements of output and label, which have one shape.

use flambeau_train::NamedOptions;
use tch::{Device, Reduction, Tensor};

use super::{Loss, LossValue, mean_or_weighted, options, regression_target};
use crate::error::TorchError;
use crate::program::Outputs;
use crate::rows::Targets;

/// Which, with its options as torch names them.
enum Kind {
    Mse,
    L1,
    Huber {
        delta: f64,
    },
    SmoothL1 {
        beta: f64,
    },
    Bce,
    BceWithLogits {
        pos_weight: Option<Tensor>,
    },
    PoissonNll {
        log_input: bool,
        full: bool,
        eps: f64,
    },
    SoftMargin,
}

pub(crate) struct ElementwiseLoss {
    name: String,
    kind: Kind,
}

impl ElementwiseLoss {
    /// The loss of that name; `None` where there is none.
    pub(crate) fn new(spec: &NamedOptions) -> Result<Option<ElementwiseLoss>, TorchError> {
        let (class, kind) = match spec.name.as_str() {
            "mse" => plain(spec, "MSELoss", Kind::Mse)?,
            "l1" | "mae" => plain(spec, "L1Loss", Kind::L1)?,
            "bce" => plain(spec, "BCELoss", Kind::Bce)?,
            "soft_margin" => plain(spec, "SoftMarginLoss", Kind::SoftMargin)?,
            "huber" => {
                let options = options(spec, &["delta"])?;
                let delta =
                    options.number("delta", 1.0, |delta| delta > 0.0, "a number above 0")?;
                ("HuberLoss", Kind::Huber { delta })
            }
            "smooth_l1" => {
                let beta = options(spec, &["beta"])?.non_negative("beta", 1.0)?;
                let kind = if beta == 0.0 {
                    Kind::L1
                } else {
                    Kind::SmoothL1 { beta }
                };
                ("SmoothL1Loss", kind)
            }
            "bce_with_logits" => {
                let numbers = options(spec, &["pos_weight"])?.numbers("pos_weight")?;
                let pos_weight = numbers
                    .map(|numbers| Tensor::f_from_slice(&numbers))
                    .transpose()?;
                ("BCEWithLogitsLoss", Kind::BceWithLogits { pos_weight })
            }
            "poisson_nll" => {
                let options = options(spec, &["log_input", "full", "eps"])?;
                let kind = Kind::PoissonNll {
                    log_input: options.flag("log_input", true)?,
                    full: options.flag("full", false)?,
                    eps: options.non_negative("eps", 1e-8)?,
                };
                ("PoissonNLLLoss", kind)
            }
            _ => return Ok(None),
        };
        Ok(Some(ElementwiseLoss {
            name: format!("loss {class}"),
            kind,
        }))
    }

    fn reduced(
        &self,
        output: &Tensor,
        label: &Tensor,
        reduction: Reduction,
    ) -> Result<Tensor, TorchError> {
        Ok(match &self.kind {
            Kind::Mse => output.f_mse_loss(label, reduction),
            Kind::L1 => output.f_l1_loss(label, reduction),
            Kind::Huber { delta } => output.f_huber_loss(label, reduction, *delta),
            Kind::SmoothL1 { beta } => output.f_smooth_l1_loss(label, reduction, *beta),
            Kind::Bce => output.f_binary_cross_entropy(label, None::<Tensor>, reduction),
            Kind::BceWithLogits { pos_weight } => {
                let pos_weight = pos_weight
                    .as_ref()
                    .map(|weight| weight.f_totype(output.kind()))
                    .transpose()?;
                output.f_binary_cross_entropy_with_logits(label, None, pos_weight, reduction)
            }
            Kind::PoissonNll {
                log_input,
                full,
                eps,
            } => output.f_poisson_nll_loss(label, *log_input, *full, *eps, reduction),
            Kind::SoftMargin => output.f_soft_margin_loss(label, reduction),
        }?)
    }
}

fn plain(
    spec: &NamedOptions,
    class: &'static str,
    kind: Kind,
) -> Result<(&'static str, Kind), TorchError> {
    options(spec, &[])?;
    Ok((class, kind))
}

impl Loss for ElementwiseLoss {
    fn name(&self) -> &str {
        &self.name
    }

    fn evaluate(&self, output: &Outputs, targets: &Targets) -> Result<LossValue, TorchError> {
        let (output, label) = regression_target(output, &targets.labels, &self.name)?;
        mean_or_weighted(targets, |reduction| {
            self.reduced(&output, &label, reduction)
        })
    }

    fn move_to(&mut self, _from: Device, to: Device) -> Result<(), TorchError> {
        if let Kind::BceWithLogits {
            pos_weight: Some(weight),
        } = &mut self.kind
        {
            *weight = weight.f_to_device(to)?;
        }
        Ok(())
    }

    fn threshold(&self) -> f64 {
        match self.kind {
            Kind::Bce => 0.5,
            _ => 0.0,
        }
    }
}
