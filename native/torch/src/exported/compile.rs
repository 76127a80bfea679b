//! Makes the steps of a graph: values in numbered slots, operators looked up, constant arguments converted.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;

use serde::Deserialize;
use serde_json::Value as Json;

use super::archive::refused;
use super::dispatch::{Call, Mode, Return, Value};
use super::numbers::{Number, Operation};
use super::schema::{self, Argument, Graph, Node, OptionalTensor, Symbolic};
use super::training::ModeFlag;
use crate::error::TorchError;

/// One step of a graph.
pub(super) enum Step {
    /// An operator of libtorch.
    Call { call: Call, label: String },
    /// Arithmetic on sizes.
    Number {
        operation: Operation,
        operands: Vec<Operand>,
        slot: usize,
        label: String,
    },
    /// From here on a mode holds.
    Enter(Mode),
    /// The mode that was entered last ends.
    Leave,
}

/// A number that is known, or the slot that it is in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operand {
    Constant(Number),
    Slot(usize),
}

/// What a graph came to.
pub(super) struct Steps {
    pub steps: Vec<Step>,
    pub num_slots: usize,
    /// The graph's outputs.
    pub outputs: Vec<Value>,
    /// The operators that do one thing in training and another in evaluation.
    pub mode_flags: Vec<ModeFlag>,
    /// The names of all operators, such as `aten::add`.
    pub operators: Vec<String>,
    /// The slots whose values are written to, those of inputs among them.
    pub written: HashSet<usize>,
}

/// Compiles a graph whose inputs, by name, are in the slots that are given; slots from `num_slots` on are free.
pub(super) fn compile(
    graph: &Graph,
    inputs: HashMap<String, usize>,
    num_slots: usize,
) -> Result<Steps, TorchError> {
    let mut compiler = Compiler {
        num_slots,
        drafts: vec![],
        mode_flags: vec![],
        operators: vec![],
        memory_of: HashMap::new(),
        written: HashSet::new(),
    };
    let mut scope = Scope {
        names: inputs
            .into_iter()
            .map(|(name, slot)| (name, Value::Slot(slot)))
            .collect(),
    };
    compiler.graph(graph, &mut scope)?;
    let outputs = graph
        .outputs
        .iter()
        .map(|output| scope.value(output, "the output"))
        .collect::<Result<Vec<_>, _>>()?;
    let mut held = vec![false; compiler.num_slots];
    outputs.iter().for_each(|value| mark(value, &mut held));
    Ok(Steps {
        steps: finish(compiler.drafts, held),
        num_slots: compiler.num_slots,
        outputs,
        mode_flags: compiler.mode_flags,
        operators: compiler.operators,
        written: compiler.written,
    })
}

/// A step whose last uses of values are not known yet.
enum Draft {
    Call {
        call: Call,
        label: String,
        uses: Vec<usize>,
        returns: Vec<Return>,
    },
    Step {
        step: Step,
        uses: Vec<usize>,
    },
}

struct Compiler {
    num_slots: usize,
    drafts: Vec<Draft>,
    mode_flags: Vec<ModeFlag>,
    operators: Vec<String>,
    /// For a slot whose value lies in the memory of others', the slots of these.
    memory_of: HashMap<usize, HashSet<usize>>,
    written: HashSet<usize>,
}

/// The names that a graph or a graph inside it sees.
struct Scope {
    names: HashMap<String, Value>,
}

impl Compiler {
    fn slot(&mut self) -> usize {
        self.num_slots += 1;
        self.num_slots - 1
    }

    fn graph(&mut self, graph: &Graph, scope: &mut Scope) -> Result<(), TorchError> {
        graph
            .nodes
            .iter()
            .try_for_each(|node| self.node(node, scope))
    }

    fn node(&mut self, node: &Node, scope: &mut Scope) -> Result<(), TorchError> {
        let label = label_of(node);
        if let Some(operation) = Operation::of(&node.target) {
            self.number(node, operation, label, scope)
        } else if let Some(name) = node.target.strip_prefix("torch.ops.higher_order.") {
            self.higher_order(node, name, &label, scope)
        } else if let Some(name) = node.target.strip_prefix("torch.ops.") {
            self.call(node, name, label, scope)
        } else {
            Err(refused(&format!(
                "{label} is a function of Python's, not an operator of libtorch"
            )))
        }
    }

    fn number(
        &mut self,
        node: &Node,
        operation: Operation,
        label: String,
        scope: &mut Scope,
    ) -> Result<(), TorchError> {
        let mut operands = vec![];
        for input in &node.inputs {
            operands.push(match scope.value(&input.arg, &label)? {
                Value::Slot(slot) => Operand::Slot(slot),
                Value::Bool(value) => Operand::Constant(Number::Bool(value)),
                Value::Int(value) => Operand::Constant(Number::Int(value)),
                Value::Float(value) => Operand::Constant(Number::Float(value)),
                _ => {
                    return Err(refused(&format!(
                        "{label} computes with something else than numbers"
                    )));
                }
            });
        }
        let [output] = &node.outputs[..] else {
            return Err(refused(&format!(
                "{label} has {} outputs",
                node.outputs.len()
            )));
        };
        if operands.len() != operation.arity() {
            return Err(refused(&format!(
                "{label} takes {} numbers, not {}",
                operation.arity(),
                operands.len()
            )));
        }
        let slot = self.slot();
        scope.bind(output, Value::Slot(slot), &label)?;
        let uses = operands
            .iter()
            .filter_map(|operand| match operand {
                Operand::Slot(slot) => Some(*slot),
                Operand::Constant(_) => None,
            })
            .collect();
        self.drafts.push(Draft::Step {
            step: Step::Number {
                operation,
                operands,
                slot,
                label,
            },
            uses,
        });
        Ok(())
    }

    /// A graph inside the graph, run under a mode: its values get slots of their own, its inputs and outputs are those
    /// of the graph around it.
    fn higher_order(
        &mut self,
        node: &Node,
        name: &str,
        label: &str,
        scope: &mut Scope,
    ) -> Result<(), TorchError> {
        let malformed = || {
            refused(&format!(
                "{label} has other arguments than this version knows"
            ))
        };
        let arguments = node
            .inputs
            .iter()
            .map(|input| parsed(&input.arg, label))
            .collect::<Result<Vec<_>, _>>()?;
        let (mode, rest) = match (name, &arguments[..]) {
            ("wrap_with_set_grad_enabled", [Argument::AsBool(enabled), rest @ ..]) => {
                (Mode::Gradients(*enabled), rest)
            }
            (
                "wrap_with_autocast",
                [
                    Argument::AsString(device_type),
                    dtype,
                    Argument::AsBool(enabled),
                    cache,
                    rest @ ..,
                ],
            ) => {
                let scalar_type = match dtype {
                    Argument::AsNone(_) => None,
                    Argument::AsScalarType(dtype) => {
                        Some(schema::scalar_type(*dtype).ok_or_else(malformed)? as i32)
                    }
                    _ => return Err(malformed()),
                };
                let device_type = CString::new(device_type.as_str()).map_err(|_| malformed())?;
                let cache_enabled = !matches!(cache, Argument::AsBool(false));
                (
                    Mode::Autocast {
                        device_type,
                        enabled: *enabled,
                        scalar_type,
                        cache_enabled,
                    },
                    rest,
                )
            }
            ("wrap_with_set_grad_enabled" | "wrap_with_autocast", _) => return Err(malformed()),
            _ => {
                return Err(refused(&format!(
                    "{label} is a higher-order operator, which is not run natively"
                )));
            }
        };
        let [Argument::AsGraph(inner), operands @ ..] = rest else {
            return Err(malformed());
        };
        if operands.len() != inner.graph.inputs.len()
            || node.outputs.len() != inner.graph.outputs.len()
        {
            return Err(malformed());
        }
        let mut names = Scope {
            names: HashMap::new(),
        };
        for (input, operand) in inner.graph.inputs.iter().zip(operands) {
            names.bind(input, scope.value_of(operand, label)?, label)?;
        }
        self.drafts.push(Draft::Step {
            step: Step::Enter(mode),
            uses: vec![],
        });
        self.graph(&inner.graph, &mut names)?;
        self.drafts.push(Draft::Step {
            step: Step::Leave,
            uses: vec![],
        });
        for (output, value) in node.outputs.iter().zip(&inner.graph.outputs) {
            scope.bind(output, names.value(value, label)?, label)?;
        }
        Ok(())
    }

    fn call(
        &mut self,
        node: &Node,
        name: &str,
        label: String,
        scope: &mut Scope,
    ) -> Result<(), TorchError> {
        let said = |message: String| refused(&format!("{label}: {message}"));
        let (operator, overload) =
            operator_of(name).ok_or_else(|| said("no name of an operator".to_string()))?;
        let mut call = Call::new(&operator, overload).map_err(said)?;
        let names = call.argument_names();
        let mut values = HashMap::new();
        let mut shared: HashSet<usize> = HashSet::new();
        for input in &node.inputs {
            let index = names
                .iter()
                .position(|name| *name == input.name)
                .ok_or_else(|| said(format!("it has no argument {}", input.name)))?;
            let value = scope.value(&input.arg, &label)?;
            call.set(index, &value)
                .map_err(|message| said(format!("{} {message}", input.name)))?;
            if let (true, writes) = call.aliases(index) {
                let memory = self.memory(&value);
                if writes {
                    self.written.extend(&memory);
                }
                shared.extend(&memory);
            }
            values.insert(names[index], value);
        }
        call.check().map_err(said)?;
        self.mode_flags
            .extend(ModeFlag::of(&label, &operator, &values));
        if !node.outputs.is_empty() && node.outputs.len() != call.num_returns() {
            return Err(said(format!(
                "it returns {} values, not {}",
                call.num_returns(),
                node.outputs.len()
            )));
        }
        let mut returns = vec![];
        for output in &node.outputs {
            returns.push(match parsed(output, &label)? {
                Argument::AsNone(_) => Return::One(None),
                Argument::AsTensors(outputs) => Return::List(
                    outputs
                        .into_iter()
                        .map(|output| {
                            let slot = self.slot();
                            scope.names.insert(output.name, Value::Slot(slot));
                            Some(slot)
                        })
                        .collect(),
                ),
                _ => {
                    let slot = self.slot();
                    scope.bind(output, Value::Slot(slot), &label)?;
                    Return::One(Some(slot))
                }
            });
        }
        for target in &returns {
            let slots = match target {
                Return::One(slot) => std::slice::from_ref(slot),
                Return::List(slots) => slots.as_slice(),
            };
            for slot in slots.iter().flatten() {
                self.memory_of.insert(*slot, shared.clone());
            }
        }
        let mut held = vec![false; self.num_slots];
        values.values().for_each(|value| mark(value, &mut held));
        let uses = (0..held.len()).filter(|&slot| held[slot]).collect();
        if !self.operators.contains(&operator) {
            self.operators.push(operator);
        }
        self.drafts.push(Draft::Call {
            call,
            label,
            uses,
            returns,
        });
        Ok(())
    }
}

impl Compiler {
    /// The slots in whose memory a value may lie.
    fn memory(&self, value: &Value) -> HashSet<usize> {
        let mut held = vec![false; self.num_slots];
        mark(value, &mut held);
        let slots = (0..held.len()).filter(|&slot| held[slot]);
        slots
            .flat_map(|slot| {
                let others = self.memory_of.get(&slot).into_iter().flatten().copied();
                others.chain([slot])
            })
            .collect()
    }
}

impl Scope {
    /// The value of an argument, given as JSON.
    fn value(&self, argument: &Json, label: &str) -> Result<Value, TorchError> {
        self.value_of(&parsed(argument, label)?, label)
    }

    fn value_of(&self, argument: &Argument, label: &str) -> Result<Value, TorchError> {
        let named = |name: &str| {
            self.names.get(name).cloned().ok_or_else(|| {
                refused(&format!(
                    "{label} uses {name}, which nothing computes before it"
                ))
            })
        };
        let optional = |value: &OptionalTensor| match value {
            OptionalTensor::AsTensor(tensor) => named(&tensor.name),
            OptionalTensor::AsNone(_) => Ok(Value::None),
        };
        let symbolic = |value: &Symbolic| match value {
            Symbolic::AsName(name) => named(name),
            Symbolic::AsInt(value) => Ok(Value::Int(*value)),
            Symbolic::AsFloat(value) => Ok(Value::Float(value.0)),
            Symbolic::AsBool(value) => Ok(Value::Bool(*value)),
        };
        let unknown = |what: &str, number: i64| {
            refused(&format!("{label} has {what} {number}, which is not known"))
        };
        Ok(match argument {
            Argument::AsNone(_) => Value::None,
            Argument::AsTensor(tensor) => named(&tensor.name)?,
            Argument::AsTensors(tensors) => list(tensors, |tensor| named(&tensor.name))?,
            Argument::AsOptionalTensor(tensor) => optional(tensor)?,
            Argument::AsOptionalTensors(tensors) => list(tensors, optional)?,
            Argument::AsInt(value) => Value::Int(*value),
            Argument::AsInts(values) => list(values, |value| Ok(Value::Int(*value)))?,
            Argument::AsFloat(value) => Value::Float(value.0),
            Argument::AsFloats(values) => list(values, |value| Ok(Value::Float(value.0)))?,
            Argument::AsBool(value) => Value::Bool(*value),
            Argument::AsBools(values) => list(values, |value| Ok(Value::Bool(*value)))?,
            Argument::AsString(value) => Value::String(value.clone()),
            Argument::AsStrings(values) => list(values, |value| Ok(Value::String(value.clone())))?,
            Argument::AsComplex(value) => Value::Complex(value.real.0, value.imag.0),
            Argument::AsSymInt(value)
            | Argument::AsSymFloat(value)
            | Argument::AsSymBool(value) => symbolic(value)?,
            Argument::AsSymInts(values)
            | Argument::AsSymFloats(values)
            | Argument::AsSymBools(values) => list(values, symbolic)?,
            Argument::AsScalarType(value) => Value::ScalarType(
                schema::scalar_type(*value).ok_or_else(|| unknown("the type", *value))?,
            ),
            Argument::AsLayout(value) => {
                Value::Layout(schema::layout(*value).ok_or_else(|| unknown("the layout", *value))?)
            }
            Argument::AsMemoryFormat(value) => Value::MemoryFormat(
                schema::memory_format(*value)
                    .ok_or_else(|| unknown("the memory format", *value))?,
            ),
            Argument::AsDevice(device) => Value::Device(match device.index {
                Some(index) => format!("{}:{index}", device.kind),
                None => device.kind.clone(),
            }),
            Argument::AsGraph(_) => return Err(refused(&format!("{label} takes a graph"))),
        })
    }

    /// Gives the name that an output or an input declares to a value.
    fn bind(&mut self, declared: &Json, value: Value, label: &str) -> Result<(), TorchError> {
        match parsed(declared, label)? {
            Argument::AsTensor(tensor) => {
                self.names.insert(tensor.name, value);
            }
            Argument::AsSymInt(Symbolic::AsName(name))
            | Argument::AsSymFloat(Symbolic::AsName(name))
            | Argument::AsSymBool(Symbolic::AsName(name)) => {
                self.names.insert(name, value);
            }
            Argument::AsTensors(_) | Argument::AsGraph(_) => {
                return Err(refused(&format!(
                    "{label} passes a list or a graph where a tensor or a number is expected"
                )));
            }
            // A constant in the place of a name: nothing refers to it.
            _ => {}
        }
        Ok(())
    }
}

/// The steps, each with the values that are not needed after it: they are released while it runs.
fn finish(drafts: Vec<Draft>, mut held: Vec<bool>) -> Vec<Step> {
    let mut steps = vec![];
    for draft in drafts.into_iter().rev() {
        steps.push(match draft {
            Draft::Step { step, uses } => {
                uses.iter().for_each(|&slot| held[slot] = true);
                step
            }
            Draft::Call {
                mut call,
                label,
                uses,
                returns,
            } => {
                let wanted = |slot: Option<usize>| slot.filter(|&slot| held[slot]);
                for (index, target) in returns.iter().enumerate() {
                    call.set_return(
                        index,
                        &match target {
                            Return::One(slot) => Return::One(wanted(*slot)),
                            Return::List(slots) => {
                                Return::List(slots.iter().map(|slot| wanted(*slot)).collect())
                            }
                        },
                    );
                }
                let last: Vec<usize> = uses.into_iter().filter(|&slot| !held[slot]).collect();
                last.iter().for_each(|&slot| held[slot] = true);
                call.release(&last);
                Step::Call { call, label }
            }
        });
    }
    steps.reverse();
    steps
}

/// Marks the slots that a value refers to.
fn mark(value: &Value, held: &mut [bool]) {
    match value {
        Value::Slot(slot) => held[*slot] = true,
        Value::List(values) => values.iter().for_each(|value| mark(value, held)),
        _ => {}
    }
}

fn list<T>(
    items: &[T],
    value: impl Fn(&T) -> Result<Value, TorchError>,
) -> Result<Value, TorchError> {
    Ok(Value::List(
        items.iter().map(value).collect::<Result<_, _>>()?,
    ))
}

fn parsed(argument: &Json, label: &str) -> Result<Argument, TorchError> {
    Argument::deserialize(argument).map_err(|error| {
        refused(&format!(
            "{label} has an argument that this version does not know: {error}"
        ))
    })
}

/// `aten::add` and `Tensor` of `aten.add.Tensor`; the overload `default` is the one without a name.
fn operator_of(name: &str) -> Option<(String, &str)> {
    let mut parts = name.split('.');
    let (namespace, operator) = (parts.next()?, parts.next()?);
    let overload = parts
        .next()
        .filter(|overload| *overload != "default")
        .unwrap_or("");
    parts
        .next()
        .is_none()
        .then(|| (format!("{namespace}::{operator}"), overload))
}

/// What errors call a node: its name and its operator.
fn label_of(node: &Node) -> String {
    let target = node
        .target
        .strip_prefix("torch.ops.")
        .unwrap_or(&node.target);
    match node.name.as_deref().or_else(|| first_name(&node.outputs)) {
        Some(name) => format!("node {name} ({target})"),
        None => format!("a node ({target})"),
    }
}

fn first_name(outputs: &[Json]) -> Option<&str> {
    let value = outputs.first()?.as_object()?.values().next()?;
    value.get("name").or_else(|| value.get("as_name"))?.as_str()
}
