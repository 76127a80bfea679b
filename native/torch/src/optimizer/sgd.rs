//! Stochastic gradient descent with momentum, as `torch.optim.SGD(fused=True)`.

use std::ffi::c_char;
use std::ptr;

use flambeau_train::NamedOptions;
use tch::Tensor;
use torch_sys::C_tensor;

use super::{Rule, Slot, Update, fill, handles, learning_rate, slot_handles};
use crate::border::check;
use crate::error::TorchError;
use crate::options::Options;

unsafe extern "C" {
    fn flambeau_sgd(
        parameters: *const *const C_tensor,
        gradients: *const *const C_tensor,
        momenta: *const *const C_tensor,
        count: usize,
        lr: f64,
        momentum: f64,
        dampening: f64,
        weight_decay: f64,
        nesterov: bool,
        maximize: bool,
        is_first_step: bool,
    ) -> *mut c_char;
}

pub(super) struct Sgd {
    momentum: f64,
    dampening: f64,
    weight_decay: f64,
    nesterov: bool,
    maximize: bool,
    momenta: Slot,
}

impl Sgd {
    /// The learning rate, 1e-3 by default, and the rule.
    pub(super) fn new(spec: &NamedOptions) -> Result<(f64, Sgd), TorchError> {
        let allowed = [
            "lr",
            "momentum",
            "dampening",
            "weight_decay",
            "nesterov",
            "maximize",
        ];
        let options = Options::new("optimizer", spec, &allowed)?;
        let sgd = Sgd {
            momentum: options.non_negative("momentum", 0.0)?,
            dampening: options.number("dampening", 0.0, |_| true, "a number")?,
            weight_decay: options.non_negative("weight_decay", 0.0)?,
            nesterov: options.flag("nesterov", false)?,
            maximize: options.flag("maximize", false)?,
            momenta: Slot::new(),
        };
        if sgd.nesterov && (sgd.momentum <= 0.0 || sgd.dampening != 0.0) {
            return Err(options.conflict("nesterov needs a momentum above 0 and a dampening of 0"));
        }
        Ok((learning_rate(&options, 1e-3)?, sgd))
    }

    fn apply(
        &self,
        updates: &[Update<'_>],
        lr: f64,
        is_first_step: bool,
    ) -> Result<(), TorchError> {
        if updates.is_empty() {
            return Ok(());
        }
        let parameters = handles(updates, |update| update.parameter);
        let gradients = handles(updates, |update| update.gradient);
        let momenta = slot_handles(&self.momenta, updates);
        // SAFETY: as many live tensors as said in each list; the kernel writes to parameters and momenta, which
        // nobody else uses now.
        check(unsafe {
            flambeau_sgd(
                parameters.as_ptr(),
                gradients.as_ptr(),
                if momenta.is_empty() {
                    ptr::null()
                } else {
                    momenta.as_ptr()
                },
                updates.len(),
                lr,
                self.momentum,
                self.dampening,
                self.weight_decay,
                self.nesterov,
                self.maximize,
                is_first_step,
            )
        })
    }
}

impl Rule for Sgd {
    fn step(&mut self, updates: &[Update<'_>], lr: f64) -> Result<(), TorchError> {
        if self.momentum == 0.0 {
            return self.apply(updates, lr, false);
        }
        // The first gradient of a parameter is its first momentum.
        let (known, fresh): (Vec<Update<'_>>, Vec<Update<'_>>) = updates
            .iter()
            .map(Update::reborrow)
            .partition(|update| self.momenta.contains_key(&update.index));
        fill(&mut self.momenta, &fresh, Tensor::f_empty_like)?;
        self.apply(&fresh, lr, true)?;
        self.apply(&known, lr, false)
    }

    fn slots(&mut self) -> Vec<(&'static str, &mut Slot)> {
        match self.momentum == 0.0 {
            true => vec![],
            false => vec![("momentum_buffer", &mut self.momenta)],
        }
    }
}
