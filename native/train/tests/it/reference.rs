//! One process that trains on whole global batches, written down from the textbook: the oracle of the tests.

use crate::dual::Dual;
use crate::model::{Config, Net, Optimizer, initial};
use crate::support::{NUM_INPUTS, Row};

pub struct Reference {
    pub values: Vec<f64>,
    /// The mean loss of each step; `None` where all its rows weigh nothing, which leaves the weights alone.
    pub losses: Vec<Option<f64>>,
    /// The gradients' norm of each step, before clipping.
    pub norms: Vec<Option<f64>>,
    /// The exponential moving average of the weights; the weights where there is none.
    pub averaged: Vec<f64>,
}

/// What is made of gradients and weights beside the optimizer's step.
#[derive(Default)]
pub struct Options {
    pub clip_norm: Option<f64>,
    pub clip_value: Option<f64>,
    pub ema_decay: Option<f64>,
}

/// Trains on `batches` of rows, one optimizer step each.
pub fn train(
    config: &Config,
    rows: &[Row],
    batches: &[Vec<u64>],
    weighted: bool,
    options: &Options,
) -> Reference {
    let sizes: Vec<usize> = initial(config).iter().map(Vec::len).collect();
    let mut values: Vec<f64> = initial(config).concat();
    let num = values.len();
    let (mut first, mut second, mut steps) = (vec![0.0; num], vec![0.0; num], vec![0i32; num]);
    let (mut losses, mut norms) = (vec![], vec![]);
    let mut averaged: Option<Vec<f64>> = None;
    for batch in batches {
        let rows: Vec<&Row> = batch.iter().map(|&id| &rows[id as usize]).collect();
        if weighted && rows.iter().all(|row| row.weight == 0.0) {
            losses.push(None);
            norms.push(None);
            continue;
        }
        let loss = mean_loss(config, &values, &rows, weighted);
        losses.push(Some(loss.value));
        let mut gradient = loss.slopes;
        let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        norms.push(Some(norm));
        if let Some(max_norm) = options.clip_norm {
            let factor = (max_norm / (norm + 1e-6)).min(1.0);
            gradient.iter_mut().for_each(|g| *g *= factor);
        }
        if let Some(limit) = options.clip_value {
            gradient
                .iter_mut()
                .for_each(|g| *g = g.max(-limit).min(limit));
        }
        let used = used(config, &rows, &sizes);
        for i in 0..num {
            if !used[i] {
                continue;
            }
            steps[i] += 1;
            match config.optimizer {
                Optimizer::SgdMomentum { rate, momentum } => {
                    first[i] = momentum * first[i] + gradient[i];
                    values[i] -= rate * first[i];
                }
                Optimizer::Adam { rate } => {
                    first[i] = 0.9 * first[i] + 0.1 * gradient[i];
                    second[i] = 0.999 * second[i] + 0.001 * gradient[i].powi(2);
                    let m = first[i] / (1.0 - 0.9f64.powi(steps[i]));
                    let v = second[i] / (1.0 - 0.999f64.powi(steps[i]));
                    values[i] -= rate * m / (v.sqrt() + 1e-8);
                }
            }
        }
        averaged = match (averaged, options.ema_decay) {
            (Some(averaged), Some(decay)) => {
                let pairs = averaged.iter().zip(&values);
                Some(
                    pairs
                        .map(|(average, value)| decay * average + (1.0 - decay) * value)
                        .collect::<Vec<f64>>(),
                )
            }
            _ => Some(values.clone()),
        };
    }
    Reference {
        averaged: averaged.unwrap_or_else(|| values.clone()),
        values,
        losses,
        norms,
    }
}

/// `Σ w (f(x) - y)² / Σ w`, with its gradient by all parameters.
pub fn mean_loss(config: &Config, values: &[f64], rows: &[&Row], weighted: bool) -> Dual {
    let num = values.len();
    let mut sum = Dual::constant(0.0, num);
    let mut total = 0.0;
    for row in rows {
        let weight = if weighted { row.weight } else { 1.0 };
        let error = output(config, values, &row.x).plus(&Dual::constant(-row.y, num));
        sum = sum.plus(&error.squared().scaled(weight));
        total += weight;
    }
    sum.scaled(1.0 / total)
}

pub fn output(config: &Config, values: &[f64], x: &[f64; NUM_INPUTS]) -> Dual {
    let num = values.len();
    let p = |index: usize| Dual::parameter(values[index], index, num);
    let dot = |start: usize, bias: usize| {
        (0..NUM_INPUTS).fold(p(bias), |sum, i| sum.plus(&p(start + i).scaled(x[i])))
    };
    let (mut output, end) = match config.net {
        Net::Linear => (dot(0, NUM_INPUTS), NUM_INPUTS + 1),
        Net::Mlp { hidden } => {
            let biases = hidden * NUM_INPUTS;
            let outputs = biases + hidden;
            let output = (0..hidden).fold(p(outputs + hidden), |sum, h| {
                sum.plus(&p(outputs + h).times(&dot(h * NUM_INPUTS, biases + h).tanh()))
            });
            (output, outputs + hidden + 1)
        }
    };
    if config.gate.is_some_and(|gate| x[0] > gate) {
        output = output.plus(&p(end).scaled(x[0]));
    }
    output
}

/// Which parameter elements take part in a batch.
fn used(config: &Config, rows: &[&Row], sizes: &[usize]) -> Vec<bool> {
    let num: usize = sizes.iter().sum();
    let mut used = vec![true; num];
    if let Some(gate) = config.gate {
        used[num - 3..].fill(false);
        used[num - 4] = rows.iter().any(|row| row.x[0] > gate);
    }
    used
}
