//! Ranks that keep the others waiting are told of while they do, and by the error of a wait that ends.

use std::fs;
use std::time::Duration;

use flambeau_collective::{CollectiveError, GroupOptions};
use flambeau_train::{Cause, Event, Hooks, TrainError, TrainingJob, Worker};
use serde_json::json;

use crate::model::{Config, Fault, Net, Optimizer, TestModel};
use crate::support::{Bench, group_options, ranks_with, store};

/// A tenth of which is waited before a rank is told of.
const TIMEOUT: f64 = 5.0;

fn job(bench: &Bench, attempt: &str) -> TrainingJob {
    let params = json!({
        "numWorkers": 2, "batchSize": 6, "epochs": 1, "checkpointInterval": -1, "collectiveTimeout": TIMEOUT,
    });
    bench.job(attempt, params, false)
}

/// Trains on two ranks, whose waits last so long, where rank `slow` takes `time` for the forward of step 3.
fn train(
    job: &TrainingJob,
    timeout: f64,
    slow: usize,
    time: Duration,
) -> Vec<Result<(), TrainError>> {
    let options = GroupOptions {
        timeout: Duration::from_secs_f64(timeout),
        ..group_options()
    };
    ranks_with(&options, 2, |group| {
        let mut config = Config::new(Net::Linear, Optimizer::Adam { rate: 0.01 });
        if group.rank() == slow {
            config.fault = Some(Fault::Slow { step: 3, time });
        }
        let mut model = TestModel::new(config, group.rank());
        let worker = Worker::new(job.clone(), group, &mut model, store(), Hooks::default());
        worker.run().map(drop)
    })
}

/// The events of an attempt, from its files.
fn events(bench: &Bench, attempt: &str) -> Vec<Event> {
    let directory = bench.path(&format!("attempts/{attempt}/events"));
    let mut files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let read = |path| -> Vec<Event> { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    files.into_iter().flat_map(read).collect()
}

#[test]
fn a_slow_forward_is_an_event_and_the_training_goes_on() {
    let bench = Bench::new(97, 0);
    // Rank 0 writes the events, and is told of too.
    for (slow, attempt) in [(1, "slow-1"), (0, "slow-0")] {
        let job = job(&bench, attempt);
        for result in train(&job, TIMEOUT, slow, Duration::from_millis(1500)) {
            result.unwrap();
        }
        let events = events(&bench, attempt);
        let stalls: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::Stall(stall) => Some(stall),
                _ => None,
            })
            .collect();
        let [stall] = &stalls[..] else {
            panic!("{stalls:?}");
        };
        let late = &stall.ranks[0];
        assert_eq!((stall.ranks.len(), late.rank), (1, slow));
        assert_eq!(late.phase.as_deref(), Some("forward and backward"));
        assert!(stall.seconds >= TIMEOUT / 10.0 && late.phase_seconds.unwrap() >= 0.2);
        let named = format!(
            "for rank {slow} on {} (in forward and backward for ",
            late.host
        );
        assert!(stall.message.contains(&named), "{}", stall.message);
        assert_eq!(events.last(), Some(&Event::End));
    }
}

#[test]
fn a_wait_that_ends_says_what_the_missing_rank_is_in() {
    let bench = Bench::new(97, 0);
    let job = job(&bench, "stuck");
    let results = train(&job, 1.0, 1, Duration::from_secs(4));
    let error = results[0].as_ref().unwrap_err();
    let Cause::Collective(source) = &*error.cause else {
        panic!("{error}");
    };
    assert!(
        matches!(**source, CollectiveError::Timeout { .. }),
        "{error}"
    );
    assert!(
        source.to_string().contains("(in forward and backward for "),
        "{source}"
    );
    assert_eq!(error.step, Some(3));
}
