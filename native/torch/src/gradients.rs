//! Gradients on their way from autograd into the buckets that are reduced.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;

use flambeau_train::{GradientSink, ReduceError};
use tch::Tensor;
use torch_sys::C_tensor;

use crate::border::check;
use crate::buckets::Buckets;
use crate::error::TorchError;
use crate::program::NamedTensor;
use crate::tensor::over;

/// What C++ keeps: parameters and their views.
#[repr(C)]
struct RawGradients {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn flambeau_gradients_new(
        parameters: *const *const C_tensor,
        views: *const *const C_tensor,
        count: usize,
    ) -> *mut RawGradients;
    fn flambeau_gradients_hook(
        gradients: *mut RawGradients,
        mark_ready: unsafe extern "C" fn(*mut c_void, usize) -> bool,
        context: *mut c_void,
    ) -> *mut c_char;
    fn flambeau_gradients_gather(gradients: *mut RawGradients, ready: *mut bool) -> *mut c_char;
    fn flambeau_gradients_clear(gradients: *mut RawGradients);
    fn flambeau_gradients_free(gradients: *mut RawGradients);
}

/// How C++ begins the text about a sparse gradient; the parameter's number follows.
const SPARSE: &str = "sparse gradient of parameter ";

/// The views of the buckets, one for each trained parameter, with the parameter's shape and strides.
///
/// With one bucket there is nothing to overlap, so gradients are copied after backward, all at once; with several, a
/// hook copies each as soon as backward has made it, and full buckets are reduced while backward goes on.
pub(crate) struct Gradients {
    raw: *mut RawGradients,
    views: Vec<Tensor>,
    /// Boxed: the hooks know where it lies.
    sink: Box<Arc<dyn GradientSink>>,
    is_hooked: bool,
    ready: Vec<bool>,
}

impl Gradients {
    /// Drops the parameters' gradients, and hooks them where there are several buckets. `own` are the buckets of a model on a
    /// device.
    pub(crate) fn attach(
        parameters: &[NamedTensor],
        sink: Arc<dyn GradientSink>,
        own: Option<&Buckets>,
    ) -> Result<Gradients, TorchError> {
        // A dense parameter's gradient has its strides (channels_last, say), so that copies and optimizers stay flat.
        let view = |(index, parameter): (usize, &NamedTensor)| {
            let tensor = &parameter.tensor;
            if let Some(buckets) = own {
                return buckets.view(sink.view(index), tensor);
            }
            // SAFETY: the bucket's memory lives as long as the sink, which the view keeps, and holds the elements
            // of a dense parameter; autograd, the ranks and the optimizer use it in turns.
            unsafe {
                over(
                    sink.view_ptr(index),
                    tensor.kind(),
                    &tensor.size(),
                    Some(&tensor.stride()),
                    sink.clone(),
                )
            }
        };
        let views: Vec<Tensor> = parameters
            .iter()
            .enumerate()
            .map(view)
            .collect::<Result<_, _>>()?;
        let parameter_handles: Vec<_> = parameters
            .iter()
            .map(|parameter| parameter.tensor.as_ptr())
            .collect();
        let view_handles: Vec<_> = views.iter().map(Tensor::as_ptr).collect();
        // SAFETY: as many live tensors in each list, of which C++ keeps handles of its own.
        let raw = unsafe {
            flambeau_gradients_new(
                parameter_handles.as_ptr(),
                view_handles.as_ptr(),
                views.len(),
            )
        };
        let mut gradients = Gradients {
            raw,
            ready: vec![false; views.len()],
            views,
            is_hooked: sink.layout().buckets.len() > 1,
            sink: Box::new(sink),
        };
        gradients.clear();
        if gradients.is_hooked {
            let context = ptr::from_ref(&*gradients.sink).cast_mut().cast();
            // SAFETY: the hooks are taken off before the sink is given back, in `drop`.
            check(unsafe { flambeau_gradients_hook(gradients.raw, mark_ready, context) })?;
        }
        Ok(gradients)
    }

    /// The gradient of a parameter after the reduction.
    pub(crate) fn reduced(&self, index: usize) -> &Tensor {
        &self.views[index]
    }

    /// After a backward: copies what hooks have not.
    pub(crate) fn gather(&mut self) -> Result<(), GatherError> {
        if self.is_hooked {
            return Ok(());
        }
        // SAFETY: as many flags as parameters; the bucket is not being reduced while a gradient is missing.
        check(unsafe { flambeau_gradients_gather(self.raw, self.ready.as_mut_ptr()) })
            .map_err(GatherError::Torch)?;
        for (index, _) in self
            .ready
            .iter()
            .enumerate()
            .filter(|(_, is_ready)| **is_ready)
        {
            self.sink.mark_ready(index).map_err(GatherError::Reduce)?;
        }
        Ok(())
    }

    /// Drops all gradients.
    pub(crate) fn clear(&mut self) {
        // SAFETY: live until `drop`.
        unsafe { flambeau_gradients_clear(self.raw) }
    }
}

impl Drop for Gradients {
    fn drop(&mut self) {
        // SAFETY: owned here and freed once; takes the hooks off, so that none reaches the sink any more.
        unsafe { flambeau_gradients_free(self.raw) }
    }
}

/// Why gradients could not be gathered.
pub(crate) enum GatherError {
    Torch(TorchError),
    Reduce(ReduceError),
}

/// Called by autograd when the gradient of a parameter lies in its view. Whether the reduction failed, which the
/// sink remembers.
unsafe extern "C" fn mark_ready(context: *mut c_void, index: usize) -> bool {
    // SAFETY: the context is the sink that the hooks' owner keeps.
    let sink = unsafe { &*context.cast::<Arc<dyn GradientSink>>() };
    sink.mark_ready(index).is_err()
}

/// The parameter's number, where an error is about a sparse gradient.
pub(crate) fn sparse_parameter(error: &TorchError) -> Option<usize> {
    match error {
        TorchError::Torch(text) => text.strip_prefix(SPARSE)?.parse().ok(),
        _ => None,
    }
}
