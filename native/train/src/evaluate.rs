//! The loss and the metrics over the validation rows.

use flambeau_collective::{DType, ProcessGroup, RawBuffer, ReduceOp};
use flambeau_data::BatchReader;

use crate::error::Cause;
use crate::history::NamedValue;
use crate::model::Model;
use crate::staging::{Staged, Staging};
use crate::sums::LossTotals;

/// What an evaluation came to, the same on all ranks.
pub(crate) struct Evaluation {
    pub(crate) loss: Option<f64>,
    pub(crate) metrics: Vec<NamedValue>,
}

/// Evaluates all rows, every rank its own lanes, and adds up the sums over the ranks.
pub(crate) fn evaluate(
    model: &mut dyn Model,
    group: &ProcessGroup,
    reader: &mut BatchReader,
    num_metrics: usize,
) -> Result<Evaluation, Cause> {
    let mut totals = LossTotals::new(num_metrics);
    reader.start(0, 0)?;
    let mut staging = Staging::default();
    while let Some(Staged { batch, .. }) = staging.next(reader, model)? {
        if batch.num_rows > 0 {
            totals.add(&model.evaluate_batch(batch).map_err(Cause::Model)?)?;
        }
    }
    let vector = totals.as_mut_slice();
    let buffer = RawBuffer::cpu(vector.as_mut_ptr().cast(), vector.len(), DType::Float64);
    // SAFETY: the vector lives and is touched by nobody else until the call returns.
    unsafe { group.all_reduce(buffer, ReduceOp::Sum) }?;
    let mut metrics = finish_metrics(model, &totals)?;
    if let Some(state) = model.take_gathered().map_err(Cause::Model)? {
        let states = group.all_gather_bytes(&state)?;
        let values = model.finish_gathered(&states).map_err(Cause::Model)?;
        metrics.extend(finite(values));
    }
    Ok(Evaluation {
        loss: totals.mean().filter(|loss| loss.is_finite()),
        metrics,
    })
}

/// The metrics' values from their sums; those that are not finite become `None`.
pub(crate) fn finish_metrics(
    model: &mut dyn Model,
    totals: &LossTotals,
) -> Result<Vec<NamedValue>, Cause> {
    let values = model
        .finish_metrics(totals.metrics())
        .map_err(Cause::Model)?;
    Ok(finite(values).collect())
}

fn finite(values: Vec<(String, f64)>) -> impl Iterator<Item = NamedValue> {
    values
        .into_iter()
        .map(|(name, value)| (name, value.is_finite().then_some(value)))
}
