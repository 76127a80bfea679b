//! Failures: who is blamed, where, and how fast the others are free.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flambeau_collective::CollectiveError;
use flambeau_data::DataFile;
use flambeau_train::{Cause, ErrorKind, Hooks};
use serde_json::json;

use crate::model::{Config, Fault, Net, Optimizer};
use crate::support::{Bench, try_train};

fn config(fault: Option<Fault>) -> Config {
    Config {
        fault,
        ..Config::new(
            Net::Mlp { hidden: 5 },
            Optimizer::SgdMomentum {
                rate: 0.05,
                momentum: 0.9,
            },
        )
    }
}

#[test]
fn a_failing_model_frees_the_others_in_seconds_with_the_first_cause() {
    let bench = Bench::new(97, 0);
    let job = bench.job(
        "fails",
        json!({"numWorkers": 4, "batchSize": 3, "epochs": 3}),
        false,
    );
    let began = Instant::now();
    let fault = |rank| config((rank == 2).then_some(Fault::Error { step: 11 }));
    let outcomes = try_train(&job, 4, fault, |_| Hooks::default());
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
    for (rank, outcome) in outcomes.iter().enumerate() {
        let error = outcome.result.as_ref().unwrap_err();
        assert_eq!(
            (error.rank, error.epoch, error.step),
            (rank, Some(1), Some(11))
        );
        assert_eq!(error.is_cause(), rank == 2);
        match &*error.cause {
            Cause::Model(source) if rank == 2 => assert_eq!(source.to_string(), "fault at step 11"),
            Cause::Collective(source) => match &**source {
                CollectiveError::Aborted {
                    rank: by, reason, ..
                } => {
                    assert_eq!((*by, reason.as_str()), (2, "fault at step 11"));
                }
                other => panic!("rank {rank}: {other}"),
            },
            other => panic!("rank {rank}: {other}"),
        }
    }
}

#[test]
fn a_loss_that_is_not_a_number_names_its_step_on_all_ranks() {
    let bench = Bench::new(97, 0);
    let job = bench.job(
        "nan",
        json!({"numWorkers": 3, "batchSize": 4, "epochs": 3}),
        false,
    );
    let fault = |rank| config((rank == 1).then_some(Fault::NanLoss { step: 13 }));
    for outcome in try_train(&job, 3, fault, |_| Hooks::default()) {
        let error = outcome.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Diverged);
        assert_eq!((error.epoch, error.step), (Some(1), Some(13)));
        assert!(
            error.to_string().contains("step 13: the loss is NaN"),
            "{error}"
        );
        assert_eq!(
            outcome.reports.len(),
            13,
            "the optimizer must not step on it"
        );
    }
}

#[test]
fn a_cancel_on_one_rank_stops_all_at_the_same_step() {
    let bench = Bench::new(97, 0);
    let job = bench.job(
        "cancel",
        json!({"numWorkers": 3, "batchSize": 4, "epochs": 50}),
        false,
    );
    let asked = Arc::new(AtomicUsize::new(0));
    let hooks = |rank| {
        let asked = asked.clone();
        let cancel = move || asked.fetch_add(1, Ordering::Relaxed) >= 7;
        Hooks {
            cancel: (rank == 1).then(|| Arc::new(cancel) as _),
            ..Hooks::default()
        }
    };
    for outcome in try_train(&job, 3, |_| config(None), hooks) {
        let error = outcome.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert_eq!(error.step, Some(7));
        assert_eq!(outcome.reports.len(), 8);
    }
}

#[test]
fn replicas_that_drift_apart_are_found_where_asked_for() {
    let bench = Bench::new(97, 0);
    let job = bench.job(
        "drift",
        json!({"numWorkers": 3, "batchSize": 4, "verifyReplicas": true}),
        false,
    );
    let fault = |rank| config((rank == 2).then_some(Fault::Drift { step: 8 }));
    for outcome in try_train(&job, 3, fault, |_| Hooks::default()) {
        let error = outcome.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Replicas);
        assert!(
            matches!(&*error.cause, Cause::Replicas { tensor, ranks } if tensor == "w1" && ranks == &[2]),
            "{error}"
        );
    }
}

#[test]
fn averages_that_drift_apart_are_found_though_the_weights_have_not() {
    let bench = Bench::new(97, 0);
    let job = bench.job(
        "glitch",
        json!({"numWorkers": 3, "batchSize": 4, "verifyReplicas": true, "emaDecay": 0.9}),
        false,
    );
    let fault = |rank| config((rank == 2).then_some(Fault::Glitch { step: 5 }));
    for outcome in try_train(&job, 3, fault, |_| Hooks::default()) {
        let error = outcome.result.unwrap_err();
        assert!(
            matches!(&*error.cause, Cause::Replicas { tensor, ranks }
                if tensor == "w1 (its average)" && ranks == &[2]),
            "{error}"
        );
    }
}

#[test]
fn a_rank_whose_model_differs_says_how() {
    let bench = Bench::new(97, 0);
    let job = bench.job("differs", json!({"numWorkers": 2, "batchSize": 4}), false);
    let other = |rank| Config {
        net: Net::Mlp { hidden: 5 + rank },
        ..config(None)
    };
    let errors: Vec<_> = try_train(&job, 2, other, |_| Hooks::default())
        .into_iter()
        .map(|outcome| outcome.result.unwrap_err())
        .collect();
    assert!(!errors[0].is_cause() && errors[1].is_cause());
    let text = errors[1].to_string();
    assert!(
        text.contains("parameter w1") && text.contains("[24]") && text.contains("[20]"),
        "{text}"
    );
}

#[test]
fn fewer_rows_than_workers_are_refused_before_the_first_step() {
    let bench = Bench::new(3, 0);
    let job = bench.job("few", json!({"numWorkers": 4, "batchSize": 1}), false);
    for outcome in try_train(&job, 4, |_| config(None), |_| Hooks::default()) {
        let error = outcome.result.unwrap_err();
        assert_eq!((error.kind(), error.step), (ErrorKind::Job, None));
        assert!(
            error
                .to_string()
                .contains("numWorkers is 4, but must be at most 3"),
            "{error}"
        );
    }
}

#[test]
fn a_batch_that_drop_last_leaves_without_rows_is_refused() {
    let bench = Bench::new(7, 0);
    let job = bench.job("none", json!({"batchSize": 8, "dropLast": true}), false);
    let outcomes = try_train(&job, 1, |_| config(None), |_| Hooks::default());
    let text = outcomes[0].result.as_ref().unwrap_err().to_string();
    assert!(text.contains("dropLast is true"), "{text}");
}

#[test]
fn more_ranks_than_lanes_are_refused() {
    let bench = Bench::new(97, 0);
    let job = bench.job(
        "lanes",
        json!({"numWorkers": 1, "batchSize": 8, "dataLanes": 2}),
        false,
    );
    for outcome in try_train(&job, 3, |_| config(None), |_| Hooks::default()) {
        let text = outcome.result.unwrap_err().to_string();
        assert!(
            text.contains("dataLanes is 2, but must be at least the number of ranks, 3"),
            "{text}"
        );
    }
}

#[test]
fn an_unreadable_shard_is_the_error_of_the_rank_that_reads_it() {
    let bench = Bench::new(97, 0);
    let mut job = bench.job("missing", json!({"numWorkers": 2, "batchSize": 4}), false);
    job.data.train.push(DataFile::Whole(
        bench.path("nowhere.parquet").to_str().unwrap().into(),
    ));
    let errors: Vec<_> = try_train(&job, 2, |_| config(None), |_| Hooks::default())
        .into_iter()
        .map(|outcome| outcome.result.unwrap_err())
        .collect();
    assert_eq!(
        (errors[0].kind(), errors[0].is_cause()),
        (ErrorKind::Data, true)
    );
    assert_eq!(
        (errors[1].kind(), errors[1].is_cause()),
        (ErrorKind::Collective, false)
    );
    assert!(
        errors[1].to_string().contains("nowhere.parquet"),
        "{}",
        errors[1]
    );
}
