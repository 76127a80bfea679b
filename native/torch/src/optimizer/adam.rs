//! Adam and AdamW, as `torch.optim.Adam(fused=True)` and `torch.optim.AdamW(fused=True)`.

use std::ffi::c_char;
use std::ptr;

use flambeau_train::NamedOptions;
use tch::{Kind, Tensor};
use torch_sys::C_tensor;

use super::{Rule, Slot, Update, fill, handles, learning_rate, slot_handles};
use crate::border::check;
use crate::error::TorchError;
use crate::options::Options;

unsafe extern "C" {
    fn flambeau_adam(
        parameters: *const *const C_tensor,
        gradients: *const *const C_tensor,
        averages: *const *const C_tensor,
        squares: *const *const C_tensor,
        max_squares: *const *const C_tensor,
        steps: *const *const C_tensor,
        count: usize,
        lr: f64,
        beta1: f64,
        beta2: f64,
        eps: f64,
        weight_decay: f64,
        maximize: bool,
        decoupled: bool,
    ) -> *mut c_char;
}

pub(super) struct Adam {
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    amsgrad: bool,
    maximize: bool,
    /// Whether the weight decay leaves the gradient alone, as in AdamW.
    is_decoupled: bool,
    steps: Slot,
    averages: Slot,
    squares: Slot,
    max_squares: Slot,
}

impl Adam {
    /// The learning rate, 1e-3 by default, and the rule of `adam` or `adamw`.
    pub(super) fn new(spec: &NamedOptions) -> Result<(f64, Adam), TorchError> {
        let allowed = ["lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"];
        let options = Options::new("optimizer", spec, &allowed)?;
        let is_decoupled = spec.name == "adamw";
        let (beta1, beta2) = betas(&options)?;
        let adam = Adam {
            beta1,
            beta2,
            eps: options.non_negative("eps", 1e-8)?,
            weight_decay: options
                .non_negative("weight_decay", if is_decoupled { 1e-2 } else { 0.0 })?,
            amsgrad: options.flag("amsgrad", false)?,
            maximize: options.flag("maximize", false)?,
            is_decoupled,
            steps: Slot::new(),
            averages: Slot::new(),
            squares: Slot::new(),
            max_squares: Slot::new(),
        };
        Ok((learning_rate(&options, 1e-3)?, adam))
    }
}

/// Two numbers in [0, 1), by default 0.9 and 0.999.
fn betas(options: &Options<'_>) -> Result<(f64, f64), TorchError> {
    let Some(value) = options.given("betas") else {
        return Ok((0.9, 0.999));
    };
    let numbers: Option<Vec<f64>> = value
        .as_array()
        .map(|values| values.iter().filter_map(|value| value.as_f64()).collect());
    match numbers.as_deref() {
        Some(&[beta1, beta2]) if [beta1, beta2].iter().all(|beta| (0.0..1.0).contains(beta)) => {
            Ok((beta1, beta2))
        }
        _ => Err(options.refuse(
            "betas",
            value,
            "a list of two numbers, each at least 0 and below 1",
        )),
    }
}

impl Rule for Adam {
    fn step(&mut self, updates: &[Update<'_>], lr: f64) -> Result<(), TorchError> {
        fill(&mut self.steps, updates, |parameter| {
            Tensor::f_zeros([0i64; 0], (Kind::Float, parameter.device()))
        })?;
        fill(&mut self.averages, updates, Tensor::f_zeros_like)?;
        fill(&mut self.squares, updates, Tensor::f_zeros_like)?;
        if self.amsgrad {
            fill(&mut self.max_squares, updates, Tensor::f_zeros_like)?;
        }
        let parameters = handles(updates, |update| update.parameter);
        let gradients = handles(updates, |update| update.gradient);
        let averages = slot_handles(&self.averages, updates);
        let squares = slot_handles(&self.squares, updates);
        let max_squares = slot_handles(&self.max_squares, updates);
        let steps = slot_handles(&self.steps, updates);
        // SAFETY: as many live tensors as said in each list; the kernel writes to parameters and state, which nobody
        // else uses now.
        check(unsafe {
            flambeau_adam(
                parameters.as_ptr(),
                gradients.as_ptr(),
                averages.as_ptr(),
                squares.as_ptr(),
                if self.amsgrad {
                    max_squares.as_ptr()
                } else {
                    ptr::null()
                },
                steps.as_ptr(),
                updates.len(),
                lr,
                self.beta1,
                self.beta2,
                self.eps,
                self.weight_decay,
                self.maximize,
                self.is_decoupled,
            )
        })
    }

    fn slots(&mut self) -> Vec<(&'static str, &mut Slot)> {
        let mut slots = vec![
            ("step", &mut self.steps),
            ("exp_avg", &mut self.averages),
            ("exp_avg_sq", &mut self.squares),
        ];
        if self.amsgrad {
            slots.push(("max_exp_avg_sq", &mut self.max_squares));
        }
        slots
    }
}
