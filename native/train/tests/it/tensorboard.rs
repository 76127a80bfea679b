//! TensorBoard's files; Python's tests read them by TensorBoard itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use flambeau_data::Store;
use flambeau_train::{Cause, ErrorKind, Hooks, StepReport, TrainingJob, Worker};
use serde_json::json;

use crate::bucket::{self, Bucket};
use crate::model::{Config, Fault, Net, Optimizer, TestModel};
use crate::support::{Bench, group_options, ranks_with, train, try_train};

fn config() -> Config {
    Config::new(Net::Linear, Optimizer::Adam { rate: 0.01 })
}

/// Nine steps an epoch, of which every third is written.
fn job(bench: &Bench, attempt: &str) -> TrainingJob {
    let params = json!({
        "numWorkers": 2, "batchSize": 6, "epochs": 2, "logEveryNSteps": 3, "logGradientNorm": true,
        "tensorBoardDir": bench.path("board"),
    });
    bench.job(attempt, params, false)
}

/// The names of what is in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// CRC-32C bit by bit, masked as TFRecords have it.
fn masked_crc(data: &[u8]) -> u32 {
    let crc = data.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    });
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The records of a file.
fn records(mut file: &[u8]) -> Vec<&[u8]> {
    let mut records = vec![];
    while !file.is_empty() {
        let (head, rest) = file.split_at(12);
        let (length, crc) = head.split_at(8);
        assert_eq!(crc, masked_crc(length).to_le_bytes());
        let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
        let (data, rest) = rest.split_at(length);
        let (crc, rest) = rest.split_at(4);
        assert_eq!(crc, masked_crc(data).to_le_bytes());
        records.push(data);
        file = rest;
    }
    records
}

fn varint(message: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = message.split_first().unwrap();
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

/// The fields of a message, by their numbers.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut found = vec![];
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = match key & 7 {
            0 => {
                found.push((key >> 3, varint(&mut message).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut message) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (content, rest) = message.split_at(length);
        found.push((key >> 3, content.to_vec()));
        message = rest;
    }
    found
}

/// Values by tag, each with its step.
type Values = BTreeMap<String, Vec<(u64, f32)>>;

/// Those of a directory's files.
fn values(directory: &Path) -> Values {
    let names = names(directory).into_iter();
    values_of(names.map(|name| fs::read(directory.join(name)).unwrap()))
}

/// Those of files in their order.
fn values_of(files: impl Iterator<Item = Vec<u8>>) -> Values {
    let mut values = Values::new();
    for file in files {
        let records = records(&file);
        assert_eq!(fields(records[0])[2], (3, b"brain.Event:2".to_vec()));
        for record in records {
            let event = fields(record);
            let step = u64::from_le_bytes(event[1].1.as_slice().try_into().unwrap());
            for (_, value) in event
                .iter()
                .filter(|(field, _)| *field == 5)
                .flat_map(|(_, summary)| fields(summary))
            {
                let value = fields(&value);
                let number = f32::from_le_bytes(value[1].1.as_slice().try_into().unwrap());
                let tag = String::from_utf8(value[0].1.clone()).unwrap();
                values.entry(tag).or_default().push((step, number));
            }
        }
    }
    values
}

#[test]
fn rank_0_writes_steps_and_epochs() {
    let bench = Bench::new(97, 31);
    let outcomes = train(&job(&bench, "first"), 2, &config());
    let mut silent = job(&bench, "silent");
    silent.params.tensor_board_dir = None;
    let plain = train(&silent, 2, &config());
    assert_eq!(outcomes[0].model.bits(), plain[0].model.bits());

    // The first, written before the first step, and the last.
    let directory = bench.path("board");
    let names = names(&directory);
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(
        names[0].starts_with("events.out.tfevents.") && names[0].ends_with(".000000"),
        "{names:?}"
    );
    assert_eq!(names[1], names[0].replace(".000000", ".000001"));

    let values = values(&directory);
    let reports = &outcomes[0].reports;
    let of_steps = |value: &dyn Fn(&StepReport) -> f64| -> Vec<(u64, f32)> {
        let told = reports.iter().skip(2).step_by(3);
        told.map(|report| (report.step + 1, value(report) as f32))
            .collect()
    };
    assert_eq!(
        values["train/loss_step"],
        of_steps(&|report| report.loss.unwrap())
    );
    assert_eq!(values["train/learning_rate"], of_steps(&|_| 0.01));
    assert_eq!(
        values["train/gradient_norm"],
        of_steps(&|report| report.gradient_norm.unwrap())
    );
    let rates = &values["train/rows_per_second"];
    assert!(rates.len() == 6 && rates.iter().all(|(_, rate)| *rate > 0.0));

    let epochs = &outcomes[0].result.as_ref().unwrap().history.epochs;
    for (epoch, record) in epochs.iter().enumerate() {
        for (tag, expected) in [
            ("train/loss_epoch", record.loss),
            ("train/mae", record.metrics[0].1),
            ("validation/loss", record.validation_loss),
            ("validation/mae", record.validation_metrics[0].1),
        ] {
            assert_eq!(
                values[tag][epoch],
                (record.steps, expected.unwrap() as f32),
                "{tag}"
            );
        }
    }
    assert_eq!(values.len(), 8);
}

#[test]
fn an_object_store_has_what_a_directory_has() {
    let bench = Bench::new(97, 31);
    train(&job(&bench, "local"), 2, &config());
    let expected = values(&bench.path("board"));

    let bucket = Arc::new(Bucket::default());
    let store = Store::new(&bucket::serve(&bucket)).unwrap();
    let mut stored = job(&bench, "stored");
    stored.params.tensor_board_dir = Some("s3://bucket/the/board".into());
    let results = ranks_with(&group_options(), 2, |group| {
        let mut model = TestModel::new(config(), group.rank());
        Worker::new(
            stored.clone(),
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
    let objects = bucket.objects.lock().unwrap();
    let names: Vec<&String> = objects.keys().collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names[0].starts_with("the/board/events.out.tfevents."));
    assert_eq!(*names[1], names[0].replace(".000000", ".000001"));

    let mut found = values_of(objects.values().cloned());
    assert_eq!(found.len(), 8);
    for (tag, expected) in expected {
        let found = found.remove(&tag).unwrap();
        if tag == "train/rows_per_second" {
            let steps = |values: &[(u64, f32)]| values.iter().map(|(step, _)| *step).collect();
            let (found, expected): (Vec<u64>, Vec<u64>) = (steps(&found), steps(&expected));
            assert_eq!(found, expected);
        } else {
            assert_eq!(found, expected, "{tag}");
        }
    }
}

#[test]
fn a_failed_training_leaves_its_steps_and_a_resumed_one_comes_after_them() {
    let bench = Bench::new(97, 0);
    let fault = |rank| Config {
        fault: (rank == 1).then_some(Fault::Error { step: 14 }),
        ..config()
    };
    try_train(&job(&bench, "first"), 2, fault, |_| Hooks::default());
    let directory = bench.path("board");
    let before = names(&directory);
    let steps = |directory: &Path| -> Vec<u64> {
        let losses = &values(directory)["train/loss_step"];
        losses.iter().map(|(step, _)| *step).collect()
    };
    assert_eq!(steps(&directory), [3, 6, 9, 12]);
    let mut again = job(&bench, "second");
    let checkpoint = bench.path("attempts/first/checkpoints/0000000009");
    again.attempt.resume = Some(checkpoint.to_str().unwrap().into());
    train(&again, 2, &config());
    assert_eq!(names(&directory)[..2], before);
    assert_eq!(steps(&directory), [3, 6, 9, 12, 12, 15, 18]);
    // SessionLog.START at the first step that is taken again: TensorBoard drops what it has from there on.
    let third = fs::read(directory.join(&names(&directory)[2])).unwrap();
    let session = fields(records(&third)[1]);
    assert_eq!(session[1], (2, 10u64.to_le_bytes().to_vec()));
    assert_eq!(session[2], (7, vec![8, 1]));
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error_before_the_first_step() {
    let bench = Bench::new(97, 0);
    fs::write(bench.path("board"), "in the way").unwrap();
    let outcomes = try_train(&job(&bench, "first"), 2, |_| config(), |_| Hooks::default());
    let errors: Vec<_> = outcomes
        .iter()
        .map(|outcome| outcome.result.as_ref().unwrap_err())
        .collect();
    let Cause::TensorBoard { directory, .. } = &*errors[0].cause else {
        panic!("{}", errors[0])
    };
    assert_eq!(Path::new(directory), bench.path("board"));
    assert_eq!((errors[0].kind(), errors[0].step), (ErrorKind::Data, None));
    assert!(
        errors[0].to_string().contains("tensorBoardDir"),
        "{}",
        errors[0]
    );
    assert!(!errors[1].is_cause() && outcomes[1].reports.is_empty());
}

#[test]
fn a_directory_that_is_lost_later_is_a_warning() {
    let bench = Bench::new(97, 0);
    let directory = bench.path("board");
    let hooks = |rank| {
        let directory = directory.clone();
        Hooks {
            on_step: Some(Arc::new(move |report: &StepReport| {
                if rank == 0 && report.step == 0 {
                    fs::remove_dir_all(&directory)?;
                    fs::write(&directory, "in the way")?;
                }
                Ok(())
            })),
            ..Hooks::default()
        }
    };
    let outcomes = try_train(&job(&bench, "first"), 2, |_| config(), hooks);
    let warnings = &outcomes[0].result.as_ref().unwrap().warnings;
    assert!(
        warnings.len() == 1 && warnings[0].starts_with("TensorBoard's files could not be written"),
        "{warnings:?}"
    );
    // Nine steps an epoch, of which every third is written.
    assert!(
        warnings[0].ends_with("between steps 3 and 18"),
        "{warnings:?}"
    );
}

#[test]
fn a_directory_that_cannot_be_written_any_more_is_a_warning_of_a_restart() {
    let bench = Bench::new(97, 0);
    let mut again = job(&bench, "second");
    again.attempt.restarts = 1;
    fs::write(bench.path("board"), "in the way").unwrap();
    let outcomes = train(&again, 2, &config());
    let warnings = &outcomes[0].result.as_ref().unwrap().warnings;
    assert!(
        warnings.len() == 1 && warnings[0].ends_with("between steps 1 and 18"),
        "{warnings:?}"
    );

    // Written from when it can be.
    let mut third = job(&bench, "third");
    third.attempt.restarts = 1;
    let directory = bench.path("board");
    let hooks = |rank| {
        let directory = directory.clone();
        Hooks {
            on_step: Some(Arc::new(move |report: &StepReport| {
                if rank == 0 && report.step == 0 {
                    fs::remove_file(&directory)?;
                }
                Ok(())
            })),
            ..Hooks::default()
        }
    };
    let outcomes = try_train(&third, 2, |_| config(), hooks);
    let warnings = &outcomes[0].result.as_ref().unwrap().warnings;
    assert!(
        warnings.len() == 1 && warnings[0].ends_with("nothing is missing there"),
        "{warnings:?}"
    );
    assert_eq!(values(&directory)["train/loss_step"].len(), 6);
}
