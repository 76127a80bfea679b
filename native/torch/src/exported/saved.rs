//! Tensors that `torch.save` wrote, in the archives of torch 2.6 to 2.8: the safe side of `cpp/saved.h`.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::slice;

use tch::Tensor;

use super::dispatch::check;
use crate::script::check_files;

/// The tensors of a dict, by name. `Err` says why the bytes hold none; of no bytes the dict is empty.
pub(super) fn saved_tensors(bytes: &[u8]) -> Result<HashMap<String, Tensor>, String> {
    let mut tensors = HashMap::new();
    if !bytes.is_empty() {
        check_files(bytes).map_err(|error| error.to_string())?;
        let context: *mut c_void = (&raw mut tensors).cast();
        // SAFETY: the bytes and the map outlive the call, which gives the map to `take` and to nothing else.
        check(unsafe {
            flambeau_saved_tensors(bytes.as_ptr().cast(), bytes.len(), context, take)
        })?;
    }
    Ok(tensors)
}

extern "C" fn take(
    context: *mut c_void,
    name: *const c_char,
    length: usize,
    tensor: *mut torch_sys::C_tensor,
) {
    // SAFETY: the context is the map of `saved_tensors`, the name has that many bytes, and the handle is ours.
    unsafe {
        let tensors: &mut HashMap<String, Tensor> = &mut *context.cast();
        let name = String::from_utf8_lossy(slice::from_raw_parts(name.cast(), length));
        tensors.insert(name.into_owned(), Tensor::from_ptr(tensor));
    }
}

unsafe extern "C" {
    fn flambeau_saved_tensors(
        data: *const c_char,
        size: usize,
        context: *mut c_void,
        take: extern "C" fn(*mut c_void, *const c_char, usize, *mut torch_sys::C_tensor),
    ) -> *mut c_char;
}
