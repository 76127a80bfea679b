"""Lists of callbacks: what may be in one, where each is called, and how."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from flambeau._history import metrics_of, row_of
from flambeau._suggest import suggestion
from flambeau.callbacks import Callback, Context
from flambeau.errors import ParamError

_DRIVERS_HOOKS = ("on_fit_begin", "on_fit_end", "on_exception")
HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
_PLACES = ("rank0", "ranks", "driver")


def overrides(callback: Callback, hook: str) -> bool:
    """Whether a callback has a hook of its own by that name."""
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook)


of_every_fit: list[Callback] = []
"""Callbacks that are called on the driver in every fit whose own ones have none of that class, or of one
derived from it.
"""


def on_driver(callbacks: Sequence[Callback] | None) -> list[Callback]:
    """Those that are called on the driver, in their order, with those of every fit at the end."""
    own = [one for one in callbacks or () if one.where == "driver"]
    found = own + [one for one in of_every_fit if not any(isinstance(mine, type(one)) for mine in own)]
    return sorted(found, key=lambda one: one._is_last)


def on_workers(callbacks: Sequence[Callback] | None) -> list[Callback]:
    """Those that are called in workers."""
    return [one for one in callbacks or () if one.where != "driver"]


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
        elif kind == "usage":
            context._usage = event
            self.call("_on_usage")
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


def callback_list(value: Any) -> list[Callback]:
    """A list of callbacks. Raises ParamError for anything else, and for a callback that would never be
    called.
    """
    if not isinstance(value, (list, tuple)):
        hint = ": put it into a list" if isinstance(value, Callback) else ""
        raise ParamError(f"must be a list of flambeau.callbacks.Callback, got {_name(value)}{hint}")
    for callback in value:
        _check(callback)
    if len(sole := [_name(callback) for callback in value if callback._is_sole]) > 1:
        raise ParamError(f"has {' and '.join(sole)}, of which a fit takes one: leave the others out")
    return list(value)


def _check(callback: Any) -> None:
    name = _name(callback)
    if isinstance(callback, type) and issubclass(callback, Callback):
        raise ParamError(f"has the class {name} where an object of it is needed: give {name}()")
    if not isinstance(callback, Callback):
        raise ParamError(f"must be objects of classes derived from flambeau.callbacks.Callback, got {name}")
    if callback.where not in _PLACES:
        places = ", ".join(map(repr, _PLACES))
        hint = suggestion(str(callback.where), _PLACES)
        raise ParamError(f"has {name} with where={callback.where!r}, which must be one of {places}{hint}")
    steps = callback.every_n_steps
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ParamError(
            f"has {name} with every_n_steps={steps!r}, which must be a whole number of at least 1"
        )
    own = [hook for hook in HOOKS if overrides(callback, hook)]
    if not own:
        raise ParamError(
            f"has {name}, which overrides no hook{_meant(callback)}; hooks are {', '.join(HOOKS)}"
        )
    of_driver = [hook for hook in own if hook in _DRIVERS_HOOKS]
    if of_driver and callback.where != "driver":
        raise ParamError(
            f"has {name} with {', '.join(of_driver)}, called on the driver alone, and "
            f"where={callback.where!r}: set where='driver', or put that into a callback of its own"
        )


def _meant(callback: Callback) -> str:
    """A hint at the hooks that were meant, empty where none is close."""
    given = [name for name in dir(callback) if name not in HOOKS and not name.startswith("__")]
    close = [(name, match) for name in given for match in difflib.get_close_matches(name, HOOKS, n=1)]
    return "".join(f"; {name}: did you mean {match}?" for name, match in close)


def _name(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return kind.__name__
