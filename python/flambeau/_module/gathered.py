"""Metrics that no sums of a fixed number make: each rank keeps what it needs of its rows, and at the end of
an evaluation all ranks gather what all have.

They are of validation rows alone. What they keep takes memory until then: on each rank, and once more for
each rank's part when it is gathered.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flambeau._module.losses import class_target, regression_target, single_output
from flambeau._module.predicted import predicted_classes, refuse_several_labels, row_weights
from flambeau.errors import DataError

State = dict[str, Any]
"""What a rank keeps: tensors, or lists of them, by name. Empty where it had no rows."""


class GatheredMetric:
    """One metric of this kind."""

    name: str
    takes_weights = True
    """Whether it weighs rows by weightCol."""

    def to(self, device: torch.device) -> None:
        """Moves what the metric itself holds."""

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> None:
        """Keeps what it needs of these rows."""
        raise NotImplementedError

    def take(self) -> State:
        """What it has kept, on the CPU, which it then forgets."""
        raise NotImplementedError

    def finish(self, states: Sequence[State]) -> float:
        """The metric from what the ranks with rows have kept, of which there is at least one."""
        raise NotImplementedError


def pack(metrics: Sequence[GatheredMetric]) -> bytes:
    """What a rank's metrics have kept, as it goes to the others."""
    file = io.BytesIO()
    torch.save([metric.take() for metric in metrics], file)
    return file.getvalue()


def finish(metrics: Sequence[GatheredMetric], packed: Sequence[bytes]) -> list[tuple[str, float]]:
    """The metrics by name from what `pack` gave on each rank; NaN where no rank had rows."""
    ranks = [torch.load(io.BytesIO(data), weights_only=True) for data in packed]
    finished = []
    for index, metric in enumerate(metrics):
        states = [states[index] for states in ranks if states[index]]
        finished.append((metric.name, metric.finish(states) if states else math.nan))
    return finished


class Curve(GatheredMetric):
    """The area under the ROC curve, or the average precision, of two classes, exact and weighted by row, as
    scikit-learn has them.

    Each rank keeps the score of each row, its label in a byte, and its weight where there are weights.
    """

    def __init__(self, name: str, kind: str, ignore_index: int | None, several: bool = False) -> None:
        self.name = name
        self._kind = kind
        self._ignore_index = ignore_index
        self._several = several
        self._kept: list[tuple[Tensor, ...]] = []

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> None:
        name = f"metric {self.name}"
        output = single_output(output, name)
        if self._several:
            refuse_several_labels(output, name, "class<k>_f1 or macro_f1")
        if output.dim() < 2 or output.shape[1] == 1:
            scores, label = regression_target(output, labels, name)
        elif output.shape[1] == 2:
            output, label = class_target(output, labels, name)
            if label.shape == output.shape:
                label = label[:, 1]
            scores = output[:, 1].to(torch.float64) - output[:, 0].to(torch.float64)
        else:
            raise DataError(
                f"{name} is for two classes, but the output has shape {list(output.shape)}: take macro_f1, "
                "or a metric of torchmetrics, such as MulticlassAUROC"
            )
        kept = torch.ones_like(label, dtype=torch.bool)
        if self._ignore_index is not None:
            kept = label != self._ignore_index
        columns = [scores[kept], (label == 1)[kept]]
        if weight is not None:
            columns.append(row_weights(weight, label)[kept])
        self._kept.append(tuple(column.detach().cpu() for column in columns))

    def take(self) -> State:
        names = ("scores", "positive", "weights")
        state = {
            name: torch.cat(parts) for name, parts in zip(names, zip(*self._kept, strict=True), strict=False)
        }
        self._kept = []
        return state

    def finish(self, states: Sequence[State]) -> float:
        scores = torch.cat([state["scores"] for state in states])
        positive = torch.cat([state["positive"] for state in states]).to(torch.float64)
        weights = torch.ones_like(positive)
        if "weights" in states[0]:
            weights = torch.cat([state["weights"] for state in states])
            counts = weights > 0
            scores, positive, weights = scores[counts], positive[counts], weights[counts]
        if not len(scores) or scores.isnan().any():
            return math.nan
        scores, order = scores.sort(descending=True)
        # Rows of one score are told apart by no threshold: they enter together.
        ends = torch.cat([(scores[1:] != scores[:-1]).nonzero().reshape(-1), torch.tensor([len(scores) - 1])])
        hits = (positive * weights)[order].cumsum(0)[ends]
        others = ((1 - positive) * weights)[order].cumsum(0)[ends]
        if hits[-1] == 0 or (others[-1] == 0 and self._kind == "auc"):
            return math.nan
        before = torch.cat([torch.zeros(1, dtype=torch.float64), hits[:-1]])
        if self._kind == "average_precision":
            return float(((hits - before) * hits / (hits + others)).sum() / hits[-1])
        steps = torch.diff(others, prepend=torch.zeros(1, dtype=torch.float64))
        return float((steps * (hits + before) / 2).sum() / (hits[-1] * others[-1]))


class Macro(GatheredMetric):
    """The mean of a figure over the classes that there are in labels or predictions, as scikit-learn has it;
    of several labels a row, over the labels.

    Each rank keeps three numbers a class.
    """

    def __init__(
        self, name: str, kind: str, threshold: float, ignore_index: int | None, several: bool = False
    ) -> None:
        self.name = name
        self._kind = kind
        self._threshold = threshold
        self._ignore_index = ignore_index
        self._several = several
        self._counts: Tensor | None = None

    def update(self, output: Any, labels: list[Tensor], weight: Tensor | None, num_rows: int) -> None:
        name = f"metric {self.name}"
        output = single_output(output, name)
        if self._several and output.dim() == 2 and output.shape[1] > 1:
            output, label = regression_target(output, labels, name)
            each = row_weights(weight, label)
            predicted, actual = output > self._threshold, label == 1
            counts = [(which * each).sum(0) for which in (predicted & actual, predicted, actual)]
        else:
            num_classes = max(output.shape[1], 2) if output.dim() >= 2 else 2
            predicted, label = predicted_classes(output, labels, name, self._threshold)
            predicted, label = predicted.squeeze(1).reshape(-1), label.reshape(-1)
            weights = None if weight is None else row_weights(weight, labels[0]).reshape(-1)
            kept = (label >= 0) & (label < num_classes)
            if self._ignore_index is not None:
                kept &= label != self._ignore_index
            predicted, label = predicted[kept], label[kept]
            weights = None if weights is None else weights[kept]
            counts = [
                torch.bincount(which, None if weights is None else weights[rows], minlength=num_classes).to(
                    torch.float64
                )
                for rows, which in (
                    (predicted == label, label[predicted == label]),
                    (slice(None), predicted),
                    (slice(None), label),
                )
            ]
        added = torch.stack(counts)
        self._counts = added if self._counts is None else self._counts + added

    def take(self) -> State:
        counts, self._counts = self._counts, None
        return {} if counts is None else {"counts": counts.cpu()}

    def finish(self, states: Sequence[State]) -> float:
        hits, predicted, actual = torch.stack([state["counts"] for state in states]).sum(0)
        there = (predicted + actual) > 0
        if not there.any():
            return math.nan
        denominators = {"precision": predicted, "recall": actual, "f1": (predicted + actual) / 2}
        figures = hits / denominators[self._kind]
        return float(torch.nan_to_num(figures[there], nan=0.0).mean())
