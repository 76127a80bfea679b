"""A module that torch.compile compiles, for as long as it can."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flambeau._module import generators

_MAX_LINES = 3


class CompiledModule:
    """Calls a module in training, compiled; where compiling it fails, as it is from then on.

    Forward and backward are compiled when they first meet a batch of some size. So a copy of such a batch
    goes through both on trial, before it counts: a failure then leaves no gradient, no statistic of a batch
    norm and no random number behind.
    """

    def __init__(self, module: nn.Module) -> None:
        self.warning: str | None = None
        """Why the module runs as it is, None while it runs compiled."""
        self._module = module
        self._compiled: Callable[..., Any] | None = None
        self._tried: set[tuple[torch.Size, ...]] = set()

    def __call__(self, *inputs: Tensor, **named: Tensor) -> Any:
        """What the module returns. Takes seconds to minutes on the first batch of a size."""
        shapes = tuple(tensor.shape for tensor in (*inputs, *named.values()))
        if self.warning is None and shapes not in self._tried:
            self._try(inputs, named)
            self._tried.add(shapes)
        called = self._module if self._compiled is None else self._compiled
        return called(*inputs, **named)

    def _try(self, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        drawn_from = generators.state()
        buffers = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        try:
            if self._compiled is None:
                self._compiled = torch.compile(self._module)
            copied = {name: tensor.clone() for name, tensor in named.items()}
            _forward_and_backward(
                functools.partial(self._compiled, **copied), self._module, [one.clone() for one in inputs]
            )
        except Exception as error:
            self._compiled = None
            # What follows the first paragraph is how to debug torch.
            lines = f"{type(error).__name__}: {error}".split("\n\n")[0].splitlines()
            reason = " ".join(line.strip() for line in lines[:_MAX_LINES])
            self.warning = f"compile: torch.compile failed, and the module was trained as it is: {reason}"
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            generators.set_state(drawn_from)


def _forward_and_backward(compiled: Callable[..., Any], module: nn.Module, inputs: list[Tensor]) -> None:
    """Runs both. Gradients are given back rather than accumulated, so that no hook of a parameter runs."""
    from torch.utils._pytree import tree_leaves

    outputs = [leaf for leaf in tree_leaves(compiled(*inputs)) if isinstance(leaf, Tensor)]
    sums = [output.float().sum() for output in outputs if output.requires_grad]
    if sums:
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        torch.autograd.grad(sum(sums[1:], sums[0]), parameters, allow_unused=True)
