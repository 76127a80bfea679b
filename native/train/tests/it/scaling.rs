//! Dynamic loss scaling, on models whose gradients overflow beyond a limit.

use flambeau_train::{ErrorKind, Hooks, LossScaling};
use serde_json::{Value, json};

use crate::model::{Config, Fault, Net, Optimizer};
use crate::support::{Bench, Outcome, paired, train, try_train};

fn config(limit: f64) -> Config {
    let net = Net::Mlp { hidden: 5 };
    Config {
        gate: Some(0.3),
        limit,
        ..Config::new(net, Optimizer::Adam { rate: 0.01 })
    }
}

fn params(world_size: usize, precision: &str) -> Value {
    json!({
        "numWorkers": world_size, "batchSize": 12 / world_size, "dataLanes": 4, "epochs": 3, "precision": precision,
        "gradientAccumulationSteps": 2, "gradientClipNorm": 0.5, "verifyReplicas": true,
    })
}

fn scaling(outcome: &Outcome) -> Vec<Option<LossScaling>> {
    let epochs = &outcome.result.as_ref().unwrap().history.epochs;
    epochs.iter().map(|epoch| epoch.scaling).collect()
}

#[test]
fn where_nothing_overflows_the_scale_changes_no_bit() {
    for world_size in [1, 2, 3] {
        let bench = Bench::new(97, 31);
        let run = |precision: &str| {
            let job = bench.job(precision, params(world_size, precision), true);
            train(&job, world_size, &config(f64::INFINITY))
        };
        let (plain, scaled) = (run("float32"), run("fp16"));
        for (plain, scaled) in paired(&plain, &scaled) {
            assert_eq!(plain.model.bits(), scaled.model.bits());
            assert_eq!(plain.reports, scaled.reports);
        }
        assert_eq!(scaling(&plain[0]), [None; 3]);
        let untouched = LossScaling {
            loss_scale: 65536.0,
            skipped_steps: 0,
        };
        assert_eq!(scaling(&scaled[0]), [Some(untouched); 3]);
    }
}

#[test]
fn an_overflow_on_one_rank_halves_the_scale_and_skips_the_step_on_all() {
    let bench = Bench::new(97, 0);
    let job = bench.job("one-rank", params(2, "fp16"), false);
    let limits = |rank: usize| config(if rank == 1 { 2048.0 } else { f64::INFINITY });
    let outcomes = try_train(&job, 2, limits, |_| Hooks::default());
    assert_eq!(outcomes[0].model.bits(), outcomes[1].model.bits());
    for outcome in &outcomes {
        let epochs: Vec<LossScaling> = scaling(outcome).into_iter().flatten().collect();
        let records = &outcome.result.as_ref().unwrap().history.epochs;
        let mut scale = 65536.0;
        for (number, epoch) in epochs.iter().enumerate() {
            scale /= 2f64.powi(epoch.skipped_steps as i32);
            assert_eq!(epoch.loss_scale, scale);
            // A skipped step has a loss, and no gradients.
            let reports = &outcome.reports[5 * number..][..5];
            let without_norm = reports
                .iter()
                .filter(|report| report.gradient_norm.is_none());
            assert_eq!(without_norm.count() as u64, epoch.skipped_steps);
            let norms: Vec<f64> = reports
                .iter()
                .filter_map(|told| told.gradient_norm)
                .collect();
            let mean = norms.iter().sum::<f64>() / norms.len() as f64;
            let expected = (!norms.is_empty()).then_some(mean);
            assert_eq!(records[number].gradient_norm, expected);
            assert!(reports.iter().all(|report| report.loss.is_some()));
        }
        assert!(scale < 16384.0 && scale > 64.0, "{epochs:?}");
    }
}

#[test]
fn gradients_that_overflow_at_every_scale_end_the_training() {
    let bench = Bench::new(97, 0);
    let mut params = params(2, "fp16");
    params["epochs"] = json!(50);
    let job = bench.job("hopeless", params, false);
    for outcome in try_train(&job, 2, |_| config(0.0), |_| Hooks::default()) {
        let error = outcome.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Diverged);
        assert_eq!((error.epoch, error.step), (Some(6), Some(30)));
        let text = error.to_string();
        assert!(
            text.contains("even with the loss scaled by 0.00006103515625"),
            "{text}"
        );
    }
}

#[test]
fn a_loss_that_is_no_number_is_no_overflow() {
    let bench = Bench::new(97, 0);
    let job = bench.job("nan", params(2, "fp16"), false);
    let faulty = Config {
        fault: Some(Fault::NanLoss { step: 3 }),
        ..config(2048.0)
    };
    for outcome in try_train(&job, 2, |_| faulty.clone(), |_| Hooks::default()) {
        let error = outcome.result.unwrap_err();
        assert_eq!((error.kind(), error.step), (ErrorKind::Diverged, Some(3)));
        let text = error.to_string();
        assert!(
            text.contains("the loss is NaN") && text.contains("float16 ends at 65504"),
            "{text}"
        );
    }
}
