//! What a program costs beyond what libtorch computes: a linear program of three weights on one row, where that is next to nothing.

use std::collections::HashMap;
use std::error::Error;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use flambeau_collective::{GroupOptions, ProcessGroup, TcpRendezvous};
use flambeau_data::{AlignedBuffer, Batch, DType, HostTensor, Store};
use flambeau_torch::{Program, ScriptProgram, TorchModel, exported};
use flambeau_train::{
    GradientReducer, MicroBatch, Model, ReducerOptions, StepContext, TrainingJob,
};
use serde_json::json;
use sha2::{Digest, Sha256};
use tch::{Kind, Reduction, Tensor};

const WIDTH: usize = 2;
const WEIGHTS: &str = "weights.safetensors";

type Failure = Box<dyn Error + Send + Sync>;

/// A file of a regressor that was saved for the tests.
fn saved(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden");
    [root, "format-1/python/regressor", name].iter().collect()
}

/// Forward, loss and backward by the program alone.
fn program(criterion: &mut Criterion, form: &str, program: &dyn Program) -> Result<(), Failure> {
    let options = (Kind::Float, tch::Device::Cpu);
    let inputs = [Tensor::f_zeros([1, WIDTH as i64], options)?];
    let label = Tensor::f_zeros([1, 1], options)?;
    let parameters: Vec<Tensor> = (program.tensors().into_iter())
        .filter(|entry| entry.requires_grad)
        .map(|entry| entry.tensor)
        .collect();
    let step = || -> Result<f64, Failure> {
        let outputs = program.forward(&inputs, true)?;
        let output = outputs.single().ok_or("several outputs")?;
        let loss = output.f_mse_loss(&label, Reduction::Mean)?;
        black_box(Tensor::f_run_backward(&[&loss], &parameters, false, false)?);
        Ok(loss.f_double_value(&[])?)
    };
    step()?;
    criterion.bench_function(&format!("{form}: forward, loss and backward"), |bencher| {
        bencher.iter(|| step().expect("a step"));
    });
    Ok(())
}

/// The same by the model that the worker trains, with the gradients in the reducer's memory, and what follows it in a step.
fn model(criterion: &mut Criterion) -> Result<(), Failure> {
    let mut model = flambeau_torch::build(&job()?, &Store::new(&HashMap::new())?)?;
    let reducer = Arc::new(reducer(&mut model)?);
    model.attach(reducer.clone())?;
    let train = |model: &mut TorchModel, batch: Batch| {
        reducer.begin(true, true);
        model.train_batch(batch.into(), &MICRO)
    };
    train(&mut model, batch())?;
    criterion.bench_function("scripted: train_batch", |bencher| {
        bencher.iter_batched(
            batch,
            |batch| train(&mut model, batch).expect("a batch"),
            BatchSize::SmallInput,
        );
    });
    criterion.bench_function("scripted: train_batch, reduction and Adam", |bencher| {
        bencher.iter_batched(
            batch,
            |batch| {
                train(&mut model, batch).expect("a batch");
                reducer.finish(&mut []).expect("a reduction");
                let step = |used: &[bool]| {
                    model.optimizer_step(&StepContext {
                        epoch: 0,
                        step: 0,
                        used,
                        rate_factor: 1.0,
                    })
                };
                reducer.with_used(step).expect("a step of the optimizer");
            },
            BatchSize::SmallInput,
        );
    });
    Ok(())
}

const MICRO: MicroBatch = MicroBatch {
    epoch: 0,
    step: 0,
    micro: 0,
    is_first: true,
    is_last: true,
    reference: 1.0,
    loss_scale: 1.0,
};

fn job() -> Result<TrainingJob, Failure> {
    let weights = std::fs::read(saved(WEIGHTS))?;
    let job = json!({
        "format": 1,
        "params": {},
        "data": {
            "train": ["unread.parquet"],
            "spec": {
                "inputs": [{"name": "x", "columns": ["x"], "dtype": "float32", "shape": [WIDTH]}],
                "labels": [{"name": "y", "columns": ["y"], "dtype": "float32", "shape": [1]}],
            },
        },
        "attempt": {"id": "a", "workDir": "/unused"},
        "program": {
            "form": "scripted",
            "eval": saved("program.pt"),
            "weights": {
                "uri": saved(WEIGHTS),
                "size": weights.len(),
                "sha256": format!("{:x}", Sha256::digest(&weights)),
            },
            "loss": {"name": "mse"},
            "optimizer": {"name": "adam"},
        },
    });
    Ok(TrainingJob::from_json(&job.to_string())?)
}

/// A reducer of one rank.
fn reducer(model: &mut TorchModel) -> Result<GradientReducer, Failure> {
    let secret = b"secret";
    let mut rendezvous = TcpRendezvous::new("127.0.0.1:0", 0, 1, secret, Duration::from_secs(60))?;
    let options = GroupOptions {
        secret: secret.to_vec(),
        ..GroupOptions::default()
    };
    let group = ProcessGroup::connect(&mut rendezvous, options)?;
    let parameters = model.parameters()?;
    Ok(GradientReducer::new(
        group,
        parameters,
        None,
        ReducerOptions::default(),
    )?)
}

fn batch() -> Batch {
    let zeros = |columns: usize| {
        let buffer = AlignedBuffer::zeroed(columns * DType::Float32.size());
        HostTensor::new(DType::Float32, vec![1, columns], buffer)
    };
    Batch {
        epoch: 0,
        index: 0,
        num_rows: 1,
        inputs: vec![zeros(WIDTH)],
        labels: vec![zeros(1)],
        weight: None,
        raw: None,
        row_ids: vec![],
    }
}

fn steps(criterion: &mut Criterion) {
    flambeau_torch::set_num_threads(1);
    let read = |name| std::fs::read(saved(name)).expect("a saved program");
    let scripted = ScriptProgram::load(&read("program.pt")).expect("a script");
    let exported = exported::load(&read("program.pt2"), None).expect("an exported program");
    program(criterion, "scripted", &scripted).expect("a scripted step");
    program(criterion, "exported", &exported).expect("an exported step");
    model(criterion).expect("the model's step");
}

criterion_group!(benches, steps);
criterion_main!(benches);
