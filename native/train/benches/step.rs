//! What a step costs beyond forward, backward and optimizer: a model that does nothing but mark its parameters ready,
//! trained on 1 and 2 ranks.

use std::collections::HashMap;
use std::error::Error;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arrow_array::{Float32Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use criterion::{Criterion, criterion_group, criterion_main};
use flambeau_collective::{DType, Device, GroupOptions, ProcessGroup, TcpRendezvous};
use flambeau_data::Store;
use flambeau_train::{
    GradientSink, Hooks, LossSums, MetricNames, MicroBatch, Model, ModelError, ParameterInfo,
    Split, StagedBatch, StepContext, TensorRef, Tensors, TrainingJob, Worker,
};
use parquet::arrow::ArrowWriter;
use serde_json::json;

const NUM_ROWS: usize = 64_000;
const ROWS_PER_STEP: usize = 32;
const EPOCHS: u64 = 5;
const NUM_PARAMETERS: usize = 8;
const NUMEL: usize = 1000;

type Failure = Box<dyn Error + Send + Sync>;

/// A model without work.
#[derive(Default)]
struct Idle {
    sink: Option<Arc<dyn GradientSink>>,
}

impl Model for Idle {
    fn parameters(&mut self) -> Result<Vec<ParameterInfo>, ModelError> {
        let info = |i| ParameterInfo {
            name: format!("p{i}"),
            numel: NUMEL,
            num_rows: 1,
            dtype: DType::Float32,
            device: Device::Cpu,
        };
        Ok((0..NUM_PARAMETERS).map(info).collect())
    }

    fn num_metric_sums(&mut self) -> Result<usize, ModelError> {
        Ok(0)
    }

    fn learning_rate(&mut self) -> Result<Option<f64>, ModelError> {
        Ok(None)
    }

    fn attach(&mut self, sink: Arc<dyn GradientSink>) -> Result<(), ModelError> {
        self.sink = Some(sink);
        Ok(())
    }

    fn tensors(&mut self, _: Tensors) -> Result<Vec<TensorRef>, ModelError> {
        Ok(vec![])
    }

    fn train_batch(&mut self, batch: StagedBatch, _: &MicroBatch) -> Result<LossSums, ModelError> {
        if let Some(sink) = &self.sink {
            for index in (0..NUM_PARAMETERS).rev() {
                sink.mark_ready(index)?;
            }
        }
        Ok(LossSums {
            numerator: 1.0,
            denominator: batch.num_rows as f64,
            metrics: vec![],
        })
    }

    fn optimizer_step(&mut self, _: &StepContext<'_>) -> Result<(), ModelError> {
        Ok(())
    }

    fn skip_step(&mut self) -> Result<(), ModelError> {
        Ok(())
    }

    fn evaluate_batch(&mut self, _: StagedBatch) -> Result<LossSums, ModelError> {
        Ok(LossSums::default())
    }

    fn metric_names(&mut self) -> Result<MetricNames, ModelError> {
        Ok(MetricNames::default())
    }

    fn finish_metrics(&mut self, _: Split, _: &[f64]) -> Result<Vec<(String, f64)>, ModelError> {
        Ok(vec![])
    }

    fn save_state(&mut self) -> Result<Vec<u8>, ModelError> {
        Ok(vec![])
    }

    fn load_state(&mut self, _: &[u8]) -> Result<(), ModelError> {
        Ok(())
    }

    fn load_optimizer_state(&mut self, _: &[u8]) -> Result<(), ModelError> {
        Ok(())
    }

    fn save_rank_state(&mut self) -> Result<Vec<u8>, ModelError> {
        Ok(vec![])
    }

    fn load_rank_state(&mut self, _: &[u8]) -> Result<(), ModelError> {
        Ok(())
    }

    fn seed(&mut self, _: u64, _: u64, _: usize) -> Result<(), ModelError> {
        Ok(())
    }

    fn write_weights(&mut self, directory: &Path) -> Result<Vec<String>, ModelError> {
        std::fs::write(directory.join("weights"), "none")?;
        Ok(vec!["weights".into()])
    }
}

fn steps(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let shard = directory.path().join("rows.parquet");
    write_rows(&shard).expect("the rows are written");
    let mut group = criterion.benchmark_group(format!(
        "a step with {NUM_PARAMETERS} parameters of {NUMEL} float32"
    ));
    group.sample_size(10);
    for (world_size, logs) in [(1, false), (1, true), (2, false)] {
        let job = job(world_size, logs, &shard, directory.path()).expect("a job");
        let board = if logs { ", TensorBoard" } else { "" };
        group.bench_function(format!("{world_size} ranks{board}"), |bencher| {
            // Each sample is a whole training, of which only the steps count.
            bencher.iter_custom(|iterations| {
                let seconds = seconds_per_step(&job, world_size).expect("a training");
                seconds.mul_f64(iterations as f64)
            });
        });
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);

/// A job; one that `logs` writes TensorBoard's files, with the norm of the gradients.
fn job(
    world_size: usize,
    logs: bool,
    shard: &Path,
    directory: &Path,
) -> Result<TrainingJob, Box<dyn Error>> {
    let board = logs.then(|| directory.join("board"));
    let job = json!({
        "format": 1,
        "params": {
            "numWorkers": world_size, "batchSize": ROWS_PER_STEP, "epochs": EPOCHS, "checkpointInterval": -1,
            "tensorBoardDir": board, "logGradientNorm": logs,
        },
        "data": {
            "train": [shard],
            "spec": {"inputs": [{"name": "x", "columns": ["x"], "dtype": "float32"}]},
        },
        "attempt": {"id": format!("ranks-{world_size}"), "workDir": directory},
    });
    Ok(TrainingJob::from_json(&job.to_string())?)
}

/// Rank 0's time of a step.
fn seconds_per_step(job: &TrainingJob, world_size: usize) -> Result<Duration, Failure> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let address = &address;
                scope.spawn(move || train(job.clone(), address, rank, world_size))
            })
            .collect();
        let times: Result<Vec<_>, _> = ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank panicked"))
            .collect();
        Ok(times?[0])
    })
}

/// Trains a rank and returns what a step took.
fn train(
    job: TrainingJob,
    address: &str,
    rank: usize,
    world_size: usize,
) -> Result<Duration, Failure> {
    let secret = b"overhead of a step".to_vec();
    let mut rendezvous =
        TcpRendezvous::new(address, rank, world_size, &secret, Duration::from_secs(10))?;
    let group = ProcessGroup::connect(
        &mut rendezvous,
        GroupOptions {
            secret,
            ..GroupOptions::default()
        },
    )?;
    let mut model = Idle::default();
    let result = Worker::new(
        job,
        group,
        &mut model,
        Store::new(&HashMap::new())?,
        Hooks::default(),
    )
    .run()?;
    // The first epoch decodes the rows; the others read them from memory.
    let seconds: f64 = result.history.epochs[1..]
        .iter()
        .map(|record| record.seconds)
        .sum();
    let steps = result.num_steps as f64 * (EPOCHS - 1) as f64 / EPOCHS as f64;
    Ok(Duration::from_secs_f64(seconds / steps))
}

fn write_rows(path: &Path) -> Result<(), Box<dyn Error>> {
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Float32, false)]));
    let column: Float32Array = (0..NUM_ROWS).map(|row| row as f32).collect();
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path)?, schema.clone(), None)?;
    writer.write(&RecordBatch::try_new(schema, vec![Arc::new(column)])?)?;
    writer.close()?;
    Ok(())
}
