//! The library of the JVM over libtorch: `flambeau.jni.TorchApi`, the functions of `flambeau.jni.StoreApi` again, and the code of
//! `flambeau-worker`.
//!
//! No Rust panic and no C++ exception passes into the JVM: everything that fails becomes a Java exception, in
//! `flambeau_jni_common`. Native code makes no threads that call Java, so none are attached.

mod buffers;
mod entry;
mod gpus;
mod purity;
mod registry;
mod scoring;

// Its functions are exported from here too: a Python package, which has a libtorch, holds this library alone, for it has most of the
// other's code.
use flambeau_jni_store as _;

use flambeau_jni_common::NativeError;
use flambeau_jni_common::error::{DATA, GENERAL, PARAM, STORE, class_of};
use flambeau_torch::TorchError;

/// The exception for what a program, its loss or its rows fail with.
fn thrown(error: TorchError) -> NativeError {
    let class = match &error {
        TorchError::Param(_) => PARAM,
        TorchError::Store(error) => class_of(error),
        TorchError::Data(_) => DATA,
        TorchError::Io { .. } => STORE,
        _ => GENERAL,
    };
    NativeError::Own {
        class,
        source: error.into(),
    }
}
