//! Checkpoints, and trainings that go on from them.

use std::fs;
use std::path::PathBuf;

use flambeau_train::{Cause, ErrorKind, TrainingJob, TrainingResult, checkpoint};
use serde_json::{Value, json};

use crate::model::{Config, Fault, Net, Optimizer};
use crate::support::{Bench, Outcome, paired, store, train, try_train};

fn config() -> Config {
    Config {
        noise: true,
        ..Config::new(Net::Mlp { hidden: 5 }, Optimizer::Adam { rate: 0.01 })
    }
}

fn params(world_size: usize) -> Value {
    json!({
        "numWorkers": world_size, "batchSize": 12 / world_size, "dataLanes": 4, "epochs": 3, "seed": 9,
        "checkpointSteps": 4, "gradientAccumulationSteps": 2,
    })
}

fn checkpoints_of(bench: &Bench, attempt: &str) -> Vec<PathBuf> {
    let directory = bench.path(&format!("attempts/{attempt}/checkpoints"));
    let mut found: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    found.sort();
    found
}

/// Trains up to a step and fails there, as if it were killed.
fn stop_at(
    bench: &Bench,
    job: &TrainingJob,
    world_size: usize,
    config: &Config,
    step: u64,
) -> Option<String> {
    let faulty = Config {
        fault: Some(Fault::Error { step }),
        ..config.clone()
    };
    let outcomes = try_train(job, world_size, |_| faulty.clone(), |_| Default::default());
    assert!(outcomes.iter().all(|outcome| outcome.result.is_err()));
    let attempts = [job.attempt.id.clone()];
    checkpoint::newest(
        &store(),
        bench.directory.path().to_str().unwrap(),
        &attempts,
    )
    .unwrap()
    .map(|info| info.uri)
}

/// Where weights were written, and what.
fn weights_of(result: &TrainingResult) -> Option<&str> {
    result.weights.as_ref().map(|weights| &*weights.sha256)
}

fn assert_same_end(outcomes: &[Outcome], unbroken: &[Outcome]) {
    for (outcome, unbroken) in paired(outcomes, unbroken) {
        assert_eq!(outcome.model.bits(), unbroken.model.bits());
        let (result, expected) = (
            outcome.result.as_ref().unwrap(),
            unbroken.result.as_ref().unwrap(),
        );
        assert_eq!(result.num_steps, expected.num_steps);
        assert_eq!(result.history.best_epoch, expected.history.best_epoch);
        assert_eq!(weights_of(result), weights_of(expected));
        for (record, expected) in paired(&result.history.epochs, &expected.history.epochs) {
            let mut record = record.clone();
            record.seconds = expected.seconds;
            record.rows_per_second = expected.rows_per_second;
            record.times = expected.times;
            assert_eq!(&record, expected);
        }
    }
}

/// Stops a run at many steps, goes on from the newest checkpoint, and returns the run that was never stopped.
fn assert_resumes(params: &Value, world_size: usize, config: &Config) -> Vec<Outcome> {
    let bench = Bench::new(97, 31);
    let job = |attempt: &str| bench.job(attempt, params.clone(), false);
    let unbroken = train(&job("unbroken"), world_size, config);
    // Five steps an epoch: stops before and after checkpoints in the middle and at the end of an epoch.
    for step in [3, 4, 5, 6, 8, 9, 10, 12, 13, 14] {
        let stopped = job(&format!("stopped-{step}"));
        let newest = stop_at(&bench, &stopped, world_size, config, step);
        assert_eq!(newest.is_some(), step >= 4, "step {step}: {newest:?}");
        let mut resumed = job(&format!("resumed-{step}"));
        resumed.attempt.resume = newest;
        assert_same_end(&train(&resumed, world_size, config), &unbroken);
    }
    unbroken
}

#[test]
fn a_resumed_run_ends_as_one_that_was_never_stopped_to_the_bit() {
    for world_size in [1, 2] {
        assert_resumes(&params(world_size), world_size, &config());
    }
}

#[test]
fn the_loss_scale_and_the_skipped_steps_go_on_too() {
    for world_size in [1, 2] {
        let mut params = params(world_size);
        params["precision"] = json!("fp16");
        let config = Config {
            limit: 20.0,
            ..config()
        };
        let unbroken = assert_resumes(&params, world_size, &config);
        let epochs = &unbroken[0].result.as_ref().unwrap().history.epochs;
        let skipped: Vec<u64> = epochs
            .iter()
            .map(|epoch| epoch.scaling.unwrap().skipped_steps)
            .collect();
        // The scale changes before and after checkpoints, and steps are taken in the end.
        assert!(
            skipped[0] == 5 && skipped[1] > 0 && skipped[2] < 5,
            "{skipped:?}"
        );
    }
}

#[test]
fn the_best_weights_the_patience_and_the_schedule_go_on_too() {
    for world_size in [1, 2] {
        let mut params = params(world_size);
        // The loss falls from the first epoch on, so that this one stays the best.
        for (name, value) in [
            ("epochs", json!(9)),
            ("validationFraction", json!(0.2)),
            ("monitorMode", json!("max")),
            ("earlyStoppingPatience", json!(2)),
            ("restoreBestWeights", json!(true)),
            ("warmupEpochs", json!(0.5)),
            ("lrSchedule", json!("exponential")),
            ("lrDecayEpochs", json!(1)),
        ] {
            params[name] = value;
        }
        let unbroken = assert_resumes(&params, world_size, &config());
        let result = unbroken[0].result.as_ref().unwrap();
        assert_eq!(result.history.epochs.len(), 3);
        assert_eq!(result.history.best_epoch, Some(0));
        // The weights that were kept are those of a training that ends there.
        params["epochs"] = json!(1);
        let short = train(
            &Bench::new(97, 31).job("short", params, false),
            world_size,
            &config(),
        );
        assert_eq!(
            weights_of(short[0].result.as_ref().unwrap()),
            weights_of(result)
        );
    }
}

#[test]
fn a_resume_of_a_resume_keeps_the_history() {
    let bench = Bench::new(97, 31);
    let unbroken = train(&bench.job("unbroken", params(2), false), 2, &config());
    let mut resume = None;
    for (number, step) in [6, 11, 13].into_iter().enumerate() {
        let mut job = bench.job(&format!("part-{number}"), params(2), false);
        job.attempt.resume = resume;
        resume = stop_at(&bench, &job, 2, &config(), step);
        assert!(resume.is_some());
    }
    let mut job = bench.job("last", params(2), false);
    job.attempt.resume = resume;
    assert_same_end(&train(&job, 2, &config()), &unbroken);
}

#[test]
fn another_number_of_ranks_goes_on_with_generators_seeded_anew() {
    let bench = Bench::new(97, 0);
    let without_noise = Config {
        noise: false,
        ..config()
    };
    let job = bench.job("unbroken", params(2), false);
    let unbroken = train(&job, 2, &without_noise);
    let faulty = Config {
        fault: Some(Fault::Error { step: 7 }),
        ..without_noise.clone()
    };
    let stopped = bench.job("stopped", params(2), false);
    try_train(&stopped, 2, |_| faulty.clone(), |_| Default::default());
    let work_dir = bench.directory.path().to_str().unwrap();
    let newest = checkpoint::newest(&store(), work_dir, &["stopped".into()])
        .unwrap()
        .unwrap();
    for world_size in [1, 3] {
        let mut resumed = bench.job(&format!("resumed-{world_size}"), params(2), false);
        resumed.attempt.resume = Some(newest.uri.clone());
        let outcomes = train(&resumed, world_size, &without_noise);
        let found = outcomes[0].model.values.concat();
        for (value, expected) in paired(&found, &unbroken[0].model.values.concat()) {
            assert!((value - expected).abs() < 1e-10);
        }
    }
}

#[test]
fn the_newest_two_are_kept_and_the_last_epoch_needs_none() {
    let bench = Bench::new(97, 0);
    let params = json!({"numWorkers": 2, "batchSize": 12, "epochs": 6});
    train(&bench.job("kept", params, false), 2, &config());
    // Five steps an epoch: after epochs 4 and 5 of 6.
    let names: Vec<String> = checkpoints_of(&bench, "kept")
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().into())
        .collect();
    assert_eq!(names, ["0000000020", "0000000025"]);
    let off = json!({"numWorkers": 2, "batchSize": 12, "epochs": 6, "checkpointInterval": -1});
    train(&bench.job("off", off, false), 2, &config());
    assert!(!bench.path("attempts/off/checkpoints").exists());
}

#[test]
fn what_has_no_marker_or_lacks_a_part_is_not_a_checkpoint() {
    let bench = Bench::new(97, 0);
    let work_dir = bench.directory.path().to_str().unwrap();
    let attempts = [
        "first".to_string(),
        "second".to_string(),
        "never-started".to_string(),
    ];
    let newest = || {
        checkpoint::newest(&store(), work_dir, &attempts)
            .unwrap()
            .map(|info| (info.attempt, info.step))
    };
    assert_eq!(newest(), None);
    train(
        &bench.job(
            "first",
            json!({"numWorkers": 2, "batchSize": 12, "epochs": 3}),
            false,
        ),
        2,
        &config(),
    );
    assert_eq!(newest(), Some(("first".into(), 10)));
    train(
        &bench.job(
            "second",
            json!({"numWorkers": 2, "batchSize": 12, "epochs": 3}),
            false,
        ),
        2,
        &config(),
    );
    assert_eq!(
        newest(),
        Some(("second".into(), 10)),
        "the later attempt where both have as many steps"
    );

    let [_, last] = <[PathBuf; 2]>::try_from(checkpoints_of(&bench, "second")).unwrap();
    fs::remove_file(last.join("COMMITTED")).unwrap();
    assert_eq!(newest(), Some(("first".into(), 10)));
    let mut job = bench.job(
        "third",
        json!({"numWorkers": 2, "batchSize": 12, "epochs": 3}),
        false,
    );
    job.attempt.resume = Some(last.to_str().unwrap().into());
    let outcomes = try_train(&job, 2, |_| config(), |_| Default::default());
    let text = outcomes[0].result.as_ref().unwrap_err().to_string();
    assert!(text.contains("COMMITTED"), "{text}");

    let [_, last] = <[PathBuf; 2]>::try_from(checkpoints_of(&bench, "first")).unwrap();
    fs::write(last.join("rank-1.bin"), "torn").unwrap();
    assert_eq!(
        newest(),
        Some(("second".into(), 5)),
        "the newest that is whole"
    );
}

#[test]
fn a_damaged_part_and_a_changed_job_are_refused() {
    let bench = Bench::new(97, 0);
    let params = json!({"numWorkers": 2, "batchSize": 12, "epochs": 3, "seed": 4});
    train(&bench.job("first", params.clone(), false), 2, &config());
    let uri = checkpoints_of(&bench, "first").pop().unwrap();
    let refusal = |params: Value| {
        let mut job = bench.job("again", params, false);
        job.attempt.resume = Some(uri.to_str().unwrap().into());
        let outcomes = try_train(&job, 2, |_| config(), |_| Default::default());
        let error = outcomes
            .into_iter()
            .map(|outcome| outcome.result.unwrap_err())
            .find(|error| error.is_cause());
        error.expect("one rank must be the cause")
    };
    let mut changed = params.clone();
    changed["seed"] = json!(5);
    let error = refusal(changed);
    assert_eq!(error.kind(), ErrorKind::Job);
    assert!(
        error.to_string().contains("seed was 4 and is now 5"),
        "{error}"
    );
    let mut changed = params.clone();
    changed["batchSize"] = json!(6);
    assert!(
        refusal(changed)
            .to_string()
            .contains("globalBatch was 24 and is now 12")
    );

    let shared = uri.join("shared.bin");
    let mut bytes = fs::read(&shared).unwrap();
    bytes[7] ^= 1;
    fs::write(&shared, bytes).unwrap();
    let error = refusal(params);
    assert!(
        matches!(&*error.cause, Cause::Checkpoint { reason, .. } if reason.contains("shared.bin")),
        "{error}"
    );
}
