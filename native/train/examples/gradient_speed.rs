//! What `benchmarks/all_reduce.py` measures compressed gradients with: a rank that averages the gradients of matrices of
//! 1024 × 1024 float32, without a model.
//!
//! ```text
//! gradient_speed RANK WORLD_SIZE ADDRESS BIND_ADDRESS
//! ```
//!
//! The ranks meet at ADDRESS and talk over TCP. Rank 0 reads requests from its standard input, one JSON object a line, and
//! answers each with `{"us": MEDIAN}` of a step, until the input ends. A request is
//! `{"bytes": N, "count": N, "compression": "none"|"fp16"|"bf16"|"topk"|"powersgd"}`, for `count` steps; topk sends 1 %,
//! powersgd matrices of rank 4.

use std::collections::HashMap;
use std::env;
use std::io::{self, BufRead};
use std::slice;
use std::time::{Duration, Instant};

use flambeau_collective::{
    DType, Device, GroupOptions, ProcessGroup, TcpRendezvous, TransportChoice,
};
use flambeau_train::{Compression, GradientReducer, GradientSink, ParameterInfo, ReducerOptions};
use serde_json::{Value, json};

/// Longer than other contenders take between two requests.
const TIMEOUT: Duration = Duration::from_secs(3600);
const SIDE: usize = 1024;

/// One reducer for each kind of compression that was asked for.
type Reducers = HashMap<String, GradientReducer>;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [rank, world_size, address, bind_address] = &arguments[..] else {
        panic!("see the documentation at the top of {}", file!());
    };
    let group = connect(rank, world_size, address, bind_address);
    let mut reducers = Reducers::new();
    if group.rank() > 0 {
        loop {
            let request = group.broadcast_bytes(&[], 0).expect("rank 0");
            if request.is_empty() {
                return;
            }
            time(&group, &mut reducers, &request);
        }
    }
    for request in io::stdin().lock().lines().map_while(io::Result::ok) {
        let request = group
            .broadcast_bytes(request.as_bytes(), 0)
            .expect("others");
        let mut times = time(&group, &mut reducers, &request);
        times.sort();
        let median = times[times.len() / 2].as_secs_f64() * 1e6;
        println!("{}", json!({ "us": median }));
    }
    group.broadcast_bytes(&[], 0).expect("others");
}

fn connect(rank: &str, world_size: &str, address: &str, bind_address: &str) -> ProcessGroup {
    let (rank, world_size) = (
        rank.parse().expect("a number"),
        world_size.parse().expect("a number"),
    );
    let mut rendezvous =
        TcpRendezvous::new(address, rank, world_size, b"speed of one machine", TIMEOUT)
            .expect("rendezvous");
    let options = GroupOptions {
        secret: b"speed of one machine".to_vec(),
        timeout: TIMEOUT,
        bind_address: bind_address.parse().expect("an address"),
        transport: TransportChoice::Tcp,
        ..Default::default()
    };
    ProcessGroup::connect(&mut rendezvous, options).expect("connect")
}

/// The times of the steps that a request asks for, each from a barrier on.
fn time(group: &ProcessGroup, reducers: &mut Reducers, request: &[u8]) -> Vec<Duration> {
    let request: Value = serde_json::from_slice(request).expect("a request");
    let number = |name: &str| request[name].as_u64().expect(name) as usize;
    let (num_matrices, count) = (number("bytes") / (SIDE * SIDE * 4), number("count"));
    let name = request["compression"].as_str().expect("compression");
    let reducer = reducers
        .entry(format!("{name} {num_matrices}"))
        .or_insert_with(|| make(group, num_matrices, compression(name)));
    let mut seed = 1 + group.rank() as u32;
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let gradients: Vec<f32> = (0..SIDE * SIDE).map(|_| random()).collect();
    (0..count)
        .map(|_| {
            group.barrier().expect("barrier");
            step(reducer, &gradients)
        })
        .collect()
}

/// One step. What a backward would do, writing the gradients, is not timed.
fn step(reducer: &GradientReducer, gradients: &[f32]) -> Duration {
    let mut reduced = Duration::ZERO;
    reducer.begin(true, true);
    for index in (0..reducer.parameters().len()).rev() {
        let ptr = reducer.view_ptr(index).cast();
        // SAFETY: the view has that many elements, and nobody else uses it before it is marked.
        unsafe { slice::from_raw_parts_mut(ptr, gradients.len()) }.copy_from_slice(gradients);
        let began = Instant::now();
        reducer.mark_ready(index).expect("a reduction");
        reduced += began.elapsed();
    }
    let began = Instant::now();
    reducer.finish(&mut [0.0]).expect("a reduction");
    reduced + began.elapsed()
}

fn compression(name: &str) -> Compression {
    match name {
        "none" => Compression::None,
        "fp16" => Compression::Fp16,
        "bf16" => Compression::Bf16,
        "topk" => Compression::TopK { ratio: 0.01 },
        "powersgd" => Compression::PowerSgd {
            rank: 4,
            start_step: 0,
        },
        other => panic!("no compression {other}"),
    }
}

fn make(group: &ProcessGroup, num_matrices: usize, compression: Compression) -> GradientReducer {
    let parameters = (0..num_matrices).map(|index| ParameterInfo {
        name: format!("p{index}"),
        numel: SIDE * SIDE,
        num_rows: SIDE,
        dtype: DType::Float32,
        device: Device::Cpu,
    });
    let options = ReducerOptions {
        compression,
        ..Default::default()
    };
    GradientReducer::new(group.clone(), parameters.collect(), None, options).expect("a reducer")
}
