"""Optimizers: a name, a factory or an instance, made into the one torch optimizer that a rank steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from flambeau._module.named import is_named, make
from flambeau._module.uncompiled import step_of, uncompiled
from flambeau.errors import ParamError

_NAMED: dict[str, type[torch.optim.Optimizer]] = {
    "adadelta": torch.optim.Adadelta,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}

NAMES: tuple[str, ...] = tuple(sorted(_NAMED))
"""The names that `optimizer` accepts."""


def build(optimizer: Any, module: nn.Module, learning_rate: float | None) -> torch.optim.Optimizer:
    """The optimizer for what the user gave, over `module`'s trainable parameters.

    A name gives torch's optimizer with torch's defaults, fused where torch has it on the parameters' device;
    `{"name", "options"}` gives it with other options.
    A callable is called with the list of trainable parameters. An instance must have been made over
    `module`'s own parameters, and is used as it is. `learning_rate` overrides the learning rate of every
    parameter group. Raises `ParamError`, saying what to do instead, for what can't be trained data-parallel.
    """
    with uncompiled():
        built = _make(optimizer, module)
    check(built, module)
    for group in built.param_groups:
        if learning_rate is not None:
            _set_rate(group, learning_rate)
        # As torch's schedulers keep it, so that it is part of the optimizer's state.
        if group.get("lr") is not None:
            group["initial_lr"] = float(group["lr"])
    return built


def learning_rate(optimizer: torch.optim.Optimizer) -> Any:
    """The present learning rate of the first parameter group, a number or a tensor; None where it has
    none.
    """
    rate = optimizer.param_groups[0].get("lr")
    return rate.clone() if isinstance(rate, torch.Tensor) else rate


def scale_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Sets the learning rate of every parameter group to so much of what it was made with.

    Raises `ParamError` for a group without one.
    """
    for group in optimizer.param_groups:
        if "initial_lr" not in group:
            raise ParamError(
                f"optimizer: {type(optimizer).__name__} has no learning rate that lrSchedule, warmupEpochs "
                "or scaleLearningRate could change; leave them unset, or give it an lr"
            )
        _set_rate(group, group["initial_lr"] * factor)


def step(optimizer: Any, built: torch.optim.Optimizer) -> Callable[[], Any]:
    """What steps the optimizer that `build` made of what the user gave."""
    # Only one made of a name is ours alone: a user may have put hooks round another's steps.
    return step_of(built) if is_named(optimizer) else built.step


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group.get("lr"), torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _make(optimizer: Any, module: nn.Module) -> torch.optim.Optimizer:
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if is_named(optimizer):
        kinds = {name: partial(_fused, kind) for name, kind in _NAMED.items()}
        return make("optimizer", optimizer, kinds, parameters)
    if isinstance(optimizer, tuple | list):
        raise ParamError(
            "optimizer: several optimizers are not supported; give one with several parameter groups"
        )
    if not callable(optimizer):
        raise ParamError(
            "optimizer: expected a name, an optimizer or a callable of the parameters, got "
            f"{type(optimizer).__name__}"
        )
    built = optimizer(parameters)
    if isinstance(built, tuple | list):
        raise ParamError(
            "optimizer: the callable returned several; give one optimizer with several parameter groups"
        )
    if not isinstance(built, torch.optim.Optimizer):
        raise ParamError(
            f"optimizer: the callable returned {type(built).__name__}; it must return a torch.optim.Optimizer"
        )
    return built


def _fused(
    kind: type[torch.optim.Optimizer], parameters: list[nn.Parameter], **options: Any
) -> torch.optim.Optimizer:
    if _has_fused(kind):
        try:
            return kind(parameters, **({"fused": True} | options))
        except (RuntimeError, NotImplementedError):
            pass  # torch has no fused kernel for this device or dtype
    return kind(parameters, **options)


def _has_fused(kind: type[torch.optim.Optimizer]) -> bool:
    """Whether torch has a fused kernel wherever the parameters may be moved to after the optimizer is made.

    Torch had none of Adagrad's for CUDA at first, and said so no earlier than in the first step.
    """
    if "fused" not in inspect.signature(kind).parameters:
        return False
    kernel = f"aten::_fused_{kind.__name__.lower()}_"
    return torch.version.cuda is None or torch._C._dispatch_has_kernel_for_dispatch_key(kernel, "CUDA")


def check(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Raises ParamError for an optimizer that can't train a module data-parallel."""
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ParamError("optimizer: SparseAdam needs sparse gradients, which are not supported; use Adam")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or (closure and closure.default is inspect.Parameter.empty):
        raise ParamError(
            f"optimizer: {name} evaluates the loss several times a step through a closure, "
            "which is not supported; "
            "use one that steps once, such as AdamW"
        )
    own = {id(parameter) for parameter in module.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(id(parameter) not in own for parameter in held):
        raise ParamError(
            f"optimizer: {name} holds parameters that are not the model's: "
            "make it over the same module that is given as model, or give a callable such as "
            "lambda params: AdamW(params)"
        )
    if not any(parameter.requires_grad for parameter in held):
        raise ParamError(f"optimizer: {name} holds no trainable parameter of the model")
