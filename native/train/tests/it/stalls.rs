//! Ranks that keep the others waiting are told of while they do, and by the error of a wait that ends.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use flambeau_collective::{CollectiveError, GroupOptions};
use flambeau_train::{Cause, Event, Hooks, Late, TrainError, TrainingJob, Worker};
use serde_json::json;

use crate::model::{Config, Fault, Net, Optimizer, TestModel};
use crate::support::{Bench, group_options, ranks_with, store, wait_until};

/// A tenth of which is waited before a rank is told of.
const TIMEOUT: f64 = 10.0;

fn job(bench: &Bench, attempt: &str) -> TrainingJob {
    let params = json!({
        "numWorkers": 2, "batchSize": 6, "epochs": 1, "checkpointInterval": -1, "collectiveTimeout": TIMEOUT,
    });
    bench.job(attempt, params, false)
}

/// Trains on two ranks, whose waits last so long, where the forward of step 3 on rank `slow` goes on until `released` is there.
/// The other rank leaves that when it ends.
fn train(
    job: &TrainingJob,
    timeout: Duration,
    slow: usize,
    released: &Path,
) -> Vec<Result<(), TrainError>> {
    let options = GroupOptions {
        timeout,
        ..group_options()
    };
    // For the rest of the test's process.
    let until: &'static Path = Box::leak(released.to_path_buf().into_boxed_path());
    ranks_with(&options, 2, |group| {
        let rank = group.rank();
        let mut config = Config::new(Net::Linear, Optimizer::Adam { rate: 0.01 });
        config.fault = (rank == slow).then_some(Fault::Held { step: 3, until });
        let mut model = TestModel::new(config, rank);
        let worker = Worker::new(job.clone(), group, &mut model, store(), Hooks::default());
        let result = worker.run().map(drop);
        if rank != slow {
            fs::write(until, "").unwrap();
        }
        result
    })
}

/// The events of an attempt so far, from its files.
fn events(bench: &Bench, attempt: &str) -> Vec<Event> {
    let directory = bench.path(&format!("attempts/{attempt}/events"));
    let mut files = store().list(directory.to_str().unwrap()).unwrap();
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
        let released = bench.path(attempt);
        // Where the machine is busy others may be told of besides.
        let stall_of_slow = || {
            let stalls = events(&bench, attempt).into_iter();
            let mut stalls = stalls.filter_map(|event| match event {
                Event::Stall(stall) => Some(stall),
                _ => None,
            });
            stalls.find(|stall| {
                let of_slow = |late: &&Late| late.rank == slow;
                let late = stall.ranks.iter().find(of_slow);
                late.and_then(|late| late.phase.as_deref()) == Some("forward and backward")
            })
        };
        let stall = thread::scope(|scope| {
            let told = scope.spawn(|| {
                let stall = wait_until(stall_of_slow);
                fs::write(&released, "").unwrap();
                stall
            });
            for result in train(&job, group_options().timeout, slow, &released) {
                result.unwrap();
            }
            told.join().unwrap()
        });
        let late = stall.ranks.iter().find(|late| late.rank == slow).unwrap();
        assert!(stall.seconds >= TIMEOUT / 10.0 && late.phase_seconds.is_some());
        let named = format!("rank {slow} on {} (in forward and backward for ", late.host);
        assert!(stall.message.contains(&named), "{}", stall.message);
        assert_eq!(events(&bench, attempt).last(), Some(&Event::End));
    }
}

#[test]
fn a_wait_that_ends_says_what_the_missing_rank_is_in() {
    let bench = Bench::new(97, 0);
    let job = job(&bench, "stuck");
    let results = train(&job, Duration::from_secs(5), 1, &bench.path("stuck"));
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
