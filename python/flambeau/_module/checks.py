"""What of a module can't be trained, found before anything is."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flambeau._saved.program import call
from flambeau.errors import DataError, ParamError

_GRADIENT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one piece of memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(
        (st, si) for st, si in zip(tensor.stride(), tensor.shape, strict=True) if si > 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def trainable(module: nn.Module) -> tuple[list[str], list[nn.Parameter]]:
    """The names of the parameters that are trained, and the parameters."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad and p.numel() > 0]
    return [name for name, _ in named], [parameter for _, parameter in named]


def check_module(module: Any) -> None:
    """Refuses, by name and with what to do, what can't be trained data-parallel."""
    if not isinstance(module, nn.Module):
        raise ParamError(f"model: expected a torch.nn.Module, got {type(module).__name__}")
    if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise ParamError(
            f"model: give the plain module, not the one wrapped in {type(module).__name__}: pass model.module"
        )
    for name, child in module.named_modules():
        if isinstance(child, nn.Embedding | nn.EmbeddingBag) and child.sparse:
            raise ParamError(
                f"model: {name} makes sparse gradients, which are not supported; make it with sparse=False"
            )
        if isinstance(child, nn.SyncBatchNorm):
            raise ParamError(
                f"model: {name} is a SyncBatchNorm, which is not supported; use BatchNorm, which "
                "takes each rank's rows"
            )
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            raise ParamError(
                f"model: {name} is not initialised yet; call the module once on example inputs first"
            )
        if tensor.is_sparse:
            raise ParamError(f"model: {name} is a sparse tensor, which is not supported; use a dense one")
        if tensor.device.type != "cpu":
            raise ParamError(
                f"model: {name} is on {tensor.device}, but must come from the CPU: pass model.cpu(); each "
                "worker moves it to its own device"
            )
    names, parameters = trainable(module)
    for name, parameter in zip(names, parameters, strict=True):
        if parameter.is_complex():
            raise ParamError(
                f"model: {name} is complex, which is not supported; keep real and imaginary parts "
                "as two parameters"
            )
        if parameter.dtype not in _GRADIENT_DTYPES:
            raise ParamError(
                f"model: {name} has dtype {parameter.dtype}; trainable ones are float32, float64, "
                "float16 or bfloat16"
            )
        if not is_dense(parameter):
            raise ParamError(
                f"model: {name} has elements that share memory; make it a parameter of its own with .clone()"
            )
    if not parameters:
        raise ParamError("model: no parameter is trainable; at least one must have requires_grad=True")


def check_forward(
    module: nn.Module, inputs: Sequence[tuple[str, Sequence[str]]], keywords: Sequence[str] | None = None
) -> None:
    """Refuses inputs that `forward` can't take, by position or by these names, naming both."""
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return  # compiled code without a signature: the first batch will tell
    try:
        call(signature.bind, inputs, keywords)
    except TypeError as error:
        given = ", ".join(f"{name} (from {', '.join(columns)})" for name, columns in inputs)
        raise DataError(
            f"the model's forward{signature} can't be called with the {len(inputs)} input "
            f"tensors {given}: {error}; "
            "inputCols gives one tensor per argument, featuresCol one tensor in all"
        ) from None
