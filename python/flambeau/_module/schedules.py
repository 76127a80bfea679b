"""torch's own schedules of the learning rate: when each takes its steps.

A schedule of steps follows the optimizer's steps; one of epochs takes a step when the last step of its epoch
was taken; one of a plateau does so after the epoch's validation, with the value that it monitors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from flambeau.errors import ParamError

INTERVALS = ("epoch", "step")


@dataclass(frozen=True)
class Schedule:
    """A scheduler of torch's, and that it takes a step after every `frequency` epochs, or steps within an
    epoch. Raises ParamError for what is none.
    """

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None
    """What a ReduceLROnPlateau watches, by its name in the history."""

    def __post_init__(self) -> None:
        if not isinstance(self.scheduler, LRScheduler):
            raise ParamError(
                f"lrScheduler: expected a scheduler of torch.optim.lr_scheduler, got "
                f"{type(self.scheduler).__name__}"
            )
        if self.interval not in INTERVALS:
            raise ParamError(f"lrScheduler: the interval is {self.interval!r}, but must be 'epoch' or 'step'")
        if not isinstance(self.frequency, int) or self.frequency < 1:
            raise ParamError(f"lrScheduler: the frequency is {self.frequency!r}, but must be at least 1")
        if self.is_plateau and self.interval == "step":
            raise ParamError(
                "lrScheduler: ReduceLROnPlateau takes what an epoch came to: set the interval to 'epoch'"
            )

    @property
    def is_plateau(self) -> bool:
        """Whether it takes a step by a value."""
        return isinstance(self.scheduler, ReduceLROnPlateau)

    def is_due(self, count: int) -> bool:
        """Whether it takes a step after so many epochs, or steps of an epoch."""
        return count % self.frequency == 0


def of_factory(
    factory: Any, interval: str, optimizer: torch.optim.Optimizer, validates: bool
) -> list[Schedule]:
    """The schedule that `lrScheduler` makes of the optimizer; none where it is not given."""
    if factory is None:
        return []
    if not callable(factory) or isinstance(factory, LRScheduler):
        raise ParamError(
            f"lrScheduler: expected a callable that makes a scheduler of the optimizer, such as lambda "
            f"optimizer: CosineAnnealingLR(optimizer, 10), got {type(factory).__name__}"
        )
    schedule = Schedule(factory(optimizer), interval, monitor="val_loss")
    if schedule.is_plateau and not validates:
        raise ParamError(
            "lrScheduler: ReduceLROnPlateau watches the loss of validation rows, and there are none: set "
            "validationFraction or validationIndicatorCol"
        )
    return [schedule]


class Schedules:
    """All of a training's."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self._all = list(schedules)
        self._plateaus = [one for one in schedules if one.is_plateau]
        self._others = [one for one in schedules if not one.is_plateau]

    def __bool__(self) -> bool:
        return bool(self._all)

    def check(self, known: Collection[str]) -> None:
        """Raises ParamError for one that monitors what is not among these names."""
        for one in self._plateaus:
            if one.monitor not in known:
                raise ParamError(
                    f"lrScheduler: ReduceLROnPlateau monitors {one.monitor!r}, which is none of "
                    f"{', '.join(sorted(known))}"
                )

    def after_step(self, epoch_step: int) -> None:
        """After the optimizer's step of this number within its epoch, counted from 1."""
        self._step(self._others, "step", epoch_step)

    def after_epoch(self, epochs: int) -> None:
        """After the last step of an epoch, which makes so many."""
        self._step(self._others, "epoch", epochs)

    def after_validation(self, epochs: int, values: Mapping[str, float]) -> None:
        """After an epoch and its validation, which came to these values."""
        self._step(self._plateaus, "epoch", epochs, lambda one: (values[str(one.monitor)],))

    def _step(
        self,
        schedules: Sequence[Schedule],
        interval: str,
        count: int,
        arguments: Callable[[Schedule], tuple[float, ...]] = lambda _: (),
    ) -> None:
        for one in schedules:
            if one.interval == interval and one.is_due(count):
                one.scheduler.step(*arguments(one))

    def state(self) -> list[dict[str, Any]]:
        """The schedulers' states."""
        return [one.scheduler.state_dict() for one in self._all]

    def take(self, states: Sequence[dict[str, Any]]) -> None:
        """Takes back what `state` gave."""
        for one, state in zip(self._all, states, strict=True):
            one.scheduler.load_state_dict(state)
