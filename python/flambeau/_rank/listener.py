"""Callbacks, called with what a training tells: its steps, and the events that its files have too."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flambeau._history import metrics_of, row_of
from flambeau.callbacks import Callback, Context, overrides

if TYPE_CHECKING:
    from flambeau._module.adapter import ModuleModel


class CallbackList:
    """Calls the hooks of callbacks, in their order, with one context."""

    def __init__(self, callbacks: Sequence[Callback], context: Context) -> None:
        self.callbacks = callbacks
        self.context = context
        self._is_validated = False
        """Whether epochs end with an evaluation."""

    def call(self, hook: str) -> None:
        """Calls a hook of every callback. What one raises says which it was, in a note."""
        for callback in self.callbacks:
            self.call_one(callback, hook)

    def call_one(self, callback: Callback, hook: str) -> None:
        """Calls a hook of one callback, after which the module is in training mode again."""
        try:
            getattr(callback, hook)(self.context)
        except BaseException as error:
            error.add_note(f"in {hook} of the callback {type(callback).__name__}")
            raise
        module = self.context.module
        if module is not None and not module.training:
            module.train()

    def begin(self, event: Mapping[str, Any]) -> None:
        """Takes what a training says of itself as it begins, or goes on."""
        context = self.context
        context.epoch, context.step = event["epoch"], event["step"]
        context.epochs, context.steps_per_epoch = event["epochs"], event["stepsPerEpoch"]
        context.world_size = event["worldSize"]
        # Those that are trained again are told again.
        context.history = [row for row in context.history if row["epoch"] < event["epoch"]]
        self._is_validated = event["numValidationRows"] > 0

    def tell(self, event: Mapping[str, Any]) -> None:
        """Calls the hooks of an event, after `begin` for that of a start."""
        context, kind = self.context, event["kind"]
        if kind == "start":
            self.call("on_train_begin")
        elif kind == "epochBegin":
            context.epoch, context.step, context.metrics = event["epoch"], event["step"], {}
            self.call("on_epoch_begin")
        elif kind == "progress":
            context.rows_per_second = event["rowsPerSecond"]
        elif kind == "checkpoint":
            context.epoch, context.step = event["epoch"], event["step"]
            context.checkpoint = event["uri"]
            self.call("on_checkpoint")
            context.checkpoint = None
        elif kind == "epoch":
            self._end_epoch(event)
        elif kind == "end":
            self.call("on_train_end")

    def _end_epoch(self, record: Mapping[str, Any]) -> None:
        context = self.context
        context.epoch, context.step = record["epoch"], record["steps"]
        context.metrics = metrics_of(record, self._is_validated)
        context.rows_per_second, context.learning_rate = record["rowsPerSecond"], record["learningRate"]
        context.history = [*context.history, row_of(record, self._is_validated)]
        if self._is_validated:
            self.call("on_validation_end")
        self.call("on_epoch_end")


class Listener:
    """What the native worker tells of a rank's training, for callbacks in that rank. Each call returns
    whether one of them has asked for a stop.
    """

    def __init__(self, callbacks: Sequence[Callback], model: ModuleModel, rank: int, world_size: int) -> None:
        # Nothing here holds the listener, so that module and optimizer go with their training.
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
        steps_per_epoch: int,
        num_rows: int,
        loss: float | None,
        gradient_norm: float | None,
        learning_rate: float | None,
    ) -> bool:
        """An optimizer step, counted from 0."""
        context = self._context
        context.epoch, context.step = epoch, step + 1
        context.metrics = {"loss": loss}
        context.gradient_norm, context.learning_rate = gradient_norm, learning_rate
        for callback in self._of_steps:
            if (step + 1) % callback.every_n_steps == 0:
                self._callbacks.call_one(callback, "on_step_end")
        return self._stopped.is_set()

    def on_event(self, event_json: str) -> bool:
        """An event, as the attempt's files have it."""
        event = json.loads(event_json)
        if event["kind"] == "start":
            self._callbacks.begin(event)
        self._callbacks.tell(event)
        return self._stopped.is_set()


def listener_of(
    callbacks: Sequence[Callback], model: ModuleModel, rank: int, world_size: int
) -> Listener | None:
    """What tells those callbacks that a rank calls; None where there are none."""
    own = [one for one in callbacks if one.where == "ranks" or rank == 0]
    return Listener(own, model, rank, world_size) if own else None
