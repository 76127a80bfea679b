"""The worker's side of `evaluate`: rows in, the sums of the loss and of metrics out, as in a training's
validation.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from flambeau._input_rows import InputRows
from flambeau._module import gathered, losses, metrics
from flambeau._module.devices import TensorBatch
from flambeau._module.objectives import Forward, OfLoss
from flambeau._saved.program import keywords
from flambeau._score.pieces import Pieces
from flambeau._score.scoring import Scorer, prepare_worker
from flambeau._tensors import TensorColumns


class Judge:
    """A loss and metrics, and their sums over the rows that they have seen.

    `objects` holds them as `loss` and `metrics`, as a user gave them. Raises ParamError for what is neither.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._given = objects.get("metrics")
        self.loss = losses.build(objects["loss"])
        self._take(metrics.Reading.of(self.loss))
        self._is_read = self.loss.tells or not (self._metrics or self._gathered)
        self.sums = np.zeros(2 + sum(metric.size for metric in self._metrics))
        """The loss's numerator and denominator, then the metrics' sums."""

    def _take(self, reading: metrics.Reading) -> None:
        self._metrics, self._gathered = metrics.build(self._given, reading)

    def to(self, device: torch.device) -> None:
        """Moves what loss and metrics hold themselves."""
        self.loss.to(device)
        for summed in self._metrics:
            summed.to(device)
        for metric in self._gathered:
            metric.to(device)

    def read(self, forward: Forward, inputs: Sequence[Tensor]) -> None:
        """Has the module's last operation say how metrics read its outputs, where the loss does not, from a
        few rows.
        """
        if self._is_read:
            return
        self._is_read = True
        reading = metrics.reading_of(forward, inputs, self.loss.ignore_index)
        if reading is not None:
            self._take(reading)

    def add(self, batch: TensorBatch, output: Any, value: Tensor, denominator: float) -> None:
        """Adds what these rows come to: the module's output, the loss and its denominator."""
        told = (output, batch.labels, batch.weight, batch.num_rows)
        parts = [metric.update(*told).cpu() for metric in self._metrics]
        for metric in self._gathered:
            metric.update(*told)
        self.sums[:2] += (float(value.item()) * denominator if denominator else 0.0, denominator)
        if parts:
            self.sums[2:] += torch.cat(parts).numpy()

    def take_state(self) -> bytes | None:
        """What the metrics that are gathered have kept; None where there are none."""
        return gathered.pack(self._gathered) if self._gathered else None

    def finish(self, sums: Sequence[float], states: Sequence[bytes]) -> dict[str, float | None]:
        """Loss and metrics by name from the sums, and from what `take_state` gave on each worker; None stands
        for what is no finite number.
        """
        numerator, denominator, *rest = sums
        figures = {"loss": numerator / denominator if denominator else math.nan}
        for metric in self._metrics:
            figures[metric.name] = float(metric.finish(rest[: metric.size]))
            rest = rest[metric.size :]
        figures.update(gathered.finish(self._gathered, states))
        return {name: value if math.isfinite(value) else None for name, value in figures.items()}


@dataclass(frozen=True)
class Evaluator:
    """All that a Python worker needs to evaluate rows; it travels in the plan.

    The scorer has the module, its inputs, and where it computes. `objects` is a pickle of loss and metrics by
    those names. `by_name` says whether the inputs have names of their own.
    """

    scorer: Scorer
    labels: Sequence[TensorColumns]
    weight: TensorColumns | None
    objects: bytes
    by_name: bool

    def evaluate(self, batches: Iterable[Sequence[pa.Array]]) -> tuple[list[float], bytes | None] | None:
        """The sums over a task's batches, and what its gathered metrics keep; None where there are no rows.

        A batch is the columns of the inputs, the labels and the weight, in this order.
        """
        prepare_worker(self.scorer.sys_path)
        pieces = Pieces(self.scorer.rows_at_once)
        filled = (columns for columns in batches if len(columns[0]))
        first = next(iter(filled), None)
        if first is None:
            return None
        with self.scorer.module() as (module, device):
            judge = Judge(pickle.loads(self.objects))  # noqa: S301  the driver's own
            names = [tensor.name for tensor in self.scorer.arguments]
            forward = Forward(module, module, keywords(self.scorer.arguments))
            objective = OfLoss(forward, judge.loss, names if self.by_name else None)
            for number, columns in enumerate(chain([first], filled)):
                given = columns[: self._num_columns]
                parts, num_rows = self.scorer.parts(tuple(given))
                rest = columns[self._num_columns :]
                rows = InputRows.of(self._judged(rest), rest)
                if number == 0:
                    few = parts(0, min(2, num_rows))
                    judge.read(forward, [tensor.to(device) for tensor in few])
                    judge.to(device)
                compute = partial(self._compute, judge, objective, device, parts, rows)
                with torch.no_grad():
                    pieces.over(num_rows, compute, lambda made: judge.add(*made))
        return judge.sums.tolist(), judge.take_state()

    def _compute(
        self,
        judge: Judge,
        objective: OfLoss,
        device: torch.device,
        parts: Callable[[int, int], list[Tensor]],
        rows: Sequence[InputRows],
        start: int,
        stop: int,
    ) -> tuple[TensorBatch, Any, Tensor, float]:
        """What the judge takes of a piece of the rows."""
        given = [part.tensor(start, stop) for part in rows]
        labels, weight = given[: len(self.labels)], given[-1] if self.weight is not None else None
        labels, facts = judge.loss.on_host(labels, weight)
        batch = TensorBatch(
            [tensor.to(device) for tensor in parts(start, stop)],
            [label.to(device) for label in labels],
            None if weight is None else weight.to(device),
            stop - start,
            facts,
        )
        return (batch, *objective(batch, training=False))

    @property
    def _num_columns(self) -> int:
        return sum(len(tensor.columns) for tensor in self.scorer.inputs)

    def _judged(self, columns: Sequence[pa.Array]) -> list[TensorColumns]:
        """Labels and weight, a label of unknown shape with that of the batch's first row."""
        tensors: list[TensorColumns] = []
        place = 0
        for label in self.labels:
            tensors.append(label if label.shape is not None else replace(label, shape=_first(columns[place])))
            place += len(label.columns)
        return tensors if self.weight is None else [*tensors, self.weight]


def _first(column: pa.Array) -> tuple[int, ...]:
    """The shape of a column's first array, or of its bytes."""
    if pa.types.is_binary(column.type):
        return (pc.binary_length(column[0]).as_py(),)
    return (len(column[0].as_py()),)
