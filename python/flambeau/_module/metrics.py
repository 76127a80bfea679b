"""Metrics as sums and a finish.

A metric of an epoch is never an average of the metrics of its batches. Each metric here adds up a fixed
number of float64 sums over rows (`update`), which are summed over batches and ranks, and then makes one
number of them (`finish`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from flambeau._module.losses import (
    call_with_labels,
    class_target,
    regression_target,
    single_label,
    single_output,
)
from flambeau.errors import DataError, ParamError


class Metric(Protocol):
    """One metric; `size` is the number of its sums."""

    name: str
    size: int

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        """What these rows add to the sums: float64 [size]."""

    def finish(self, sums: list[float]) -> float:
        """The metric from the sums over all rows."""


def build(metrics: Any, threshold: float = 0.0, ignore_index: int | None = None) -> list[Metric]:
    """The metrics for what the user gave: a list of names and callables, or a dict of callables (or names) by
    name.

    `threshold` separates the two classes of a one-column output (0 for logits, 0.5 for probabilities); labels
    equal to `ignore_index` do not count. Raises `ParamError` for what is unknown or named twice.
    """
    if metrics is None:
        return []
    if isinstance(metrics, str) or callable(metrics):
        metrics = [metrics]
    if isinstance(metrics, Mapping):
        named = list(metrics.items())
    elif isinstance(metrics, Iterable):
        named = [(None, metric) for metric in metrics]
    else:
        raise ParamError(f"metrics: expected a list of names and callables, got {type(metrics).__name__}")
    built = [_build(name, metric, threshold, ignore_index) for name, metric in named]
    names = [metric.name for metric in built]
    for name in names:
        if names.count(name) > 1:
            raise ParamError(f"metrics: {name!r} is given twice; give a dict of metrics by name")
        if name == "loss":
            raise ParamError("metrics: the name 'loss' is taken by the loss itself")
    return built


def _build(name: str | None, metric: Any, threshold: float, ignore_index: int | None) -> Metric:
    if isinstance(metric, str):
        known = name or metric
        if metric in ("mse", "rmse", "mae"):
            return ErrorMetric(known, metric)
        if metric == "r2":
            return R2(known)
        if metric == "accuracy":
            return Accuracy(known, 1, threshold, ignore_index)
        if match := re.fullmatch(r"top([1-9]\d*)_accuracy", metric):
            return Accuracy(known, int(match[1]), threshold, ignore_index)
        if metric in ("precision", "recall", "f1"):
            return BinaryCounts(known, metric, threshold, ignore_index)
        raise ParamError(
            f"metrics: unknown name {metric!r}; the names are mse, rmse, mae, r2, accuracy, "
            "top<k>_accuracy, precision, "
            "recall and f1, or give a callable"
        )
    if not callable(metric):
        raise ParamError(f"metrics: expected a name or a callable, got {type(metric).__name__}")
    known = name or str(getattr(metric, "__name__", type(metric).__name__))
    return CallableMetric(known, metric)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


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


def _row_weights(weight: Tensor | None, like: Tensor) -> Tensor:
    """One float64 weight per element of `like`, whose first dimension is the rows."""
    if weight is None:
        return torch.ones((), dtype=torch.float64, device=like.device).expand(like.shape)
    return weight.to(torch.float64).reshape(-1, *([1] * (like.dim() - 1))).expand(like.shape)


class ErrorMetric:
    """Mean squared error, its root, or mean absolute error, over all elements, weighted by row."""

    size = 2

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self._kind = kind

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        output, label = regression_target(output, labels, f"metric {self.name}")
        error = output.to(torch.float64) - label.to(torch.float64)
        error = error.abs() if self._kind == "mae" else error * error
        weights = _row_weights(weight, error)
        return _sums((error * weights).sum(), weights.sum())

    def finish(self, sums: list[float]) -> float:
        mean = _ratio(sums[0], sums[1])
        return math.sqrt(mean) if self._kind == "rmse" else mean


class R2:
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
        weights = _row_weights(weight, label)
        residual = label - output.to(torch.float64)
        weighted = weights * label
        return _sums(
            weights.sum(), weighted.sum(), (weighted * label).sum(), (weights * residual * residual).sum()
        )

    def finish(self, sums: list[float]) -> float:
        count, total, squares, residual = sums
        spread = squares - total * _ratio(total, count)
        return 1.0 - residual / spread if spread > 0 else math.nan


def _predicted_classes(
    output: Any, labels: list[Tensor], name: str, threshold: float, top: int
) -> tuple[Tensor, Tensor]:
    """The predicted classes [rows, top, ...] and the class labels [rows, ...]; one-column outputs are cut at
    `threshold`.
    """
    output = single_output(output, name)
    if output.dim() < 2 or output.shape[1] == 1:
        output, label = regression_target(output, labels, name)
        return (output > threshold).to(torch.int64).unsqueeze(1), label.to(torch.int64)
    label = single_label(labels, output, name)
    if label.shape == output.shape:  # class probabilities, or one-hot
        label = label.argmax(1)
    output, label = class_target(output, [label], name)
    return output.topk(min(top, output.shape[1]), dim=1).indices, label


class Accuracy:
    """The part of the labels that are among the `top` most probable classes, weighted by row."""

    size = 2

    def __init__(self, name: str, top: int, threshold: float, ignore_index: int | None) -> None:
        self.name = name
        self._top = top
        self._threshold = threshold
        self._ignore_index = ignore_index

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        predicted, label = _predicted_classes(
            output, labels, f"metric {self.name}", self._threshold, self._top
        )
        weights = _row_weights(weight, label)
        if self._ignore_index is not None:
            weights = weights * (label != self._ignore_index)
        hit = (predicted == label.unsqueeze(1)).any(1)
        return _sums((hit * weights).sum(), weights.sum())

    def finish(self, sums: list[float]) -> float:
        return _ratio(sums[0], sums[1])


class BinaryCounts:
    """Precision, recall or F1 of class 1 of two, from weighted counts of true positives, predicted and actual
    ones.
    """

    size = 3

    def __init__(self, name: str, kind: str, threshold: float, ignore_index: int | None) -> None:
        self.name = name
        self._kind = kind
        self._threshold = threshold
        self._ignore_index = ignore_index

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        name = f"metric {self.name}"
        output = single_output(output, name)
        if output.dim() >= 2 and output.shape[1] > 2:
            raise DataError(f"{name} is for two classes, but the output has shape {list(output.shape)}")
        predicted, label = _predicted_classes(output, labels, name, self._threshold, 1)
        predicted = predicted.squeeze(1)
        weights = _row_weights(weight, label)
        if self._ignore_index is not None:
            weights = weights * (label != self._ignore_index)
        positive, actual = (predicted == 1) * weights, (label == 1) * weights
        return _sums((positive * (label == 1)).sum(), positive.sum(), actual.sum())

    def finish(self, sums: list[float]) -> float:
        hits, predicted, actual = sums
        denominators = {"precision": predicted, "recall": actual, "f1": (predicted + actual) / 2}
        return _ratio(hits, denominators[self._kind])


class CallableMetric:
    """A user's `metric(output, label)`. One value per row is averaged over all rows, weighted by row; a
    scalar is averaged over batches by their rows, which is exact only for what is a mean over rows."""

    size = 2

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> Tensor:
        value = torch.as_tensor(call_with_labels(self._function, output, labels)).to(torch.float64)
        if value.dim() == 0 or (value.numel() == 1 and num_rows != 1):
            return _sums(value.reshape(()) * num_rows, float(num_rows))
        if value.shape[0] != num_rows:
            raise ParamError(
                f"metric {self.name} returned shape {list(value.shape)} for {num_rows} rows; "
                "it must return a scalar or one value per row"
            )
        per_row = value.reshape(num_rows, -1).mean(1)
        weights = _row_weights(weight, per_row)
        return _sums((per_row * weights).sum(), weights.sum())

    def finish(self, sums: list[float]) -> float:
        return _ratio(sums[0], sums[1])
