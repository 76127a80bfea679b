//! What a run of an exported graph costs: `exported_cost PROGRAM.pt2 SIZE...`, over float32 inputs of one row with these
//! sizes. Prints microseconds a run without gradients, and of forward and backward. Of a graph of a few hundred operators
//! on a few numbers, this is the cost of its nodes.

use std::time::Instant;

use flambeau_torch::{Program, exported};
use tch::Tensor;

const NUM_RUNS: u32 = 2000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, sizes) = arguments
        .split_first()
        .ok_or("give a program and the sizes of a row")?;
    let mut shape: Vec<i64> = vec![1];
    for size in sizes {
        shape.push(size.parse()?);
    }
    tch::set_num_threads(1);
    let program = exported::load(&std::fs::read(path)?, None)?;
    let input = [Tensor::f_rand(&shape[..], tch::kind::FLOAT_CPU)?];
    let output =
        |program: &exported::ExportedProgram| -> Result<Tensor, Box<dyn std::error::Error>> {
            let outputs = program.forward(&input, true)?;
            Ok(outputs.named()[0].1.shallow_clone())
        };
    drop(output(&program)?);
    let began = Instant::now();
    for _ in 0..NUM_RUNS {
        drop(tch::no_grad(|| output(&program))?);
    }
    println!(
        "forward: {:.1} us",
        began.elapsed().as_secs_f64() * 1e6 / f64::from(NUM_RUNS)
    );
    let began = Instant::now();
    for _ in 0..NUM_RUNS {
        output(&program)?.f_sum(None)?.f_backward()?;
    }
    println!(
        "forward and backward: {:.1} us",
        began.elapsed().as_secs_f64() * 1e6 / f64::from(NUM_RUNS)
    );
    Ok(())
}
