//! What a loss or a metric is given, brought into the shape that it takes.

use tch::{Kind, Tensor};

use crate::autocast::target_kind;
use crate::error::TorchError;
use crate::program::Outputs;
use crate::rows::Targets;
use crate::tensor::{brief, is_floating};

/// The output where it must be one tensor; `name` is that of the loss or metric that says so.
pub(crate) fn single_output<'a>(output: &'a Outputs, name: &str) -> Result<&'a Tensor, TorchError> {
    output.single().ok_or_else(|| {
        TorchError::Data(format!(
            "{name} takes one tensor, but the model returns {}; return one tensor, or give a scripted loss that takes \
             what the model returns",
            output.describe()
        ))
    })
}

/// The label where it must be one tensor. Several scalar labels are the columns of one, if the output has that many.
pub(crate) fn single_label(
    labels: &[Tensor],
    output: &Tensor,
    name: &str,
) -> Result<Tensor, TorchError> {
    if let [label] = labels {
        return Ok(label.shallow_clone());
    }
    if labels.is_empty() {
        return Err(TorchError::Data(format!(
            "{name} needs a label: set labelCol, or give a scripted loss, which is called with the output alone"
        )));
    }
    let size = output.size();
    let is_column = size.len() == 2 && size[1] == labels.len() as i64;
    if is_column && labels.iter().all(|label| label.dim() == 1) {
        let columns: Result<Vec<Tensor>, _> = labels
            .iter()
            .map(|label| label.f_totype(target_kind(output)))
            .collect();
        return Ok(Tensor::f_stack(&columns?, 1)?);
    }
    Err(TorchError::Data(format!(
        "{name} takes one label, but there are {} and the output has shape {}; give a scripted loss, which gets the \
         tuple of labels",
        labels.len(),
        brief(output)
    )))
}

/// The label in the output's shape where the two differ by a trailing 1 only; `None` where they differ otherwise.
pub(crate) fn same_shape(output: &Tensor, label: &Tensor) -> Result<Option<Tensor>, TorchError> {
    let (output_size, label_size) = (output.size(), label.size());
    if output_size == label_size {
        return Ok(Some(label.shallow_clone()));
    }
    let (longer, shorter) = match output_size.len() > label_size.len() {
        true => (&output_size, &label_size),
        false => (&label_size, &output_size),
    };
    match longer.split_last() {
        Some((1, rows)) if rows == shorter.as_slice() => Ok(Some(label.f_reshape(&output_size)?)),
        _ => Ok(None),
    }
}

/// Output and label with equal shapes, the label of the type that [`target_kind`] says.
pub(crate) fn regression_target(
    output: &Outputs,
    labels: &[Tensor],
    name: &str,
) -> Result<(Tensor, Tensor), TorchError> {
    let output = single_output(output, name)?;
    let label = single_label(labels, output, name)?;
    let Some(fitted) = same_shape(output, &label)? else {
        return Err(TorchError::Data(format!(
            "{name}: the model's output has shape {:?} and the label {:?}; they must be equal, but for a trailing 1",
            output.size(),
            label.size()
        )));
    };
    Ok((
        output.shallow_clone(),
        fitted.f_totype(target_kind(output))?,
    ))
}

/// An output with the classes that it is held against.
pub(crate) struct ClassTarget {
    /// `[rows, classes, ...]`.
    pub(crate) output: Tensor,
    /// `[rows, ...]` as int64, or probabilities in the output's shape.
    pub(crate) label: Tensor,
    /// The same in main memory.
    pub(crate) host_label: Tensor,
}

/// The class target of a batch. Labels that are no whole numbers are refused.
pub(crate) fn class_target(
    output: &Outputs,
    targets: &Targets,
    name: &str,
) -> Result<ClassTarget, TorchError> {
    let output = single_output(output, name)?;
    let labels = targets.both(|labels| single_label(labels, output, name))?;
    class_target_of(output, labels, name)
}

/// The class target of a label that is there where the program computes, and in main memory.
pub(crate) fn class_target_of(
    output: &Tensor,
    (label, host_label): (Tensor, Tensor),
    name: &str,
) -> Result<ClassTarget, TorchError> {
    let size = output.size();
    if size.len() < 2 {
        return Err(TorchError::Data(format!(
            "{name}: the model's output has shape {size:?}, but must be [rows, classes, ...]; for one logit per row \
             use bce_with_logits"
        )));
    }
    let output = output.shallow_clone();
    if is_floating(label.kind()) && label.size() == size {
        let kind = target_kind(&output);
        return Ok(ClassTarget {
            label: label.f_totype(kind)?,
            host_label: host_label.f_totype(kind)?,
            output,
        });
    }
    let expected: Vec<i64> = size[..1].iter().chain(&size[2..]).copied().collect();
    let with_one: Vec<i64> = expected.iter().copied().chain([1]).collect();
    if label.size() != expected && label.size() != with_one {
        return Err(TorchError::Data(format!(
            "{name}: the model's output has shape {size:?}, so the label must have shape {expected:?}, but it has {:?}",
            label.size()
        )));
    }
    check_whole(&host_label, name)?;
    let classes = |label: Tensor| label.f_reshape(&expected)?.f_totype(Kind::Int64);
    Ok(ClassTarget {
        output,
        label: classes(label)?,
        host_label: classes(host_label)?,
    })
}

/// Refuses a label in main memory that is no whole number.
fn check_whole(label: &Tensor, name: &str) -> Result<(), TorchError> {
    if !is_floating(label.kind()) {
        return Ok(());
    }
    let back = label.f_totype(Kind::Int64)?.f_totype(label.kind())?;
    if back.f_equal(label)? {
        return Ok(());
    }
    let broken = label.f_masked_select(&back.f_ne_tensor(label)?)?;
    let value = broken.f_double_value(&[0])?;
    Err(TorchError::Data(format!(
        "{name}: class labels must be whole numbers, but one is {value:?}"
    )))
}
