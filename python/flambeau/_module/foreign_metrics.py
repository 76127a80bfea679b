"""Metrics of torchmetrics, over all rows of all ranks.

Where all that a metric keeps is sums, it is one of sums here too; else what it keeps is gathered, of
validation rows alone.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from flambeau._module.gathered import GatheredMetric, State
from flambeau._module.losses import call_with_labels
from flambeau._quiet import without_warnings
from flambeau.errors import ParamError


def _library() -> Any:
    """torchmetrics where something has imported it: who has a metric of it has."""
    return sys.modules.get("torchmetrics")


def is_foreign(metric: Any) -> bool:
    """Whether a metric is one of torchmetrics."""
    library = _library()
    return library is not None and isinstance(metric, library.Metric)


def collected(metrics: Any) -> list[tuple[str | None, Any]] | None:
    """The metrics of a MetricCollection by name; None for anything else."""
    library = _library()
    if library is None or not isinstance(metrics, library.MetricCollection):
        return None
    return [(str(name), metric) for name, metric in metrics.items(copy_state=False)]


def of_foreign(name: str, metric: Any) -> ForeignSums | GatheredForeign:
    """A metric of torchmetrics as one of ours. Raises ParamError for one whose number would depend on how
    many ranks there are.
    """
    from torchmetrics.utilities.data import dim_zero_mean, dim_zero_sum

    kind = type(metric).__name__
    reductions: dict[str, Any] = metric._reductions
    if not reductions:
        raise ParamError(
            f"metrics: {name} ({kind}) keeps nothing that ranks could share; give the metrics that it is "
            "made of"
        )
    averaged = [state for state, reduction in reductions.items() if reduction is dim_zero_mean]
    if averaged:
        raise ParamError(
            f"metrics: {name} ({kind}) averages {', '.join(averaged)} over processes, which is not the mean "
            "over rows: give another metric"
        )
    own = metric.clone()
    own.reset()
    are_sums = all(reduction is dim_zero_sum for reduction in reductions.values())
    if are_sums and own.full_state_update is not True and all(map(torch.is_tensor, own._defaults.values())):
        return ForeignSums(name, own)
    return GatheredForeign(name, own)


def _update(name: str, metric: Any, output: Any, labels: list[Tensor], weight: Tensor | None) -> None:
    if weight is not None:
        raise ParamError(weightless(name))
    call_with_labels(metric.update, output, labels)


def weightless(name: str) -> str:
    """Why a metric of torchmetrics is refused where rows have weights."""
    return (
        f"metrics: {name} is a metric of torchmetrics, which takes no weights of rows, and weightCol is set: "
        "take a metric by name, a callable that returns one value for each row, or unset weightCol"
    )


def _compute(name: str, metric: Any) -> float:
    # It was not updated itself: its state came from all ranks.
    with without_warnings():
        value = metric.compute()
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ParamError(
            f"metrics: {name} ({type(metric).__name__}) comes to more than one number: give one of an "
            "average (average='macro'), or a metric for each number"
        )
    return float(value)


@contextmanager
def _states(metric: Any, states: State) -> Iterator[None]:
    """The metric with these states for the time of the block."""
    metric.reset()
    for name, value in states.items():
        setattr(metric, name, value)
    try:
        yield
    finally:
        metric.reset()


class ForeignSums:
    """A metric that keeps sums only."""

    takes_weights = False

    def __init__(self, name: str, metric: Any) -> None:
        self.name = name
        self._metric = metric
        self._defaults: dict[str, Tensor] = metric._defaults
        self.size = sum(default.numel() for default in self._defaults.values())

    def to(self, device: torch.device) -> None:
        self._metric.to(device)

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        self._metric.reset()
        _update(self.name, self._metric, output, labels, weight)
        kept = [getattr(self._metric, name) for name in self._defaults]
        sums = torch.cat([value.to(torch.float64).reshape(-1) for value in kept])
        if len(sums) != self.size:
            raise ParamError(
                f"metrics: {self.name} ({type(self._metric).__name__}) keeps {len(sums)} sums of these "
                f"outputs, and {self.size} as it was made: make it for as many outputs as the model has"
            )
        return sums

    def finish(self, sums: list[float]) -> float:
        if not any(sums):
            return math.nan
        states, flat = {}, torch.tensor(sums, dtype=torch.float64)
        for name, default in self._defaults.items():
            own, flat = flat[: default.numel()], flat[default.numel() :]
            states[name] = own.reshape(default.shape).to(default.dtype).to(self._metric.device)
        with _states(self._metric, states):
            return _compute(self.name, self._metric)


class GatheredForeign(GatheredMetric):
    """A metric that keeps rows, extremes or the like."""

    takes_weights = False

    def __init__(self, name: str, metric: Any) -> None:
        self.name = name
        self._metric = metric
        self._is_fresh = True

    def to(self, device: torch.device) -> None:
        self._metric.to(device)

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> None:
        self._is_fresh = False
        _update(self.name, self._metric, output, labels, weight)

    def take(self) -> State:
        if self._is_fresh:
            return {}
        kept = {name: getattr(self._metric, name) for name in self._metric._reductions}
        state = {
            name: [item.cpu() for item in value] if isinstance(value, list) else value.cpu()
            for name, value in kept.items()
        }
        self._metric.reset()
        self._is_fresh = True
        return state

    def finish(self, states: Sequence[State]) -> float:
        # As torchmetrics does between the processes of a group (`Metric._sync_dist`).
        joined: State = {}
        for name, reduction in self._metric._reductions.items():
            values = [state[name] for state in states]
            whole: Any = copy.copy(values[0])
            if isinstance(whole, list):
                whole = [item for value in values for item in value]
            elif len(values) > 1:
                whole = torch.stack(values)
                whole = whole if reduction is None else reduction(whole)
            device = self._metric.device
            joined[name] = (
                [item.to(device) for item in whole] if isinstance(whole, list) else whole.to(device)
            )
        with _states(self._metric, joined):
            return _compute(self.name, self._metric)
