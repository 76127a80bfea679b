//! Hooks: what they are told, what their errors do, and how they stop a training.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flambeau_collective::CollectiveError;
use flambeau_train::{Cause, ErrorKind, Event, Hooks, StepReport, TrainingJob};
use serde_json::{Value, json};

use crate::loop_order::global_batches;
use crate::model::{Config, Net, Optimizer};
use crate::reference::{self, Options};
use crate::support::{Bench, Outcome, paired, train, try_train};

const RATE: f64 = 0.05;

fn config() -> Config {
    let optimizer = Optimizer::SgdMomentum {
        rate: RATE,
        momentum: 0.9,
    };
    Config::new(Net::Mlp { hidden: 5 }, optimizer)
}

/// Nine steps an epoch on two ranks, with callbacks.
fn job(bench: &Bench, attempt: &str, params: Value) -> TrainingJob {
    let mut all = json!({"numWorkers": 2, "batchSize": 6, "epochs": 4});
    for (name, value) in params.as_object().unwrap() {
        all[name] = value.clone();
    }
    let mut job = bench.job(attempt, all, false);
    job.attempt.callbacks = true;
    job
}

/// An event in a word, without what it measured.
fn word(event: &Event) -> Option<String> {
    match event {
        Event::Start(start) => Some(format!("start {} {}", start.epoch, start.step)),
        Event::EpochBegin(begin) => Some(format!("begin {} {}", begin.epoch, begin.step)),
        Event::Checkpoint(written) => Some(format!("saved {} {}", written.epoch, written.step)),
        Event::Epoch(record) => Some(format!("epoch {} {}", record.epoch, record.steps)),
        Event::End => Some("end".into()),
        Event::Progress(_) | Event::Stall(_) => None,
    }
}

/// Trains on two ranks, of which `act` gets each rank's events and steps, in their order and as words.
fn try_told(
    job: &TrainingJob,
    act: impl Fn(usize, &str) -> Result<bool, String> + Send + Sync + 'static,
) -> (Vec<Outcome>, Vec<Vec<String>>) {
    let act = Arc::new(act);
    let told: Vec<_> = (0..2).map(|_| Arc::new(Mutex::new(vec![]))).collect();
    let hooks = |rank: usize| {
        let (stop, told) = (Arc::new(AtomicBool::new(false)), told[rank].clone());
        let (act, asked) = (act.clone(), stop.clone());
        let tell = Arc::new(move |word: String| -> Result<(), String> {
            if act(rank, &word)? {
                asked.store(true, Ordering::Relaxed);
            }
            told.lock().unwrap().push(word);
            Ok(())
        });
        let of_steps = tell.clone();
        Hooks {
            on_event: Some(Arc::new(move |event| {
                Ok(word(event).map_or(Ok(()), |word| tell(word))?)
            })),
            on_step: Some(Arc::new(move |report: &StepReport| {
                Ok(of_steps(format!("step {}", report.step))?)
            })),
            stop: Some(Arc::new(move || stop.load(Ordering::Relaxed))),
            ..Hooks::default()
        }
    };
    let outcomes = try_train(job, 2, |_| config(), hooks);
    let told = told.iter().map(|told| told.lock().unwrap().clone());
    (outcomes, told.collect())
}

fn checkpoints(bench: &Bench, attempt: &str) -> usize {
    let directory = bench.path(&format!("attempts/{attempt}/checkpoints"));
    fs::read_dir(directory).map_or(0, Iterator::count)
}

/// The steps that both ranks took, and the epochs that they recorded.
fn lengths(outcomes: &[Outcome]) -> Vec<(u64, usize)> {
    let results = outcomes
        .iter()
        .map(|outcome| outcome.result.as_ref().unwrap());
    results
        .map(|result| (result.num_steps, result.history.epochs.len()))
        .collect()
}

#[test]
fn a_stop_on_one_rank_ends_all_after_the_same_step_as_early_stopping_does() {
    let bench = Bench::new(97, 31);
    let job = job(&bench, "stopped", json!({"checkpointInterval": 1}));
    let (outcomes, _) = try_told(&job, |rank, word| Ok(rank == 1 && word == "step 11"));
    // Step 12 carries it to the other.
    assert_eq!(lengths(&outcomes), [(13, 2); 2]);
    let result = outcomes[0].result.as_ref().unwrap();
    let record = &result.history.epochs[1];
    assert_eq!((record.epoch, record.steps, record.num_rows), (1, 13, 48));
    assert!(record.validation_loss.is_some());
    assert_eq!(checkpoints(&bench, "stopped"), 1);

    let batches: Vec<_> = global_batches(&outcomes).into_values().collect();
    let reference = reference::train(&config(), &bench.rows, &batches, false, &Options::default());
    let written = fs::read(&result.weights.as_ref().unwrap().uri).unwrap();
    let values = written
        .chunks(8)
        .map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()));
    for (value, expected) in paired(&values.collect::<Vec<_>>(), &reference.values) {
        assert!((value - expected).abs() < 1e-12);
    }
    let expected: f64 = reference.losses[9..].iter().map(|loss| loss.unwrap()).sum();
    assert!((record.loss.unwrap() - expected / 4.0).abs() < 1e-12);
}

#[test]
fn a_stop_at_the_end_of_an_epoch_comes_before_the_next() {
    let bench = Bench::new(97, 31);
    // In the last step, after the evaluation, and after the checkpoint.
    for (number, asks) in ["step 17", "epoch 1 18", "saved 1 18"]
        .into_iter()
        .enumerate()
    {
        let job = job(&bench, &format!("end-{number}"), json!({}));
        let (outcomes, told) = try_told(&job, move |rank, word| Ok(rank == 1 && word == asks));
        assert_eq!(lengths(&outcomes), [(18, 2); 2], "{asks}");
        assert!(!told[0].contains(&"begin 2 18".into()), "{asks}");
    }
}

#[test]
fn a_stop_holds_where_training_goes_on_from_its_last_checkpoint() {
    let bench = Bench::new(97, 31);
    let params = json!({"keepCheckpoints": 1, "restoreBestWeights": true, "emaDecay": 0.9});
    let weights = |outcomes: &[Outcome]| {
        let result = outcomes[0].result.as_ref().unwrap();
        result.weights.as_ref().unwrap().sha256.clone()
    };
    // In an epoch, in its last step, and after the evaluation.
    for (number, asks) in ["step 11", "step 17", "epoch 1 18"].into_iter().enumerate() {
        let first = format!("stopped-{number}");
        let stopped = job(&bench, &first, params.clone());
        let (outcomes, _) = try_told(&stopped, move |rank, word| Ok(rank == 1 && word == asks));
        let steps = lengths(&outcomes)[0].0;
        let last = bench.path(&format!("attempts/{first}/checkpoints/{steps:010}"));
        let mut again = job(&bench, &format!("again-{number}"), params.clone());
        again.attempt.resume = Some(last.to_str().unwrap().into());
        let (resumed, told) = try_told(&again, |_, _| Ok(false));
        assert_eq!(lengths(&resumed), lengths(&outcomes), "{asks}");
        assert_eq!(told[0], [format!("start 2 {steps}"), "end".into()]);
        assert_eq!(weights(&resumed), weights(&outcomes), "{asks}");
    }
}

#[test]
fn a_stop_before_the_first_step_leaves_one() {
    let bench = Bench::new(97, 0);
    let (outcomes, _) = try_told(&job(&bench, "none", json!({})), |rank, word| {
        Ok(rank == 0 && word == "start 0 0")
    });
    assert_eq!(lengths(&outcomes), [(1, 1); 2]);
}

#[test]
fn the_stop_file_ends_a_training() {
    let bench = Bench::new(97, 0);
    let params = json!({"epochs": 1_000_000, "checkpointInterval": -1});
    let mut job = job(&bench, "file", params);
    let file = bench.path("stop");
    job.attempt.stop_file = Some(file.to_str().unwrap().into());
    let began = Instant::now();
    let (outcomes, _) = try_told(&job, move |rank, word| {
        if rank == 1 && word == "step 100" {
            fs::write(&file, "").unwrap();
        }
        Ok(false)
    });
    assert!(began.elapsed() < Duration::from_secs(30));
    let lengths = lengths(&outcomes);
    assert!(
        lengths[0].0 > 100 && lengths[0] == lengths[1],
        "{lengths:?}"
    );
}

#[test]
fn an_error_of_a_hook_is_its_ranks_and_aborts_the_others() {
    let bench = Bench::new(97, 31);
    for (number, fails) in [
        "start 0 0",
        "begin 1 9",
        "step 12",
        "epoch 0 9",
        "saved 0 9",
    ]
    .into_iter()
    .enumerate()
    {
        let job = job(&bench, &format!("fails-{number}"), json!({}));
        let began = Instant::now();
        let (outcomes, _) = try_told(&job, move |rank, word| {
            if rank == 1 && word == fails {
                return Err(format!("no {word}"));
            }
            Ok(false)
        });
        assert!(began.elapsed() < Duration::from_secs(30), "{fails}");
        let errors: Vec<_> = outcomes
            .iter()
            .map(|outcome| outcome.result.as_ref().unwrap_err())
            .collect();
        let Cause::Hook(source) = &*errors[1].cause else {
            panic!("{}", errors[1])
        };
        assert_eq!(source.to_string(), format!("no {fails}"));
        assert_eq!(
            (errors[1].kind(), errors[1].is_cause()),
            (ErrorKind::Model, true)
        );
        let Cause::Collective(source) = &*errors[0].cause else {
            panic!("{}", errors[0])
        };
        assert!(
            matches!(**source, CollectiveError::Aborted { rank: 1, .. }),
            "{source}"
        );
    }
}

#[test]
fn events_come_in_order_on_every_rank_after_a_resume_too() {
    let bench = Bench::new(97, 0);
    // A checkpoint after seven steps, and one after each epoch of nine.
    let params = json!({"epochs": 2, "checkpointSteps": 7});
    let events = |told: &[String]| -> Vec<String> {
        let is_event = |word: &&String| !word.starts_with("step");
        told.iter().filter(is_event).cloned().collect()
    };
    let unbroken = [
        "start 0 0",
        "begin 0 0",
        "saved 0 7",
        "epoch 0 9",
        "saved 0 9",
        "begin 1 9",
        "saved 1 14",
        "epoch 1 18",
        "end",
    ];
    let (_, told) = try_told(&job(&bench, "first", params.clone()), |_, _| Ok(false));
    assert_eq!([events(&told[0]), events(&told[1])], [unbroken; 2]);
    assert_eq!(told[0], told[1]);

    let resumed = [
        (
            7,
            vec![
                "start 0 7",
                "epoch 0 9",
                "saved 0 9",
                "begin 1 9",
                "saved 1 14",
                "epoch 1 18",
                "end",
            ],
        ),
        (
            9,
            vec!["start 1 9", "begin 1 9", "saved 1 14", "epoch 1 18", "end"],
        ),
    ];
    for (step, expected) in resumed {
        let first = format!("to-{step}");
        let stopped = job(&bench, &first, params.clone());
        try_told(&stopped, move |_, word| {
            if word == format!("step {step}") {
                return Err("killed".into());
            }
            Ok(false)
        });
        let mut again = job(&bench, &format!("from-{step}"), params.clone());
        let checkpoint = bench.path(&format!("attempts/{first}/checkpoints/{step:010}"));
        again.attempt.resume = Some(checkpoint.to_str().unwrap().into());
        let (_, told) = try_told(&again, |_, _| Ok(false));
        assert_eq!(
            [events(&told[0]), events(&told[1])],
            [expected.clone(), expected],
            "{step}"
        );
    }
}

#[test]
fn a_checkpoint_is_told_of_once_it_is_whole_and_not_where_it_cannot_be_written() {
    let bench = Bench::new(97, 0);
    let told = Arc::new(AtomicU64::new(0));
    let hooks = |_| {
        let told = told.clone();
        Hooks {
            on_event: Some(Arc::new(move |event: &Event| {
                if let Event::Checkpoint(written) = event {
                    assert!(Path::new(&written.uri).join("COMMITTED").exists());
                    told.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })),
            ..Hooks::default()
        }
    };
    try_train(&job(&bench, "whole", json!({})), 2, |_| config(), hooks);
    // After each epoch but the last, on each rank.
    assert_eq!(told.swap(0, Ordering::Relaxed), 2 * 3);
    fs::create_dir_all(bench.path("attempts/full")).unwrap();
    fs::write(bench.path("attempts/full/checkpoints"), "in the way").unwrap();
    let outcomes = try_train(&job(&bench, "full", json!({})), 2, |_| config(), hooks);
    assert_eq!(outcomes[0].result.as_ref().unwrap().warnings.len(), 3);
    assert_eq!(told.load(Ordering::Relaxed), 0);
}

#[test]
fn a_step_is_told_with_its_rate_and_norm_where_it_ends_an_interval() {
    let bench = Bench::new(97, 0);
    let params = json!({"epochs": 2, "lrSchedule": "linear", "logGradientNorm": true});
    let job = job(&bench, "steps", params);
    let told = Arc::new(Mutex::new(vec![]));
    let outcomes = try_train(&job, 2, |_| config(), |_| Hooks::default());
    let in_fours = crate::support::ranks(2, |group| {
        let (rank, told) = (group.rank(), told.clone());
        let hooks = Hooks {
            on_step: (rank == 1).then(|| {
                Arc::new(move |report: &StepReport| {
                    told.lock().unwrap().push(*report);
                    Ok(())
                }) as _
            }),
            step_interval: 4,
            ..Hooks::default()
        };
        let mut model = crate::model::TestModel::new(config(), rank);
        let store = crate::support::store();
        flambeau_train::Worker::new(job.clone(), group, &mut model, store, hooks).run()
    });
    assert!(in_fours.iter().all(Result::is_ok));
    let reports = &outcomes[1].reports;
    let of_fours: Vec<_> = [3, 7, 11, 15].map(|step| reports[step]).into();
    assert_eq!(*told.lock().unwrap(), of_fours);

    let batches: Vec<_> = global_batches(&outcomes).into_values().collect();
    for (step, report) in reports.iter().enumerate() {
        let rate = RATE * (1.0 - step as f64 / 18.0);
        assert!((report.learning_rate.unwrap() - rate).abs() < 1e-15);
    }
    // The oracle knows no schedules, so the norm of the first step alone.
    let reference = reference::train(
        &config(),
        &bench.rows,
        &batches[..1],
        false,
        &Options::default(),
    );
    let norm = reports[0].gradient_norm.unwrap();
    assert!((norm - reference.norms[0].unwrap()).abs() < 1e-12, "{norm}");

    let plain = train(
        &bench.job("plain", json!({"numWorkers": 2, "batchSize": 6}), false),
        2,
        &config(),
    );
    assert!(
        plain[0]
            .reports
            .iter()
            .all(|report| report.gradient_norm.is_none())
    );
}
