//! A loss that is a TorchScript module of the user's.

use tch::{Device, Reduction, Tensor};

use super::targets::same_shape;
use super::{Loss, LossValue, mean_or_weighted, per_row};
use crate::autocast::target_kind;
use crate::error::TorchError;
use crate::program::{Outputs, Program};
use crate::rows::Targets;
use crate::script::ScriptProgram;
use crate::tensor::is_floating;

/// It is called as `forward(output, label)`, with the tuple of labels where there are several, or with the output
/// alone where there is none. A single label takes a single output's shape where they differ by a trailing 1.
pub(crate) struct ScriptedLoss {
    name: String,
    script: ScriptProgram,
}

impl ScriptedLoss {
    /// The loss in an archive; `uri` says where from, for messages.
    pub(crate) fn load(bytes: &[u8], uri: &str) -> Result<ScriptedLoss, TorchError> {
        let file = uri.rsplit('/').next().unwrap_or(uri);
        let name = format!("loss {file}");
        let script = ScriptProgram::load(bytes).map_err(|error| {
            TorchError::Param(format!("{name} is no TorchScript archive: {error}"))
        })?;
        let trainable: Vec<String> = script
            .tensors()
            .into_iter()
            .filter(|tensor| tensor.requires_grad)
            .map(|tensor| tensor.name)
            .collect();
        if !trainable.is_empty() {
            return Err(TorchError::Param(format!(
                "{name} has trainable parameters of its own ({}); make them part of the model, so that they are \
                 trained, averaged and saved with it",
                trainable.join(", ")
            )));
        }
        let needed: Vec<String> = script
            .signature()?
            .into_iter()
            .filter_map(|(argument, is_optional)| (!is_optional).then_some(argument))
            .collect();
        if needed.len() > 2 {
            return Err(TorchError::Param(format!(
                "{name} takes {} arguments ({}), and a scripted loss gets the output and the label alone: a loss that \
                 takes the inputs too needs PySpark with runtime='python'",
                needed.len(),
                needed.join(", ")
            )));
        }
        Ok(ScriptedLoss { name, script })
    }

    fn call(&self, output: &Outputs, labels: &[Tensor]) -> Result<Outputs, TorchError> {
        if let ([label], Some(tensor)) = (labels, output.single()) {
            let mut label = same_shape(tensor, label)?.unwrap_or_else(|| label.shallow_clone());
            if is_floating(label.kind()) && is_floating(tensor.kind()) {
                label = label.f_totype(target_kind(tensor))?;
            }
            return self.script.call_loss(output, &[label]);
        }
        self.script.call_loss(output, labels)
    }
}

impl Loss for ScriptedLoss {
    fn name(&self) -> &str {
        &self.name
    }

    fn evaluate(&self, output: &Outputs, targets: &Targets) -> Result<LossValue, TorchError> {
        let num_rows = targets.num_rows;
        let returned = self.call(output, &targets.labels)?;
        let Outputs::Tensor(value) = returned else {
            return Err(TorchError::Param(format!(
                "{} returned {}; it must return a tensor",
                self.name,
                returned.describe()
            )));
        };
        let size = value.size();
        if size.is_empty() || (value.numel() == 1 && num_rows != 1) {
            if targets.weight.is_some() {
                return Err(TorchError::Param(format!(
                    "{} returns a scalar, which cannot be weighted by weightCol; return one value per row",
                    self.name
                )));
            }
            return Ok(LossValue {
                value: value.f_reshape([0i64; 0])?,
                denominator: num_rows as f64,
            });
        }
        if size[0] != num_rows as i64 {
            return Err(TorchError::Param(format!(
                "{} returned shape {size:?} for {num_rows} rows; it must return a scalar or one value per row",
                self.name
            )));
        }
        let values = per_row(value)?;
        mean_or_weighted(targets, |reduction| match reduction {
            Reduction::None => Ok(values.shallow_clone()),
            _ => Ok(values.f_mean(None)?),
        })
    }

    fn move_to(&mut self, from: Device, to: Device) -> Result<(), TorchError> {
        self.script.move_to(from, to)
    }
}
