//! libtorch's part for CUDA, which is loaded where a GPU may be used and nowhere else.
//!
//! This crate is linked with libtorch's CPU part alone, so that one build serves machines with a GPU and without. The
//! CUDA part registers itself with the CPU part when it is loaded. What was asked for before, such as the number of
//! devices that autograd starts threads for, stays as it was: so it is loaded before anything runs.

use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::border::{check, take_text};
use crate::error::TorchError;

unsafe extern "C" {
    fn flambeau_libtorch_path() -> *mut c_char;
    fn flambeau_open_library(path: *const c_char) -> *mut c_char;
    fn flambeau_init_cuda() -> *mut c_char;
}

/// The driver's library, without which nothing of CUDA runs.
const DRIVER: &str = "libcuda.so.1";
/// libtorch's CUDA part, beside its CPU part.
const LIBRARY: &str = "libtorch_cuda.so";

/// Loads libtorch's CUDA part, once in a process. Needs no GPU, but the driver.
///
/// # Errors
///
/// Why it cannot be loaded: there is no driver, libtorch was built without CUDA, or a library that it needs is missing.
pub fn load_cuda() -> Result<(), String> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            open(Path::new(DRIVER))
                .map_err(|reason| format!("no NVIDIA driver is installed: {reason}"))?;
            load_library()
        })
        .clone()
}

/// Makes sure that libtorch computes on GPUs. All GPUs that the process sees are found; none is used.
///
/// # Errors
///
/// Why it does not: as [`load_cuda`], and what CUDA says where it finds no device.
pub fn check_cuda() -> Result<(), String> {
    load_cuda()?;
    // SAFETY: no condition.
    check(unsafe { flambeau_init_cuda() }).map_err(|error| match error {
        TorchError::Torch(reason) => format!("libtorch finds no GPU: {reason}"),
        other => other.to_string(),
    })?;
    match tch::Cuda::is_available() {
        true => Ok(()),
        false => Err("libtorch finds no GPU".into()),
    }
}

/// Where `libnccl.so.2` may lie: beside libtorch, and in the wheel that comes with torch's own.
pub(crate) fn nccl_directories() -> Vec<PathBuf> {
    let lib = directory();
    let packages = lib.join("../..");
    vec![lib, packages.join("nvidia/nccl/lib")]
}

fn load_library() -> Result<(), String> {
    let path = directory().join(LIBRARY);
    if !path.exists() {
        return Err(format!(
            "libtorch in {} is built without CUDA: it has no {LIBRARY}",
            directory().display()
        ));
    }
    open(&path).map_err(|reason| format!("libtorch's CUDA part cannot be loaded: {reason}"))
}

/// The directory of the libtorch that this process runs.
fn directory() -> PathBuf {
    // SAFETY: the text is new and ours.
    let path = PathBuf::from(take_text(unsafe { flambeau_libtorch_path() }));
    path.parent().map(Path::to_owned).unwrap_or_default()
}

fn open(path: &Path) -> Result<(), String> {
    let path =
        CString::new(path.to_string_lossy().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the path is a text; what runs on loading are the initialisers of libtorch and of what it needs.
    let failure = unsafe { flambeau_open_library(path.as_ptr()) };
    if failure.is_null() {
        return Ok(());
    }
    Err(take_text(failure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Stream;

    /// The environment's torch may have CUDA; what it then lacks is a driver.
    #[test]
    fn libtorch_is_found_where_it_was_loaded_from() {
        assert!(directory().join("libtorch_cpu.so").is_file());
        assert!(nccl_directories()[1].ends_with("nvidia/nccl/lib"));
    }

    #[test]
    fn why_there_is_no_cuda_is_told() {
        match (check_cuda(), open(Path::new(DRIVER))) {
            (Ok(()), driver) => assert!(driver.is_ok()),
            (Err(reason), Err(_)) => {
                assert!(reason.contains("no NVIDIA driver is installed"), "{reason}");
            }
            (Err(reason), Ok(())) => assert!(reason.contains("libtorch"), "{reason}"),
        }
    }

    /// Needs no driver: the library registers itself when it is loaded.
    #[test]
    fn the_cuda_part_is_loaded_beside_the_cpu_part() {
        if !directory().join(LIBRARY).exists() {
            println!("SKIPPED: this libtorch is built without CUDA");
            return;
        }
        load_library().unwrap();
        // Where it is not loaded, torch says that it is "not linked with support for cuda devices".
        let refused = Stream::of_pool(0).err().map(|error| error.to_string());
        assert!(
            !refused
                .as_ref()
                .is_some_and(|text| text.contains("not linked")),
            "{refused:?}"
        );
    }
}
