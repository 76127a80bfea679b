//! `flambeau._native`: the extension module between the Python package and the native crates.
//!
//! It links no tensor library. Tensors cross as DLPack capsules and as addresses, so that any torch will do. While Python runs,
//! nothing here holds a lock or a mutable borrow: gradient hooks come back in from inside `backward`. Every wait
//! detaches from the interpreter and asks for signals.

mod allocator;
mod arrow;
mod batches;
mod callbacks;
mod device_gradients;
mod dlpack;
mod error;
mod gradient_sink;
mod inspection;
mod model;
mod nccl;
mod rendezvous;
mod signals;
mod sink;
mod store;
mod train;

use pyo3::prelude::*;

/// The native half of Flambeau.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::allocator::keep_freed_batches;
    #[pymodule_export]
    use crate::batches::PyBatchReader;
    #[pymodule_export]
    use crate::gradient_sink::PyGradientSink;
    #[pymodule_export]
    use crate::inspection::{
        check_script_file, impure_operators, job_schema, supervise, validate_job,
    };
    #[pymodule_export]
    use crate::nccl::nccl_meeting;
    #[pymodule_export]
    use crate::rendezvous::PyTcpRendezvous;
    #[pymodule_export]
    use crate::store::PyStore;
    #[pymodule_export]
    use crate::train::train;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
