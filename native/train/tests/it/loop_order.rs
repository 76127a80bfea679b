//! Which rows each step sees, whatever the number of workers.

use std::collections::BTreeMap;

use serde_json::json;

use crate::model::{Config, Net, Optimizer};
use crate::support::{Bench, Outcome, train};

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
