//! Checkpoints, and trainings that go on from them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flambeau_collective::GroupOptions;
use flambeau_data::Store;
use flambeau_train::{
    Cause, ErrorKind, Hooks, RangeTest, TrainingJob, TrainingResult, Worker, checkpoint, digest,
};
use serde_json::{Value, json};

use crate::bucket::{self, Bucket};
use crate::model::{Config, Fault, Net, Optimizer, TestModel};
use crate::support::{Bench, Outcome, group_options, paired, ranks_with, store, train, try_train};

fn config() -> Config {
    Config {
        noise: true,
        ..Config::new(Net::Mlp { hidden: 5 }, Optimizer::Adam { rate: 0.01 })
    }
}

fn params(world_size: usize) -> Value {
    json!({
        "numWorkers": world_size, "batchSize": 12 / world_size, "dataLanes": 4, "epochs": 3, "seed": 9,
        "checkpointSteps": 4, "gradientAccumulationSteps": 2, "logGradientNorm": true,
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
            record.resources = expected.resources;
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
fn an_epoch_goes_on_after_its_last_step() {
    let bench = Bench::new(97, 31);
    let mut params = params(2);
    params["checkpointInterval"] = json!(-1);
    params["checkpointSteps"] = json!(5);
    let job = |attempt: &str| bench.job(attempt, params.clone(), false);
    let unbroken = train(&job("unbroken"), 2, &config());
    for step in [6, 11] {
        let stopped = job(&format!("stopped-{step}"));
        let newest = stop_at(&bench, &stopped, 2, &config(), step);
        let mut resumed = job(&format!("resumed-{step}"));
        resumed.attempt.resume = newest;
        let outcomes = train(&resumed, 2, &config());
        assert_same_end(&outcomes, &unbroken);
        // No step of that epoch was left.
        let first = outcomes[0].reports.first().unwrap().step;
        assert_eq!(first, step - step % 5);
    }
}

#[test]
fn averaged_weights_and_plateaus_go_on_too() {
    for world_size in [1, 2] {
        let mut params = params(world_size);
        let more = json!({
            "emaDecay": 0.8, "restoreBestWeights": true, "validationFraction": 0.5,
            "lrSchedule": "plateau", "plateauPatience": 0, "plateauThreshold": 0.9, "lrDecayRate": 0.5,
        });
        let more = more.as_object().unwrap().clone();
        params.as_object_mut().unwrap().extend(more);
        let unbroken = assert_resumes(&params, world_size, &config());
        let epochs = &unbroken[0].result.as_ref().unwrap().history.epochs;
        let rates: Vec<_> = epochs.iter().map(|epoch| epoch.learning_rate).collect();
        assert_eq!(rates, [Some(0.01), Some(0.01), Some(0.005)]);
    }
}

#[test]
fn another_decay_than_the_checkpoints_is_refused() {
    let bench = Bench::new(97, 0);
    let mut params = params(2);
    params["emaDecay"] = json!(0.8);
    let job = bench.job("averaged", params.clone(), false);
    let newest = stop_at(&bench, &job, 2, &config(), 6);
    params["emaDecay"] = json!(null);
    let mut other = bench.job("other", params, false);
    other.attempt.resume = newest;
    for outcome in try_train(&other, 2, |_| config(), |_| Default::default()) {
        let error = outcome.result.unwrap_err().to_string();
        let expected = "the job has changed: emaDecay was 0.8 and is now null";
        assert!(error.contains(expected), "{error}");
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
fn another_training_starts_from_the_optimizers_state() {
    let bench = Bench::new(97, 31);
    let job = |attempt: &str, epochs: u64, initial_state: Option<&str>| {
        let params = json!({
            "numWorkers": 2, "batchSize": 6, "dataLanes": 4, "epochs": epochs, "shuffle": false,
            "keepCheckpoints": 1, "initialState": initial_state,
        });
        bench.job(attempt, params, false)
    };
    let config = Config::new(Net::Mlp { hidden: 5 }, Optimizer::Adam { rate: 0.01 });
    let unbroken = train(&job("unbroken", 4, None), 2, &config);
    let first = train(&job("first", 2, None), 2, &config);
    let after = Config {
        start: Some(first[0].model.values.clone()),
        ..config
    };
    // Wherever it lies.
    let state = checkpoints_of(&bench, "first").pop().unwrap();
    let elsewhere = bench.path("elsewhere");
    fs::rename(state, &elsewhere).unwrap();
    let second = train(&job("second", 2, elsewhere.to_str()), 2, &after);
    for (second, unbroken) in paired(&second, &unbroken) {
        assert_eq!(second.model.values, unbroken.model.values);
    }
    let anew = train(&job("anew", 2, None), 2, &after);
    assert_ne!(anew[0].model.values, unbroken[0].model.values);
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

    for uri in checkpoints_of(&bench, "first") {
        damage(&uri.join("shared.bin"));
    }
    let error = refusal(params);
    assert!(
        matches!(&*error.cause, Cause::Checkpoint { uri: of, reason }
            if Path::new(of) == uri && reason.contains("shared.bin")),
        "{error}"
    );
}

/// Changes a byte of a file and keeps its size.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[7] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_passed_over_for_the_one_before_it() {
    let bench = Bench::new(97, 31);
    let unbroken = train(&bench.job("unbroken", params(2), false), 2, &config());
    let resume = |attempt: &str, newest: &str| {
        let mut job = bench.job(attempt, params(2), false);
        job.attempt.resume = Some(newest.into());
        job
    };
    let check = |attempt: &str, newest: &str, before: &str| {
        let outcomes = train(&resume(attempt, newest), 2, &config());
        assert_same_end(&outcomes, &unbroken);
        let warnings = &outcomes[0].result.as_ref().unwrap().warnings;
        assert!(
            warnings.len() == 1
                && [newest, "rank-1.bin", before]
                    .iter()
                    .all(|text| warnings[0].contains(text)),
            "{warnings:?}"
        );
    };
    let first = bench.job("first", params(2), false);
    let newest = stop_at(&bench, &first, 2, &config(), 9).unwrap();
    let before = newest.replace("0000000008", "0000000005");
    // A part that rank 1 alone reads.
    damage(&Path::new(&newest).join("rank-1.bin"));
    check("within", &newest, &before);

    // One that cannot be read, as on a disk that is broken.
    let part = Path::new(&newest).join("rank-1.bin");
    let bytes = fs::read(&part).unwrap();
    fs::remove_file(&part).unwrap();
    fs::create_dir(&part).unwrap();
    check("unreadable", &newest, &before);
    fs::remove_dir(&part).unwrap();
    fs::write(&part, bytes).unwrap();

    damage(&part);
    let second = resume("second", &newest);
    let last = stop_at(&bench, &second, 2, &config(), 11).unwrap();
    damage(&Path::new(&last).join("rank-1.bin"));
    check("across", &last, &newest);
}

#[test]
fn an_average_that_is_no_average_of_the_parameters_is_passed_over_too() {
    let bench = Bench::new(97, 31);
    let mut params = params(2);
    params["emaDecay"] = json!(0.8);
    let job = |attempt: &str| bench.job(attempt, params.clone(), false);
    let unbroken = train(&job("unbroken"), 2, &config());
    let newest = stop_at(&bench, &job("first"), 2, &config(), 9).unwrap();
    let before = newest.replace("0000000008", "0000000005");
    let resume = |attempt: &str| {
        let mut job = job(attempt);
        job.attempt.resume = Some(newest.clone());
        job
    };
    let whole = fs::read(Path::new(&newest).join("average.bin")).unwrap();
    let check = |attempt: &str, reason: &str| {
        let outcomes = train(&resume(attempt), 2, &config());
        assert_same_end(&outcomes, &unbroken);
        let warnings = &outcomes[0].result.as_ref().unwrap().warnings;
        let is_told = |text: &&str| warnings[0].contains(*text);
        assert!(
            warnings.len() == 1 && [&newest, reason, &before].iter().all(is_told),
            "{warnings:?}"
        );
    };
    damage(&Path::new(&newest).join("average.bin"));
    check("damaged", "the SHA-256 of its part average.bin");
    // 31 parameters of 8 bytes.
    for bytes in [&whole[8..], &[&whole[..], &[0; 8]].concat()] {
        rewrite(&newest, "average.bin", bytes);
        let size = bytes.len();
        let reason =
            format!("its part average.bin has {size} bytes, but the trained parameters have 248");
        check(&format!("of-{size}"), &reason);
    }
    rewrite(&before, "average.bin", b"short");
    for outcome in try_train(&resume("none"), 2, |_| config(), |_| Default::default()) {
        let error = outcome.result.unwrap_err();
        assert!(
            matches!(&*error.cause, Cause::Checkpoint { uri, reason }
                if *uri == newest && reason.contains("average.bin has 256 bytes")),
            "{error}"
        );
    }
}

/// Has a checkpoint's part be these bytes, as if they had been written so.
fn rewrite(uri: &str, name: &str, bytes: &[u8]) {
    let marker_path = Path::new(uri).join("COMMITTED");
    let mut marker: Value = serde_json::from_slice(&fs::read(&marker_path).unwrap()).unwrap();
    let parts = marker["parts"].as_array_mut().unwrap();
    let part = parts.iter_mut().find(|part| part["name"] == name).unwrap();
    part["size"] = json!(bytes.len());
    part["sha256"] = json!(digest::of_bytes(bytes));
    fs::write(&marker_path, marker.to_string()).unwrap();
    fs::write(Path::new(uri).join(name), bytes).unwrap();
}

#[test]
fn a_range_test_writes_no_checkpoints() {
    let bench = Bench::new(97, 0);
    let params = json!({
        "numWorkers": 2, "batchSize": 12, "epochs": 3, "checkpointSteps": 2, "learningRate": 0.01
    });
    let mut job = bench.job("tested", params, false);
    job.range_test = Some(RangeTest {
        min_rate: 0.01,
        max_rate: 0.02,
        num_steps: 12,
    });
    let outcomes = train(&job, 2, &config());
    let result = outcomes[0].result.as_ref().unwrap();
    assert_eq!((result.num_steps, result.warnings.len()), (12, 0));
    assert!(!bench.path("attempts/tested/checkpoints").exists());
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_a_warning() {
    let bench = Bench::new(97, 31);
    let unbroken = train(&bench.job("unbroken", params(2), false), 2, &config());
    fs::create_dir_all(bench.path("attempts/full")).unwrap();
    fs::write(bench.path("attempts/full/checkpoints"), "in the way").unwrap();
    let outcomes = train(&bench.job("full", params(2), false), 2, &config());
    assert_same_end(&outcomes, &unbroken);
    let warnings = &outcomes[0].result.as_ref().unwrap().warnings;
    // Checkpoints after steps 4, 8 and 12, and after the epochs that end with steps 5 and 10.
    assert_eq!(warnings.len(), 5, "{warnings:?}");
    assert!(
        warnings[0].contains("after 4 steps could not be written")
            && warnings[0].contains("attempts/full/checkpoints"),
        "{warnings:?}"
    );
}

#[test]
fn a_slow_store_does_not_use_up_the_time_of_the_other_ranks() {
    let bench = Bench::new(97, 0);
    let timeout = Duration::from_secs(2);
    let bucket = Arc::new(Bucket {
        slow: Some(("PUT", "0000000005/shared.bin", 3 * timeout / 2)),
        ..Bucket::default()
    });
    let store = Store::new(&bucket::serve(&bucket)).unwrap();
    let mut job = bench.job(
        "slow",
        json!({"numWorkers": 2, "batchSize": 12, "epochs": 2}),
        false,
    );
    job.attempt.work_dir = "s3://bucket/work".into();
    let options = GroupOptions {
        timeout,
        ..group_options()
    };
    let results = ranks_with(&options, 2, |group| {
        let mut model = TestModel::new(config(), group.rank());
        Worker::new(
            job.clone(),
            group,
            &mut model,
            store.clone(),
            Hooks::default(),
        )
        .run()
    });
    for result in results {
        assert_eq!(result.unwrap().warnings, [""; 0]);
    }
    let newest = checkpoint::newest(&store, "s3://bucket/work", &["slow".into()]).unwrap();
    assert_eq!(newest.unwrap().step, 5);
}

/// Parts, markers and events alike; the weights are written.
#[test]
fn a_store_that_never_ends_a_write_is_a_warning() {
    let bench = Bench::new(97, 0);
    let bucket = Arc::new(Bucket {
        slow: Some(("PUT", "attempts/stuck", Duration::from_secs(600))),
        ..Bucket::default()
    });
    let store = Store::new(&bucket::serve(&bucket)).unwrap();
    let mut job = bench.job(
        "stuck",
        json!({"numWorkers": 2, "batchSize": 12, "epochs": 3, "collectiveTimeout": 0.5}),
        false,
    );
    job.attempt.work_dir = "s3://bucket/work".into();
    let results = ranks_with(&group_options(), 2, |group| {
        let mut model = TestModel::new(config(), group.rank());
        Worker::new(
            job.clone(),
            group,
            &mut model,
            store.clone(),
            Hooks::default(),
        )
        .run()
    });
    let warnings = &results[0].as_ref().unwrap().warnings;
    let expected = [
        "the checkpoint after 5 steps could not be written, and training goes on without it: rank 0: the store has not ended a \
         write in 3.0s",
        "the checkpoint after 10 steps could not be written, and training goes on without it: rank 0: the store has not ended \
         an earlier write",
        "progress could not be written: the store has not ended a write in 500.0ms",
    ];
    assert_eq!(*warnings, expected);
    assert_eq!(results[1].as_ref().unwrap().warnings, [""; 0]);
}

#[test]
fn names_that_lead_out_of_a_checkpoint_are_refused() {
    let bench = Bench::new(97, 31);
    let params = json!({
        "numWorkers": 1, "batchSize": 12, "epochs": 3, "validationFraction": 0.2, "restoreBestWeights": true,
    });
    train(&bench.job("first", params.clone(), false), 1, &config());
    let uri = checkpoints_of(&bench, "first").pop().unwrap();
    let good: Value = serde_json::from_slice(&fs::read(uri.join("COMMITTED")).unwrap()).unwrap();
    let refusal = |marker: &Value| {
        fs::write(uri.join("COMMITTED"), marker.to_string()).unwrap();
        let mut job = bench.job("again", params.clone(), false);
        job.attempt.resume = Some(uri.to_str().unwrap().into());
        let outcomes = try_train(&job, 1, |_| config(), |_| Default::default());
        outcomes[0].result.as_ref().err().map(ToString::to_string)
    };
    let parts = good["parts"].as_array().unwrap();
    let best = parts
        .iter()
        .position(|part| part["name"].as_str().unwrap().starts_with("best/"))
        .unwrap();
    // In the store it lies where it is listed; on this machine it would lie beside the temporary directory.
    let outside = format!("flambeau-outside-{}", std::process::id());
    fs::copy(
        uri.join(parts[best]["name"].as_str().unwrap()),
        uri.join(&outside),
    )
    .unwrap();
    let absolute = format!("best/{}", std::env::temp_dir().join(&outside).display());
    for name in [
        format!("best/../{outside}"),
        absolute,
        "../state.json".into(),
    ] {
        let mut marker = good.clone();
        marker["parts"][best]["name"] = json!(name);
        let text = refusal(&marker).unwrap_or_default();
        assert!(!std::env::temp_dir().join(&outside).exists());
        assert!(
            text.contains(&name) && text.contains("plain name"),
            "{text}"
        );
    }
    let mut marker = good.clone();
    marker["before"]["attempt"] = json!("../../elsewhere");
    let text = refusal(&marker).unwrap_or_default();
    assert!(text.contains("../../elsewhere"), "{text}");
    assert_eq!(refusal(&good), None);
}
