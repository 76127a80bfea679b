"""Metrics over all rows: as sums and a finish, or of what all ranks gather.

A metric of an epoch is never an average of the metrics of its batches. Most metrics add up a fixed number of
float64 sums over rows (`update`), which are summed over batches and ranks, and then make one number of them
(`finish`). What no sums make, such as an area under a curve, is in `flambeau._module.gathered`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from flambeau._history import RECORD_COLUMNS
from flambeau._module import captured, foreign_metrics, gathered, losses
from flambeau._module.losses import (
    call_with_labels,
    regression_target,
    single_output,
)
from flambeau._module.predicted import predicted_classes, refuse_several_labels, row_weights
from flambeau._quiet import forked_rng
from flambeau._saved.last_operation import LastOperations
from flambeau.errors import DataError, ParamError

if TYPE_CHECKING:
    from flambeau._module.objectives import Objective


class Metric(Protocol):
    """One metric; `size` is the number of its sums."""

    name: str
    size: int
    takes_weights: bool
    """Whether it weighs rows by weightCol."""

    def to(self, device: torch.device) -> None:
        """Moves what the metric itself holds."""

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        """What these rows add to the sums: float64 [size]."""

    def finish(self, sums: list[float]) -> float:
        """The metric from the sums over all rows."""


NAMES = (
    "mse, rmse, mae, r2, accuracy, top<k>_accuracy, precision, recall, f1, class<k>_precision, "
    "class<k>_recall, class<k>_f1, and of validation rows auc, average_precision, macro_precision, "
    "macro_recall and macro_f1"
)
"""The names that `metrics` accepts, in words."""


@dataclass(frozen=True)
class Reading:
    """How metrics of classes read outputs and labels, which the loss says."""

    threshold: float = 0.0
    """What separates the two classes of a one-column output: 0 for logits, 0.5 for probabilities."""
    ignore_index: int | None = None
    """The label that does not count."""
    several: bool = False
    """Whether the columns of an output are labels of their own, rather than classes of one."""

    @staticmethod
    def of(loss: losses.Loss | Objective) -> Reading:
        """The reading of the outputs of a loss, or of what is trained for."""
        return Reading(loss.threshold, loss.ignore_index, loss.several)


def reading_of(
    forward: Callable[[list[Tensor]], Any], inputs: Iterable[Tensor], ignore_index: int | None
) -> Reading | None:
    """The reading that the module's last operation tells, of the first two rows of its inputs; None where it
    tells none. `forward` calls the module, in eval mode.
    """
    with torch.no_grad(), forked_rng(), LastOperations() as made:
        output = forward([tensor[:2] for tensor in inputs])
    if not isinstance(output, Tensor) or made.activation(output) != "sigmoid":
        return None
    return Reading(0.5, ignore_index, output.dim() > 1 and output.shape[1] > 1)


def build(metrics: Any, reading: Reading | None = None) -> tuple[list[Metric], list[gathered.GatheredMetric]]:
    """The metrics for what the user gave, those of sums and those that are gathered: a list of names,
    callables and torchmetrics, or a dict of them by name.

    `reading` is the loss's, logits of one label a row where none is given. Raises `ParamError` for what is
    unknown, named twice, or named as another column of the history.
    """
    built = [_build(name, metric, reading or Reading()) for name, metric in _listed(metrics)]
    names = [metric.name for metric in built]
    for name in names:
        if names.count(name) > 1:
            raise ParamError(f"metrics: {name!r} is given twice; give a dict of metrics by name")
        if name in RECORD_COLUMNS.values() or name.startswith("val_"):
            raise ParamError(
                f"metrics: the name {name!r} is taken by a column of the history "
                f"({', '.join(RECORD_COLUMNS.values())} and val_...); give a dict of metrics by other names"
            )
    return (
        [metric for metric in built if not isinstance(metric, gathered.GatheredMetric)],
        [metric for metric in built if isinstance(metric, gathered.GatheredMetric)],
    )


def check(metrics: Any, weighted: bool, validates: bool) -> tuple[list[str], list[str]]:
    """The names of the metrics of training rows, and of those of validation rows. Raises ParamError for
    metrics that only those have where nothing `validates`, and for those that take no weights where rows are
    `weighted`.
    """
    of_sums, of_all = build(metrics)
    given: list[Metric | gathered.GatheredMetric] = [*of_sums, *of_all]
    for metric in given:
        if weighted and not metric.takes_weights:
            raise ParamError(foreign_metrics.weightless(metric.name))
    if of_all and not validates:
        names = ", ".join(metric.name for metric in of_all)
        raise ParamError(
            f"metrics: {names} is made of all validation rows at once, and there are none: set "
            "validationFraction or validationIndicatorCol"
        )
    return [metric.name for metric in of_sums], [metric.name for metric in given]


def _listed(metrics: Any) -> list[tuple[str | None, Any]]:
    """Each metric with the name that it was given; a collection of torchmetrics counts as its metrics."""
    if metrics is None:
        return []
    if (items := foreign_metrics.collected(metrics)) is not None:
        return list(items)
    if isinstance(metrics, str) or callable(metrics):
        return [(None, metrics)]
    if isinstance(metrics, Mapping):
        return [(str(name), metric) for name, metric in metrics.items()]
    if isinstance(metrics, Iterable):
        return [
            pair for metric in metrics for pair in (foreign_metrics.collected(metric) or [(None, metric)])
        ]
    raise ParamError(f"metrics: expected a list of names and callables, got {type(metrics).__name__}")


def _build(name: str | None, metric: Any, reading: Reading) -> Metric | gathered.GatheredMetric:
    if isinstance(metric, str):
        known = name or metric
        if metric in ("mse", "rmse", "mae"):
            return ErrorMetric(known, metric)
        if metric == "r2":
            return R2(known)
        if metric == "accuracy":
            return Accuracy(known, 1, reading)
        if match := re.fullmatch(r"top([1-9]\d*)_accuracy", metric):
            return Accuracy(known, int(match[1]), reading)
        if metric in ("precision", "recall", "f1"):
            return BinaryCounts(known, metric, reading)
        if match := re.fullmatch(r"class(0|[1-9]\d*)_(precision|recall|f1)", metric):
            return BinaryCounts(known, match[2], reading, int(match[1]))
        if metric in ("auc", "average_precision"):
            return gathered.Curve(known, metric, reading.ignore_index, reading.several)
        if match := re.fullmatch(r"macro_(precision|recall|f1)", metric):
            return gathered.Macro(known, match[1], reading.threshold, reading.ignore_index, reading.several)
        raise ParamError(
            f"metrics: unknown name {metric!r}; the names are {NAMES}; or give a callable, or a metric of "
            "torchmetrics"
        )
    if not callable(metric):
        raise ParamError(f"metrics: expected a name or a callable, got {type(metric).__name__}")
    known = name or str(getattr(metric, "__name__", type(metric).__name__))
    if foreign_metrics.is_foreign(metric):
        return foreign_metrics.of_foreign(known, metric)
    if losses.named(metric) is not None:
        return LossMetric(known, metric)
    return CallableMetric(known, metric)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


class _Stateless:
    """A metric that holds no tensors of its own."""

    takes_weights = True

    def to(self, device: torch.device) -> None:
        """Nothing is to be moved."""


def _sums(first: Tensor, *others: Tensor | float) -> Tensor:
    """The sums as one tensor, where the first is."""
    # Filled in there: a copy of a number to a GPU would have the host wait for all that is queued before it.
    values = [
        value.to(torch.float64)
        if isinstance(value, Tensor)
        else torch.full((), value, dtype=torch.float64, device=first.device)
        for value in others
    ]
    return torch.stack([first.to(torch.float64), *values])


class ErrorMetric(_Stateless):
    """Mean squared error, its root, or mean absolute error, over all elements, weighted by row."""

    size = 2

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self._kind = kind

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        output, label = regression_target(output, labels, f"metric {self.name}")
        error = output.to(torch.float64) - label.to(torch.float64)
        error = error.abs() if self._kind == "mae" else error * error
        weights = row_weights(weight, error)
        return _sums((error * weights).sum(), weights.sum())

    def finish(self, sums: list[float]) -> float:
        mean = _ratio(sums[0], sums[1])
        return math.sqrt(mean) if self._kind == "rmse" else mean


class R2(_Stateless):
    """The coefficient of determination of one output column: 1 - Σ(y - ŷ)² / Σ(y - ȳ)², weighted by row."""

    size = 4

    def __init__(self, name: str) -> None:
        self.name = name

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        output, label = regression_target(output, labels, f"metric {self.name}")
        if label.numel() != num_rows:
            raise DataError(
                f"metric {self.name} is for one output column, but the output has shape {list(output.shape)}"
            )
        label = label.to(torch.float64)
        weights = row_weights(weight, label)
        residual = label - output.to(torch.float64)
        weighted = weights * label
        return _sums(
            weights.sum(), weighted.sum(), (weighted * label).sum(), (weights * residual * residual).sum()
        )

    def finish(self, sums: list[float]) -> float:
        count, total, squares, residual = sums
        spread = squares - total * _ratio(total, count)
        return 1.0 - residual / spread if spread > 0 else math.nan


class Accuracy(_Stateless):
    """The part of the labels that are among the `top` most probable classes, weighted by row."""

    size = 2

    def __init__(self, name: str, top: int, reading: Reading) -> None:
        self.name = name
        self._top = top
        self._reading = reading

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        name = f"metric {self.name}"
        if self._reading.several:
            refuse_several_labels(output, name, "class<k>_f1 or macro_f1")
        predicted, label = predicted_classes(output, labels, name, self._reading.threshold, self._top)
        weights = row_weights(weight, label)
        if self._reading.ignore_index is not None:
            weights = weights * (label != self._reading.ignore_index)
        hit = (predicted == label.unsqueeze(1)).any(1)
        return _sums((hit * weights).sum(), weights.sum())

    def finish(self, sums: list[float]) -> float:
        return _ratio(sums[0], sums[1])


class BinaryCounts(_Stateless):
    """Precision, recall or F1 from weighted counts of true positives, predicted and actual ones: of class 1
    of two, or of the class `of` against all others.
    """

    size = 3

    def __init__(self, name: str, kind: str, reading: Reading, of: int | None = None) -> None:
        self.name = name
        self._kind = kind
        self._reading = reading
        self._of = of

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        name = f"metric {self.name}"
        output = single_output(output, name)
        num_classes = max(output.shape[1], 2) if output.dim() >= 2 else 2
        if self._of is None and num_classes > 2:
            raise DataError(
                f"{name} is for two classes, but the output has shape {list(output.shape)}: "
                f"take macro_{self._kind}, or class<k>_{self._kind}"
            )
        of = 1 if self._of is None else self._of
        if of >= num_classes:
            raise DataError(f"{name}: the output has {num_classes} classes, 0 to {num_classes - 1}")
        if self._reading.several and output.dim() == 2 and output.shape[1] > 1:
            output, label = regression_target(output, labels, name)
            output, labels, of = output[:, of], [label[:, of]], 1
        predicted, label = predicted_classes(output, labels, name, self._reading.threshold, 1)
        predicted = predicted.squeeze(1)
        weights = row_weights(weight, label)
        if self._reading.ignore_index is not None:
            weights = weights * (label != self._reading.ignore_index)
        positive, actual = (predicted == of) * weights, (label == of) * weights
        return _sums((positive * (label == of)).sum(), positive.sum(), actual.sum())

    def finish(self, sums: list[float]) -> float:
        hits, predicted, actual = sums
        denominators = {"precision": predicted, "recall": actual, "f1": (predicted + actual) / 2}
        return _ratio(hits, denominators[self._kind])


class LossMetric(_Stateless):
    """A loss of torch's own as a metric: the mean that it is as a loss, weighted as that."""

    size = 2

    def __init__(self, name: str, loss: Any) -> None:
        self.name = name
        self._loss = losses.build(loss)

    def to(self, device: torch.device) -> None:
        self._loss.to(device)

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        value, denominator = self._loss(output, labels, weight, num_rows)
        if not denominator:
            return torch.zeros(2, dtype=torch.float64, device=value.device)
        return _sums(value * denominator, denominator)

    def finish(self, sums: list[float]) -> float:
        return _ratio(sums[0], sums[1])


class CallableMetric(_Stateless):
    """A user's `metric(output, label)`, which returns one value for each row: the mean over all rows,
    weighted by row.
    """

    size = 2

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function

    def to(self, device: torch.device) -> None:
        captured.move(self._function, device)

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        value = torch.as_tensor(call_with_labels(self._function, output, labels)).to(torch.float64)
        if value.dim() == 0 or value.shape[0] != num_rows:
            returned = f"shape {list(value.shape)}" if value.dim() else "one number"
            raise ParamError(
                f"metric {self.name} returned {returned} for a batch of {num_rows} rows, and the mean of "
                "batches is not that of the rows: return one value for each row, or give a metric of "
                "torchmetrics"
            )
        per_row = value.reshape(num_rows, -1).mean(1)
        weights = row_weights(weight, per_row)
        return _sums((per_row * weights).sum(), weights.sum())

    def finish(self, sums: list[float]) -> float:
        return _ratio(sums[0], sums[1])
