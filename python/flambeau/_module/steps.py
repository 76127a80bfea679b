"""A module that has its own `training_step`: a LightningModule, or a plain one.

The step gets what a DataLoader over the rows would give it: a tuple of the inputs and the labels, or where
the inputs have names, a dict of them with the labels as `labels` (several: each by its column). What it logs
becomes a metric of the epoch, the mean over its rows.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from flambeau._history import RECORD_COLUMNS
from flambeau._module import generators, lightning
from flambeau._module.devices import TensorBatch
from flambeau._module.layout import Layout
from flambeau._module.losses import HostFacts
from flambeau._module.objectives import weightless
from flambeau._module.position import Position
from flambeau._quiet import forked_rng
from flambeau._tensors import TensorColumns
from flambeau.errors import ParamError

TRAINING, VALIDATION = "training_step", "validation_step"


class Logged:
    """What a step has logged of its batch, in place of an output."""

    def __init__(self, step: str, num_rows: int, device: torch.device) -> None:
        self.step = step
        self.device = device
        self.values: dict[str, list[tuple[Any, float]]] = {}
        self._num_rows = num_rows

    def take(self, name: str, value: Any, weight: float | None = None) -> None:
        """Notes a value, which is the mean of so many rows, of those of the batch where None."""
        if self.step == VALIDATION:
            name = name.removeprefix("val_")
        kept = value.detach() if isinstance(value, Tensor) else value
        if isinstance(kept, Tensor) and kept.numel() != 1:
            raise ParamError(f"model: {name!r} is logged as a tensor of {list(kept.shape)}: log one number")
        self.values.setdefault(name, []).append((kept, self._num_rows if weight is None else weight))


class LoggedMean:
    """What is logged under a name: the mean over the rows, of training or of validation."""

    size = 2
    takes_weights = True

    def __init__(self, name: str, step: str) -> None:
        self.name = name
        self.step = step

    def to(self, device: torch.device) -> None:
        """Nothing is held."""

    def update(self, output: Logged, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        """Value times rows, and rows, where this step has logged it."""
        total = torch.zeros(2, dtype=torch.float64, device=output.device)
        for value, rows in output.values.get(self.name, ()) if output.step == self.step else ():
            total[0] += value * rows if isinstance(value, int | float) else value.reshape(()).double() * rows
            total[1] += rows
        return total

    def finish(self, sums: list[float]) -> float:
        """The mean; NaN where nothing was logged."""
        return sums[0] / sums[1] if sums[1] else float("nan")


@dataclass
class Steps:
    """The module's own steps as what is trained for.

    `names` are what each step logs, by the step; where they are not known, whatever it logs is taken.
    """

    module: nn.Module
    layout: Layout
    position: Position
    names: Mapping[str, Sequence[str]] | None = None
    name: str = field(default=TRAINING, init=False)
    threshold: float = field(default=0.0, init=False)
    several: bool = field(default=False, init=False)
    tells: bool = field(default=True, init=False)
    ignore_index: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._is_lightning = lightning.base_of(self.module) is not None
        self._left_out: list[tuple[str, str]] = []
        """What was logged under a name that is not known: the step, and the name."""
        if self._is_lightning:
            lightning.attach(self.module, self.position)

    def __call__(self, batch: TensorBatch, training: bool) -> tuple[Logged, Tensor, float]:
        """What was logged, and the loss, which is the mean over the batch's rows, or weights."""
        step = TRAINING if training else VALIDATION
        index = self.position.batch if training else self.position.validation_batch
        logged = Logged(step, batch.num_rows, batch.inputs[0].device)
        with lightning.logging_to(self.module, logged.take) if self._is_lightning else nullcontext():
            returned = _called(getattr(self.module, step), self._for_step(batch), index)
        if training:
            self.position.batch += 1
        else:
            self.position.validation_batch += 1
        value = self._loss(returned, logged)
        self._note_unknown(logged)
        if value is None:
            return logged, torch.zeros((), device=logged.device), 0.0
        return logged, value, _denominator(batch)

    def on_host(self, labels: list[Tensor], weight: Tensor | None) -> tuple[list[Tensor], HostFacts]:
        """As a loss has it."""
        return labels, HostFacts(None if weight is None else float(weight.sum(dtype=torch.float64)))

    def to(self, device: torch.device) -> None:
        """Nothing is held beside the module."""

    def metrics(self) -> list[LoggedMean]:
        """What the steps log as metrics."""
        return [LoggedMean(name, step) for step, names in (self.names or {}).items() for name in names]

    def warnings(self) -> list[str]:
        """What was logged and is no metric."""
        return [
            f"model: {step} logs {name!r}, which it did not on two rows of zeros before the training, so the "
            "history leaves it out: log the same names in each step"
            for step, name in self._left_out
        ]

    def _for_step(self, batch: TensorBatch) -> Any:
        if not self.layout.by_name:
            return (*batch.inputs, *batch.labels)
        named = dict(zip((one.name for one in self.layout.inputs), batch.inputs, strict=True))
        named |= dict(zip(self.layout.label_names(), batch.labels, strict=True))
        return named if batch.weight is None else _Noted({**named, "weight": batch.weight})

    def _loss(self, returned: Any, logged: Logged) -> Tensor | None:
        """The loss of what a step returned, in validation that which it has logged before that."""
        value = returned
        if isinstance(returned, Mapping):
            value = returned.get("loss")
            if value is None and logged.step == TRAINING:
                raise ParamError(f"model: {logged.step} returns a dict without 'loss'")
            if not self._is_lightning:
                for name, one in returned.items():
                    if name != "loss" and (
                        isinstance(one, int | float) or (isinstance(one, Tensor) and one.dim() == 0)
                    ):
                        logged.take(name, one)
        own = logged.values.pop("loss", None)
        if own is not None and logged.step == VALIDATION:
            value = sum(one * weight for one, weight in own) / sum(weight for _, weight in own)
        elif own is not None and not all(_is_same(one, value) for one, _ in own):
            raise ParamError(
                f"model: {logged.step} logs another 'loss' than it returns, whose mean is the history's "
                "loss: log it by another name"
            )
        if value is None and logged.step == VALIDATION:
            raise ParamError(
                "model: validation_step neither returns a loss nor logs one as 'val_loss': do one of them, "
                "as the validation loss tells the best epoch"
            )
        if value is None:
            return None
        if isinstance(value, int | float):
            value = torch.tensor(float(value), device=logged.device)
        if not isinstance(value, Tensor) or value.numel() != 1:
            kind = f"a tensor of {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ParamError(
                f"model: {logged.step} returns {kind}; return the loss of the batch as one number, or a dict "
                "with it as 'loss'"
            )
        return value.reshape(())

    def _note_unknown(self, logged: Logged) -> None:
        if self.names is None:
            return
        known = self.names.get(logged.step, ())
        for name in logged.values:
            if name not in known and (logged.step, name) not in self._left_out:
                self._left_out.append((logged.step, name))


class _Noted(dict[str, Any]):
    """A batch that notes whether its weights are read."""

    is_weighted = False

    def __getitem__(self, name: str) -> Any:
        self.is_weighted |= name == "weight"
        return super().__getitem__(name)

    def pop(self, name: str, *default: Any) -> Any:
        self.is_weighted |= name == "weight"
        return super().pop(name, *default)


def _called(step: Callable[..., Any], batch: Any, index: int) -> Any:
    """What a step returns, with the batch's number where it takes that."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [one for one in inspect.signature(step).parameters.values() if one.kind in kinds]
    is_numbered = len(taken) > 1 and (
        taken[1].default is inspect.Parameter.empty or taken[1].name == "batch_idx"
    )
    returned = step(batch, index) if is_numbered else step(batch)
    if isinstance(batch, _Noted) and not batch.is_weighted:
        raise ParamError(
            "weightCol is set, but the model's own step takes no batch['weight']: weigh its loss by that, or "
            "unset it"
        )
    return returned


def _is_same(logged: Any, returned: Any) -> bool:
    """Whether a logged loss is the one that is returned. A device is waited for only where they do not share
    their memory.
    """
    if isinstance(returned, Tensor):
        returned = returned.detach()
        if isinstance(logged, Tensor) and logged.data_ptr() == returned.data_ptr():
            return True
    elif not isinstance(returned, int | float):
        return False
    return bool(logged == returned) or (math.isnan(logged) and math.isnan(returned))


def _denominator(batch: TensorBatch) -> float:
    if batch.weight is None:
        return float(batch.num_rows)
    known = batch.facts.denominator if batch.facts is not None else None
    return float(batch.weight.sum(dtype=torch.float64)) if known is None else known


def has_steps(module: Any) -> bool:
    """Whether a module has a training_step of its own."""
    return lightning.has_own(module, TRAINING)


def predicts(module: Any) -> bool:
    """Whether a module is a LightningModule that has a predict_step and no forward of its own."""
    return (
        lightning.base_of(module) is not None
        and not lightning.overrides(module, "forward")
        and lightning.overrides(module, "predict_step")
    )


def forward_by_predict_step(module: Any, names: Sequence[str] | None, *inputs: Tensor) -> Any:
    """The forward of such a module: its predict_step on a batch of these inputs, by name where they have
    names.
    """
    return _called(module.predict_step, inputs if names is None else dict(zip(names, inputs, strict=True)), 0)


def check(module: nn.Module, layout: Layout) -> None:
    """Raises ParamError for a module whose steps can't train such rows."""
    if layout.is_weighted and not layout.by_name:
        raise ParamError(
            weightless("what training_step returns") + ", or give inputCols as a dict and weigh "
            "by batch['weight']"
        )
    names = [*(one.name for one in layout.inputs), *layout.label_names()]
    if layout.is_weighted:
        names.append("weight")
    if layout.by_name and (twice := sorted({name for name in names if names.count(name) > 1})):
        raise ParamError(
            f"inputCols: the batch of training_step would have more than one {', '.join(map(repr, twice))}: "
            "it has a label as 'labels', several by their columns, and weightCol as 'weight'; give the "
            "input, or the label's column, another name"
        )
    if layout.validates and not lightning.has_own(module, VALIDATION):
        raise ParamError(
            "model: there are validation rows, and the model has a training_step but no validation_step: "
            "define one that returns the loss, or unset validationFraction and validationIndicatorCol"
        )


def logged_names(module: nn.Module, layout: Layout) -> dict[str, list[str]]:
    """What the steps of a module log, by the step, found by running copies of it on two rows of zeros, then
    of ones where zeros fail. The module and the random generators are as before afterwards.

    Raises ParamError for steps that fail, and for names that the history has for others.
    """
    found = {}
    for step in (TRAINING, VALIDATION) if layout.validates else (TRAINING,):
        names = list(_tried(module, layout, step).values)
        taken = [
            name
            for name in names
            if name in RECORD_COLUMNS.values() or (step == TRAINING and name.startswith("val_"))
        ]
        if taken:
            raise ParamError(
                f"model: {step} logs {', '.join(map(repr, taken))}, which is taken by a column of the "
                f"history ({', '.join(RECORD_COLUMNS.values())} and val_...): log it by another name"
            )
        found[step] = names
    return found


@forked_rng()
def _tried(module: nn.Module, layout: Layout, step: str) -> Logged:
    before = generators.state()
    error: Exception | None = None
    try:
        for value in (0, 1):
            # Its own buffers, and what the step keeps in attributes; the parameters are only read.
            held = {id(parameter): parameter for parameter in module.parameters()}
            steps = Steps(copy.deepcopy(module, held).train(step == TRAINING), layout, Position())
            try:
                with torch.set_grad_enabled(step == TRAINING):
                    return steps(_constant_rows(layout, value), step == TRAINING)[0]
            except ParamError:
                raise
            except Exception as problem:
                error = error or problem
    finally:
        generators.set_state(before)
    shapes = ", ".join(
        f"{one.name}: {[2, *(one.shape or ())]} {one.dtype}" for one in (*layout.inputs, *layout.labels)
    )
    raise ParamError(f"model: {step} fails on a batch of the columns' shapes ({shapes}): {error}") from error


def _constant_rows(layout: Layout, value: int) -> TensorBatch:
    def full(one: TensorColumns) -> Tensor:
        return torch.full((2, *(one.shape or ())), value, dtype=getattr(torch, one.dtype))

    weight = torch.ones(2) if layout.is_weighted else None
    return TensorBatch([full(one) for one in layout.inputs], [full(one) for one in layout.labels], weight, 2)
