"""What trains a module, made of the objects that the user gave: what it is trained for, its optimizer and
the schedules of that.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from flambeau._module import lightning, losses, metrics, optimizers, steps
from flambeau._module.checks import check_forward, check_module
from flambeau._module.compiled import CompiledModule
from flambeau._module.layout import Layout
from flambeau._module.objectives import Forward, Objective, OfLoss, OfOutput, has_own_loss
from flambeau._module.position import Position
from flambeau._module.schedules import Schedule, of_factory
from flambeau._module.steps import Steps
from flambeau._module.uncompiled import uncompiled
from flambeau._saved.program import by_keyword
from flambeau.errors import ParamError

CONFIGURE = "configure_optimizers"

TWO_SCHEDULES = (
    "the learning rate has a schedule of torch's: leave lrSchedule, warmupEpochs and scaleLearningRate out"
)


def objective_of(
    program: Mapping[str, Any], layout: Layout, position: Position, compiled: CompiledModule | None = None
) -> tuple[Forward, Objective]:
    """How the module is called, and what it is trained for. Raises ParamError and DataError for objects that
    do not go together, and inputs that forward does not take.
    """
    module, loss = program["model"], program.get("loss")
    if lightning.base_of(module) is not None:
        lightning.check(module)
    names = [one.name for one in layout.inputs] if layout.by_name else None
    keywords = names if names is not None and by_keyword(module, names) else None
    forward = Forward(module, compiled or module, keywords)
    if not steps.has_steps(module):
        if lightning.has_own(module, steps.VALIDATION):
            raise ParamError(
                f"model: {type(module).__name__} has a validation_step and no training_step, and would be "
                "evaluated by the loss: define training_step too, or leave validation_step out"
            )
        check_forward(module, [(one.name, one.columns) for one in layout.inputs], keywords)
        if loss is None and has_own_loss(module):
            return forward, OfOutput(forward)
        return forward, OfLoss(forward, losses.build(loss), names)
    for name in ("loss", "metrics"):
        if program.get(name) is not None:
            raise ParamError(
                f"{name}: {type(module).__name__} has a training_step, which makes the loss and logs metrics "
                f"and is used: leave {name} out, or give a module without a training_step"
            )
    if compiled is not None:
        raise ParamError(
            "compile is True, and the model has a training_step, which calls its own parts: leave it False, "
            "and call torch.compile where the module is made"
        )
    steps.check(module, layout)
    return forward, Steps(module, layout, position)


def optimizer_and_schedules(
    program: Mapping[str, Any], learning_rate: float | None, validates: bool, position: Position
) -> tuple[torch.optim.Optimizer, list[Schedule]]:
    """The optimizer, and torch's schedules of its learning rates, where there are any. Raises ParamError."""
    module, given = program["model"], program.get("optimizer")
    factory, interval = program.get("lrScheduler"), program.get("lrSchedulerInterval") or "epoch"
    if configures(module):
        for name in ("optimizer", "lrScheduler"):
            if program.get(name) is not None:
                raise ParamError(
                    f"{name}: {type(module).__name__} has configure_optimizers, which is used: leave {name} "
                    "out, or give a module without configure_optimizers"
                )
        if lightning.base_of(module) is not None:
            lightning.attach(module, position)
        with uncompiled():
            given, schedules = lightning.optimizer_of(module)
        if schedules:
            if learning_rate is not None:
                raise ParamError(
                    f"learningRate is {learning_rate:g}, and configure_optimizers returns a scheduler, which "
                    "sets the rate itself: leave learningRate out, or return the optimizer alone, as "
                    "findLearningRate needs it, which sets the rate of each step"
                )
            optimizers.check(given, module)
            return given, schedules
    optimizer = optimizers.build(given, module, learning_rate)
    return optimizer, of_factory(factory, interval, optimizer, validates)


def makes_loss(module: Any) -> bool:
    """Whether a module makes a loss of its own."""
    return steps.has_steps(module) or (isinstance(module, nn.Module) and has_own_loss(module))


def configures(module: Any) -> bool:
    """Whether a module has a configure_optimizers of its own, and one that is called as Lightning calls it:
    without arguments.
    """
    return lightning.has_own(module, CONFIGURE) and not any(
        one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        for one in inspect.signature(module.configure_optimizers).parameters.values()
    )


def check_program(
    program: Mapping[str, Any], layout: Layout, learning_rate: float | None = None, has_schedule: bool = False
) -> None:
    """Refuses, before any worker starts, what `ModuleModel` would refuse of such batches. `has_schedule` says
    whether the job changes the learning rate. Leaves the module's parameters and buffers as they were.
    """
    module = program["model"]
    check_module(module)
    objective_of(program, layout, Position())
    metrics.build(program.get("metrics"))
    _, schedules = optimizer_and_schedules(program, learning_rate, layout.validates, Position())
    if schedules and has_schedule:
        raise ParamError(TWO_SCHEDULES)
