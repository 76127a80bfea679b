//! A graph that is ready to run: its steps, and where its inputs come from and its outputs go.

use std::collections::{HashMap, HashSet};

use tch::{Device, Kind, Tensor};

use super::archive::{Archive, kind_of, refused};
use super::compile::{Operand, Step, Steps, compile};
use super::dispatch::{Entered, Frame, Value, device_name};
use super::schema::{Argument, InputSpec, OutputSpec, RangeConstraint, Size, TensorMeta};
use super::structure::Structure;
use super::training::ModeFlag;
use super::weights::Weights;
use crate::error::TorchError;
use crate::program::Outputs;
use crate::tensor::move_data;

/// A graph with the tensors that it computes with.
pub(super) struct ReadyGraph {
    steps: Vec<Step>,
    num_slots: usize,
    /// Parameters, buffers and constants, with their slots.
    held: Vec<(usize, Tensor)>,
    inputs: Vec<UserInput>,
    /// The buffers that get new values after a run, and the slots of these.
    mutated: Vec<(usize, Tensor)>,
    /// The slots whose values operators write to.
    written: HashSet<usize>,
    outputs: Vec<usize>,
    structure: Structure,
    /// The operators that do one thing in training and another in evaluation.
    pub(super) mode_flags: Vec<ModeFlag>,
    /// The names of the operators that it calls.
    pub(super) operators: Vec<String>,
}

/// The modes that a run is in. They end in reverse order, after an error too.
struct Modes(Vec<Entered>);

impl Drop for Modes {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

/// A tensor that the caller gives.
struct UserInput {
    name: String,
    slot: usize,
    kind: Kind,
    /// The size of each dimension after the rows, where it is fixed.
    sizes: Vec<Option<i64>>,
    min_rows: i64,
    max_rows: i64,
}

impl ReadyGraph {
    /// Compiles the graph of an archive over the tensors of `weights`, which hold all that its signature names.
    pub(super) fn new(
        archive: &mut Archive<'_>,
        weights: &Weights,
    ) -> Result<ReadyGraph, TorchError> {
        let constants = constant_names(archive)
            .into_iter()
            .map(|name| Ok((archive.constant(&name)?, name)))
            .collect::<Result<Vec<_>, TorchError>>()?;
        let constants: HashMap<String, Tensor> = constants
            .into_iter()
            .map(|(tensor, name)| (name, tensor))
            .collect();
        let model = &archive.model;
        let module = &model.graph_module;
        let (mut names, mut held, mut inputs) = (HashMap::new(), vec![], vec![]);
        for (slot, spec) in module.signature.input_specs.iter().enumerate() {
            let (name, tensor) = match spec {
                InputSpec::Parameter {
                    arg,
                    parameter_name,
                } => (&arg.name, weights.get(parameter_name)),
                InputSpec::Buffer {
                    arg, buffer_name, ..
                } => (&arg.name, weights.get(buffer_name)),
                InputSpec::TensorConstant {
                    arg,
                    tensor_constant_name,
                } => (&arg.name, constants[tensor_constant_name].shallow_clone()),
                InputSpec::UserInput { arg } => {
                    let input = UserInput::new(
                        arg,
                        slot,
                        &module.graph.tensor_values,
                        &model.range_constraints,
                    )?;
                    names.insert(input.name.clone(), slot);
                    inputs.push(input);
                    continue;
                }
                InputSpec::CustomObj { custom_obj_name } => {
                    return Err(refused(&format!(
                        "it computes with {custom_obj_name}, an object that is no tensor"
                    )));
                }
                InputSpec::ConstantInput { name } => {
                    return Err(refused(&format!(
                        "its input {name} is no tensor; export it with tensors only"
                    )));
                }
                InputSpec::Token {} => return Err(refused("it has operators with side effects")),
            };
            names.insert(name.clone(), slot);
            held.push((slot, tensor));
        }
        let num_inputs = module.signature.input_specs.len();
        let Steps {
            steps,
            num_slots,
            outputs,
            mode_flags,
            operators,
            written,
        } = compile(&module.graph, names, num_inputs)?;
        if outputs.len() != module.signature.output_specs.len() {
            return Err(refused(
                "its signature has not as many outputs as its graph",
            ));
        }
        let (mut mutated, mut returned) = (vec![], vec![]);
        for (value, spec) in outputs.iter().zip(&module.signature.output_specs) {
            let slot = match value {
                Value::Slot(slot) => *slot,
                _ => return Err(refused("it returns something else than tensors")),
            };
            match spec {
                OutputSpec::UserOutput { .. } => returned.push(slot),
                OutputSpec::BufferMutation { buffer_name, .. } => {
                    mutated.push((slot, weights.get(buffer_name)))
                }
                OutputSpec::ParameterMutation { parameter_name } => {
                    return Err(refused(&format!(
                        "its forward changes the parameter {parameter_name}"
                    )));
                }
                OutputSpec::UserInputMutation { user_input_name } => {
                    return Err(refused(&format!(
                        "its forward changes its input {user_input_name}"
                    )));
                }
                _ => {
                    return Err(refused(
                        "it holds a loss or gradients; export the module alone",
                    ));
                }
            }
        }
        let signature = module
            .module_call_graph
            .iter()
            .find(|call| call.fqn.is_empty());
        let signature = signature.and_then(|call| call.signature.as_ref());
        let signature = signature.ok_or_else(|| refused("it does not tell what it returns"))?;
        let structure = Structure::parse(&signature.out_spec, &module.treespec_namedtuple_fields)?;
        if structure.num_tensors() != returned.len() {
            return Err(refused("it returns something else than tensors"));
        }
        Ok(ReadyGraph {
            steps,
            num_slots,
            held,
            inputs,
            mutated,
            written,
            outputs: returned,
            structure,
            mode_flags,
            operators,
        })
    }

    /// The first node that calls one of these operators.
    pub(super) fn label_of_any(&self, operators: &[&str]) -> Option<&str> {
        self.steps.iter().find_map(|step| match step {
            Step::Call { label, .. }
                if operators.iter().any(|operator| label.contains(operator)) =>
            {
                Some(label.as_str())
            }
            _ => None,
        })
    }

    /// Moves the graph's constants, and has what names the first device name the second. The weights are moved before.
    pub(super) fn move_to(&mut self, from: Device, to: Device) -> Result<(), TorchError> {
        for (_, tensor) in &self.held {
            if tensor.device() != to {
                move_data(tensor, to)?;
            }
        }
        let (from, to) = (device_name(from), device_name(to));
        for step in &mut self.steps {
            match step {
                Step::Call { call, label } => call
                    .move_to(&from, &to)
                    .map_err(|message| failed(label, &message))?,
                Step::Enter(mode) => mode.move_to(&from, &to),
                Step::Number { .. } | Step::Leave => {}
            }
        }
        Ok(())
    }

    /// The names of forward's arguments, in their order.
    pub(super) fn arguments(&self) -> Vec<String> {
        self.inputs.iter().map(|input| input.name.clone()).collect()
    }

    /// Runs the graph on inputs whose first dimension is the rows. Buffers get the values that it computes for them only
    /// where `updates_buffers` says so, and then no other thread may run it.
    pub(super) fn run(
        &self,
        inputs: &[Tensor],
        updates_buffers: bool,
    ) -> Result<Outputs, TorchError> {
        if inputs.len() != self.inputs.len() {
            let names = self.arguments();
            return Err(TorchError::Param(format!(
                "the exported program takes {} inputs ({}), not {}; set inputCols to one column for each",
                names.len(),
                names.join(", "),
                inputs.len()
            )));
        }
        let mut frame = Frame::new(self.num_slots);
        for (slot, tensor) in &self.held {
            match updates_buffers || !self.written.contains(slot) {
                true => frame.set_tensor(*slot, tensor),
                false => frame.set_tensor(*slot, &copy(tensor)?),
            }
        }
        for (input, tensor) in self.inputs.iter().zip(inputs) {
            input.check(tensor)?;
            frame.set_tensor(input.slot, tensor);
        }
        let mut modes = Modes(vec![]);
        for step in &self.steps {
            match step {
                Step::Call { call, label } => call
                    .run(&mut frame)
                    .map_err(|message| failed(label, &message))?,
                Step::Number {
                    operation,
                    operands,
                    slot,
                    label,
                } => {
                    let result = operands
                        .iter()
                        .map(|operand| match operand {
                            Operand::Constant(number) => Ok(*number),
                            Operand::Slot(slot) => frame.number(*slot),
                        })
                        .collect::<Result<Vec<_>, _>>()
                        .and_then(|numbers| operation.apply(&numbers));
                    frame.set_number(*slot, result.map_err(|message| failed(label, &message))?);
                }
                Step::Enter(mode) => {
                    modes.0.push(
                        Entered::new(mode)
                            .map_err(|message| failed("a mode of the graph", &message))?,
                    );
                }
                Step::Leave => drop(modes.0.pop()),
            }
        }
        for (slot, buffer) in self.mutated.iter().filter(|_| updates_buffers) {
            let value = frame
                .tensor(*slot)
                .map_err(|message| failed("a buffer", &message))?;
            tch::no_grad(|| buffer.shallow_clone().f_copy_(&value))?;
        }
        let tensors = self
            .outputs
            .iter()
            .map(|slot| {
                frame
                    .tensor(*slot)
                    .map_err(|message| failed("an output", &message))
            })
            .collect::<Result<_, _>>()?;
        Ok(self.structure.fill(tensors))
    }
}

/// A tensor of its own with the same values.
fn copy(tensor: &Tensor) -> Result<Tensor, TorchError> {
    tch::no_grad(|| {
        let mut copy = tensor.f_empty_like()?;
        copy.f_copy_(tensor)?;
        Ok(copy)
    })
}

impl UserInput {
    fn new(
        argument: &serde_json::Value,
        slot: usize,
        metas: &HashMap<String, TensorMeta>,
        ranges: &HashMap<String, RangeConstraint>,
    ) -> Result<UserInput, TorchError> {
        let argument = serde::Deserialize::deserialize(argument).map_err(|error| {
            refused(&format!("an input is not what this version reads: {error}"))
        })?;
        let Argument::AsTensor(tensor) = argument else {
            return Err(refused(
                "one of its inputs is no tensor; export it with tensors only",
            ));
        };
        let name = tensor.name;
        let meta = metas
            .get(&name)
            .ok_or_else(|| refused(&format!("it does not tell the shape of its input {name}")))?;
        let kind = kind_of(meta.dtype)
            .ok_or_else(|| refused(&format!("the type of its input {name} is not known")))?;
        let range = match meta.sizes.first() {
            Some(Size::AsExpr(expression)) => ranges.get(symbol(&expression.expr_str)),
            Some(Size::AsInt(rows)) => {
                return Err(refused(&format!(
                    "its input {name} always has {rows} rows; export it with dynamic_shapes, whose first dimension is a \
                     torch.export.Dim"
                )));
            }
            None => return Err(refused(&format!("its input {name} has no rows"))),
        };
        Ok(UserInput {
            slot,
            kind,
            sizes: meta.sizes[1..].iter().map(Size::fixed).collect(),
            min_rows: range.and_then(|range| range.min_val).unwrap_or(0),
            max_rows: range.and_then(|range| range.max_val).unwrap_or(i64::MAX),
            name,
        })
    }

    /// Refuses what the graph was not made for: its operators would compute something else, or read past the end.
    fn check(&self, tensor: &Tensor) -> Result<(), TorchError> {
        let sizes = tensor.size();
        let fits = sizes.len() == self.sizes.len() + 1
            && self
                .sizes
                .iter()
                .zip(&sizes[1..])
                .all(|(wanted, size)| wanted.is_none_or(|wanted| wanted == *size));
        if !fits || tensor.kind() != self.kind {
            let wanted: Vec<String> = self
                .sizes
                .iter()
                .map(|size| size.map_or("any".to_string(), |size| size.to_string()))
                .collect();
            return Err(TorchError::Data(format!(
                "the exported program takes {} as {:?} with rows of shape [{}], not {:?} with rows of shape {:?}",
                self.name,
                self.kind,
                wanted.join(", "),
                tensor.kind(),
                sizes.get(1..).unwrap_or_default()
            )));
        }
        if sizes[0] < self.min_rows || sizes[0] > self.max_rows {
            let most = if self.max_rows == i64::MAX {
                String::new()
            } else {
                format!(" and at most {}", self.max_rows)
            };
            return Err(TorchError::Data(format!(
                "the exported program takes at least {}{most} rows at a time, not {}; export it with \
                 torch.export.Dim(\"rows\", min=1)",
                self.min_rows, sizes[0]
            )));
        }
        Ok(())
    }
}

/// The tensors that are no weights.
fn constant_names(archive: &Archive<'_>) -> Vec<String> {
    let specs = &archive.model.graph_module.signature.input_specs;
    specs
        .iter()
        .filter_map(|spec| match spec {
            InputSpec::TensorConstant {
                tensor_constant_name,
                ..
            } => Some(tensor_constant_name.clone()),
            _ => None,
        })
        .collect()
}

/// The name of a symbol, from `Symbol('s0', integer=True)` or `s0`.
fn symbol(expression: &str) -> &str {
    expression
        .strip_prefix("Symbol('")
        .and_then(|rest| rest.split('\'').next())
        .unwrap_or(expression)
}

/// What an operator said.
fn failed(label: &str, message: &str) -> TorchError {
    TorchError::Torch(format!("{label}: {message}"))
}
