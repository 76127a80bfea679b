//! The type that forward and loss are computed in.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;

use flambeau_train::Precision;
use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use crate::tensor::scalar_type;

unsafe extern "C" {
    fn flambeau_enter_autocast(on_gpu: bool, scalar_type: c_int) -> *mut c_void;
    fn flambeau_leave_autocast(before: *mut c_void);
    fn flambeau_is_autocasting(tensor: *const C_tensor) -> bool;
}

/// Autocast to a half type on this thread as long as it lives. The weights that it casts are kept as long.
pub(crate) struct Autocast {
    before: *mut c_void,
    /// It ends on the thread that it began on.
    not_send: PhantomData<*const ()>,
}

impl Autocast {
    /// What a precision asks for on a device; `None` where it leaves the program as it is.
    pub(crate) fn of(precision: Precision, device: Device) -> Option<Autocast> {
        let kind = match precision {
            // TensorFloat-32 is a setting of the process, which a GPU alone looks at.
            Precision::Float32 | Precision::Tf32 => return None,
            Precision::Bf16 => Kind::BFloat16,
            Precision::Fp16 => Kind::Half,
        };
        Some(Autocast {
            // SAFETY: it sets flags of this thread.
            before: unsafe { flambeau_enter_autocast(device.is_cuda(), scalar_type(kind)) },
            not_send: PhantomData,
        })
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // SAFETY: made by `of` on this thread, and given back once.
        unsafe { flambeau_leave_autocast(self.before) }
    }
}

/// The type that targets of an output take: its own, but float32 where autocast made it a half.
pub(crate) fn target_kind(output: &Tensor) -> Kind {
    let kind = output.kind();
    let is_half = matches!(kind, Kind::BFloat16 | Kind::Half);
    // SAFETY: it reads a flag of this thread and the device of a live tensor.
    if is_half && unsafe { flambeau_is_autocasting(output.as_ptr()) } {
        return Kind::Float;
    }
    kind
}
