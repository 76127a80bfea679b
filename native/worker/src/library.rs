//! Loads libtorch and, after it, the library that does the work.

use std::env;
use std::ffi::{CString, c_char, c_int};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use crate::finder::Libtorch;

/// The library beside this program.
const LIBRARY: &str = "libflambeau_jni_torch.so";

/// How the work is entered: the arguments of a C `main`, and its exit status.
type Main = unsafe extern "C" fn(argc: c_int, argv: *const *const c_char) -> c_int;

/// Runs the arguments in the library. Returns the exit status.
///
/// # Errors
/// One sentence that says what could not be loaded, and why.
pub fn run(libtorch: &Libtorch, arguments: &[String]) -> Result<i32, String> {
    // Loaded by their paths and for all to see, they are what the library's own references mean.
    let loaded = libtorch
        .libraries
        .iter()
        .map(|path| load(path))
        .collect::<Result<Vec<_>, _>>()?;
    let program = env::current_exe()
        .map_err(|error| format!("the program's own path is not known: {error}"))?;
    let library = load(&program.with_file_name(LIBRARY))?;
    // SAFETY: the library exports the function with this signature.
    let main: Symbol<Main> = unsafe { library.get(b"flambeau_worker_main\0") }.map_err(|_| {
        format!(
            "{LIBRARY} beside {} is not of this version",
            program.display()
        )
    })?;
    let arguments: Vec<CString> = arguments
        .iter()
        .map(|argument| CString::new(argument.as_str()))
        .collect::<Result<_, _>>()
        .map_err(|_| "an argument holds a NUL".to_owned())?;
    let pointers: Vec<*const c_char> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    // SAFETY: the pointers are to as many strings, which outlive the call.
    let status = unsafe { main(pointers.len() as c_int, pointers.as_ptr()) };
    // Threads of libtorch's may still run in them.
    std::mem::forget((library, loaded));
    Ok(status)
}

fn load(path: &Path) -> Result<Library, String> {
    // SAFETY: what runs on loading are the initialisers of libtorch and of our own library.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
        .map_err(|error| format!("{} cannot be loaded: {error}", path.display()))
}
