//! What a training step costs beyond what libtorch computes.
//!
//!     step_cost PROGRAM.pt WIDTH ROWS [STEPS]
//!
//! The program takes `[rows, WIDTH]` float32 and returns `[rows, 1]`. Times forward, loss and backward by libtorch alone,
//! the same as the model's `train_batch` with the gradients brought into the reducer's memory, and the step of Adam. On
//! one thread; median microseconds.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flambeau_collective::{GroupOptions, ProcessGroup, TcpRendezvous};
use flambeau_data::{AlignedBuffer, Batch, DType, HostTensor, Store};
use flambeau_torch::{Program, ScriptProgram};
use flambeau_train::{
    GradientReducer, MicroBatch, Model, ReducerOptions, StepContext, TrainingJob,
};
use serde_json::json;
use tch::{Kind, Reduction, Tensor};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [program, width, rows, rest @ ..] = &arguments[..] else {
        return Err("usage: step_cost PROGRAM.pt WIDTH ROWS [STEPS]".into());
    };
    let (width, rows): (usize, usize) = (width.parse()?, rows.parse()?);
    let steps: usize = rest.first().map_or(Ok(2000), |text| text.parse())?;
    flambeau_torch::set_num_threads(1);
    let alone = libtorch_alone(program, width, rows, steps)?;
    let (batch, optimizer) = model(program, width, rows, steps)?;
    println!("forward, loss and backward by libtorch  {alone:8.1} us");
    println!("train_batch                             {batch:8.1} us");
    println!("reduction and optimizer step            {optimizer:8.1} us");
    Ok(())
}

fn libtorch_alone(program: &str, width: usize, rows: usize, steps: usize) -> Result<f64, Failure> {
    let program = ScriptProgram::load(&std::fs::read(program)?)?;
    let options = (Kind::Float, tch::Device::Cpu);
    let inputs = [Tensor::f_zeros([rows as i64, width as i64], options)?];
    let label = Tensor::f_zeros([rows as i64, 1], options)?;
    let tensors = program.tensors().into_iter();
    let parameters: Vec<Tensor> = tensors
        .filter(|entry| entry.requires_grad)
        .map(|entry| entry.tensor)
        .collect();
    let mut times = vec![];
    for _ in 0..steps {
        let began = Instant::now();
        let output = program.forward(&inputs, true)?;
        let output = output
            .single()
            .ok_or("the program returns several tensors")?;
        let loss = output.f_mse_loss(&label, Reduction::Mean)?;
        black_box(Tensor::f_run_backward(&[&loss], &parameters, false, false)?);
        black_box(loss.f_double_value(&[])?);
        times.push(began.elapsed());
    }
    Ok(median(times))
}

/// The times of `train_batch`, and of all that follows in a step.
fn model(program: &str, width: usize, rows: usize, steps: usize) -> Result<(f64, f64), Failure> {
    let job = json!({
        "format": 1,
        "params": {},
        "data": {
            "train": ["unread.parquet"],
            "spec": {
                "inputs": [{"name": "x", "columns": ["x"], "dtype": "float32", "shape": [width]}],
                "labels": [{"name": "y", "columns": ["y"], "dtype": "float32", "shape": [1]}],
            },
        },
        "attempt": {"id": "a", "workDir": "/unused"},
        "program": {"form": "scripted", "eval": program, "loss": {"name": "mse"}, "optimizer": {"name": "adam"}},
    });
    let store = Store::new(&HashMap::new())?;
    let mut model = flambeau_torch::build(&TrainingJob::from_json(&job.to_string())?, &store)?;
    let secret = b"secret";
    let mut rendezvous = TcpRendezvous::new("127.0.0.1:0", 0, 1, secret, Duration::from_secs(60))?;
    let options = GroupOptions {
        secret: secret.to_vec(),
        ..GroupOptions::default()
    };
    let group = ProcessGroup::connect(&mut rendezvous, options)?;
    let parameters = model.parameters()?;
    let reducer = GradientReducer::new(group, parameters, None, ReducerOptions::default())?;
    let reducer = Arc::new(reducer);
    model.attach(reducer.clone())?;
    let (mut batches, mut optimizers) = (vec![], vec![]);
    for step in 0..steps {
        let batch = Batch {
            step: 0,
            num_rows: rows,
            inputs: vec![zeros(&[rows, width])],
            labels: vec![zeros(&[rows, 1])],
            weight: None,
            row_ids: vec![],
        };
        let context = MicroBatch {
            epoch: 0,
            step: step as u64,
            micro: 0,
            is_first: true,
            is_last: true,
            reference: rows as f64,
        };
        let began = Instant::now();
        reducer.begin(true, true);
        model.train_batch(batch, &context)?;
        batches.push(began.elapsed());
        let began = Instant::now();
        reducer.finish(&mut [])?;
        reducer.with_used(|used| {
            model.optimizer_step(&StepContext {
                epoch: 0,
                step: step as u64,
                used,
                learning_rate: None,
            })
        })?;
        optimizers.push(began.elapsed());
    }
    Ok((median(batches), median(optimizers)))
}

fn zeros(shape: &[usize]) -> HostTensor {
    let size = shape.iter().product::<usize>() * DType::Float32.size();
    HostTensor::new(DType::Float32, shape.to_vec(), AlignedBuffer::zeroed(size))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}
