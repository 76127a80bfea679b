//! The library of the JVM: `flambeau.jni.NativeApi`, and the code of `flambeau-worker`.
//!
//! No Rust panic and no C++ exception passes into the JVM: everything that fails becomes a Java exception, in
//! `error`. Native code makes no threads that call Java, so none are attached.

mod buffers;
mod entry;
mod error;
mod gpus;
mod jobs;
mod registry;
mod scoring;
mod stores;
