//! What compression asks of a device, carried out by the host from the definitions.

use std::ffi::c_void;
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flambeau_collective::DType;
use flambeau_train::{
    DeviceOperation, DevicePlan, DevicePrograms, Matrices, ModelError, TensorPart,
};
use half::{bf16, f16};

use crate::host_device::{HostQueue, HostTensor};

/// A plan's tensors, and its programs as jobs of the device's stream.
pub struct HostPrograms {
    num_buckets: usize,
    tensors: Vec<HostTensor>,
    /// Of the buckets, then of the tensors.
    places: Memory,
    programs: Vec<Vec<DeviceOperation>>,
    queue: Arc<HostQueue>,
    /// How many programs may still be run, if that is limited.
    left: Option<AtomicUsize>,
}

impl HostPrograms {
    /// Programs of which the device carries out `most`, if that is given.
    pub fn new(
        buckets: &mut [HostTensor],
        plan: &DevicePlan,
        queue: Arc<HostQueue>,
        most: Option<usize>,
    ) -> Self {
        let zeros = |&(dtype, len): &(DType, usize)| HostTensor::zeros(dtype, len);
        let mut tensors: Vec<HostTensor> = plan.tensors.iter().map(zeros).collect();
        let all = buckets.iter_mut().chain(&mut tensors);
        HostPrograms {
            places: Memory(Arc::new(all.map(HostTensor::place).collect())),
            num_buckets: buckets.len(),
            tensors,
            programs: plan.programs.clone(),
            queue,
            left: most.map(AtomicUsize::new),
        }
    }

    fn place(&self, tensor: usize) -> *mut c_void {
        assert!((self.num_buckets..self.num_buckets + self.tensors.len()).contains(&tensor));
        self.places.0[tensor].0 as *mut c_void
    }
}

impl DevicePrograms for HostPrograms {
    fn address(&self, tensor: usize) -> *mut c_void {
        self.place(tensor)
    }

    fn run(&self, program: usize) -> Result<(), ModelError> {
        if let Some(left) = &self.left
            && left.fetch_sub(1, Ordering::Relaxed) == 0
        {
            return Err("the device's memory is full".into());
        }
        let (memory, operations) = (self.places.clone(), self.programs[program].clone());
        self.queue.launch(move || {
            for operation in &operations {
                memory.carry_out(operation);
            }
        });
        Ok(())
    }

    fn read(&self, tensor: usize) -> Result<Vec<f32>, ModelError> {
        self.queue.synchronize();
        let (address, dtype, len) = self.places.0[tensor];
        assert_eq!(dtype, DType::Float32);
        // SAFETY: as many elements, which no job works on.
        Ok(unsafe { slice::from_raw_parts(address as *const f32, len) }.to_vec())
    }

    fn write(&self, tensor: usize, values: &[f32]) -> Result<(), ModelError> {
        self.queue.synchronize();
        let (_, dtype, len) = self.places.0[tensor];
        assert_eq!((dtype, len), (DType::Float32, values.len()));
        let place = self.place(tensor).cast::<f32>();
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(place, len) }.copy_from_slice(values);
        Ok(())
    }
}

impl Drop for HostPrograms {
    fn drop(&mut self) {
        // What is left would write to the tensors.
        self.queue.synchronize();
    }
}

/// Address, type and length of each tensor.
#[derive(Clone)]
struct Memory(Arc<Vec<(usize, DType, usize)>>);

impl Memory {
    #[expect(clippy::mut_from_ref, reason = "the memory is not its own")]
    fn elements<T>(&self, part: &TensorPart, dtype: DType) -> &mut [T] {
        let (address, own, len) = self.0[part.tensor];
        assert_eq!(own, dtype);
        assert!(part.range.start <= part.range.end && part.range.end <= len);
        // SAFETY: jobs of one stream follow each other, and no operation has one element twice.
        unsafe {
            let first = (address as *mut T).add(part.range.start);
            slice::from_raw_parts_mut(first, part.range.len())
        }
    }

    fn floats(&self, part: &TensorPart) -> &mut [f32] {
        self.elements(part, DType::Float32)
    }

    /// The matrices, each as its rows.
    fn matrices(&self, matrices: &Matrices) -> Vec<Vec<Vec<f64>>> {
        let numel = matrices.num_rows * matrices.num_columns;
        let row = |row: &[f32]| row.iter().map(|&value| f64::from(value)).collect();
        let rows = |matrix: &[f32]| matrix.chunks(matrices.num_columns).map(row).collect();
        let all = self.floats(&matrices.part);
        assert!(all.len().is_multiple_of(numel));
        all.chunks(numel).map(rows).collect()
    }

    fn set(&self, target: &Matrices, matrices: &[Vec<Vec<f64>>]) {
        let values = matrices.iter().flatten().flatten();
        let places = self.floats(&target.part);
        assert_eq!(places.len(), values.clone().count());
        places
            .iter_mut()
            .zip(values)
            .for_each(|(place, &value)| *place = value as f32);
    }

    fn copy(&self, source: &TensorPart, target: &TensorPart) {
        assert_eq!(source.range.len(), target.range.len());
        let values: Vec<f32> = match self.0[source.tensor].1 {
            DType::Float32 => self.floats(source).to_vec(),
            DType::Float16 => {
                let halves: &[f16] = self.elements(source, DType::Float16);
                halves.iter().map(|value| value.to_f32()).collect()
            }
            DType::BFloat16 => {
                let halves: &[bf16] = self.elements(source, DType::BFloat16);
                halves.iter().map(|value| value.to_f32()).collect()
            }
            other => panic!("a copy of {other}"),
        };
        for (index, value) in values.into_iter().enumerate() {
            match self.0[target.tensor].1 {
                DType::Float32 => self.floats(target)[index] = value,
                DType::Float16 => {
                    self.elements(target, DType::Float16)[index] = f16::from_f32(value);
                }
                DType::BFloat16 => {
                    self.elements(target, DType::BFloat16)[index] = bf16::from_f32(value);
                }
                other => panic!("a copy to {other}"),
            }
        }
    }

    fn carry_out(&self, operation: &DeviceOperation) {
        match operation {
            DeviceOperation::Copy { sources, targets } => {
                assert_eq!(sources.len(), targets.len());
                for (source, target) in sources.iter().zip(targets) {
                    self.copy(source, target);
                }
            }
            DeviceOperation::Add { sources, targets } => {
                assert_eq!(sources.len(), targets.len());
                for (source, target) in sources.iter().zip(targets) {
                    let (source, target) = (self.floats(source), self.floats(target));
                    assert_eq!(source.len(), target.len());
                    for (sum, value) in target.iter_mut().zip(source) {
                        *sum += *value;
                    }
                }
            }
            DeviceOperation::Orthonormalize(matrices) => {
                let orthonormal = self.matrices(matrices);
                let orthonormal: Vec<_> = orthonormal.into_iter().map(orthonormalized).collect();
                self.set(matrices, &orthonormal);
            }
            DeviceOperation::Multiply {
                vectors,
                matrices,
                is_transposed,
                products,
            } => {
                let pairs = self
                    .matrices(vectors)
                    .into_iter()
                    .zip(self.matrices(matrices));
                let product = |(left, right): (Vec<Vec<f64>>, Vec<Vec<f64>>)| match is_transposed {
                    true => product(&left, &transposed(&right)),
                    false => product(&left, &right),
                };
                self.set(products, &pairs.map(product).collect::<Vec<_>>());
            }
            DeviceOperation::Expand {
                left,
                right,
                unsent,
                gradients,
            } => {
                let left = self.matrices(left).into_iter();
                let expanded = left
                    .zip(self.matrices(right))
                    .zip(
                        self.floats(&unsent.part)
                            .chunks_mut(unsent.num_rows * unsent.num_columns),
                    )
                    .zip(gradients);
                for (((left, right), unsent), gradient) in expanded {
                    let product = product(&transposed(&left), &right);
                    let values = product.iter().flatten().map(|&value| value as f32);
                    let places = self.floats(gradient).iter_mut().zip(unsent);
                    for ((gradient, unsent), value) in places.zip(values) {
                        *gradient = value;
                        *unsent -= value;
                    }
                }
            }
            DeviceOperation::TakeLargest { unsent, entries } => {
                let first = unsent.range.start;
                let values = self.floats(unsent);
                let magnitude = |index: usize| values[index].to_bits() & 0x7fff_ffff;
                let mut order: Vec<usize> = (0..values.len()).collect();
                order.sort_by_key(|&index| std::cmp::Reverse(magnitude(index)));
                let entries: &mut [i64] = self.elements(entries, DType::Int64);
                for (entry, index) in entries.iter_mut().zip(order) {
                    let bits = i64::from(std::mem::take(&mut values[index]).to_bits());
                    *entry = (((first + index) as i64) << 32) | bits;
                }
            }
            DeviceOperation::Average {
                entries,
                num_ranks,
                gradients,
            } => {
                let gradients = self.floats(gradients);
                gradients.fill(0.0);
                let entries: &mut [i64] = self.elements(entries, DType::Int64);
                assert!(entries.len().is_multiple_of(*num_ranks));
                for entry in entries {
                    let index = (*entry as u64 >> 32) as usize;
                    gradients[index] += f32::from_bits(*entry as u32);
                }
                for gradient in gradients {
                    *gradient /= *num_ranks as f32;
                }
            }
        }
    }
}

fn transposed(matrix: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let columns: Range<usize> = 0..matrix[0].len();
    let column = |index: usize| matrix.iter().map(|row| row[index]).collect();
    columns.map(column).collect()
}

fn product(left: &[Vec<f64>], right: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let of_row = |row: &Vec<f64>| {
        let mut sums = vec![0.0; right[0].len()];
        for (factor, values) in row.iter().zip(right) {
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += factor * value;
            }
        }
        sums
    };
    left.iter().map(of_row).collect()
}

fn inner(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(x, y)| x * y).sum()
}

/// Gram and Schmidt's, twice; a row that lies within those before gives way to the first unit vector that does not.
fn orthonormalized(rows: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let mut basis: Vec<Vec<f64>> = vec![];
    for row in rows {
        let units = (0..row.len()).map(|index| {
            let mut unit = vec![0.0; row.len()];
            unit[index] = 1.0;
            unit
        });
        let candidates = std::iter::once(row.clone()).chain(units);
        let orthonormal = candidates.filter_map(|candidate| {
            let length = inner(&candidate, &candidate).sqrt();
            let mut rest = candidate;
            for _ in 0..2 {
                for other in &basis {
                    let shadow = inner(&rest, other);
                    rest.iter_mut()
                        .zip(other)
                        .for_each(|(x, y)| *x -= shadow * y);
                }
            }
            let left = inner(&rest, &rest).sqrt();
            rest.iter_mut().for_each(|x| *x /= left);
            (left > 1e-6 * length).then_some(rest)
        });
        let first = { orthonormal }.next();
        basis.push(first.expect("no more rows than columns, all of them finite"));
    }
    basis
}
