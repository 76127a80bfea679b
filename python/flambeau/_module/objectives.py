"""What a batch comes to: the module's output under a loss, or the loss that the module has of its own.

An objective is called with a batch and returns `(output, value, denominator)`: what metrics are made of, and
a loss as `flambeau._module.losses` describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from flambeau._module import losses
from flambeau._module.devices import TensorBatch
from flambeau._module.losses import HostFacts
from flambeau._saved.program import argument_names, call
from flambeau.errors import DataError, ParamError


class Objective(Protocol):
    """What is trained for."""

    name: str
    """What it is in messages."""
    threshold: float
    several: bool
    tells: bool

    @property
    def ignore_index(self) -> int | None:
        """The label that does not count."""

    def __call__(self, batch: TensorBatch, training: bool) -> tuple[Any, Tensor, float]:
        """Output, value and denominator of a batch, in training mode or of validation rows."""

    def on_host(self, labels: list[Tensor], weight: Tensor | None) -> tuple[list[Tensor], HostFacts]:
        """As a loss has it."""

    def to(self, device: torch.device) -> None:
        """Moves what it holds beside the module."""


class Forward:
    """Calls a module with the inputs of a batch: by position, or where it takes `keywords`, by these
    names.
    """

    def __init__(
        self, module: nn.Module, compiled: Callable[..., Any], keywords: Sequence[str] | None
    ) -> None:
        self._module = module
        self._compiled = compiled
        self._keywords = keywords

    def __call__(self, inputs: Sequence[Tensor], training: bool = False, **more: Any) -> Any:
        """What the module returns; what is called in training may be compiled."""
        return call(self._compiled if training else self._module, inputs, self._keywords, **more)


class OfLoss:
    """A loss of the module's output, the labels, and the inputs where it takes these; `names` are the
    inputs', where they have any.
    """

    def __init__(self, forward: Forward, loss: losses.Loss, names: Sequence[str] | None) -> None:
        self.name = getattr(loss, "name", "the loss")
        self.threshold, self.several, self.tells = loss.threshold, loss.several, loss.tells
        self._forward, self._loss, self._names = forward, loss, names

    @property
    def ignore_index(self) -> int | None:
        return self._loss.ignore_index

    def __call__(self, batch: TensorBatch, training: bool) -> tuple[Any, Tensor, float]:
        output = self._forward(batch.inputs, training)
        loss = self._loss
        if isinstance(loss, losses.InputsLoss):
            loss = loss.of(together(batch.inputs, self._names))
        return output, *loss(output, batch.labels, batch.weight, batch.num_rows, batch.facts)

    def on_host(self, labels: list[Tensor], weight: Tensor | None) -> tuple[list[Tensor], HostFacts]:
        return self._loss.on_host(labels, weight)

    def to(self, device: torch.device) -> None:
        self._loss.to(device)


class OfOutput:
    """The loss that a module returns where it is called with `labels`, as transformers' models do: the mean
    over the rows of a batch.
    """

    name = "the model's own loss"
    threshold = 0.0
    several = False
    tells = True
    ignore_index: int | None = None

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def __call__(self, batch: TensorBatch, training: bool) -> tuple[Any, Tensor, float]:
        if len(batch.labels) != 1:
            raise DataError(
                f"the model's forward takes one tensor as labels, and there are {len(batch.labels)}: give "
                "one column as labelCol, or a loss"
            )
        if batch.weight is not None:
            raise ParamError(weightless("the model's own loss"))
        output = self._forward(batch.inputs, training, labels=batch.labels[0])
        value = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ParamError(
                f"model: forward, called with labels, returns {type(output).__name__} without a loss that is "
                "one number; give a loss"
            )
        rest = output
        if isinstance(output, Mapping):
            rest = {name: part for name, part in output.items() if name != "loss"}
        return rest, value.reshape(()), float(batch.num_rows)

    def on_host(self, labels: list[Tensor], weight: Tensor | None) -> tuple[list[Tensor], HostFacts]:
        return labels, HostFacts()

    def to(self, device: torch.device) -> None:
        """Nothing is held beside the module."""


def has_own_loss(module: nn.Module) -> bool:
    """Whether a module's forward takes labels."""
    return "labels" in argument_names(module)


def together(tensors: Sequence[Tensor], names: Sequence[str] | None) -> Any:
    """A batch's inputs, as a user's code gets them: by name, or the one, or a tuple of several."""
    if names is not None:
        return dict(zip(names, tensors, strict=True))
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def weightless(what: str) -> str:
    """Why rows may have no weights."""
    return f"weightCol is set, but {what} is one number a batch, which can't be weighted: unset it"
