//! What held a training up most, and what to change about it.

use serde::{Deserialize, Serialize};

use super::history::StepTimes;

/// A part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepPart {
    /// Waiting for batches, and making them.
    Data,
    /// Forward, loss, backward and metrics.
    Model,
    /// Averaging gradients over the ranks, less the waiting for one that is always last.
    Reduce,
    /// Clipping and the optimizer.
    Optimizer,
    /// Waiting for the rank that was last.
    SlowRank,
}

/// What the ranks average, and as what it travels.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Averaging {
    /// Gradients, as they are.
    Gradients,
    /// Gradients, as 16-bit floats.
    HalfPrecision,
    /// Gradients, as products of two thin matrices.
    PowerSgd,
    /// Gradients, as their largest entries.
    TopK,
    /// Weights, every few steps.
    Weights,
}

/// The part of the steps that took longest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bottleneck {
    /// The part.
    pub part: StepPart,
    /// Its share of the seconds that a rank spent in steps, from 0 to 1.
    pub share: f64,
    /// The rank that the others waited for, where it was that.
    pub rank: Option<usize>,
    /// A sentence that says so, and what to change.
    pub advice: String,
}

impl Bottleneck {
    /// Of the times that each rank spent in steps, in order of their ranks; `None` where no step was taken. `preprocesses` says
    /// whether a function of the user's makes inputs of the rows, and `averaging` what the reduction is.
    ///
    /// A step ends for all ranks when the last one has given its gradients, so the rank that is last spends the least time in
    /// the reduction: what the others spend beyond that is waiting for it. Ranks that are last in turn are not told apart from a
    /// slow reduction.
    pub(crate) fn of(
        ranks: &[StepTimes],
        preprocesses: bool,
        averaging: Averaging,
    ) -> Option<Bottleneck> {
        let mean = |part: fn(&StepTimes) -> f64| {
            ranks.iter().map(part).sum::<f64>() / ranks.len().max(1) as f64
        };
        let reduces = |times: &StepTimes| times.reduce_seconds;
        let last =
            (0..ranks.len()).min_by(|&a, &b| reduces(&ranks[a]).total_cmp(&reduces(&ranks[b])))?;
        let reduce = reduces(&ranks[last]);
        let num_others = (ranks.len() - 1).max(1) as f64;
        let waiting = ranks
            .iter()
            .map(|times| reduces(times) - reduce)
            .sum::<f64>()
            / num_others;
        let seconds = mean(StepTimes::total);
        let (part, longest) = [
            (StepPart::Data, mean(|times| times.data_seconds)),
            (StepPart::Model, mean(|times| times.model_seconds)),
            (StepPart::Reduce, reduce),
            (StepPart::Optimizer, mean(|times| times.optimizer_seconds)),
            (StepPart::SlowRank, waiting),
        ]
        .into_iter()
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
        if longest <= 0.0 {
            return None;
        }
        // The others' seconds are longer than the mean where the last rank's reduction is short.
        let share = (longest / seconds).min(1.0);
        let rank = (part == StepPart::SlowRank).then_some(last);
        let advice = advice(part, share, ranks, last, preprocesses, averaging);
        Some(Bottleneck {
            part,
            share,
            rank,
            advice,
        })
    }
}

fn advice(
    part: StepPart,
    share: f64,
    ranks: &[StepTimes],
    last: usize,
    preprocesses: bool,
    averaging: Averaging,
) -> String {
    let percent = format!("{:.0} %", 100.0 * share);
    match part {
        StepPart::Data => {
            let first = if preprocesses {
                "where cores are free, raise preprocessThreads, and do before the fit what is alike in each epoch; else "
            } else {
                ""
            };
            format!(
                "the workers waited for rows in {percent} of their time: {first}raise memoryBudget, so that rows are decoded once, \
                 or give narrower columns, such as float for double and one array for many columns"
            )
        }
        StepPart::Model => format!(
            "forward and backward took {percent} of the workers' time: where cores are free, raise numWorkers or numThreads; else \
             try precision and compile"
        ),
        StepPart::Reduce => {
            let more = match averaging {
                Averaging::Gradients => "between hosts gradientCompression sends less",
                Averaging::HalfPrecision => {
                    "between hosts gradientCompression powersgd and topk send less than 16-bit floats, where training is on CPUs"
                }
                Averaging::PowerSgd => {
                    "a part of it is gradientCompression powersgd's factorizing, which fp16 does not have"
                }
                Averaging::TopK => {
                    "a part of it is gradientCompression topk's looking for the largest entries, which fp16 does not have"
                }
                Averaging::Weights => {
                    return format!(
                        "averaging weights took {percent} of the workers' time: raise syncEvery, so that they are averaged less often"
                    );
                }
            };
            format!(
                "averaging gradients took {percent} of the workers' time: raise batchSize or gradientAccumulationSteps, which have \
                 fewer of it; {more}"
            )
        }
        StepPart::Optimizer => format!(
            "the optimizer took {percent} of the workers' time: raise batchSize, which has fewer steps"
        ),
        StepPart::SlowRank => {
            let excess = |of: fn(&StepTimes) -> f64| {
                let sum: f64 = ranks.iter().map(of).sum();
                let others = (sum - of(&ranks[last])) / (ranks.len() - 1) as f64;
                of(&ranks[last]) - others
            };
            let parts = [
                ("waiting for rows", excess(|times| times.data_seconds)),
                ("forward and backward", excess(|times| times.model_seconds)),
                ("the optimizer", excess(|times| times.optimizer_seconds)),
            ];
            let slowest = parts.iter().max_by(|a, b| a.1.total_cmp(&b.1));
            let at = slowest.map_or("", |(name, _)| name);
            format!(
                "rank {last} is slow, in {at}: the others waited for it in {percent} of their time: look at what else runs on its \
                 host, or whether its rows are larger"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(data: f64, model: f64, reduce: f64, optimizer: f64) -> StepTimes {
        StepTimes {
            data_seconds: data,
            model_seconds: model,
            reduce_seconds: reduce,
            optimizer_seconds: optimizer,
        }
    }

    fn of(ranks: &[StepTimes], preprocesses: bool) -> Option<Bottleneck> {
        Bottleneck::of(ranks, preprocesses, Averaging::Gradients)
    }

    #[test]
    fn the_longest_part_is_told_with_its_share() {
        use StepPart::*;
        for (ranks, part, share, rank) in [
            (vec![times(6.0, 2.0, 1.0, 1.0)], Data, 0.6, None),
            (vec![times(1.0, 7.0, 1.0, 1.0); 3], Model, 0.7, None),
            (vec![times(1.0, 2.0, 5.0, 2.0); 2], Reduce, 0.5, None),
            (vec![times(0.0, 1.0, 1.0, 2.0)], Optimizer, 0.5, None),
            // Rank 1 computes for 8 s longer, which the others spend in the reduction.
            (
                vec![
                    times(0.0, 1.0, 9.0, 0.0),
                    times(0.0, 9.0, 1.0, 0.0),
                    times(0.0, 1.0, 9.0, 0.0),
                ],
                SlowRank,
                0.8,
                Some(1),
            ),
            // Slower by a tenth, which is not what the time goes into.
            (
                vec![times(0.0, 10.0, 2.0, 0.0), times(0.0, 11.0, 1.0, 0.0)],
                Model,
                10.5 / 12.0,
                None,
            ),
        ] {
            let found = of(&ranks, false).unwrap();
            assert_eq!((found.part, found.rank), (part, rank), "{ranks:?}");
            assert!((found.share - share).abs() < 1e-12, "{ranks:?}: {found:?}");
        }
        let slow = [times(5.0, 1.0, 1.0, 0.0), times(0.0, 1.0, 6.0, 0.0)];
        let advice = of(&slow, false).unwrap().advice;
        assert!(
            advice.contains("rank 0 is slow, in waiting for rows"),
            "{advice}"
        );
    }

    #[test]
    fn a_training_without_steps_has_none() {
        assert_eq!(of(&[StepTimes::default(); 2], false), None);
    }

    #[test]
    fn rows_that_come_late_are_laid_to_preprocess_first_where_there_is_one() {
        let advice = |ranks: &[StepTimes], preprocesses| of(ranks, preprocesses).unwrap().advice;
        let late = [times(6.0, 2.0, 1.0, 1.0)];
        let of_preprocess = advice(&late, true);
        let place = |word: &str| of_preprocess.find(word).unwrap();
        assert!(place("preprocessThreads") < place("memoryBudget"));
        assert!(of_preprocess.contains("in 60 % of their time"));
        assert!(!advice(&late, false).contains("preprocess"));
        // What else is slow has nothing to do with it.
        let slow = [times(1.0, 7.0, 1.0, 1.0)];
        assert_eq!(advice(&slow, true), advice(&slow, false));
    }

    #[test]
    fn a_long_reduction_is_laid_to_what_is_averaged() {
        let slow = [times(1.0, 2.0, 5.0, 2.0); 2];
        let advice = |averaging| Bottleneck::of(&slow, false, averaging).unwrap().advice;
        assert!(advice(Averaging::Gradients).ends_with("gradientCompression sends less"));
        assert!(advice(Averaging::HalfPrecision).contains("powersgd and topk send less"));
        assert!(advice(Averaging::PowerSgd).contains("factorizing"));
        assert!(advice(Averaging::TopK).contains("largest entries"));
        // Compression is refused beside it.
        let local = advice(Averaging::Weights);
        assert!(
            local.contains("raise syncEvery") && !local.contains("ompression"),
            "{local}"
        );
    }
}
