//! Models with a hand-written backward, in float64 but for the gradients where a test says so.

use std::ffi::c_void;
use std::mem;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;

use flambeau_collective::{DType, Device, Stream};
use flambeau_data::Batch;
use flambeau_train::{
    BucketInfo, DeviceGradients, DeviceModel, GradientSink, LossSums, MetricNames, MicroBatch,
    Model, ModelError, NamedValue, ParameterInfo, Split, StagedBatch, StagedData, StepContext,
    TensorRef, Tensors,
};

use crate::host_device::{self, HostDevice};
use crate::support::{NUM_INPUTS, wait_until};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Net {
    /// `x · w + b`.
    Linear,
    /// `tanh(x · W1 + b1) · w2 + b2`.
    Mlp { hidden: usize },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    SgdMomentum { rate: f64, momentum: f64 },
    Adam { rate: f64 },
}

/// A fault at a step of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The forward of this step goes on until this file is there.
    Held {
        step: u64,
        until: &'static Path,
    },
    Error {
        step: u64,
    },
    NanLoss {
        step: u64,
    },
    /// A parameter is changed on this rank alone.
    Drift {
        step: u64,
    },
    /// It is, from the end of this step to the next.
    Glitch {
        step: u64,
    },
    /// The device refuses to compress after so many programs.
    Narrow {
        most: usize,
    },
}

#[derive(Clone, Debug)]
pub struct Config {
    pub net: Net,
    pub optimizer: Optimizer,
    /// The values that training starts from, in place of the numbers' own.
    pub start: Option<Vec<Vec<f64>>>,
    /// Adds a parameter `gate`, which takes part for rows whose x0 exceeds this, and `idle`, which never does.
    pub gate: Option<f64>,
    /// Drops inputs at random with the rank's generator, and keeps a running mean of x0 as a buffer.
    pub noise: bool,
    pub fault: Option<Fault>,
    /// Gradients become ready in registration order, which no reducer expects.
    pub is_forward: bool,
    /// Gradients beyond this are infinite, as those beyond 65504 are in float16.
    pub limit: f64,
    /// What gradients are reduced as: float64, or float32, which can be compressed.
    pub gradients: DType,
    /// The rows of the matrix that `w1` counts as.
    pub num_rows: usize,
    /// Why the model can't be on a device.
    pub cuda_obstacle: Option<String>,
}

impl Config {
    pub fn new(net: Net, optimizer: Optimizer) -> Config {
        Config {
            net,
            optimizer,
            start: None,
            gate: None,
            noise: false,
            fault: None,
            is_forward: false,
            limit: f64::INFINITY,
            gradients: DType::Float64,
            num_rows: 1,
            cuda_obstacle: Some("the model of a test that needs no device".into()),
        }
    }
}

/// The parameters' names and sizes, in registration order.
pub fn parameters(config: &Config) -> Vec<(&'static str, usize)> {
    let mut list = match config.net {
        Net::Linear => vec![("w", NUM_INPUTS), ("b", 1)],
        Net::Mlp { hidden } => vec![
            ("w1", NUM_INPUTS * hidden),
            ("b1", hidden),
            ("w2", hidden),
            ("b2", 1),
        ],
    };
    if config.gate.is_some() {
        list.extend([("gate", 1), ("idle", 3)]);
    }
    list
}

/// Starting values: the same for all, written in the numbers themselves.
pub fn initial(config: &Config) -> Vec<Vec<f64>> {
    if let Some(values) = &config.start {
        return values.clone();
    }
    let mut number = 0;
    parameters(config)
        .iter()
        .map(|&(_, numel)| {
            (0..numel)
                .map(|_| {
                    number += 1;
                    (number as f64 * 1.7).sin() * 0.5
                })
                .collect()
        })
        .collect()
}

pub struct TestModel {
    config: Config,
    rank: usize,
    pub values: Vec<Vec<f64>>,
    moments: Vec<(Vec<f64>, Vec<f64>)>,
    steps: Vec<i32>,
    /// The learning rate of the last step.
    rate: Option<f64>,
    generator: u64,
    running: Vec<f64>,
    reducer: Option<Arc<dyn GradientSink>>,
    /// Where its gradients are, if not on the CPU. Its values stay where they are: the device's memory is the host's.
    device: Option<HostDevice>,
    pub num_attached: usize,
    /// Epoch, step, micro-batch and row ids of every batch trained on.
    pub seen: Vec<(u64, u64, u32, Vec<u64>)>,
    /// Buffers at the start of each evaluation batch.
    pub evaluated_with: Vec<Vec<f64>>,
    /// Which metrics were finished in the epoch under way.
    finished: Vec<Split>,
    /// The same of each epoch that has ended, and what it was said to come to.
    pub ended: Vec<(Vec<Split>, Vec<NamedValue>)>,
}

impl TestModel {
    pub fn new(config: Config, rank: usize) -> TestModel {
        let mut values = initial(&config);
        if rank > 0 {
            // What rank 0 has is what counts: start elsewhere, so that a missing broadcast shows.
            values.iter_mut().flatten().for_each(|value| *value += 1.0);
        }
        let moments = values
            .iter()
            .map(|v| (vec![0.0; v.len()], vec![0.0; v.len()]))
            .collect();
        TestModel {
            steps: vec![0; values.len()],
            values,
            moments,
            rate: None,
            config,
            rank,
            generator: 0,
            running: vec![rank as f64],
            reducer: None,
            device: None,
            num_attached: 0,
            seen: vec![],
            evaluated_with: vec![],
            finished: vec![],
            ended: vec![],
        }
    }

    pub fn bits(&self) -> Vec<u64> {
        self.values
            .iter()
            .flatten()
            .chain(&self.running)
            .map(|value| value.to_bits())
            .collect()
    }

    fn uniform(&mut self) -> f64 {
        self.generator ^= self.generator << 13;
        self.generator ^= self.generator >> 7;
        self.generator ^= self.generator << 17;
        (self.generator >> 11) as f64 / (1u64 << 53) as f64
    }

    fn gate_index(&self) -> Option<usize> {
        self.config.gate.map(|_| self.values.len() - 2)
    }

    /// The output of a row, and, given the derivative of the loss by it, the gradients added to `gradients`.
    fn row(&self, x: &[f64], gradients: Option<(&mut [Vec<f64>], f64)>) -> f64 {
        let gate = self
            .gate_index()
            .filter(|_| x[0] > self.config.gate.unwrap());
        let extra = gate.map_or(0.0, |index| self.values[index][0] * x[0]);
        let (output, hidden) = match self.config.net {
            Net::Linear => {
                let output = self.values[1][0]
                    + x.iter()
                        .zip(&self.values[0])
                        .map(|(x, w)| x * w)
                        .sum::<f64>();
                (output, vec![])
            }
            Net::Mlp { hidden } => {
                let activations: Vec<f64> = (0..hidden)
                    .map(|h| {
                        let weights = &self.values[0][h * NUM_INPUTS..(h + 1) * NUM_INPUTS];
                        let sum = x.iter().zip(weights).map(|(x, w)| x * w).sum::<f64>();
                        (sum + self.values[1][h]).tanh()
                    })
                    .collect();
                let output = self.values[3][0]
                    + activations
                        .iter()
                        .zip(&self.values[2])
                        .map(|(a, w)| a * w)
                        .sum::<f64>();
                (output, activations)
            }
        };
        if let Some((gradients, delta)) = gradients {
            match self.config.net {
                Net::Linear => {
                    gradients[0]
                        .iter_mut()
                        .zip(x)
                        .for_each(|(g, x)| *g += delta * x);
                    gradients[1][0] += delta;
                }
                Net::Mlp { .. } => {
                    for (h, a) in hidden.iter().enumerate() {
                        let inner = delta * self.values[2][h] * (1.0 - a * a);
                        for (i, x) in x.iter().enumerate() {
                            gradients[0][h * NUM_INPUTS + i] += inner * x;
                        }
                        gradients[1][h] += inner;
                        gradients[2][h] += delta * a;
                    }
                    gradients[3][0] += delta;
                }
            }
            if let Some(index) = gate {
                gradients[index][0] += delta * x[0];
            }
        }
        output + extra
    }

    fn weights(batch: &Batch) -> Vec<f64> {
        batch.weight.as_ref().map_or_else(
            || vec![1.0; batch.num_rows],
            |weight| weight.as_slice::<f64>().to_vec(),
        )
    }

    fn sums(&self, batch: &Batch, x: &[f64]) -> (LossSums, Vec<f64>) {
        let y = batch.labels[0].as_slice::<f64>();
        let weights = Self::weights(batch);
        let mut sums = LossSums {
            numerator: 0.0,
            denominator: 0.0,
            metrics: vec![0.0, 0.0],
        };
        let mut errors = vec![];
        for (row, x) in x.chunks(NUM_INPUTS).enumerate() {
            let error = self.row(x, None) - y[row];
            sums.numerator += weights[row] * error * error;
            sums.denominator += weights[row];
            sums.metrics[0] += error.abs();
            sums.metrics[1] += 1.0;
            errors.push(error);
        }
        (sums, errors)
    }

    pub fn is_on_device(&self) -> bool {
        self.device.is_some()
    }

    fn on_device(&mut self) -> &mut HostDevice {
        self.device.as_mut().expect("it is on a device")
    }

    /// A batch that this model has staged, which on a device was one of at most two at a time.
    fn taken(&mut self, batch: StagedBatch) -> Batch {
        match batch.data {
            StagedData::Host(batch) => batch,
            StagedData::Device(batch) => {
                let device = self.on_device();
                assert!(
                    (1..=2).contains(&device.num_staged),
                    "{}",
                    device.num_staged
                );
                device.num_staged -= 1;
                *batch.downcast().expect("a batch of this model")
            }
        }
    }

    fn restore(values: &[Vec<u64>]) -> Vec<Vec<f64>> {
        values
            .iter()
            .map(|bits| bits.iter().map(|&bits| f64::from_bits(bits)).collect())
            .collect()
    }
}

/// Writes a gradient to its view, or adds it.
///
/// # Safety
///
/// The view has as many elements of the type, and is the caller's.
unsafe fn put(view: *mut c_void, dtype: DType, gradient: &[f64], is_filled: bool) {
    for (index, &value) in gradient.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            if dtype == DType::Float64 {
                let place = view.cast::<f64>().add(index);
                *place = if is_filled { *place + value } else { value };
            } else {
                let place = view.cast::<f32>().add(index);
                let value = value as f32;
                *place = if is_filled { *place + value } else { value };
            }
        }
    }
}

/// The numbers of a view.
///
/// # Safety
///
/// It has as many elements of the type, which nobody writes.
unsafe fn get(view: *const c_void, dtype: DType, numel: usize) -> Vec<f64> {
    // SAFETY: the caller's promise.
    unsafe {
        if dtype == DType::Float64 {
            slice::from_raw_parts(view.cast::<f64>(), numel).to_vec()
        } else {
            let values = slice::from_raw_parts(view.cast::<f32>(), numel);
            values.iter().map(|&value| f64::from(value)).collect()
        }
    }
}

impl DeviceModel for TestModel {
    fn nccl_directories(&mut self) -> Vec<PathBuf> {
        vec![host_device::nccl_directory()]
    }

    fn to_device(&mut self, index: u32) -> Result<Stream, ModelError> {
        let device = HostDevice::new(index);
        let stream = device.stream();
        self.device = Some(device);
        Ok(stream)
    }

    fn allocate_gradients(
        &mut self,
        buckets: &[BucketInfo],
        halves: Option<DType>,
    ) -> Result<Arc<dyn DeviceGradients>, ModelError> {
        let most = match self.config.fault {
            Some(Fault::Narrow { most }) => Some(most),
            _ => None,
        };
        Ok(Arc::new(self.on_device().allocate(buckets, halves, most)))
    }
}

impl Model for TestModel {
    fn on_cuda(&mut self) -> Result<&mut dyn DeviceModel, String> {
        match &self.config.cuda_obstacle {
            None => Ok(self),
            Some(obstacle) => Err(obstacle.clone()),
        }
    }

    fn looks_ahead(&self) -> usize {
        usize::from(self.device.is_some())
    }

    fn stage(&mut self, batch: Batch, _: bool) -> Result<StagedBatch, ModelError> {
        assert!(
            batch.num_rows > 0,
            "a batch without rows must not reach the model"
        );
        let Some(device) = &mut self.device else {
            return Ok(batch.into());
        };
        device.num_staged += 1;
        Ok(StagedBatch {
            num_rows: batch.num_rows,
            data: StagedData::Device(Box::new(batch)),
        })
    }

    fn parameters(&mut self) -> Result<Vec<ParameterInfo>, ModelError> {
        let info = |&(name, numel): &(&str, usize)| ParameterInfo {
            name: name.into(),
            numel,
            num_rows: if name == "w1" {
                self.config.num_rows
            } else {
                1
            },
            dtype: self.config.gradients,
            device: self.device.as_ref().map_or(Device::Cpu, HostDevice::device),
        };
        Ok(parameters(&self.config).iter().map(info).collect())
    }

    fn num_metric_sums(&mut self) -> Result<usize, ModelError> {
        Ok(2)
    }

    fn learning_rate(&mut self) -> Result<Option<f64>, ModelError> {
        let (Optimizer::SgdMomentum { rate, .. } | Optimizer::Adam { rate }) =
            self.config.optimizer;
        Ok(Some(self.rate.unwrap_or(rate)))
    }

    fn attach(&mut self, reducer: Arc<dyn GradientSink>) -> Result<(), ModelError> {
        self.reducer = Some(reducer);
        self.num_attached += 1;
        Ok(())
    }

    fn tensors(&mut self, which: Tensors) -> Result<Vec<TensorRef>, ModelError> {
        let names = parameters(&self.config);
        let tensor = |name: &str, values: &mut Vec<f64>| TensorRef {
            name: name.into(),
            ptr: values.as_mut_ptr().cast(),
            numel: values.len(),
            dtype: DType::Float64,
        };
        let buffer = tensor("running", &mut self.running);
        let parameters = names.iter().zip(&mut self.values);
        let parameters = parameters.map(|((name, _), values)| tensor(name, values));
        Ok(match which {
            Tensors::All => parameters.chain([buffer]).collect(),
            Tensors::Buffers => vec![buffer],
            Tensors::Trained => parameters.collect(),
            Tensors::Optimizer => {
                let moments = names.iter().zip(&mut self.moments);
                let of_each = moments.map(|((name, _), (first, second))| {
                    [tensor(name, first), tensor(name, second)]
                });
                of_each.flatten().collect()
            }
        })
    }

    fn train_batch(
        &mut self,
        batch: StagedBatch,
        micro: &MicroBatch,
    ) -> Result<LossSums, ModelError> {
        let batch = self.taken(batch);
        assert!(
            batch.num_rows > 0,
            "a batch without rows must not reach the model"
        );
        self.seen
            .push((micro.epoch, micro.step, micro.micro, batch.row_ids.clone()));
        let mut x = batch.inputs[0].as_slice::<f64>().to_vec();
        if self.config.noise {
            for x in &mut x {
                if self.uniform() < 0.2 {
                    *x = 0.0;
                }
            }
            let mean = x.iter().step_by(NUM_INPUTS).sum::<f64>() / batch.num_rows as f64;
            self.running[0] = 0.9 * self.running[0] + 0.1 * mean;
        }
        if let Some(Fault::Error { step }) = self.config.fault
            && step == micro.step
        {
            return Err(format!("fault at step {step}").into());
        }
        if let Some(Fault::Held { step, until }) = self.config.fault
            && step == micro.step
        {
            wait_until(|| until.exists().then_some(()));
        }
        if let Some(Fault::Glitch { step }) = self.config.fault
            && step + 1 == micro.step
        {
            self.values[0][0] *= -1.0;
        }
        let (mut sums, errors) = self.sums(&batch, &x);
        if sums.denominator == 0.0 {
            return Ok(sums);
        }
        let factor = micro.factor(sums.denominator);
        let weights = Self::weights(&batch);
        let mut gradients: Vec<Vec<f64>> = self.values.iter().map(|v| vec![0.0; v.len()]).collect();
        for (row, x) in x.chunks(NUM_INPUTS).enumerate() {
            let delta = 2.0 * weights[row] * errors[row] / sums.denominator * factor;
            self.row(x, Some((&mut gradients, delta)));
        }
        let limit = self.config.limit;
        for gradient in gradients.iter_mut().flatten() {
            if gradient.abs() > limit {
                *gradient = f64::INFINITY.copysign(*gradient);
            }
        }
        let gate_used = x
            .chunks(NUM_INPUTS)
            .any(|x| self.config.gate.is_some_and(|gate| x[0] > gate));
        let reducer = self.reducer.clone().unwrap();
        // The order of a backward pass: the last layer first.
        let num = gradients.len();
        for place in 0..num {
            let index = if self.config.is_forward {
                place
            } else {
                num - 1 - place
            };
            let is_gate = self.gate_index() == Some(index);
            let is_idle = self.gate_index().is_some_and(|gate| gate + 1 == index);
            if is_idle || (is_gate && !gate_used) {
                continue;
            }
            let (gradient, dtype) = (&gradients[index], self.config.gradients);
            let view = reducer.view_ptr(index);
            let is_filled = reducer.is_filled(index);
            match &self.device {
                // SAFETY: the view has as many elements as the parameter, and is ours until it is marked.
                None => unsafe { put(view, dtype, gradient, is_filled) },
                Some(device) => {
                    let (view, gradient) = (view as usize, gradient.clone());
                    // SAFETY: as above, in the order of the stream.
                    device.queue.launch(move || unsafe {
                        put(view as *mut c_void, dtype, &gradient, is_filled);
                    });
                }
            }
            reducer.mark_ready(index)?;
        }
        if let Some(Fault::NanLoss { step }) = self.config.fault
            && step == micro.step
        {
            sums.numerator = f64::NAN;
        }
        Ok(sums)
    }

    fn optimizer_step(&mut self, context: &StepContext<'_>) -> Result<(), ModelError> {
        let reducer = self.reducer.clone().unwrap();
        if let Some(device) = &self.device {
            device.queue.synchronize();
        }
        let (Optimizer::SgdMomentum { rate, .. } | Optimizer::Adam { rate }) =
            self.config.optimizer;
        self.rate = Some(rate * context.rate_factor);
        for (index, value) in self.values.iter_mut().enumerate() {
            if !context.used[index] {
                continue;
            }
            // SAFETY: after the reduction the view is the optimizer's to read.
            let gradient =
                unsafe { get(reducer.view_ptr(index), self.config.gradients, value.len()) };
            let (first, second) = &mut self.moments[index];
            self.steps[index] += 1;
            match self.config.optimizer {
                Optimizer::SgdMomentum { rate, momentum } => {
                    let rate = rate * context.rate_factor;
                    for i in 0..value.len() {
                        first[i] = momentum * first[i] + gradient[i];
                        value[i] -= rate * first[i];
                    }
                }
                Optimizer::Adam { rate } => {
                    let rate = rate * context.rate_factor;
                    let (beta1, beta2) = (0.9f64, 0.999f64);
                    for i in 0..value.len() {
                        first[i] = beta1 * first[i] + (1.0 - beta1) * gradient[i];
                        second[i] = beta2 * second[i] + (1.0 - beta2) * gradient[i] * gradient[i];
                        let corrected = first[i] / (1.0 - beta1.powi(self.steps[index]));
                        let scale =
                            (second[i] / (1.0 - beta2.powi(self.steps[index]))).sqrt() + 1e-8;
                        value[i] -= rate * corrected / scale;
                    }
                }
            }
        }
        if self.config.fault == Some(Fault::Drift { step: context.step }) {
            self.values[0][0] = f64::from_bits(self.values[0][0].to_bits() ^ 1);
        }
        if self.config.fault == Some(Fault::Glitch { step: context.step }) {
            self.values[0][0] *= -1.0;
        }
        Ok(())
    }

    fn skip_step(&mut self) -> Result<(), ModelError> {
        Ok(())
    }

    fn evaluate_batch(&mut self, batch: StagedBatch) -> Result<LossSums, ModelError> {
        let batch = self.taken(batch);
        assert!(
            batch.num_rows > 0,
            "a batch without rows must not reach the model"
        );
        self.evaluated_with.push(self.running.clone());
        Ok(self.sums(&batch, batch.inputs[0].as_slice::<f64>()).0)
    }

    fn metric_names(&mut self) -> Result<MetricNames, ModelError> {
        Ok(MetricNames::of_both(vec!["mae".into()]))
    }

    fn finish_metrics(
        &mut self,
        split: Split,
        sums: &[f64],
    ) -> Result<Vec<(String, f64)>, ModelError> {
        self.finished.push(split);
        Ok(vec![("mae".into(), sums[0] / sums[1])])
    }

    fn end_epoch(&mut self, figures: &[(String, Option<f64>)]) -> Result<(), ModelError> {
        self.ended
            .push((mem::take(&mut self.finished), figures.to_vec()));
        Ok(())
    }

    fn save_state(&mut self) -> Result<Vec<u8>, ModelError> {
        assert_eq!(self.rank, 0, "only rank 0 saves the shared state");
        let mut lists = self.values.clone();
        lists.extend(
            self.moments
                .iter()
                .flat_map(|(first, second)| [first.clone(), second.clone()]),
        );
        lists.push(self.steps.iter().map(|&steps| f64::from(steps)).collect());
        lists.push(self.running.clone());
        let bits: Vec<Vec<u64>> = lists
            .iter()
            .map(|list| list.iter().map(|v| v.to_bits()).collect())
            .collect();
        Ok(serde_json::to_vec(&bits)?)
    }

    fn load_state(&mut self, state: &[u8]) -> Result<(), ModelError> {
        let mut lists = Self::restore(&serde_json::from_slice::<Vec<Vec<u64>>>(state)?).into_iter();
        let num = self.values.len();
        self.values = lists.by_ref().take(num).collect();
        self.moments = (0..num)
            .map(|_| (lists.next().unwrap(), lists.next().unwrap()))
            .collect();
        self.steps = lists
            .next()
            .unwrap()
            .iter()
            .map(|&steps| steps as i32)
            .collect();
        self.running = lists.next().unwrap();
        Ok(())
    }

    fn load_optimizer_state(&mut self, state: &[u8]) -> Result<(), ModelError> {
        let own = (self.values.clone(), self.running.clone());
        self.load_state(state)?;
        (self.values, self.running) = own;
        Ok(())
    }

    fn save_rank_state(&mut self) -> Result<Vec<u8>, ModelError> {
        Ok(self.generator.to_le_bytes().to_vec())
    }

    fn load_rank_state(&mut self, state: &[u8]) -> Result<(), ModelError> {
        self.generator = u64::from_le_bytes(state.try_into()?);
        Ok(())
    }

    fn seed(&mut self, seed: u64, step: u64, rank: usize) -> Result<(), ModelError> {
        self.generator =
            (seed + 1).wrapping_mul(0x9E37_79B9) ^ (step << 20) ^ ((rank as u64 + 1) << 40);
        Ok(())
    }

    fn write_weights(&mut self, directory: &Path) -> Result<Vec<String>, ModelError> {
        assert_eq!(self.rank, 0, "only rank 0 writes weights");
        let bytes: Vec<u8> = self
            .values
            .iter()
            .flatten()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        std::fs::write(directory.join("weights.bin"), bytes)?;
        std::fs::write(directory.join("names.txt"), "weights of a test")?;
        Ok(vec!["weights.bin".into(), "names.txt".into()])
    }
}
