//! The loss and the metrics over the validation rows.

use flambeau_collective::{CollectiveError, DType, ProcessGroup, RawBuffer, ReduceOp};
use flambeau_data::BatchReader;

use crate::error::Cause;
use crate::model::{Model, Split};
use crate::record::history::NamedValue;
use crate::record::sums::LossTotals;
use crate::training::staging::{Staged, Staging};

/// Bytes of all ranks that are gathered at a time. The group carries 1 GiB at most.
const PART: usize = 64 << 20;

/// What an evaluation came to, the same on all ranks.
#[derive(Default)]
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
    let mut staging = Staging::new(false);
    while let Some(Staged { batch, .. }) = staging.next(reader, model)? {
        if batch.num_rows > 0 {
            totals.add(&model.evaluate_batch(batch).map_err(Cause::Model)?)?;
        }
    }
    let vector = totals.as_mut_slice();
    let buffer = RawBuffer::cpu(vector.as_mut_ptr().cast(), vector.len(), DType::Float64);
    // SAFETY: the vector lives and is touched by nobody else until the call returns.
    unsafe { group.all_reduce(buffer, ReduceOp::Sum) }?;
    let mut metrics = finish_metrics(model, Split::Validation, &totals)?;
    if let Some(state) = model.take_gathered().map_err(Cause::Model)? {
        let states = gather(group, &state, PART / group.world_size(), true)?;
        let values = model.finish_gathered(&states).map_err(Cause::Model)?;
        metrics.extend(finite(values));
    }
    Ok(Evaluation {
        loss: totals.mean().filter(|loss| loss.is_finite()),
        metrics,
    })
}

/// The bytes of all ranks in their order, however many there are, `part` of each rank at a time; none of any on a rank that does
/// not keep them.
pub(crate) fn gather(
    group: &ProcessGroup,
    bytes: &[u8],
    part: usize,
    keeps: bool,
) -> Result<Vec<Vec<u8>>, CollectiveError> {
    let mut gathered = vec![vec![]; group.world_size()];
    let mut parts = bytes.chunks(part);
    loop {
        let told = group.all_gather_bytes(parts.next().unwrap_or_default())?;
        let is_last = told.iter().all(|told| told.len() < part);
        if keeps {
            for (gathered, told) in gathered.iter_mut().zip(told) {
                gathered.extend(told);
            }
        }
        if is_last {
            return Ok(gathered);
        }
    }
}

/// The metrics' values from their sums; those that are not finite become `None`.
pub(crate) fn finish_metrics(
    model: &mut dyn Model,
    split: Split,
    totals: &LossTotals,
) -> Result<Vec<NamedValue>, Cause> {
    let values = model
        .finish_metrics(split, totals.metrics())
        .map_err(Cause::Model)?;
    Ok(finite(values).collect())
}

fn finite(values: Vec<(String, f64)>) -> impl Iterator<Item = NamedValue> {
    values
        .into_iter()
        .map(|(name, value)| (name, value.is_finite().then_some(value)))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use flambeau_collective::{GroupOptions, TcpRendezvous};

    use super::*;

    #[test]
    fn what_is_longer_than_a_part_is_gathered_whole() {
        let secret = b"of both of the ranks";
        let meet = |address: &str, rank| {
            TcpRendezvous::new(address, rank, 2, secret, Duration::from_secs(60)).unwrap()
        };
        let server = meet("127.0.0.1:0", 0);
        let member = meet(&server.address().to_string(), 1);
        // By length: none, less than a part, one part, several, and several with a rest.
        let cases = [(0, 0), (0, 3), (4, 2), (8, 4), (1, 11)];
        let bytes = |len: u8| (0..len).collect::<Vec<_>>();
        thread::scope(|scope| {
            for (rank, mut rendezvous) in [server, member].into_iter().enumerate() {
                scope.spawn(move || {
                    let options = GroupOptions {
                        secret: secret.to_vec(),
                        ..GroupOptions::default()
                    };
                    let group = ProcessGroup::connect(&mut rendezvous, options).unwrap();
                    for (first, second) in cases {
                        let own = bytes([first, second][rank]);
                        let gathered = gather(&group, &own, 4, true).unwrap();
                        assert_eq!(gathered, [bytes(first), bytes(second)]);
                        let gathered = gather(&group, &own, 4, rank == 0).unwrap();
                        assert_eq!(
                            gathered.concat().is_empty(),
                            rank > 0 || first + second == 0
                        );
                    }
                });
            }
        });
    }
}
