//! The random generator of the CPU.

use std::ffi::c_char;
use std::ptr;

use sha2::{Digest, Sha256};
use tch::{Kind, Tensor};
use torch_sys::C_tensor;

use crate::border::check;
use crate::error::TorchError;
use crate::tensor::{bytes_of, of_bytes};

unsafe extern "C" {
    fn flambeau_generator_state(result: *mut *mut C_tensor) -> *mut c_char;
    fn flambeau_set_generator_state(state: *const C_tensor) -> *mut c_char;
}

/// Seeds the generator from (seed, step, rank) alone, as the Python runtime does.
pub(crate) fn seed(seed: u64, step: u64, rank: usize) {
    let digest = Sha256::digest(format!("{seed}:{step}:{rank}"));
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    tch::manual_seed(i64::from_le_bytes(first));
}

/// The state of the generator, in torch's own form.
pub(crate) fn state() -> Result<Vec<u8>, TorchError> {
    let mut result = ptr::null_mut();
    // SAFETY: the call sets `result` to a new tensor, or fails.
    check(unsafe { flambeau_generator_state(&mut result) })?;
    // SAFETY: a new tensor, owned by nobody yet.
    let tensor = unsafe { Tensor::from_ptr(result) };
    Ok(bytes_of(&tensor).to_vec())
}

/// Takes back what [`state`] gave.
pub(crate) fn set_state(state: &[u8]) -> Result<(), TorchError> {
    let tensor = of_bytes(state, Kind::Uint8, &[state.len() as i64])?;
    // SAFETY: a live tensor.
    check(unsafe { flambeau_set_generator_state(tensor.as_ptr()) })
}

/// Runs `body` and leaves the generator as it was before.
pub(crate) fn forked<T>(body: impl FnOnce() -> Result<T, TorchError>) -> Result<T, TorchError> {
    let before = state()?;
    let result = body();
    set_state(&before)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_is_taken_back_draws_the_same_numbers() {
        seed(7, 0, 1);
        let before = state().unwrap();
        let draw =
            || Vec::<f32>::try_from(Tensor::rand([20], (Kind::Float, tch::Device::Cpu))).unwrap();
        let first = draw();
        assert_ne!(draw(), first);
        set_state(&before).unwrap();
        assert_eq!(draw(), first);
    }
}
