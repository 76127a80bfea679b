//! A classifier's columns from its output.

use serde::Deserialize;
use tch::{Kind, Tensor};

use crate::error::TorchError;
use crate::scores::{Scores, elements};

/// How a classifier's output `[rows, classes]`, or `[rows]` of one score a row, reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClassOutput {
    /// Unbounded scores: probabilities by softmax, or sigmoid of a single one.
    Logits,
    /// Logarithms of probabilities.
    LogProbabilities,
    /// Probabilities.
    Probabilities,
}

/// A column of a classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClassField {
    /// The number of the most probable class.
    Prediction,
    /// The output itself, one number a class.
    RawPrediction,
    /// Probabilities, one a class.
    Probability,
}

/// Classes as numbers and vectors of doubles.
struct Columns {
    prediction: Tensor,
    raw: Tensor,
    probability: Tensor,
}

/// The wanted columns, in order; vectors lie row after row.
pub(crate) fn class_columns(
    output: &Tensor,
    kind: ClassOutput,
    fields: &[ClassField],
) -> Result<Vec<Scores>, TorchError> {
    let scores = output.f_totype(Kind::Double)?;
    let size = scores.size();
    let columns = match size.len() == 1 || size[1] == 1 {
        true => of_one_score(&scores.f_reshape([-1])?, kind)?,
        false => of_classes(scores, kind)?,
    };
    let wanted = fields.iter().map(|field| match field {
        ClassField::Prediction => &columns.prediction,
        ClassField::RawPrediction => &columns.raw,
        ClassField::Probability => &columns.probability,
    });
    wanted
        .map(|tensor| Ok(Scores::F64(elements(&tensor.f_contiguous()?))))
        .collect()
}

fn of_one_score(score: &Tensor, kind: ClassOutput) -> Result<Columns, TorchError> {
    let positive = match kind {
        ClassOutput::Logits => score.f_sigmoid()?,
        ClassOutput::LogProbabilities => score.f_exp()?,
        ClassOutput::Probabilities => score.shallow_clone(),
    };
    let negative = positive.f_neg()?.f_add_scalar(1.0)?;
    let probability = Tensor::f_stack(&[&negative, &positive], 1)?;
    Ok(Columns {
        prediction: positive.f_gt(0.5)?.f_totype(Kind::Double)?,
        raw: match kind {
            ClassOutput::Logits => Tensor::f_stack(&[&score.f_neg()?, score], 1)?,
            _ => probability.shallow_clone(),
        },
        probability,
    })
}

fn of_classes(scores: Tensor, kind: ClassOutput) -> Result<Columns, TorchError> {
    Ok(Columns {
        prediction: scores.f_argmax(1, false)?.f_totype(Kind::Double)?,
        probability: match kind {
            ClassOutput::Logits => scores.f_softmax(1, None)?,
            ClassOutput::LogProbabilities => scores.f_exp()?,
            ClassOutput::Probabilities => scores.shallow_clone(),
        },
        raw: scores,
    })
}
