//! Ranks as threads, shards as temporary files, and jobs over them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use arrow_array::{Float64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use flambeau_collective::{
    CollectiveError, GroupOptions, ProcessGroup, Rendezvous, TransportChoice,
};
use flambeau_data::Store;
use flambeau_train::{Gpus, Hooks, StepReport, TrainError, TrainingJob, TrainingResult, Worker};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};

use crate::model::{Config, TestModel};

pub const NUM_INPUTS: usize = 4;

/// Both together, which have one length.
pub fn paired<'a, A, B>(left: &'a [A], right: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right)
}

/// A row: inputs, label, weight.
#[derive(Clone, Debug)]
pub struct Row {
    pub x: [f64; NUM_INPUTS],
    pub y: f64,
    pub weight: f64,
}

/// Rows from a small generator of our own, smooth in their inputs and noisy.
pub fn rows(num: usize, seed: u64) -> Vec<Row> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..num)
        .map(|index| {
            let x = [(); NUM_INPUTS].map(|()| uniform() * 2.0 - 1.0);
            let y = (x[0] * 2.0).sin() + x[1] * x[2] - 0.5 * x[3] + 0.1 * uniform();
            // Some weights are 0, and they differ much, so that denominators differ between ranks.
            let weight = if index % 5 == 0 { 0.0 } else { uniform() * 3.0 };
            Row { x, y, weight }
        })
        .collect()
}

/// Writes rows as shards of `shard_rows` rows with row groups of 7, in their order.
pub fn write_shards(directory: &Path, name: &str, rows: &[Row], shard_rows: usize) -> Vec<String> {
    let names = (0..NUM_INPUTS)
        .map(|i| format!("x{i}"))
        .chain(["y".into(), "w".into()]);
    let fields: Vec<Field> = names
        .map(|name| Field::new(name, DataType::Float64, false))
        .collect();
    let schema = Arc::new(Schema::new(fields));
    let mut uris = vec![];
    for (number, rows) in rows.chunks(shard_rows).enumerate() {
        let column = |of: &dyn Fn(&Row) -> f64| {
            Arc::new(rows.iter().map(of).collect::<Float64Array>()) as Arc<dyn arrow_array::Array>
        };
        let mut columns: Vec<_> = (0..NUM_INPUTS)
            .map(|i| column(&move |row: &Row| row.x[i]))
            .collect();
        columns.push(column(&|row| row.y));
        columns.push(column(&|row| row.weight));
        let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
        let path = directory.join(format!("{name}-{number}.parquet"));
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(7))
            .build();
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, schema.clone(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        uris.push(path.to_str().unwrap().to_string());
    }
    uris
}

/// A work directory with training and validation rows.
pub struct Bench {
    pub directory: tempfile::TempDir,
    pub rows: Vec<Row>,
    pub validation_rows: Vec<Row>,
    train: Vec<String>,
    validation: Vec<String>,
}

impl Bench {
    pub fn new(num_rows: usize, num_validation_rows: usize) -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let rows = rows(num_rows, 1);
        let validation_rows = self::rows(num_validation_rows, 2);
        let train = write_shards(directory.path(), "train", &rows, 23);
        let validation = write_shards(directory.path(), "validation", &validation_rows, 23);
        Bench {
            directory,
            rows,
            validation_rows,
            train,
            validation,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A job with these params. `weighted` reads the weight column.
    pub fn job(&self, attempt: &str, params: Value, weighted: bool) -> TrainingJob {
        let columns: Vec<String> = (0..NUM_INPUTS).map(|i| format!("x{i}")).collect();
        let mut spec = json!({
            "inputs": [{"name": "features", "columns": columns, "dtype": "float64"}],
            "labels": [{"name": "label", "columns": ["y"], "dtype": "float64"}],
        });
        if weighted {
            spec["weight"] = json!({"name": "weight", "columns": ["w"], "dtype": "float64"});
        }
        let job = json!({
            "format": 1,
            "params": params,
            "data": {"train": self.train, "validation": self.validation, "spec": spec},
            "attempt": {"id": attempt, "workDir": self.directory.path()},
        });
        TrainingJob::from_json(&job.to_string()).unwrap()
    }
}

pub fn store() -> Store {
    Store::new(&HashMap::new()).unwrap()
}

/// What one rank came to.
pub struct Outcome {
    pub result: Result<TrainingResult, TrainError>,
    pub model: TestModel,
    /// Of each step.
    pub reports: Vec<StepReport>,
}

/// Trains on `world_size` ranks, each with its own model, and checks that all of them succeed.
pub fn train(job: &TrainingJob, world_size: usize, config: &Config) -> Vec<Outcome> {
    let outcomes = try_train(job, world_size, |_| config.clone(), |_| Hooks::default());
    for outcome in &outcomes {
        if let Err(error) = &outcome.result {
            panic!("{error}");
        }
    }
    outcomes
}

/// Trains on `world_size` ranks, each of which may fail.
pub fn try_train(
    job: &TrainingJob,
    world_size: usize,
    config: impl Fn(usize) -> Config + Sync,
    hooks: impl Fn(usize) -> Hooks + Sync,
) -> Vec<Outcome> {
    try_train_on(job, world_size, config, hooks, |_| Gpus::default())
}

/// The same where ranks have these GPUs.
pub fn try_train_on(
    job: &TrainingJob,
    world_size: usize,
    config: impl Fn(usize) -> Config + Sync,
    hooks: impl Fn(usize) -> Hooks + Sync,
    gpus: impl Fn(usize) -> Gpus + Sync,
) -> Vec<Outcome> {
    ranks(world_size, |group| {
        let rank = group.rank();
        let mut model = TestModel::new(config(rank), rank);
        let reports = Arc::new(Mutex::new(vec![]));
        let told = reports.clone();
        let hooks = hooks(rank);
        let on_step = hooks.on_step.clone();
        let hooks = Hooks {
            on_step: Some(Arc::new(move |report: &StepReport| {
                told.lock().unwrap().push(*report);
                on_step.as_ref().map_or(Ok(()), |on_step| on_step(report))
            })),
            ..hooks
        };
        let worker = Worker::new(job.clone(), group, &mut model, store(), hooks);
        let result = worker.with_gpus(gpus(rank)).run();
        let reports = std::mem::take(&mut *reports.lock().unwrap());
        Outcome {
            result,
            model,
            reports,
        }
    })
}

/// Runs `body` on a thread for each rank of a group, and gives the results in rank order.
pub fn ranks<R: Send>(world_size: usize, body: impl Fn(ProcessGroup) -> R + Sync) -> Vec<R> {
    ranks_over(TransportChoice::default(), world_size, body)
}

/// The same over a transport of choice.
pub fn ranks_over<R: Send>(
    transport: TransportChoice,
    world_size: usize,
    body: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let options = GroupOptions {
        transport,
        ..group_options()
    };
    ranks_with(&options, world_size, body)
}

/// Waits for up to a minute until there is something.
pub fn wait_until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "it never came");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The options of a group whose ranks are threads of this process.
pub fn group_options() -> GroupOptions {
    GroupOptions {
        timeout: Duration::from_secs(60),
        secret: b"a secret of the test".to_vec(),
        ..GroupOptions::default()
    }
}

/// The same with a group of these options.
pub fn ranks_with<R: Send>(
    options: &GroupOptions,
    world_size: usize,
    body: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let meeting = Arc::new(Meeting {
        barrier: Barrier::new(world_size),
        payloads: Mutex::new(vec![vec![]; world_size]),
    });
    thread::scope(|scope| {
        let threads: Vec<_> = (0..world_size)
            .map(|rank| {
                let (meeting, body) = (meeting.clone(), &body);
                scope.spawn(move || {
                    let mut rendezvous = ThreadRendezvous {
                        meeting,
                        rank,
                        world_size,
                    };
                    body(ProcessGroup::connect(&mut rendezvous, options.clone()).unwrap())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

struct Meeting {
    barrier: Barrier,
    payloads: Mutex<Vec<Vec<u8>>>,
}

struct ThreadRendezvous {
    meeting: Arc<Meeting>,
    rank: usize,
    world_size: usize,
}

impl Rendezvous for ThreadRendezvous {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_gather(&mut self, payload: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.meeting.payloads.lock().unwrap()[self.rank] = payload.to_vec();
        self.meeting.barrier.wait();
        let payloads = self.meeting.payloads.lock().unwrap().clone();
        self.meeting.barrier.wait();
        Ok(payloads)
    }
}
