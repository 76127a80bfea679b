//! How `flambeau-worker` enters this library, which holds its code beside the JVM's.

use std::ffi::{CStr, c_char, c_int};

/// Runs the worker on the arguments of a C `main` and returns its exit status.
///
/// # Safety
/// `argv` must be the address of `argc` pointers to strings that end in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flambeau_worker_main(argc: c_int, argv: *const *const c_char) -> c_int {
    let argument = |index: usize| {
        // SAFETY: the caller gives as many strings as it says.
        let text = unsafe { CStr::from_ptr(*argv.add(index)) };
        text.to_string_lossy().into_owned()
    };
    let arguments = (0..usize::try_from(argc).unwrap_or(0))
        .map(argument)
        .collect();
    // A panic that leaves an `extern "C"` function aborts the process; the worker catches its own.
    flambeau_worker::main(arguments)
}
