//! What the compression of gradients asks of a device: tensors beside the buckets, and programs of operations on them.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};

use flambeau_train::{
    DeviceOperation, DevicePlan, DevicePrograms, Matrices, ModelError, TensorPart,
};
use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use crate::border::check;
use crate::buckets::{Buckets, kind_of};
use crate::device::Stream;
use crate::error::TorchError;
use crate::tensor::{bytes_of, of_bytes};

unsafe extern "C" {
    fn flambeau_copy_all(
        targets: *const *const C_tensor,
        sources: *const *const C_tensor,
        count: usize,
    ) -> *mut c_char;
    fn flambeau_add_all(
        targets: *const *const C_tensor,
        sources: *const *const C_tensor,
        count: usize,
    ) -> *mut c_char;
    fn flambeau_orthonormalize(matrices: *const C_tensor) -> *mut c_char;
    fn flambeau_multiply(
        left: *const C_tensor,
        right: *const C_tensor,
        products: *const C_tensor,
    ) -> *mut c_char;
    fn flambeau_expand(
        left: *const C_tensor,
        right: *const C_tensor,
        unsent: *const C_tensor,
        gradients: *const *const C_tensor,
        count: usize,
    ) -> *mut c_char;
    fn flambeau_take_largest(
        unsent: *const C_tensor,
        start: i64,
        indices: *const C_tensor,
        values: *const C_tensor,
    ) -> *mut c_char;
    fn flambeau_average(
        indices: *const *const C_tensor,
        values: *const *const C_tensor,
        num_ranks: usize,
        gradients: *const C_tensor,
    ) -> *mut c_char;
}

/// A plan that is ready to be carried out.
pub(crate) struct Programs {
    num_buckets: usize,
    /// Where each of the plan's tensors begins.
    addresses: Vec<usize>,
    /// What orders the work on a GPU.
    stream: Option<Stream>,
    // A tensor is one thread's at a time.
    ready: Mutex<Ready>,
}

struct Ready {
    /// The buckets, then the plan's.
    tensors: Vec<Tensor>,
    programs: Vec<Vec<Operation>>,
}

/// An operation on views of the tensors, as [`DeviceOperation`] has them.
enum Operation {
    Copy {
        sources: Vec<Tensor>,
        targets: Vec<Tensor>,
    },
    Add {
        sources: Vec<Tensor>,
        targets: Vec<Tensor>,
    },
    Orthonormalize(Tensor),
    Multiply {
        left: Tensor,
        right: Tensor,
        products: Tensor,
    },
    Expand {
        left: Tensor,
        right: Tensor,
        unsent: Tensor,
        gradients: Vec<Tensor>,
    },
    TakeLargest {
        unsent: Tensor,
        start: i64,
        indices: Tensor,
        values: Tensor,
    },
    Average {
        indices: Vec<Tensor>,
        values: Vec<Tensor>,
        gradients: Tensor,
    },
}

impl Programs {
    /// Makes a plan's tensors on the device of the buckets, and its views.
    pub(crate) fn new(
        buckets: &Buckets,
        device: Device,
        stream: Option<Stream>,
        plan: &DevicePlan,
    ) -> Result<Programs, TorchError> {
        let mut tensors = buckets.tensors();
        let num_buckets = tensors.len();
        for &(dtype, numel) in &plan.tensors {
            tensors.push(Tensor::f_zeros([numel as i64], (kind_of(dtype), device))?);
        }
        let addresses = tensors[num_buckets..].iter();
        let programs = plan.programs.iter().map(|program| {
            let operations = program.iter();
            operations
                .map(|operation| Operation::on(&tensors, operation))
                .collect()
        });
        let programs = programs.collect::<Result<_, TorchError>>()?;
        Ok(Programs {
            num_buckets,
            addresses: addresses.map(|tensor| tensor.data_ptr() as usize).collect(),
            stream,
            ready: Mutex::new(Ready { tensors, programs }),
        })
    }

    fn try_run(&self, program: usize) -> Result<(), TorchError> {
        // In backward the present stream may be another one.
        let _entered = self.stream.as_ref().map(Stream::enter).transpose()?;
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.programs[program].iter().try_for_each(Operation::run)
    }

    /// One of the plan's tensors.
    fn tensor(&self, number: usize) -> Tensor {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.tensors[number].shallow_clone()
    }
}

impl DevicePrograms for Programs {
    fn address(&self, tensor: usize) -> *mut c_void {
        self.addresses[tensor - self.num_buckets] as *mut c_void
    }

    fn run(&self, program: usize) -> Result<(), ModelError> {
        Ok(self.try_run(program)?)
    }

    fn read(&self, tensor: usize) -> Result<Vec<f32>, ModelError> {
        let numbers = self.tensor(tensor).f_to_device(Device::Cpu);
        let numbers = numbers.map_err(TorchError::from)?;
        let number = |bytes: &[u8]| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(bytes_of(&numbers).chunks_exact(4).map(number).collect())
    }

    fn write(&self, tensor: usize, values: &[f32]) -> Result<(), ModelError> {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_ne_bytes())
            .collect();
        let values = of_bytes(&bytes, Kind::Float, &[values.len() as i64])?;
        let written = tch::no_grad(|| self.tensor(tensor).f_copy_(&values));
        written.map_err(TorchError::from)?;
        Ok(())
    }
}

impl Operation {
    fn on(tensors: &[Tensor], operation: &DeviceOperation) -> Result<Operation, TorchError> {
        Ok(match operation {
            DeviceOperation::Copy { sources, targets } => Operation::Copy {
                sources: parts(tensors, sources)?,
                targets: parts(tensors, targets)?,
            },
            DeviceOperation::Add { sources, targets } => Operation::Add {
                sources: parts(tensors, sources)?,
                targets: parts(tensors, targets)?,
            },
            DeviceOperation::Orthonormalize(of) => {
                Operation::Orthonormalize(matrices(tensors, of)?)
            }
            DeviceOperation::Multiply {
                vectors,
                matrices: right,
                is_transposed,
                products,
            } => {
                let right = matrices(tensors, right)?;
                Operation::Multiply {
                    left: matrices(tensors, vectors)?,
                    right: match is_transposed {
                        true => right.f_mt()?,
                        false => right,
                    },
                    products: matrices(tensors, products)?,
                }
            }
            DeviceOperation::Expand {
                left,
                right,
                unsent,
                gradients,
            } => {
                let shape = [unsent.num_rows as i64, unsent.num_columns as i64];
                let gradients = parts(tensors, gradients)?.into_iter();
                Operation::Expand {
                    left: matrices(tensors, left)?,
                    right: matrices(tensors, right)?,
                    unsent: matrices(tensors, unsent)?,
                    gradients: gradients
                        .map(|gradient| Ok(gradient.f_view(shape)?))
                        .collect::<Result<_, TorchError>>()?,
                }
            }
            DeviceOperation::TakeLargest { unsent, entries } => {
                let (indices, values) = fields(&part(tensors, entries)?)?;
                Operation::TakeLargest {
                    unsent: part(tensors, unsent)?,
                    start: unsent.range.start as i64,
                    indices,
                    values,
                }
            }
            DeviceOperation::Average {
                entries,
                num_ranks,
                gradients,
            } => {
                let of_ranks = part(tensors, entries)?.f_chunk(*num_ranks as i64, 0)?;
                let fields = of_ranks.iter().map(fields);
                let (indices, values) = fields.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
                Operation::Average {
                    indices,
                    values,
                    gradients: part(tensors, gradients)?,
                }
            }
        })
    }

    fn run(&self) -> Result<(), TorchError> {
        // SAFETY: live tensors, as many as said, which nobody else uses meanwhile.
        check(unsafe {
            match self {
                Operation::Copy { sources, targets } => {
                    let (sources, targets) = (handles(sources), handles(targets));
                    flambeau_copy_all(targets.as_ptr(), sources.as_ptr(), targets.len())
                }
                Operation::Add { sources, targets } => {
                    let (sources, targets) = (handles(sources), handles(targets));
                    flambeau_add_all(targets.as_ptr(), sources.as_ptr(), targets.len())
                }
                Operation::Orthonormalize(matrices) => flambeau_orthonormalize(matrices.as_ptr()),
                Operation::Multiply {
                    left,
                    right,
                    products,
                } => flambeau_multiply(left.as_ptr(), right.as_ptr(), products.as_ptr()),
                Operation::Expand {
                    left,
                    right,
                    unsent,
                    gradients,
                } => {
                    let gradients = handles(gradients);
                    flambeau_expand(
                        left.as_ptr(),
                        right.as_ptr(),
                        unsent.as_ptr(),
                        gradients.as_ptr(),
                        gradients.len(),
                    )
                }
                Operation::TakeLargest {
                    unsent,
                    start,
                    indices,
                    values,
                } => flambeau_take_largest(
                    unsent.as_ptr(),
                    *start,
                    indices.as_ptr(),
                    values.as_ptr(),
                ),
                Operation::Average {
                    indices,
                    values,
                    gradients,
                } => {
                    let (indices, values) = (handles(indices), handles(values));
                    flambeau_average(
                        indices.as_ptr(),
                        values.as_ptr(),
                        indices.len(),
                        gradients.as_ptr(),
                    )
                }
            }
        })
    }
}

fn handles(tensors: &[Tensor]) -> Vec<*const C_tensor> {
    tensors.iter().map(|tensor| tensor.as_ptr()).collect()
}

fn part(tensors: &[Tensor], part: &TensorPart) -> Result<Tensor, TorchError> {
    let (start, len) = (part.range.start as i64, part.range.len() as i64);
    Ok(tensors[part.tensor].f_narrow(0, start, len)?)
}

fn parts(tensors: &[Tensor], parts: &[TensorPart]) -> Result<Vec<Tensor>, TorchError> {
    parts.iter().map(|of| part(tensors, of)).collect()
}

fn matrices(tensors: &[Tensor], matrices: &Matrices) -> Result<Tensor, TorchError> {
    let (num_rows, num_columns) = (matrices.num_rows as i64, matrices.num_columns as i64);
    Ok(part(tensors, &matrices.part)?.f_view([-1, num_rows, num_columns])?)
}

/// The indices (int32, without a sign) and the values (float32) of entries.
fn fields(entries: &Tensor) -> Result<(Tensor, Tensor), TorchError> {
    let halves = entries.f_view_dtype(Kind::Int)?.f_view([-1, 2])?;
    let values = halves.f_select(1, 0)?.f_view_dtype(Kind::Float)?;
    Ok((halves.f_select(1, 1)?, values))
}
