"""A LightningModule without Lightning's Trainer: what of it is used, and what is refused by name.

Lightning is never imported here: a module that is one has brought it along.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flambeau._module.position import Position
from flambeau._module.schedules import Schedule
from flambeau.errors import ParamError

_PACKAGES = ("lightning", "pytorch_lightning")

_CALLED = frozenset({"forward", "training_step", "validation_step", "configure_optimizers"})
"""What is called of a LightningModule."""

_OTHERS = frozenset({"test_step", "predict_step", "print"})
"""What is for tests and predictions of a Trainer's, and what does the same without one."""

_DATA = frozenset({"train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader"})
"""What the rows of the DataFrame stand in for."""

_LOG_OPTIONS = (
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "reduce_fx",
    "enable_graph",
    "sync_dist",
    "sync_dist_group",
    "add_dataloader_idx",
    "batch_size",
    "metric_attribute",
    "rank_zero_only",
)
"""What Lightning's `log` takes after name and value, in its order."""

_INSTEAD = {
    "optimizer_step": "the gradients of all workers are averaged first: leave it out",
    "optimizer_zero_grad": "gradients are dropped after each step: leave it out",
    "backward": "its gradients are those of this worker alone: return the loss, and leave it out",
    "configure_gradient_clipping": "set gradientClipNorm or gradientClipValue",
    "lr_scheduler_step": "give a scheduler of torch's API, whose step is called without arguments",
    "on_train_epoch_end": "log values in training_step, which makes them means of the epoch",
    "on_validation_epoch_end": "log values in validation_step, which makes them means of the epoch",
    "setup": "make the layers in __init__",
    "configure_model": "make the layers in __init__",
    "prepare_data": "the rows are those of the DataFrame: leave it out",
}


def base_of(module: Any) -> type | None:
    """Lightning's own LightningModule that a module's class derives from; None for another module."""
    for kind in type(module).__mro__:
        if kind.__name__ == "LightningModule" and kind.__module__.partition(".")[0] in _PACKAGES:
            return kind
    return None


def overrides(module: nn.Module, name: str) -> bool:
    """Whether a LightningModule has a method of its own in place of Lightning's."""
    # Of a descriptor, such as that of load_from_checkpoint, each class makes another method.
    own, base = (inspect.getattr_static(kind, name) for kind in (type(module), base_of(module)))
    return own is not base


def has_own(module: Any, name: str) -> bool:
    """Whether a module has a method by that name, a LightningModule one in place of Lightning's."""
    if base_of(module) is not None:
        return overrides(module, name)
    return callable(getattr(module, name, None))


def check(module: nn.Module) -> None:
    """Raises ParamError for what a LightningModule asks of a Trainer and no fit does."""
    name = type(module).__name__
    if not getattr(module, "automatic_optimization", True):
        raise ParamError(
            f"model: {name} sets automatic_optimization = False, and manual optimization is not supported, "
            "as the gradients of all workers are averaged before a step: return the loss from training_step"
        )
    hooks = sorted(
        hook
        for hook, own in inspect.getmembers(base_of(module), inspect.isfunction)
        if not hook.startswith("_")
        and hook not in _CALLED | _OTHERS | _DATA
        and not hasattr(nn.Module, hook)
        and overrides(module, hook)
    )
    if hooks:
        told = "; ".join(f"{hook} ({_INSTEAD.get(hook, 'leave it out')})" for hook in hooks)
        raise ParamError(f"model: {name} overrides what no fit calls: {told}")


def warnings_of(module: nn.Module) -> list[str]:
    """What of a LightningModule a fit leaves aside."""
    unused = sorted(name for name in _DATA if overrides(module, name))
    if not unused:
        return []
    return [f"model: {', '.join(unused)} is not called: the rows are those of the DataFrame"]


class Trainer:
    """What a module finds as `self.trainer`: where the training is, and nothing else of a Trainer."""

    def __init__(self, position: Position) -> None:
        self._position = position

    @property
    def current_epoch(self) -> int:
        """The epoch, counted from 0."""
        return self._position.epoch

    @property
    def global_step(self) -> int:
        """How many steps the optimizer has taken."""
        return self._position.step

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ParamError(
            f"model: self.trainer.{name} is asked for, and a fit has no Trainer: here self.trainer has "
            "current_epoch and global_step alone; give numbers to the module's __init__"
        )


def attach(module: nn.Module, position: Position) -> None:
    """Gives a LightningModule what it finds as `self.trainer`."""
    setattr(module, "trainer", Trainer(position))  # noqa: B010  # a property of Lightning's


@contextmanager
def logging_to(module: nn.Module, take: Any) -> Iterator[None]:
    """In the block, `take(name, value, weight)` gets what a LightningModule logs; a weight is None where it
    gives no batch_size.
    """

    def log(name: str, value: Any, *by_position: Any, **options: Any) -> None:
        options.update(zip(_LOG_OPTIONS, by_position, strict=False))
        reduction = options.get("reduce_fx", "mean")
        if reduction not in ("mean", torch.mean):
            raise ParamError(
                f"model: {name!r} is logged with reduce_fx={reduction!r}, but an epoch's metrics are means "
                "over its rows: leave reduce_fx out"
            )
        if not isinstance(value, int | float | Tensor):
            raise ParamError(
                f"model: {name!r} is logged as {type(value).__name__}: log a number of the batch, such as "
                "self.log(name, metric(output, label)), which makes the mean over the rows"
            )
        take(name, value, options.get("batch_size"))

    # Lightning's log_dict calls it for each, with options by name.
    vars(module)["log"] = log
    try:
        yield
    finally:
        del vars(module)["log"]


def optimizer_of(module: nn.Module) -> tuple[torch.optim.Optimizer, list[Schedule]]:
    """The optimizer and the schedules that a module's configure_optimizers returns, in any of the forms that
    Lightning has. Raises ParamError for what can't be trained.
    """
    made: Any = module.configure_optimizers()  # type: ignore[operator]
    optimizers, schedulers, monitor = _parts(made)
    if len(optimizers) > 1:
        raise ParamError(
            f"model: configure_optimizers returns {len(optimizers)} optimizers; give one with several "
            "parameter groups"
        )
    (optimizer,) = optimizers
    schedules = [_schedule(scheduler, monitor) for scheduler in schedulers]
    if any(schedule.scheduler.optimizer is not optimizer for schedule in schedules):
        raise ParamError("model: configure_optimizers returns a scheduler of another optimizer")
    return optimizer, schedules


def _parts(made: Any) -> tuple[list[torch.optim.Optimizer], list[Any], str | None]:
    """Optimizers, schedulers or their configurations, and what these monitor."""
    if isinstance(made, torch.optim.Optimizer):
        return [made], [], None
    if isinstance(made, Mapping) and isinstance(made.get("optimizer"), torch.optim.Optimizer):
        unknown = sorted(set(made) - {"optimizer", "lr_scheduler", "monitor"})
        if unknown:
            raise ParamError(f"model: configure_optimizers returns the unknown keys {', '.join(unknown)}")
        scheduler = made.get("lr_scheduler")
        return [made["optimizer"]], [] if scheduler is None else [scheduler], made.get("monitor")
    if isinstance(made, list | tuple) and made:
        if len(made) == 2 and isinstance(made[0], list) and made[0]:
            optimizers, schedulers = made
            if all(isinstance(one, torch.optim.Optimizer) for one in optimizers):
                return optimizers, schedulers if isinstance(schedulers, list) else [schedulers], None
        each = [_parts(one) for one in made]
        monitor = each[0][2] if len(each) == 1 else None
        return [one for part in each for one in part[0]], [one for part in each for one in part[1]], monitor
    raise ParamError(
        f"model: configure_optimizers returns {made!r}; return an optimizer, [optimizer], ([optimizer], "
        "[scheduler]), or {'optimizer': ..., 'lr_scheduler': ...}"
    )


def _schedule(given: Any, monitor: str | None) -> Schedule:
    config: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    known = {"scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau"}
    unknown = sorted(set(config) - known)
    if unknown:
        raise ParamError(f"model: the lr_scheduler of configure_optimizers has the unknown keys {unknown}")
    return Schedule(
        config.get("scheduler"),
        config.get("interval", "epoch"),
        config.get("frequency", 1),
        config.get("monitor", monitor),
    )
