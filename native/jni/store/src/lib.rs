//! The library of the JVM that needs no libtorch: `flambeau.jni.StoreApi`.
//!
//! No Rust panic passes into the JVM: everything that fails becomes a Java exception, in `flambeau_jni_common`.

mod files;
mod supervision;
