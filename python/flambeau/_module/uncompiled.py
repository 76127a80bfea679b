"""torch's optimizers without torch's compiler.

To tell the compiler to leave it alone, an optimizer imports `torch._dynamo` where it is made, in each step
and where its state is read. In a process that compiles nothing, that import takes nearly as long as torch's
own: 1.1 s to 1.5 s after 1.4 s to 1.5 s, of a first fit that takes some 6 s outside its loop (torch 2.13, 2
cores). What is here leaves it out. Where the compiler is loaded already, and where torch is laid out
otherwise, torch's own way is taken.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

COMPILER = "torch._dynamo"

_DISABLED = ("add_param_group", "load_state_dict", "state_dict")
"""The methods of an optimizer that the compiler is not to trace."""

_KNOWN_AS = "__dynamo_disable"
"""Where `torch._disable_dynamo` keeps, on such a function, the one that it calls instead."""


@contextmanager
def uncompiled() -> Iterator[None]:
    """In the block, optimizers are made, and their state is read and taken, without the compiler."""
    if COMPILER in sys.modules:
        yield
        return
    methods = [getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None) for name in _DISABLED]
    plain = [method for method in methods if method is not None and not hasattr(method, _KNOWN_AS)]
    for method in plain:
        setattr(method, _KNOWN_AS, method)
    try:
        yield
    finally:
        for method in plain:
            method.__dict__.pop(_KNOWN_AS, None)


def step_of(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """A step of an optimizer that nobody else holds, which is one of torch's own classes.

    It is the class's own step without what torch puts around it for profilers, hooks and the compiler.
    """
    step = inspect.unwrap(type(optimizer).step)
    if COMPILER in sys.modules or _has_global_hooks() or not _is_plain_step(step):
        return optimizer.step

    differentiable = bool(optimizer.defaults.get("differentiable", False))

    def plain_step() -> None:
        with torch.set_grad_enabled(differentiable):
            step(optimizer)

    return plain_step


def _is_plain_step(step: Any) -> bool:
    """Whether a function is the step itself: it takes the optimizer and perhaps a closure."""
    return inspect.isfunction(step) and list(inspect.signature(step).parameters) in (
        ["self"],
        ["self", "closure"],
    )


def _has_global_hooks() -> bool:
    """Whether the process has hooks that every optimizer's step is to call."""
    module = sys.modules[torch.optim.Optimizer.__module__]
    names = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    return any(getattr(module, name, True) for name in names)
