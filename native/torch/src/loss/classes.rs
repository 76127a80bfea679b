//! Cross entropy and negative log likelihood: the mean is over the targets that count, each by its class's weight.

use flambeau_train::NamedOptions;
use tch::{Kind, Reduction, Tensor};

use super::{Loss, LossValue, class_target, mean_or_weighted, options};
use crate::error::TorchError;
use crate::program::Outputs;
use crate::tensor::is_floating;

pub(crate) struct ClassLoss {
    name: &'static str,
    /// Whether the output is logits rather than logarithms of probabilities.
    takes_logits: bool,
    class_weight: Option<Tensor>,
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
        let weight = self.class_weight_as(output.kind())?;
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

    fn class_weight_as(&self, kind: Kind) -> Result<Option<Tensor>, TorchError> {
        Ok(self
            .class_weight
            .as_ref()
            .map(|weight| weight.f_totype(kind))
            .transpose()?)
    }

    fn of_target(
        &self,
        output: &Tensor,
        label: &Tensor,
        weight: Option<&Tensor>,
        num_rows: usize,
    ) -> Result<LossValue, TorchError> {
        // Class probabilities: torch divides by the rows, whatever the class weights.
        if is_floating(label.kind()) {
            return mean_or_weighted(weight, num_rows, |reduction| {
                self.reduced(output, label, reduction)
            });
        }
        let Some(weight) = weight else {
            let value = self.reduced(output, label, Reduction::Mean)?;
            let denominator = match &self.class_weight {
                None => label
                    .f_ne(self.ignore_index)?
                    .f_sum(None)?
                    .f_double_value(&[])?,
                Some(_) => self
                    .target_weights(output, label)?
                    .f_sum(Kind::Double)?
                    .f_double_value(&[])?,
            };
            return Ok(LossValue { value, denominator });
        };
        let mut per_target = self.reduced(output, label, Reduction::None)?;
        let mut target_weights = self.target_weights(output, label)?;
        if label.dim() > 1 {
            per_target = per_target.f_flatten(1, -1)?.f_sum_dim_intlist(
                Some([1i64].as_slice()),
                false,
                None,
            )?;
            target_weights = target_weights.f_flatten(1, -1)?.f_sum_dim_intlist(
                Some([1i64].as_slice()),
                false,
                None,
            )?;
        }
        let numerator = per_target
            .f_mul(&weight.f_totype(per_target.kind())?)?
            .f_sum(None)?;
        let denominator = target_weights
            .f_totype(Kind::Double)?
            .f_mul(weight)?
            .f_sum(None)?
            .f_double_value(&[])?;
        Ok(LossValue {
            value: numerator.f_div_scalar(denominator)?,
            denominator,
        })
    }

    /// What each target adds to the denominator: its class's weight, or 1; 0 where it is ignored. In the label's shape.
    fn target_weights(&self, output: &Tensor, label: &Tensor) -> Result<Tensor, TorchError> {
        let counted = label.f_ne(self.ignore_index)?;
        match self.class_weight_as(output.kind())? {
            None => Ok(counted.f_totype(Kind::Double)?),
            Some(weight) => {
                let classes = label.f_masked_fill(&counted.f_logical_not()?, 0)?;
                Ok(weight.f_take(&classes)?.f_mul(&counted)?)
            }
        }
    }

    /// Says which label lies outside the classes, if that is what failed.
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

    fn evaluate(
        &self,
        output: &Outputs,
        labels: &[Tensor],
        weight: Option<&Tensor>,
        num_rows: usize,
    ) -> Result<LossValue, TorchError> {
        let (output, label) = class_target(output, labels, self.name)?;
        self.of_target(&output, &label, weight, num_rows)
            .or_else(|error| {
                self.refuse_label(&output, &label)?;
                Err(error)
            })
    }

    fn ignore_index(&self) -> Option<i64> {
        Some(self.ignore_index)
    }
}
