//! Which rows each step sees, whatever the number of workers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flambeau_data::{DataFile, Store};
use flambeau_train::{Event, Hooks, StepReport, Worker};
use serde_json::json;

use crate::bucket::{self, Bucket};
use crate::model::{Config, Net, Optimizer, TestModel};
use crate::support::{Bench, Outcome, ranks, train};

const CONFIG: (Net, Optimizer) = (
    Net::Linear,
    Optimizer::SgdMomentum {
        rate: 0.05,
        momentum: 0.9,
    },
);

/// The row ids of each batch over all ranks, sorted, by epoch, step and micro-batch.
pub fn global_batches(outcomes: &[Outcome]) -> BTreeMap<(u64, u64, u32), Vec<u64>> {
    let mut batches: BTreeMap<(u64, u64, u32), Vec<u64>> = BTreeMap::new();
    for (epoch, step, micro, ids) in outcomes.iter().flat_map(|outcome| &outcome.model.seen) {
        batches
            .entry((*epoch, *step, *micro))
            .or_default()
            .extend(ids);
    }
    batches.values_mut().for_each(|ids| ids.sort_unstable());
    batches
}

#[test]
fn one_to_four_workers_see_the_same_rows_in_every_batch_tails_included() {
    // 97 rows in 4 lanes of 24 or 25: the last batch has a single row, which only one rank has.
    let bench = Bench::new(97, 0);
    let config = Config::new(CONFIG.0, CONFIG.1);
    let mut of_one = None;
    for world_size in 1..=4 {
        let params = json!({
            "numWorkers": world_size, "batchSize": 12 / world_size, "dataLanes": 4, "epochs": 3, "seed": 5,
            "shuffleWindow": 11,
        });
        let outcomes = train(
            &bench.job(&format!("order-{world_size}"), params, false),
            world_size,
            &config,
        );
        let batches = global_batches(&outcomes);
        let sizes: Vec<usize> = batches.values().map(Vec::len).collect();
        assert_eq!(sizes, [[12; 8].as_slice(), &[1]].concat().repeat(3));
        for epoch in 0..3 {
            let of_epoch = batches.iter().filter(|((e, ..), _)| *e == epoch);
            let mut ids: Vec<u64> = of_epoch.flat_map(|(_, ids)| ids.clone()).collect();
            ids.sort_unstable();
            assert_eq!(
                ids,
                (0..97).collect::<Vec<u64>>(),
                "an epoch has every row once"
            );
        }
        let first: Vec<_> = batches
            .range((0, 0, 0)..(1, 0, 0))
            .map(|(_, ids)| ids)
            .collect();
        let second: Vec<_> = batches
            .range((1, 0, 0)..(2, 0, 0))
            .map(|(_, ids)| ids)
            .collect();
        assert_ne!(first, second, "epochs are shuffled anew");
        assert_eq!(
            &batches,
            of_one.get_or_insert_with(|| batches.clone()),
            "{world_size} workers"
        );
    }
}

#[test]
fn fewer_ranks_than_the_job_has_workers_see_the_same_batches() {
    let bench = Bench::new(97, 0);
    let config = Config::new(CONFIG.0, CONFIG.1);
    let job = bench.job(
        "fewer",
        json!({"numWorkers": 4, "batchSize": 3, "epochs": 2}),
        false,
    );
    let of_four = global_batches(&train(&job, 4, &config));
    assert_eq!(global_batches(&train(&job, 3, &config)), of_four);
    assert_eq!(global_batches(&train(&job, 1, &config)), of_four);
}

#[test]
fn without_shuffle_rows_come_in_order_and_drop_last_leaves_the_tail_out() {
    let bench = Bench::new(25, 0);
    let config = Config::new(CONFIG.0, CONFIG.1);
    let params = json!({"batchSize": 10, "shuffle": false, "dropLast": true});
    let outcomes = train(&bench.job("plain", params, false), 1, &config);
    let batches: Vec<Vec<u64>> = global_batches(&outcomes).into_values().collect();
    assert_eq!(batches, [(0..10).collect::<Vec<u64>>(), (10..20).collect()]);
    assert_eq!(
        outcomes[0].result.as_ref().unwrap().history.epochs[0].num_rows,
        20
    );
}

/// Each epoch's loss, and that of its validation.
fn losses(outcome: &Outcome) -> Vec<(Option<f64>, Option<f64>)> {
    let history = &outcome.result.as_ref().unwrap().history;
    let epochs = history.epochs.iter();
    epochs
        .map(|epoch| (epoch.loss, epoch.validation_loss))
        .collect()
}

#[test]
fn the_next_epochs_rows_are_read_while_this_one_is_evaluated() {
    let bench = Bench::new(97, 7);
    let config = Config::new(CONFIG.0, CONFIG.1);
    let params =
        json!({"batchSize": 20, "epochs": 2, "validationFraction": 0.1, "shuffleWindow": 30});
    // All rows stay in memory, so that nothing is read ahead.
    let expected = train(&bench.job("resident", params.clone(), false), 1, &config);

    let num_reads = |bucket: &Bucket| {
        let requests = bucket.requests.lock().unwrap();
        let is_read = |request: &&String| request.starts_with("GET") && request.contains("train");
        requests.iter().filter(is_read).count()
    };
    // How often training rows were read, by the end of the first epoch's last step and of its evaluation.
    let [after_steps, after_evaluation] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    // Once the steps are done, an evaluation waits for the rows of the next epoch's.
    let is_slow_enough = {
        let after_steps = after_steps.clone();
        move |bucket: &Bucket| {
            let before = after_steps.load(Ordering::Relaxed);
            before == 0 || num_reads(bucket) > before
        }
    };
    let bucket = Arc::new(Bucket {
        slow: Some(("GET", "validation", Duration::from_secs(60))),
        is_slow_enough: Some(Box::new(is_slow_enough)),
        ..Bucket::default()
    });
    let store = Store::new(&bucket::serve(&bucket)).unwrap();
    let mut job = bench.job("ahead", params, false);
    job.params.memory_budget = 0;
    for file in job.data.train.iter_mut().chain(&mut job.data.validation) {
        let path = Path::new(file.uri());
        let there = format!(
            "s3://bucket/{}",
            path.file_name().unwrap().to_str().unwrap()
        );
        store.put_file(&there, path).unwrap();
        *file = DataFile::Whole(there);
    }
    let hooks = Hooks {
        on_step: Some({
            let (bucket, after_steps) = (bucket.clone(), after_steps.clone());
            Arc::new(move |report: &StepReport| {
                if report.epoch == 0 {
                    after_steps.store(num_reads(&bucket), Ordering::Relaxed);
                }
                Ok(())
            })
        }),
        on_event: Some({
            let after_evaluation = after_evaluation.clone();
            Arc::new(move |event: &Event| {
                if let Event::Epoch(record) = event
                    && record.epoch == 0
                {
                    after_evaluation.store(num_reads(&bucket), Ordering::Relaxed);
                }
                Ok(())
            })
        }),
        ..Hooks::default()
    };
    let mut outcomes = ranks(1, |group| {
        let mut model = TestModel::new(config.clone(), 0);
        let worker = Worker::new(job.clone(), group, &mut model, store.clone(), hooks.clone());
        let result = worker.run();
        Outcome {
            result,
            model,
            reports: vec![],
        }
    });
    let outcome = outcomes.remove(0);
    assert_eq!(outcome.model.seen, expected[0].model.seen);
    assert_eq!(losses(&outcome), losses(&expected[0]));
    let before = after_steps.load(Ordering::Relaxed);
    let after = after_evaluation.load(Ordering::Relaxed);
    assert!(0 < before && before < after, "{before} reads, then {after}");
}
