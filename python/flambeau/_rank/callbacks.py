"""A rank's callbacks."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flambeau._callbacks import CallbackList, overrides
from flambeau.callbacks import Callback, Context

if TYPE_CHECKING:
    from flambeau._module.adapter import ModuleModel


class RankCallbacks:
    """What the native worker tells of a rank's training, for callbacks in that rank. Each call returns
    whether one of them has asked for a stop.
    """

    def __init__(self, callbacks: Sequence[Callback], model: ModuleModel, rank: int, world_size: int) -> None:
        # Nothing here holds this object, so that module and optimizer go with their training.
        self._stopped = threading.Event()
        self._context = Context(
            rank=rank,
            world_size=world_size,
            module=model.module,
            optimizer=model.optimizer,
            _stop=self._stopped.set,
        )
        self._callbacks = CallbackList(callbacks, self._context)
        self._of_steps = [one for one in callbacks if overrides(one, "on_step_end")]

    @property
    def step_interval(self) -> int | None:
        """After how many steps one is to be told again; None where none is to be told."""
        return math.gcd(*(one.every_n_steps for one in self._of_steps)) or None

    def on_step(
        self,
        epoch: int,
        step: int,
        loss: float | None,
        gradient_norm: float | None,
        learning_rate: float | None,
    ) -> bool:
        """An optimizer step, counted from 0. None stands for what is not a finite number."""
        context = self._context
        context.epoch, context.step, context.metrics = epoch, step + 1, {"loss": loss}
        context.gradient_norm, context.learning_rate = gradient_norm, learning_rate
        for callback in self._of_steps:
            if context.step % callback.every_n_steps == 0:
                self._callbacks.call_one(callback, "on_step_end")
        return self._stopped.is_set()

    def on_event(self, event_json: str) -> bool:
        """An event, as the attempt's files have it."""
        event = json.loads(event_json)
        if event["kind"] == "start":
            self._callbacks.begin(event)
        self._callbacks.tell(event)
        return self._stopped.is_set()


def rank_callbacks(
    callbacks: Sequence[Callback], model: ModuleModel, rank: int, world_size: int
) -> RankCallbacks | None:
    """What tells those callbacks that a rank calls; None where there are none."""
    own = [one for one in callbacks if one.where == "ranks" or rank == 0]
    return RankCallbacks(own, model, rank, world_size) if own else None
