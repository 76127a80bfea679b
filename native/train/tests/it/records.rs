//! History, weights and events.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flambeau_train::{Event, Hooks, Split, StepReport};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::model::{Config, Net, Optimizer};
use crate::reference;
use crate::support::{Bench, Row, train, try_train};

#[test]
fn history_holds_sums_over_all_rows_and_ranks() {
    let bench = Bench::new(97, 31);
    let config = Config::new(Net::Mlp { hidden: 5 }, Optimizer::Adam { rate: 0.01 });
    for world_size in [1, 3] {
        let params = json!({"numWorkers": 3, "batchSize": 4, "epochs": 2});
        let outcomes = train(&bench.job("history", params, false), world_size, &config);
        let result = outcomes[0].result.as_ref().unwrap();
        assert_eq!(
            (
                result.num_rows,
                result.num_validation_rows,
                result.num_steps
            ),
            (97, 31, 18)
        );
        assert_eq!((result.world_size, result.warnings.len()), (world_size, 0));
        assert_eq!(result.history.epochs.len(), 2);
        let record = &result.history.epochs[1];
        assert_eq!((record.epoch, record.steps, record.num_rows), (1, 18, 97));
        let times = record.times;
        let parts = [
            times.data_seconds,
            times.model_seconds,
            times.reduce_seconds,
            times.optimizer_seconds,
        ];
        assert!(parts.iter().all(|&seconds| seconds > 0.0), "{parts:?}");
        assert!(
            parts.iter().sum::<f64>() <= record.seconds + 1e-6,
            "{parts:?}"
        );
        let resources = record.resources;
        assert!(resources.cpu_percent > 0.0 && resources.peak_memory_bytes > 1 << 20);
        let bottleneck = result.bottleneck.as_ref().unwrap();
        for outcome in &outcomes[1..] {
            let other = outcome.result.as_ref().unwrap();
            assert_eq!(other.bottleneck.as_ref(), Some(bottleneck));
        }

        let reports = &outcomes[0].reports[9..];
        let sum: f64 = reports
            .iter()
            .map(|report| report.loss.unwrap() * report.num_rows as f64)
            .sum();
        assert!((record.loss.unwrap() - sum / 97.0).abs() < 1e-12);
        assert_eq!(record.metrics[0].0, "mae");

        // The validation loss is that of the weights at the end of the epoch, over all validation rows.
        let values = outcomes[0].model.values.concat();
        let rows: Vec<&Row> = bench.validation_rows.iter().collect();
        let expected = reference::mean_loss(&config, &values, &rows, false).value;
        assert!((record.validation_loss.unwrap() - expected).abs() < 1e-12);
        let errors = rows
            .iter()
            .map(|row| (reference::output(&config, &values, &row.x).value - row.y).abs());
        let mae = errors.sum::<f64>() / 31.0;
        assert_eq!(record.validation_metrics[0].0, "mae");
        assert!((record.validation_metrics[0].1.unwrap() - mae).abs() < 1e-12);

        let figures = [
            ("loss", record.loss),
            ("mae", record.metrics[0].1),
            ("val_loss", record.validation_loss),
            ("val_mae", record.validation_metrics[0].1),
        ];
        let figures = figures
            .map(|(name, value)| (name.to_string(), value))
            .to_vec();
        for outcome in &outcomes {
            assert_eq!(outcome.model.ended.len(), 2);
            let told = (vec![Split::Training, Split::Validation], figures.clone());
            assert_eq!(outcome.model.ended[1], told);
        }

        assert_eq!(
            outcomes[world_size - 1]
                .result
                .as_ref()
                .unwrap()
                .history
                .epochs[1]
                .loss,
            record.loss
        );
    }
}

#[test]
fn without_validation_rows_there_are_no_validation_values() {
    let bench = Bench::new(20, 0);
    let config = Config::new(Net::Linear, Optimizer::Adam { rate: 0.01 });
    let outcomes = train(
        &bench.job("plain", json!({"batchSize": 8}), false),
        1,
        &config,
    );
    let record = &outcomes[0].result.as_ref().unwrap().history.epochs[0];
    assert_eq!(
        (record.validation_loss, record.validation_metrics.len()),
        (None, 0)
    );
}

#[test]
fn buffers_are_rank_0s_in_evaluation_and_at_the_end() {
    let bench = Bench::new(97, 31);
    let config = Config {
        noise: true,
        ..Config::new(Net::Linear, Optimizer::Adam { rate: 0.01 })
    };
    let outcomes = train(
        &bench.job(
            "buffers",
            json!({"numWorkers": 3, "batchSize": 4, "epochs": 2}),
            false,
        ),
        3,
        &config,
    );
    for outcome in &outcomes {
        assert_eq!(
            outcome.model.evaluated_with[0],
            outcomes[0].model.evaluated_with[0]
        );
        assert_eq!(
            outcome.model.evaluated_with.last(),
            outcomes[0].model.evaluated_with.last()
        );
        assert_eq!(outcome.model.bits(), outcomes[0].model.bits());
    }
    assert_ne!(
        outcomes[0].model.evaluated_with.first(),
        outcomes[0].model.evaluated_with.last()
    );
}

#[test]
fn rank_0_stores_the_weights_and_says_their_size_and_hash() {
    let bench = Bench::new(20, 0);
    let config = Config::new(Net::Linear, Optimizer::Adam { rate: 0.01 });
    let outcomes = train(
        &bench.job("weights", json!({"numWorkers": 2, "batchSize": 4}), false),
        2,
        &config,
    );
    assert_eq!(outcomes[1].result.as_ref().unwrap().weights, None);
    let weights = outcomes[0]
        .result
        .as_ref()
        .unwrap()
        .weights
        .as_ref()
        .unwrap();
    let names: Vec<&str> = weights
        .files
        .iter()
        .map(|file| file.name.as_str())
        .collect();
    assert_eq!(names, ["weights.bin", "names.txt"]);
    let bytes = fs::read(bench.path("models/weights/weights.bin")).unwrap();
    assert_eq!(weights.size, bytes.len() as u64);
    assert_eq!(weights.sha256, format!("{:x}", Sha256::digest(&bytes)));
    assert_eq!(fs::read(&weights.uri).unwrap(), bytes);
    let values: Vec<f64> = bytes
        .chunks(8)
        .map(|chunk| f64::from_le_bytes(chunk.try_into().unwrap()))
        .collect();
    assert_eq!(values, outcomes[0].model.values.concat());
}

#[test]
fn events_tell_the_start_every_epoch_and_the_end_in_numbered_files() {
    let bench = Bench::new(97, 31);
    let config = Config::new(Net::Linear, Optimizer::Adam { rate: 0.01 });
    let outcomes = train(
        &bench.job(
            "events",
            json!({"numWorkers": 2, "batchSize": 6, "epochs": 3}),
            false,
        ),
        2,
        &config,
    );
    let mut files: Vec<_> = fs::read_dir(bench.path("attempts/events/events"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut events: Vec<Event> = vec![];
    for (index, path) in files.iter().enumerate() {
        assert_eq!(
            path.file_name().unwrap().to_str().unwrap(),
            format!("{:08}.json", index + 1)
        );
        events.extend(serde_json::from_slice::<Vec<Event>>(&fs::read(path).unwrap()).unwrap());
    }
    let Event::Start(start) = &events[0] else {
        panic!("{:?}", events[0])
    };
    assert_eq!(
        (
            start.epochs,
            start.steps_per_epoch,
            start.num_rows,
            start.num_validation_rows,
            start.world_size
        ),
        (3, 9, 97, 31, 2)
    );
    let Event::Progress(progress) = &events[2] else {
        panic!("{:?}", events[2])
    };
    assert_eq!(
        (progress.epoch, progress.step, progress.epoch_step),
        (0, 1, 1)
    );
    let report = outcomes[0].reports[0];
    assert_eq!(
        (
            progress.step_loss,
            progress.learning_rate,
            progress.gradient_norm
        ),
        (report.loss, report.learning_rate, report.gradient_norm)
    );
    assert_eq!(events.last(), Some(&Event::End));
    let epochs: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Epoch(record) => Some(record.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(epochs, outcomes[0].result.as_ref().unwrap().history.epochs);
}

#[test]
fn what_a_rank_uses_is_told_while_it_trains() {
    let bench = Bench::new(40, 0);
    let mut job = bench.job("usage", json!({"numWorkers": 2, "batchSize": 20}), false);
    job.attempt.usage_seconds = Some(0.5);
    let file = |rank: usize| bench.path(&format!("attempts/usage/usage/{rank}.json"));
    let config = Config::new(Net::Linear, Optimizer::Adam { rate: 0.01 });
    let hooks = |rank: usize| {
        let file = file(rank);
        Hooks {
            // The first step lasts until there is a sample of the rank's.
            on_step: Some(Arc::new(move |_: &StepReport| {
                let began = Instant::now();
                while !file.exists() {
                    assert!(began.elapsed() < Duration::from_secs(60), "{file:?}");
                    thread::sleep(Duration::from_millis(10));
                }
                Ok(())
            })),
            ..Hooks::default()
        }
    };
    for outcome in try_train(&job, 2, |_| config.clone(), hooks) {
        outcome.result.unwrap();
    }
    for rank in 0..2 {
        let sample: Value = serde_json::from_slice(&fs::read(file(rank)).unwrap()).unwrap();
        assert_eq!(sample["kind"], "usage");
        assert_eq!(sample["rank"], rank);
        let used = |name: &str| sample["values"][name].as_f64().unwrap();
        let resident = used("process_memory_usage_megabytes");
        assert!(resident > 1.0, "{sample}");
        assert!(resident < used("system_memory_usage_megabytes"), "{sample}");
        // All that its threads can use, and ticks that are counted late.
        let cores = thread::available_parallelism().unwrap().get() as f64;
        let of_process = used("process_cpu_utilization_percentage");
        assert!((0.0..=110.0 * cores).contains(&of_process), "{sample}");
        for share in [
            "cpu_utilization_percentage",
            "system_memory_usage_percentage",
        ] {
            assert!((0.0..=100.0).contains(&used(share)), "{sample}");
        }
    }
}
