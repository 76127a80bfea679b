//! Cross entropy and negative log likelihood: the mean is over the targets that count, each by its class's weight.

use flambeau_train::NamedOptions;
use tch::{Device, Kind, Reduction, Tensor};

use super::{ClassTarget, Loss, LossValue, class_target, mean_or_weighted, options, total};
use crate::error::TorchError;
use crate::program::Outputs;
use crate::rows::Targets;
use crate::tensor::is_floating;

pub(crate) struct ClassLoss {
    name: &'static str,
    /// Whether the output is logits rather than logarithms of probabilities.
    takes_logits: bool,
    class_weight: Option<Tensor>,
    /// The same in main memory.
    host_class_weight: Option<Tensor>,
    ignore_index: i64,
    label_smoothing: f64,
}

impl ClassLoss {
    /// `cross_entropy` or `nll`.
    pub(crate) fn new(spec: &NamedOptions) -> Result<ClassLoss, TorchError> {
        let takes_logits = spec.name == "cross_entropy";
        let options = match takes_logits {
            true => options(spec, &["weight", "ignore_index", "label_smoothing"])?,
            false => options(spec, &["weight", "ignore_index"])?,
        };
        let class_weight = options
            .numbers("weight")?
            .map(|numbers| Tensor::f_from_slice(&numbers))
            .transpose()?;
        Ok(ClassLoss {
            name: if takes_logits {
                "loss CrossEntropyLoss"
            } else {
                "loss NLLLoss"
            },
            takes_logits,
            host_class_weight: class_weight.as_ref().map(Tensor::shallow_clone),
            class_weight,
            ignore_index: options.integer("ignore_index", -100)?,
            label_smoothing: options.number(
                "label_smoothing",
                0.0,
                |smoothing| (0.0..=1.0).contains(&smoothing),
                "a number from 0 to 1",
            )?,
        })
    }

    fn reduced(
        &self,
        output: &Tensor,
        label: &Tensor,
        reduction: Reduction,
    ) -> Result<Tensor, TorchError> {
        let weight = in_kind(self.class_weight.as_ref(), output.kind())?;
        Ok(match self.takes_logits {
            true => output.f_cross_entropy_loss(
                label,
                weight,
                reduction,
                self.ignore_index,
                self.label_smoothing,
            ),
            false => output.f_nll_loss_nd(label, weight, reduction, self.ignore_index),
        }?)
    }

    fn of_target(&self, target: &ClassTarget, targets: &Targets) -> Result<LossValue, TorchError> {
        let ClassTarget {
            output,
            label,
            host_label,
        } = target;
        // Class probabilities: torch divides by the rows, whatever the class weights.
        if is_floating(label.kind()) {
            return mean_or_weighted(targets, |reduction| self.reduced(output, label, reduction));
        }
        let (Some(weight), Some(host_weight)) = (&targets.weight, targets.host_weight()) else {
            let value = self.reduced(output, label, Reduction::Mean)?;
            let denominator = match &self.class_weight {
                None => host_label
                    .f_ne(self.ignore_index)?
                    .f_sum(None)?
                    .f_double_value(&[])?,
                Some(_) => total(&self.target_weights(output.kind(), host_label)?)?,
            };
            return Ok(LossValue { value, denominator });
        };
        let per_target = of_rows(self.reduced(output, label, Reduction::None)?)?;
        let target_weights = of_rows(self.target_weights(output.kind(), host_label)?)?;
        let numerator = per_target
            .f_mul(&weight.f_totype(per_target.kind())?)?
            .f_sum(None)?;
        let denominator = target_weights
            .f_totype(Kind::Double)?
            .f_mul(host_weight)?
            .f_sum(None)?
            .f_double_value(&[])?;
        Ok(LossValue {
            value: numerator.f_div_scalar(denominator)?,
            denominator,
        })
    }

    /// What each target adds to the denominator: its class's weight, or 1; 0 where it is ignored. In the shape of the label,
    /// which is in main memory; weights are rounded to `kind`.
    fn target_weights(&self, kind: Kind, label: &Tensor) -> Result<Tensor, TorchError> {
        let counted = label.f_ne(self.ignore_index)?;
        match in_kind(self.host_class_weight.as_ref(), kind)? {
            None => Ok(counted.f_totype(Kind::Double)?),
            Some(weight) => {
                let classes = label.f_masked_fill(&counted.f_logical_not()?, 0)?;
                Ok(weight.f_take(&classes)?.f_mul(&counted)?)
            }
        }
    }

    /// Says which label, in main memory, lies outside the classes, if one does.
    fn refuse_label(&self, output: &Tensor, label: &Tensor) -> Result<(), TorchError> {
        if is_floating(label.kind()) {
            return Ok(());
        }
        let num_classes = output.size()[1];
        let outside = label
            .f_lt(0)?
            .f_logical_or(&label.f_ge(num_classes)?)?
            .f_logical_and(&label.f_ne(self.ignore_index)?)?;
        let labels = label.f_masked_select(&outside)?;
        if labels.numel() == 0 {
            return Ok(());
        }
        let value = labels.f_int64_value(&[0])?;
        let hint = match num_classes {
            1 => "; for one logit per row use bce_with_logits",
            _ => "",
        };
        Err(TorchError::Data(format!(
            "{}: the class label {value} lies outside the {num_classes} classes of the model's output {:?}: labels \
             must be 0 to {}{hint}",
            self.name,
            output.size(),
            num_classes - 1
        )))
    }
}

impl Loss for ClassLoss {
    fn name(&self) -> &str {
        self.name
    }

    fn evaluate(&self, output: &Outputs, targets: &Targets) -> Result<LossValue, TorchError> {
        let target = class_target(output, targets, self.name)?;
        let refuse_label = || self.refuse_label(&target.output, &target.host_label);
        // A GPU would stop for good at such a label; the CPU says that something is wrong.
        if targets.are_on_device() {
            refuse_label()?;
        }
        self.of_target(&target, targets).or_else(|error| {
            refuse_label()?;
            Err(error)
        })
    }

    fn move_to(&mut self, _from: Device, to: Device) -> Result<(), TorchError> {
        if let Some(weight) = &mut self.class_weight {
            *weight = weight.f_to_device(to)?;
        }
        Ok(())
    }

    fn ignore_index(&self) -> Option<i64> {
        Some(self.ignore_index)
    }
}

fn in_kind(weight: Option<&Tensor>, kind: Kind) -> Result<Option<Tensor>, TorchError> {
    Ok(weight.map(|weight| weight.f_totype(kind)).transpose()?)
}

/// One number a row: the sum over a row's targets.
fn of_rows(values: Tensor) -> Result<Tensor, TorchError> {
    match values.dim() {
        1 => Ok(values),
        _ => {
            Ok(values
                .f_flatten(1, -1)?
                .f_sum_dim_intlist(Some([1i64].as_slice()), false, None)?)
        }
    }
}
