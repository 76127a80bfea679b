"""Callbacks: code of the user's that runs at the events of a training, in the workers or on the driver.

class Report(Callback):
    def on_epoch_end(self, context):
        print(context.epoch, context.metrics)

TorchEstimator(model=net, loss="mse", callbacks=[Report()], ...).fit(df)
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flambeau._suggest import suggestion
from flambeau.errors import ParamError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@dataclass
class Context:
    """What a hook is given: how far the training is, and `stop()`. It is one object for all hooks of a
    process, and tells what is so while a hook runs.
    """

    epoch: int = 0
    """The epoch under way or just ended, from 0."""
    step: int = 0
    """Optimizer steps taken since the training began."""
    epochs: int = 0
    """Epochs that are to be trained."""
    steps_per_epoch: int = 0
    """Optimizer steps in an epoch; 0 until that is known."""
    rank: int | None = None
    """The worker's number, None on the driver."""
    world_size: int = 0
    """How many workers train."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """`loss`, the metrics, and with validation rows `val_loss` and `val_<metric>`, those of them that are
    known: all at the end of an epoch, `loss` after a step. None stands for what is not a finite number.
    """
    learning_rate: float | None = None
    """That of the last step, of the optimizer's first group of parameters."""
    gradient_norm: float | None = None
    """The 2-norm of all gradients of the last step, with `logGradientNorm` or `gradientClipNorm`."""
    rows_per_second: float | None = None
    """Training rows that all workers went through in a second, as last told; to rank 0 and the driver within
    an epoch too.
    """
    module: nn.Module | None = field(default=None, repr=False)
    """The module under training, None on the driver."""
    optimizer: Optimizer | None = field(default=None, repr=False)
    """Its optimizer, None on the driver."""
    checkpoint: str | None = None
    """In `on_checkpoint`, where the checkpoint lies."""
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """A record for each epoch that has ended, by the names of `model.history`: those that this process has
    been told of.
    """
    estimator: Any = field(default=None, repr=False)
    """On the driver, the estimator that fits."""
    dataset: Any = field(default=None, repr=False)
    """On the driver, the DataFrame or the path that is fitted on."""
    model: Any = field(default=None, repr=False)
    """In `on_fit_end`, the fitted model."""
    error: BaseException | None = None
    """In `on_exception`, what the fit raises."""
    _is_late: bool = field(default=False, repr=False)
    """On the driver, whether the training had ended before its events were told."""
    _gives_up: bool = field(default=False, repr=False)
    """On the driver, whether a hook that raises wants nothing of the training kept: no model, no checkpoint
    to go on from.
    """
    _stop: Callable[[], None] = field(default=lambda: None, repr=False)

    def stop(self) -> None:
        """Asks that the training end early, and well: all workers stop after the same step, the epoch under
        way is evaluated and recorded with the steps that it had, and the fit returns the model.

        In a worker it takes effect after the next step at the latest, on the driver within a few seconds.
        Once the training has ended it does nothing.
        """
        self._stop()


class Callback:
    """What is called as a training goes on. Subclasses override the hooks that they need.

    Hooks run on the thread that trains, or on the driver on a thread of their own; the callbacks of a list
    in its order. What a hook raises ends the fit, which raises it.
    """

    where: str = "rank0"
    """Where it is called: "rank0", in the worker of rank 0, "ranks", in every worker, or "driver", in the
    process that called `fit`. Workers have copies, each of its own.
    """
    every_n_steps: int = 1
    """In workers, after how many steps `on_step_end` is called again."""
    _needs: tuple[str, ...] = ()
    """Metrics by the names of `model.history`, without which a fit is refused."""
    _is_last: bool = False
    """Whether it is called on the driver after all others, which are told of what it ends the fit by."""

    def on_fit_begin(self, context: Context) -> None:
        """On the driver: `fit` was called."""

    def on_train_begin(self, context: Context) -> None:
        """The workers are ready to train, or to go on from a checkpoint. On the driver once a fit, in workers
        once in each process that trains.
        """

    def on_epoch_begin(self, context: Context) -> None:
        """An epoch begins."""

    def on_step_end(self, context: Context) -> None:
        """A step was taken; `metrics` has its loss over all workers. On the driver it is called about once a
        second, with the mean loss of the epoch so far.
        """

    def on_checkpoint(self, context: Context) -> None:
        """A checkpoint lies whole at `context.checkpoint`."""

    def on_validation_end(self, context: Context) -> None:
        """The epoch was evaluated on the validation rows, where there are any; comes before its end."""

    def on_epoch_end(self, context: Context) -> None:
        """An epoch ended."""

    def on_train_end(self, context: Context) -> None:
        """The training ended well, and its weights are written."""

    def on_fit_end(self, context: Context) -> None:
        """On the driver: the model is made, and `fit` is about to return it."""

    def on_exception(self, context: Context) -> None:
        """On the driver: `fit` is about to raise `context.error`."""


_DRIVERS_HOOKS = ("on_fit_begin", "on_fit_end", "on_exception")
HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
_PLACES = ("rank0", "ranks", "driver")


def overrides(callback: Callback, hook: str) -> bool:
    """Whether a callback has a hook of its own by that name."""
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook)


of_every_fit: list[Callback] = []
"""Callbacks that are called on the driver in every fit whose own ones have none of that class."""


def on_driver(callbacks: Sequence[Callback] | None) -> list[Callback]:
    """Those that are called on the driver, in their order, with those of every fit at the end."""
    own = [one for one in callbacks or () if one.where == "driver"]
    known = {type(one) for one in own}
    found = own + [one for one in of_every_fit if type(one) not in known]
    return sorted(found, key=lambda one: one._is_last)


def on_workers(callbacks: Sequence[Callback] | None) -> list[Callback]:
    """Those that are called in workers."""
    return [one for one in callbacks or () if one.where != "driver"]


def callback_list(value: Any) -> list[Callback]:
    """A list of callbacks. Raises ParamError for anything else, and for a callback that would never be
    called.
    """
    if not isinstance(value, (list, tuple)):
        hint = ": put it into a list" if isinstance(value, Callback) else ""
        raise ParamError(f"must be a list of flambeau.callbacks.Callback, got {_name(value)}{hint}")
    for callback in value:
        _check(callback)
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
