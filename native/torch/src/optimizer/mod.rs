//! Optimizers by torch's names, with torch's keywords and defaults, over torch's own kernels.
//!
//! A parameter that has no gradient in a step is passed over, and gets its state when it first has one, as in
//! `torch.optim`.

mod adam;
mod rmsprop;
mod sgd;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use flambeau_train::NamedOptions;
use tch::{Device, Tensor};
use torch_sys::C_tensor;

use crate::error::TorchError;
use crate::options::Options;

/// A trained parameter with the gradient of this step.
pub(crate) struct Update<'a> {
    /// Its number among the trained parameters.
    pub(crate) index: usize,
    pub(crate) parameter: &'a Tensor,
    pub(crate) gradient: &'a Tensor,
}

impl Update<'_> {
    /// The same update, for a list of some.
    fn reborrow(&self) -> Update<'_> {
        Update { ..*self }
    }
}

/// An optimizer with its state.
pub(crate) struct Optimizer {
    name: String,
    learning_rate: f64,
    /// The learning rate of its last step.
    last_rate: Option<f64>,
    rule: Box<dyn Rule>,
}

/// What makes one optimizer differ from another.
trait Rule: Send {
    fn step(&mut self, updates: &[Update<'_>], learning_rate: f64) -> Result<(), TorchError>;

    /// The kinds of state that it keeps for each parameter, by torch's names.
    fn slots(&mut self) -> Vec<(&'static str, &mut Slot)>;
}

/// One kind of state: a tensor for each parameter that has it, by the parameter's number.
type Slot = BTreeMap<usize, Tensor>;

impl Optimizer {
    /// The optimizer of a job. It meets its parameters in its steps.
    ///
    /// # Errors
    ///
    /// [`TorchError::Param`] for an unknown name or option, or a value that torch refuses.
    pub(crate) fn new(spec: &NamedOptions) -> Result<Optimizer, TorchError> {
        let (learning_rate, rule): (f64, Box<dyn Rule>) = match spec.name.as_str() {
            "sgd" => boxed(sgd::Sgd::new(spec)?),
            "adam" | "adamw" => boxed(adam::Adam::new(spec)?),
            "rmsprop" => boxed(rmsprop::RmsProp::new(spec)?),
            unknown => {
                return Err(TorchError::Param(format!(
                    "optimizer: unknown name {unknown:?}; the names are adam, adamw, rmsprop, sgd"
                )));
            }
        };
        Ok(Optimizer {
            name: spec.name.clone(),
            learning_rate,
            last_rate: None,
            rule,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    /// The learning rate of the last step that it has taken, else the one that it has.
    pub(crate) fn last_rate(&self) -> f64 {
        self.last_rate.unwrap_or(self.learning_rate)
    }

    pub(crate) fn set_learning_rate(&mut self, learning_rate: f64) {
        self.learning_rate = learning_rate;
    }

    /// Takes back the learning rate of its last step.
    pub(crate) fn set_last_rate(&mut self, last_rate: f64) {
        self.last_rate = Some(last_rate);
    }

    /// One step on the parameters that have a gradient, at its learning rate times `rate_factor`.
    pub(crate) fn step(
        &mut self,
        updates: &[Update<'_>],
        rate_factor: f64,
    ) -> Result<(), TorchError> {
        let rate = self.learning_rate * rate_factor;
        self.last_rate = Some(rate);
        match updates {
            [] => Ok(()),
            _ => self.rule.step(updates, rate),
        }
    }

    /// Moves its state to a device.
    pub(crate) fn move_to(&mut self, device: Device) -> Result<(), TorchError> {
        let slots = self.rule.slots().into_iter();
        for tensor in slots.flat_map(|(_, slot)| slot.values_mut()) {
            *tensor = tensor.f_to_device(device)?;
        }
        Ok(())
    }

    /// The state, as (kind, number of the parameter, tensor).
    pub(crate) fn state(&mut self) -> Vec<(&'static str, usize, Tensor)> {
        let of_slot = |(kind, slot): (&'static str, &mut Slot)| -> Vec<_> {
            slot.iter()
                .map(|(&index, tensor)| (kind, index, tensor.shallow_clone()))
                .collect()
        };
        self.rule.slots().into_iter().flat_map(of_slot).collect()
    }

    /// Takes back what [`state`](Self::state) gave of `num_parameters` parameters: `find` returns the tensor of a kind and
    /// a parameter, laid out like the parameter, where it was saved.
    pub(crate) fn load_state(
        &mut self,
        num_parameters: usize,
        find: impl Fn(&str, usize) -> Result<Option<Tensor>, TorchError>,
    ) -> Result<(), TorchError> {
        for (kind, slot) in self.rule.slots() {
            slot.clear();
            for index in 0..num_parameters {
                slot.extend(find(kind, index)?.map(|tensor| (index, tensor)));
            }
        }
        Ok(())
    }
}

fn boxed<R: Rule + 'static>((learning_rate, rule): (f64, R)) -> (f64, Box<dyn Rule>) {
    (learning_rate, Box::new(rule))
}

/// Makes the state of each updated parameter that has none.
fn fill(
    slot: &mut Slot,
    updates: &[Update<'_>],
    make: impl Fn(&Tensor) -> Result<Tensor, tch::TchError>,
) -> Result<(), TorchError> {
    for update in updates {
        if let Entry::Vacant(vacant) = slot.entry(update.index) {
            vacant.insert(tch::no_grad(|| make(update.parameter))?);
        }
    }
    Ok(())
}

/// Handles for C++, in the order of `updates`.
fn handles<'a>(
    updates: &'a [Update<'a>],
    tensor: impl Fn(&'a Update<'a>) -> &'a Tensor,
) -> Vec<*const C_tensor> {
    updates
        .iter()
        .map(|update| tensor(update).as_ptr())
        .collect()
}

/// The state of the updated parameters, all of which have it.
fn slot_handles(slot: &Slot, updates: &[Update<'_>]) -> Vec<*const C_tensor> {
    updates
        .iter()
        .filter_map(|update| slot.get(&update.index))
        .map(Tensor::as_ptr)
        .collect()
}

/// The learning rate, which torch takes from 0 on.
fn learning_rate(options: &Options<'_>, default: f64) -> Result<f64, TorchError> {
    options.non_negative("lr", default)
}
