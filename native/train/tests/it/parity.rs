//! Trained weights against one process that sees whole global batches.

use serde_json::{Value, json};

use crate::loop_order::global_batches;
use crate::model::{Config, Net, Optimizer};
use crate::reference::{self, Options, Reference};
use crate::support::{Bench, Outcome, paired, store, train};

const SGD: Optimizer = Optimizer::SgdMomentum {
    rate: 0.05,
    momentum: 0.9,
};
const ADAM: Optimizer = Optimizer::Adam { rate: 0.01 };
const MLP: Net = Net::Mlp { hidden: 5 };

/// The rows of each optimizer step, those of its micro-batches together.
fn steps(outcomes: &[Outcome]) -> Vec<Vec<u64>> {
    let mut steps: Vec<(u64, Vec<u64>)> = vec![];
    for ((_, step, _), ids) in global_batches(outcomes) {
        match steps.last_mut() {
            Some((last, rows)) if *last == step => rows.extend(ids),
            _ => steps.push((step, ids)),
        }
    }
    steps.into_iter().map(|(_, rows)| rows).collect()
}

fn assert_close(actual: f64, expected: f64, what: &str) {
    assert!(
        (actual - expected).abs() <= 1e-10 * expected.abs().max(1.0),
        "{what}: {actual} instead of {expected}"
    );
}

/// Trains, checks that replicas are equal to the bit, and that weights, losses and norms are the reference's.
fn check(
    bench: &Bench,
    params: Value,
    world_size: usize,
    config: &Config,
    weighted: bool,
) -> (Vec<Outcome>, Reference) {
    let number = |name: &str| params.get(name).and_then(Value::as_f64);
    let options = Options {
        clip_norm: number("gradientClipNorm"),
        clip_value: number("gradientClipValue"),
        ema_decay: number("emaDecay"),
    };
    let mut params = params;
    params["verifyReplicas"] = json!(true);
    let tells_norm = options.clip_norm.is_some() || params["logGradientNorm"] == json!(true);
    let job = bench.job("parity", params, weighted);
    let outcomes = train(&job, world_size, config);
    for outcome in &outcomes {
        assert_eq!(
            outcome.model.bits(),
            outcomes[0].model.bits(),
            "replicas differ"
        );
        assert_eq!(outcome.reports, outcomes[0].reports, "reports differ");
    }
    let reference = reference::train(config, &bench.rows, &steps(&outcomes), weighted, &options);
    let values = outcomes[0].model.values.concat();
    for (index, (value, expected)) in paired(&values, &reference.values).enumerate() {
        assert_close(
            *value,
            *expected,
            &format!("weight {index} on {world_size} ranks"),
        );
    }
    for (report, expected) in paired(&outcomes[0].reports, &reference.losses) {
        assert_eq!(
            report.loss.is_some(),
            expected.is_some(),
            "step {}",
            report.step
        );
        let (loss, expected) = (report.loss.unwrap_or(0.0), expected.unwrap_or(0.0));
        assert_close(loss, expected, &format!("the loss of step {}", report.step));
    }
    let epochs = &outcomes[0].result.as_ref().unwrap().history.epochs;
    let steps = outcomes[0].reports[0].steps_per_epoch as usize;
    let norms: Vec<_> = reference.norms.chunks(steps).collect();
    for (record, norms) in paired(epochs, &norms) {
        let known: Vec<f64> = norms.iter().copied().flatten().collect();
        assert_eq!(record.gradient_norm.is_some(), tells_norm);
        if let Some(norm) = record.gradient_norm {
            let mean = known.iter().sum::<f64>() / known.len() as f64;
            assert_close(norm, mean, &format!("the norms of epoch {}", record.epoch));
        }
    }
    (outcomes, reference)
}

#[test]
fn weights_are_those_of_one_process_for_one_to_four_workers() {
    let bench = Bench::new(97, 0);
    for (net, optimizer) in [
        (Net::Linear, SGD),
        (Net::Linear, ADAM),
        (MLP, SGD),
        (MLP, ADAM),
    ] {
        for world_size in 1..=4 {
            let params = json!({
                "numWorkers": world_size, "batchSize": 12 / world_size, "dataLanes": 4, "epochs": 4, "seed": 1,
            });
            let (outcomes, _) = check(
                &bench,
                params,
                world_size,
                &Config::new(net, optimizer),
                false,
            );
            assert_eq!(outcomes[0].result.as_ref().unwrap().num_steps, 36);
        }
    }
}

#[test]
fn denominators_that_differ_between_ranks_weigh_as_one_batch() {
    let bench = Bench::new(97, 0);
    for world_size in 1..=4 {
        let params = json!({
            "numWorkers": world_size, "batchSize": 12 / world_size, "dataLanes": 4, "epochs": 3, "weightCol": "w",
        });
        check(&bench, params, world_size, &Config::new(MLP, ADAM), true);
    }
    // One row a rank: ranks whose row weighs nothing have no loss, and whole batches weigh nothing at times.
    let params =
        json!({"numWorkers": 4, "batchSize": 1, "epochs": 3, "gradientAccumulationSteps": 2});
    check(&bench, params, 4, &Config::new(MLP, ADAM), true);
}

#[test]
fn a_tail_smaller_than_the_ranks_counts_by_its_rows() {
    // 13 rows in 4 lanes of 3 or 4 with batches of 4: the fourth batch has one row, on one of four ranks.
    let bench = Bench::new(13, 0);
    let params = json!({"numWorkers": 4, "batchSize": 1, "epochs": 5, "gradientClipNorm": 0.7});
    let (outcomes, _) = check(&bench, params, 4, &Config::new(MLP, SGD), false);
    assert!(
        outcomes.iter().any(|outcome| outcome.model.seen.len() < 20),
        "some rank must lack rows"
    );
}

#[test]
fn accumulated_batches_are_one_larger_batch() {
    let bench = Bench::new(97, 0);
    for weighted in [false, true] {
        let params = json!({
            "numWorkers": 2, "batchSize": 6, "dataLanes": 4, "epochs": 3, "gradientAccumulationSteps": 4,
        });
        let (outcomes, _) = check(&bench, params, 2, &Config::new(MLP, ADAM), weighted);
        let reports = &outcomes[0].reports;
        let sizes: Vec<u64> = reports
            .iter()
            .take(3)
            .map(|report| report.num_rows)
            .collect();
        assert_eq!(sizes, [48, 48, 1], "nine batches in steps of four");
    }
}

#[test]
fn gradients_are_clipped_by_their_norm_over_all_parameters() {
    let bench = Bench::new(97, 0);
    let params = json!({"numWorkers": 3, "batchSize": 4, "dataLanes": 4, "epochs": 2, "gradientClipNorm": 0.6});
    let (outcomes, reference) = check(&bench, params, 3, &Config::new(MLP, SGD), false);
    let norms: Vec<f64> = outcomes[0]
        .reports
        .iter()
        .map(|report| report.gradient_norm.unwrap())
        .collect();
    assert!(
        norms.iter().any(|&norm| norm > 0.6) && norms.iter().any(|&norm| norm < 0.6),
        "{norms:?}"
    );
    for (norm, expected) in paired(&norms, &reference.norms) {
        assert_close(*norm, expected.unwrap(), "the gradients' norm");
    }
}

#[test]
fn gradients_are_clipped_by_their_values() {
    let bench = Bench::new(97, 0);
    let params = json!({
        "numWorkers": 3, "batchSize": 4, "dataLanes": 4, "epochs": 2, "gradientClipValue": 0.1, "logGradientNorm": true,
    });
    let (outcomes, reference) = check(&bench, params, 3, &Config::new(MLP, SGD), false);
    for (report, expected) in paired(&outcomes[0].reports, &reference.norms) {
        let norm = report.gradient_norm.unwrap();
        assert_close(norm, expected.unwrap(), "the norm before clipping");
    }
    let params = json!({"numWorkers": 3, "batchSize": 4, "dataLanes": 4, "epochs": 2});
    let (unclipped, _) = check(&bench, params, 3, &Config::new(MLP, SGD), false);
    assert_ne!(outcomes[0].model.bits(), unclipped[0].model.bits());
}

#[test]
fn what_is_stored_is_the_average_of_the_weights() {
    let bench = Bench::new(97, 0);
    for decay in [0.2, 0.9] {
        let params = json!({"numWorkers": 3, "batchSize": 4, "dataLanes": 4, "epochs": 2, "emaDecay": decay});
        let (outcomes, reference) = check(&bench, params, 3, &Config::new(MLP, SGD), false);
        let result = outcomes[0].result.as_ref().unwrap();
        let uri = &result.weights.as_ref().unwrap().uri;
        let stored = store().get(uri).unwrap();
        let stored: Vec<f64> = stored
            .chunks_exact(8)
            .map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        for (value, expected) in paired(&stored, &reference.averaged) {
            assert_close(*value, *expected, "an averaged weight");
        }
        assert_ne!(stored, outcomes[0].model.values.concat());
    }
}

#[test]
fn a_parameter_that_a_batch_does_not_use_is_left_alone_by_the_optimizer() {
    let bench = Bench::new(97, 0);
    // Few rows pass the gate, so some batches use it on one rank only and some on none.
    let config = Config {
        gate: Some(0.8),
        ..Config::new(MLP, SGD)
    };
    for world_size in [1, 2, 4] {
        for accumulation in [1, 3] {
            let params = json!({
                "numWorkers": world_size, "batchSize": 4 / world_size, "dataLanes": 4, "epochs": 3,
                "gradientAccumulationSteps": accumulation,
            });
            let (outcomes, _) = check(&bench, params, world_size, &config, false);
            let idle = outcomes[0].model.values.last().unwrap();
            assert_eq!(
                idle,
                crate::model::initial(&config).last().unwrap(),
                "a parameter without use has no step"
            );
        }
    }
}

#[test]
fn a_scaled_rate_is_that_of_all_workers() {
    let bench = Bench::new(97, 0);
    let with_rate = |rate| {
        Config::new(
            MLP,
            Optimizer::SgdMomentum {
                rate,
                momentum: 0.9,
            },
        )
    };
    let params = json!({"batchSize": 12, "numWorkers": 2, "scaleLearningRate": true, "epochs": 2});
    let scaled = train(&bench.job("rate", params, false), 2, &with_rate(0.01));
    let params = json!({"batchSize": 12, "numWorkers": 2, "epochs": 2});
    let plain = train(&bench.job("rate", params, false), 2, &with_rate(0.02));
    assert_eq!(scaled[0].model.bits(), plain[0].model.bits());
    let result = scaled[0].result.as_ref().unwrap();
    assert_eq!(result.history.epochs[1].learning_rate, Some(0.02));
}

#[test]
fn buckets_that_are_laid_out_anew_after_the_first_step_change_nothing() {
    let bench = Bench::new(61, 0);
    // Two buckets: w2 alone fills the first.
    let net = Net::Mlp { hidden: 140_000 };
    let mut of_one: Option<Vec<f64>> = None;
    for world_size in [1, 3] {
        for is_forward in [false, true] {
            let config = Config {
                is_forward,
                ..Config::new(
                    net,
                    Optimizer::SgdMomentum {
                        rate: 1e-6,
                        momentum: 0.9,
                    },
                )
            };
            let params = json!({"numWorkers": 3, "batchSize": 4, "verifyReplicas": true, "gradientClipNorm": 1.0});
            let outcomes = train(&bench.job("large", params, false), world_size, &config);
            for outcome in &outcomes {
                assert_eq!(outcome.model.num_attached, if is_forward { 2 } else { 1 });
            }
            let values = outcomes[0].model.values.concat();
            let expected = of_one.get_or_insert_with(|| values.clone());
            assert!(
                paired(&values, expected).all(|(value, expected)| (value - expected).abs() < 1e-10)
            );
        }
    }
}

#[test]
fn buckets_of_any_size_give_the_same_weights() {
    let bench = Bench::new(61, 0);
    let train_in = |attempt: &str, bucket_size: usize, groups: Value| {
        let params = json!({
            "numWorkers": 3, "batchSize": 4, "epochs": 2, "bucketSize": bucket_size, "gradientGroups": groups,
        });
        let config = Config {
            is_forward: true,
            ..Config::new(MLP, SGD)
        };
        train(&bench.job(attempt, params, false), 3, &config)
            .swap_remove(0)
            .model
    };
    let train_with = |attempt: &str, bucket_size| train_in(attempt, bucket_size, Value::Null);
    let (whole, small) = (train_with("whole", 25 << 20), train_with("small", 64));
    assert_eq!((whole.num_attached, small.num_attached), (1, 2));
    assert_eq!(small.bits(), whole.bits());
    assert_eq!(train_with("again", 64).bits(), small.bits());
    // Those of all in one bucket, and of some.
    let all = train_in("all", 64, json!([["b2", "w1", "b1", "w2"]]));
    let some = train_in("some", 64, json!([["w2", "b1"]]));
    assert_eq!((all.num_attached, all.bits()), (1, whole.bits()));
    assert_eq!(some.bits(), small.bits());
}
