//! RMSprop, as `torch.optim.RMSprop`, which has no fused kernel.

use std::ffi::c_char;
use std::ptr;

use flambeau_train::NamedOptions;
use tch::Tensor;
use torch_sys::C_tensor;

use super::{Rule, Slot, Update, fill, learning_rate};
use crate::border::check;
use crate::error::TorchError;
use crate::options::Options;

unsafe extern "C" {
    fn flambeau_rmsprop(
        parameter: *const C_tensor,
        gradient: *const C_tensor,
        square: *const C_tensor,
        average: *const C_tensor,
        momenta: *const C_tensor,
        lr: f64,
        alpha: f64,
        eps: f64,
        weight_decay: f64,
        momentum: f64,
        maximize: bool,
    ) -> *mut c_char;
}

pub(super) struct RmsProp {
    alpha: f64,
    eps: f64,
    weight_decay: f64,
    momentum: f64,
    is_centered: bool,
    maximize: bool,
    squares: Slot,
    averages: Slot,
    momenta: Slot,
}

impl RmsProp {
    /// The learning rate, 1e-2 by default, and the rule.
    pub(super) fn new(spec: &NamedOptions) -> Result<(f64, RmsProp), TorchError> {
        let allowed = [
            "lr",
            "alpha",
            "eps",
            "weight_decay",
            "momentum",
            "centered",
            "maximize",
        ];
        let options = Options::new("optimizer", spec, &allowed)?;
        let rmsprop = RmsProp {
            alpha: options.non_negative("alpha", 0.99)?,
            eps: options.non_negative("eps", 1e-8)?,
            weight_decay: options.non_negative("weight_decay", 0.0)?,
            momentum: options.non_negative("momentum", 0.0)?,
            is_centered: options.flag("centered", false)?,
            maximize: options.flag("maximize", false)?,
            squares: Slot::new(),
            averages: Slot::new(),
            momenta: Slot::new(),
        };
        Ok((learning_rate(&options, 1e-2)?, rmsprop))
    }
}

impl Rule for RmsProp {
    fn step(&mut self, updates: &[Update<'_>], lr: f64) -> Result<(), TorchError> {
        fill(&mut self.squares, updates, Tensor::f_zeros_like)?;
        if self.is_centered {
            fill(&mut self.averages, updates, Tensor::f_zeros_like)?;
        }
        if self.momentum > 0.0 {
            fill(&mut self.momenta, updates, Tensor::f_zeros_like)?;
        }
        let handle =
            |slot: &Slot, index: usize| slot.get(&index).map_or(ptr::null(), Tensor::as_ptr);
        for update in updates {
            // SAFETY: live tensors, or null where there is no such state; the operators write to the parameter and its
            // state, which nobody else uses now.
            check(unsafe {
                flambeau_rmsprop(
                    update.parameter.as_ptr(),
                    update.gradient.as_ptr(),
                    handle(&self.squares, update.index),
                    handle(&self.averages, update.index),
                    handle(&self.momenta, update.index),
                    lr,
                    self.alpha,
                    self.eps,
                    self.weight_decay,
                    self.momentum,
                    self.maximize,
                )
            })?;
        }
        Ok(())
    }

    fn slots(&mut self) -> Vec<(&'static str, &mut Slot)> {
        let mut slots = vec![("square_avg", &mut self.squares)];
        if self.is_centered {
            slots.push(("grad_avg", &mut self.averages));
        }
        if self.momentum > 0.0 {
            slots.push(("momentum_buffer", &mut self.momenta));
        }
        slots
    }
}
