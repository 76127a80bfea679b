"""What a user's loss or metric holds, moved to the device that the module trains on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, MutableMapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn


def move(function: Callable[..., Any], device: torch.device) -> None:
    """Moves a module's tensors, and those that a function captures, a partial fixes, or an object has as
    attributes. Tensors inside of containers stay where they are.
    """
    if isinstance(function, nn.Module):
        function.to(device)
    elif isinstance(function, functools.partial):
        partial: Any = function
        move(partial.func, device)
        _move_values(partial.keywords, device)
        arguments = tuple(_moved(one, device) for one in partial.args)
        partial.__setstate__((partial.func, arguments, partial.keywords, partial.__dict__))
    elif isinstance(function, MethodType):
        owner: Any = function.__self__
        move(owner, device)
    elif isinstance(function, FunctionType):
        for cell in function.__closure__ or ():
            cell.cell_contents = _moved(cell.cell_contents, device)
        home = sys.modules.get(function.__module__)
        # A function that was pickled by value has globals of its own, those that it uses.
        if home is None or vars(home) is not function.__globals__:
            _move_values(function.__globals__, device)
    elif isinstance(getattr(function, "__dict__", None), dict):
        _move_values(vars(function), device)


def _move_values(values: MutableMapping[str, Any], device: torch.device) -> None:
    for name, value in values.items():
        values[name] = _moved(value, device)


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor | nn.Module) else value
