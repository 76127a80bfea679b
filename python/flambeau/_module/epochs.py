"""The ends of epochs, as a module's side of the training comes to know them: schedules take their steps, and
the module's own steps see the next epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum

from flambeau._module.gathered import GatheredMetric
from flambeau._module.metrics import Metric
from flambeau._module.progress import Progress
from flambeau._module.schedules import Schedules
from flambeau._module.steps import TRAINING, VALIDATION, LoggedMean


class Turn(Enum):
    """What the training loop has metrics finished for: once for their names, then at the end of each epoch of
    training rows, and of validation rows where there are any.
    """

    NAMES = "names"
    TRAINING = TRAINING
    VALIDATION = VALIDATION


class Epochs:
    """Follows the turns. All ranks take the same ones, with the same numbers."""

    def __init__(
        self,
        metrics: Sequence[Metric],
        gathered: Sequence[GatheredMetric],
        schedules: Schedules,
        progress: Progress,
        validates: bool,
    ) -> None:
        self._schedules, self._progress, self._validates = schedules, progress, validates
        self._waits = bool(gathered)
        """Whether the metrics that are gathered come after the others."""
        self._turn: Turn | None = None
        self._reached: dict[str, float] = {}
        """What the epoch has come to so far, by the names of the history."""
        known = {"loss": 0.0, **{one.name: 0.0 for one in metrics if not _is_of(one, VALIDATION)}}
        if validates:
            own = [one.name for one in metrics if not _is_of(one, TRAINING)]
            known = _with_validation(
                known, [(name, 0.0) for name in ("loss", *own, *(g.name for g in gathered))]
            )
        schedules.check(known)

    def next_turn(self) -> Turn:
        """The turn that begins."""
        if self._turn is None:
            self._turn = Turn.NAMES
        elif self._turn is Turn.TRAINING and self._validates:
            self._turn = Turn.VALIDATION
        else:
            self._turn = Turn.TRAINING
        return self._turn

    def finished(self, values: Sequence[tuple[str, float]]) -> None:
        """Ends the turn, which came to these values."""
        if self._turn is Turn.TRAINING:
            self._reached = dict(values)
            self._schedules.after_epoch(self._progress.epoch + 1)
            if not self._validates:
                self._end()
        elif self._turn is Turn.VALIDATION:
            self._reached = _with_validation(self._reached, values)
            if not self._waits:
                self._end()

    def gathered(self, values: Sequence[tuple[str, float]]) -> None:
        """Takes what the metrics that are gathered came to, after the turn of validation rows."""
        self._reached = _with_validation(self._reached, values)
        self._end()

    def _end(self) -> None:
        self._schedules.after_validation(self._progress.epoch + 1, self._reached)
        self._progress.end_epoch()


def is_told(metric: Metric, turn: Turn) -> bool:
    """Whether a metric is finished in this turn."""
    return not _is_of(metric, TRAINING if turn is Turn.VALIDATION else VALIDATION)


def of_validation_alone(metrics: Sequence[Metric]) -> list[tuple[str, float]]:
    """The names of what is logged of validation rows, before there is any."""
    return [(one.name, math.nan) for one in metrics if _is_of(one, VALIDATION)]


def _is_of(metric: Metric, step: str) -> bool:
    """Whether a metric is what this step alone logs."""
    return isinstance(metric, LoggedMean) and metric.step == step


def _with_validation(reached: Mapping[str, float], values: Sequence[tuple[str, float]]) -> dict[str, float]:
    """What an epoch has come to with values of validation rows: by the names of the history, and by their own
    where training has none of that name.
    """
    return {**dict(values), **reached, **{f"val_{name}": value for name, value in values}}
