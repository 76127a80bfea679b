//! The random generators of the CPU and of the GPU in use.

use std::ffi::c_char;
use std::ptr;

use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use crate::border::check;
use crate::error::TorchError;
use crate::tensor::{bytes_of, gpu_of, of_bytes};

unsafe extern "C" {
    fn flambeau_generator_state(gpu: i32, result: *mut *mut C_tensor) -> *mut c_char;
    fn flambeau_set_generator_state(gpu: i32, state: *const C_tensor) -> *mut c_char;
    fn flambeau_seed_generator(gpu: i32, seed: u64) -> *mut c_char;
}

/// Seeds all generators from (seed, step, rank) alone, as the Python runtime does.
pub(crate) fn seed(seed: u64, step: u64, rank: usize) {
    tch::manual_seed(number_of(format!("{seed}:{step}:{rank}").as_bytes()));
}

/// The states of the generators of the CPU and of the GPU in use, in torch's own form, one after the other.
pub(crate) fn states(device: Device) -> Result<Vec<u8>, TorchError> {
    let mut states = state(Device::Cpu)?;
    if device.is_cuda() {
        states.extend(state(device)?);
    }
    Ok(states)
}

/// Takes back what [`states`] gave. A GPU's state that is there for no GPU is passed over, and a GPU without one is seeded
/// from the CPU's, which is another on every rank.
pub(crate) fn set_states(states: &[u8], device: Device) -> Result<(), TorchError> {
    let of_cpu = state(Device::Cpu)?.len().min(states.len());
    let (of_cpu, of_gpu) = states.split_at(of_cpu);
    set_state(of_cpu, Device::Cpu)?;
    match device {
        Device::Cuda(_) if of_gpu.is_empty() => {
            // SAFETY: no condition.
            check(unsafe { flambeau_seed_generator(gpu_of(device), number_of(of_cpu) as u64) })
        }
        Device::Cuda(_) => set_state(of_gpu, device),
        _ => Ok(()),
    }
}

/// A number that follows from bytes.
fn number_of(bytes: &[u8]) -> i64 {
    let digest = Sha256::digest(bytes);
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_le_bytes(first)
}

fn state(device: Device) -> Result<Vec<u8>, TorchError> {
    let mut result = ptr::null_mut();
    // SAFETY: the call sets `result` to a new tensor, or fails.
    check(unsafe { flambeau_generator_state(gpu_of(device), &mut result) })?;
    // SAFETY: a new tensor, owned by nobody yet.
    let tensor = unsafe { Tensor::from_ptr(result) };
    Ok(bytes_of(&tensor).to_vec())
}

fn set_state(state: &[u8], device: Device) -> Result<(), TorchError> {
    let tensor = of_bytes(state, Kind::Uint8, &[state.len() as i64])?;
    // SAFETY: a live tensor.
    check(unsafe { flambeau_set_generator_state(gpu_of(device), tensor.as_ptr()) })
}

/// Runs `body` and leaves the CPU's generator as it was before.
pub(crate) fn forked<T>(body: impl FnOnce() -> Result<T, TorchError>) -> Result<T, TorchError> {
    let before = state(Device::Cpu)?;
    let result = body();
    set_state(&before, Device::Cpu)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_are_taken_back_draw_the_same_numbers() {
        seed(7, 0, 1);
        let mut before = states(Device::Cpu).unwrap();
        let draw = || Vec::<f32>::try_from(Tensor::rand([20], (Kind::Float, Device::Cpu))).unwrap();
        let first = draw();
        assert_ne!(draw(), first);
        set_states(&before, Device::Cpu).unwrap();
        assert_eq!(draw(), first);
        // Of a training on a GPU that goes on on the CPU.
        before.extend([1; 16]);
        set_states(&before, Device::Cpu).unwrap();
        assert_eq!(draw(), first);
    }
}
