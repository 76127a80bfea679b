"""Callbacks: code of the user's that runs at the events of a training, in the workers or on the driver::

    class Report(Callback):
        def on_epoch_end(self, context):
            print(context.epoch, context.metrics)

    TorchEstimator(model=net, loss="mse", callbacks=[Report()], ...).fit(df)

A hook is a method that a subclass of `Callback` overrides, and is given a `Context`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
    """That of the last step that was told, of the optimizer's first group of parameters."""
    gradient_norm: float | None = None
    """The 2-norm of all gradients of the last step that was told, with `logGradientNorm` or
    `gradientClipNorm`.
    """
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
    _usage_seconds: float | None = field(default=None, repr=False)
    """On the driver, after how many seconds workers are to tell again what they use, as a hook at the fit's
    beginning wants it; None for never.
    """
    _usage: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """In `_on_usage`, the `rank`, and `values` of what it uses by the names of MLflow's system metrics."""
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
    _is_sole: bool = False
    """Whether a fit takes one of those at most that have this set."""

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
        second.
        """

    def on_checkpoint(self, context: Context) -> None:
        """A checkpoint lies whole at `context.checkpoint`."""

    def on_validation_end(self, context: Context) -> None:
        """The epoch was evaluated on the validation rows, where there are any; comes before its end."""

    def on_epoch_end(self, context: Context) -> None:
        """An epoch ended."""

    def _on_usage(self, context: Context) -> None:
        """On the driver: a worker told what it uses, where `_usage_seconds` was set."""

    def on_train_end(self, context: Context) -> None:
        """The training ended well, and its weights are written."""

    def on_fit_end(self, context: Context) -> None:
        """On the driver: the model is made, and `fit` is about to return it."""

    def on_exception(self, context: Context) -> None:
        """On the driver: `fit` is about to raise `context.error`."""
