"""Optuna: fits as the trials of a study, which ends those that do not promise much by their live metrics::

    import flambeau.optuna

    def objective(trial):
        rate = trial.suggest_float("learningRate", 1e-4, 1e-1, log=True)
        pruning = flambeau.optuna.PruningCallback(trial, monitor="val_loss")
        model = regressor.copy({regressor.learningRate: rate}).setCallbacks([pruning]).fit(df)
        return min(model.history["val_loss"])

The package `optuna` is needed where any of this is called.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flambeau.callbacks import Callback
from flambeau.errors import FlambeauError, ParamError

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

    from flambeau.callbacks import Context

log = logging.getLogger("flambeau")

_told_that_late = threading.Event()


class PruningCallback(Callback):
    """Reports a metric of each epoch to a trial of Optuna's, the epoch as its step, and ends the fit where
    the study's pruner says so: `fit` raises `optuna.TrialPruned`, and nothing of the training is kept.

    It is for one fit, on the driver, and is called after the other callbacks there. A metric that is not a
    finite number is reported as NaN, and an epoch that is trained again after a restart is not reported
    again. Where the driver does not see the work directory, epochs are reported when all are over, and
    nothing is pruned.

    Parameters
    ----------
    trial : optuna.trial.BaseTrial
        The trial that the fit is; of a study with one objective.
    monitor : str, default "val_loss"
        The metric, by its name in `model.history`. A fit that has no such metric raises ParamError.
    """

    where = "driver"
    _is_last = True

    def __init__(self, trial: BaseTrial, monitor: str = "val_loss") -> None:
        optuna = _optuna()
        if not isinstance(trial, optuna.trial.BaseTrial):
            raise ParamError(f"trial must be a trial of Optuna's, got {type(trial).__name__}")
        study = getattr(trial, "study", None)
        if study is not None and len(study.directions) > 1:
            raise ParamError(
                f"trial is of a study with {len(study.directions)} objectives, for which Optuna prunes "
                "nothing: leave the PruningCallback out"
            )
        self.trial, self.monitor = trial, monitor
        self._needs = (monitor,)
        self._has_begun = False
        self._last_epoch = -1

    def on_fit_begin(self, context: Context) -> None:
        """Raises ParamError in a second fit, whose epochs Optuna would take for those of the first."""
        if self._has_begun:
            raise ParamError(
                f"this PruningCallback has reported another fit to trial {self.trial.number}: give each fit "
                "one of its own, with a trial of its own"
            )
        self._has_begun = True

    def on_epoch_end(self, context: Context) -> None:
        """Reports the epoch, and raises TrialPruned where the pruner says so."""
        if context.epoch <= self._last_epoch:
            return
        self._last_epoch = context.epoch
        value = context.metrics[self.monitor]
        self.trial.report(math.nan if value is None else value, context.epoch)
        if context._is_late:
            if not _told_that_late.is_set():
                _told_that_late.set()
                log.warning("trials are not pruned: the driver is told of their epochs when all are over")
        elif self.trial.should_prune():
            context._gives_up = True
            raise _optuna().TrialPruned(f"Trial was pruned at epoch {context.epoch}.")


def trial_of(callbacks: Iterable[Callback] | None) -> BaseTrial | None:
    """The trial that a fit with those callbacks is, None where it is none."""
    return next((one.trial for one in callbacks or () if isinstance(one, PruningCallback)), None)


def tags_of(trial: BaseTrial) -> dict[str, str]:
    """What tells a trial from others, by the names that the tags of its run have."""
    study = getattr(trial, "study", None)
    name = {} if study is None else {"optuna.study": study.study_name}
    params = {f"optuna.param.{name}": str(value) for name, value in trial.params.items()}
    return {**name, "optuna.trial": str(trial.number), **params}


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise FlambeauError(
            "this needs Optuna, which is not installed: pip install flambeau[optuna]"
        ) from error
    return optuna
