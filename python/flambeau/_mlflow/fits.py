"""Fits as runs of MLflow's."""

from __future__ import annotations

import logging
import os
import platform
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from flambeau._callbacks import of_every_fit
from flambeau._history import RECORD_COLUMNS, best_epoch
from flambeau._mlflow import FLAVOR, package
from flambeau._mlflow.models import MODEL_NAME, log_model
from flambeau._mlflow.run import Run
from flambeau._reason import first_line
from flambeau._redacted import redacted
from flambeau._spark import session
from flambeau._spark.columns import quoted
from flambeau._spark.rows.prepared import PreparedData
from flambeau._version import VERSION
from flambeau.callbacks import Callback
from flambeau.errors import CancelledError, ParamError
from flambeau.model import TorchModel
from flambeau.optuna import tags_of, trial_of
from flambeau.params.objects import describe

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import ActiveRun
    from optuna.trial import BaseTrial

    from flambeau.callbacks import Context

log = logging.getLogger("flambeau")

_EXAMPLE_ROWS = 5
_SAMPLING_SECONDS = 10.0
"""MLflow's own, where its setting is not set."""


def autolog(
    log_models: bool = True,
    log_every_n_steps: int = 1,
    registered_model_name: str | None = None,
    disable: bool = False,
) -> None:
    """Makes every later fit of this process a run of MLflow's, as `callbacks=[MLflow(...)]` makes those of
    one estimator, whose own `MLflow` counts where it has one. Called again, the last call's arguments count;
    `disable` ends it. Fits that have begun go on as they are.
    """
    own = [] if disable else [MLflow(log_models, log_every_n_steps, registered_model_name)]
    of_every_fit[:] = [*(one for one in of_every_fit if not isinstance(one, MLflow)), *own]


class MLflow(Callback):
    """A callback that makes each fit a run of MLflow's, with its params, its metrics as they come, and its
    model.

    A fit within a run that is active in its thread is logged into that run, which stays open; a second fit
    there, and fits in threads of their own, as those of a CrossValidator, are child runs of the run that is
    active. A fit with a `flambeau.optuna.PruningCallback` has the trial's number and params as tags, and is a
    child of a run that began before the trial. Other fits have runs of their own, which end as the fits do:
    FINISHED, FAILED or KILLED, as pruned ones are. Where MLflow cannot be reached the fit goes on, and a
    warning says so. With MLflow's switch for system metrics the run has those of the workers too.

    Parameters
    ----------
    log_models : bool, default True
        Whether the fitted model is logged, as `model`, with a signature and five rows of the inputs.
    log_every_n_steps : int, default 1
        After how many optimizer steps at least a step's loss is logged again. The driver is told of one step
        a second.
    registered_model_name : str | None, default None
        The registered model that each logged model becomes a version of, with `log_models`.

    Raises
    ------
    ParamError
        For a number of steps below 1, and for a registered model's name without `log_models`.
    """

    __module__ = "flambeau.mlflow"
    where = "driver"
    _is_sole = True

    def __init__(
        self,
        log_models: bool = True,
        log_every_n_steps: int = 1,
        registered_model_name: str | None = None,
    ) -> None:
        package()
        if not isinstance(log_every_n_steps, int) or log_every_n_steps < 1:
            raise ParamError(
                f"log_every_n_steps must be a whole number of at least 1, got {log_every_n_steps!r}"
            )
        if registered_model_name is not None and not log_models:
            raise ParamError(
                f"registered_model_name is {registered_model_name!r}, but log_models is False, and a model "
                "that is not logged cannot be registered: leave log_models at True, or "
                "registered_model_name at None"
            )
        self.log_models = log_models
        self.log_every_n_steps = log_every_n_steps
        self.registered_model_name = registered_model_name

    def on_fit_begin(self, context: Context) -> None:
        """Begins a run, or takes the active one."""
        with _harmless():
            _runs[id(context)] = _begun(context)

    def on_step_end(self, context: Context) -> None:
        """Logs the loss and the speed."""
        run = _runs.get(id(context))
        if run is None or 0 < context.step - run.last_step < self.log_every_n_steps:
            return
        run.last_step = context.step
        values = {
            "train/loss_step": context.metrics["loss"],
            "train/rows_per_second": context.rows_per_second,
        }
        run.add_metrics(values, context.step)

    def on_epoch_end(self, context: Context) -> None:
        """Logs the epoch's losses and metrics at its last step."""
        run = _runs.get(id(context))
        if run is None:
            return
        values = {_tag(name): value for name, value in context.metrics.items()}
        values |= {
            "train/learning_rate": context.learning_rate,
            "train/rows_per_second": context.rows_per_second,
            "epoch": context.epoch,
        }
        if (norm := context.history[-1].get("gradient_norm")) is not None:
            values["train/gradient_norm_epoch"] = norm
        run.add_metrics(values, context.step)

    def _on_usage(self, context: Context) -> None:
        """Logs what a worker uses, by the number of its samples so far."""
        run = _runs.get(id(context))
        if run is None:
            return
        rank = context._usage["rank"]
        values = {f"system/rank_{rank}/{name}": value for name, value in context._usage["values"].items()}
        run.add_metrics(values, run.num_samples[rank])
        run.num_samples[rank] += 1

    def on_fit_end(self, context: Context) -> None:
        """Logs the best epoch and the model, and ends the run."""
        run = _runs.get(id(context))
        if run is None:
            return
        with _harmless():
            run.add_metrics(_summary(context.model), context.step)
            if run.flush() and self.log_models:
                self._log_model(context, run.id)
        with _harmless():
            run.end("FINISHED")
        # Not before: an interrupt up to here ends the run as one that was killed.
        del _runs[id(context)]

    def on_exception(self, context: Context) -> None:
        """Ends the run as one that failed, or that was interrupted."""
        run = _runs.pop(id(context), None)
        if run is None:
            return
        error = context.error
        assert error is not None
        with _harmless():
            if context._gives_up:
                run.add_tags({"optuna.state": "PRUNED"})
                run.end("KILLED")
                return
            told = redacted(f"{type(error).__name__}: {first_line(error)}")
            run.add_tags({"flambeau.error": told})
            run.end("KILLED" if isinstance(error, (KeyboardInterrupt, CancelledError)) else "FAILED")

    def _log_model(self, context: Context, run_id: str | None) -> None:
        example = None
        try:
            example = _example_of(context.model, context.dataset)
        except Exception as error:
            log.warning("the model is logged to MLflow without an example: %s", first_line(error))
        log_model(
            context.model,
            MODEL_NAME,
            input_example=example,
            registered_model_name=self.registered_model_name,
            run_id=run_id,
        )


def _tag(name: str) -> str:
    """A metric's name in a run, by that in a history; it is TensorBoard's."""
    if name == "loss":
        return "train/loss_epoch"
    part, name = ("validation", name.removeprefix("val_")) if name.startswith("val_") else ("train", name)
    return f"{part}/{name}"


def _summary(model: TorchModel) -> dict[str, float | None]:
    """What a training came to: the figures of its best epoch, where that is known, and how long it took."""
    found: dict[str, float | None] = {}
    table, place = model.history, best_epoch(model._history)
    if place is not None:
        figures = [name for name in table if name == "loss" or name not in RECORD_COLUMNS.values()]
        found = {f"best/{_tag(name)}": table[name][place] for name in figures}
        found["best/epoch"] = table["epoch"][place]
    if model.summary.trainingSeconds is not None:
        found["training_seconds"] = model.summary.trainingSeconds
    return found


def _example_of(model: TorchModel, dataset: Any) -> pd.DataFrame:
    """The first rows that were fitted on, with the columns that the model reads, vectors as lists."""
    from pyspark.sql import functions as F

    spark: Any = session.current()
    frame: Any = dataset._frame() if isinstance(dataset, PreparedData) else dataset
    if isinstance(dataset, str):
        frame = spark.read.parquet(dataset)
    names = dict.fromkeys(name for tensor in model.inputs for name in tensor.columns)
    columns = [F.col(quoted(name) if name in frame.columns else name).alias(name) for name in names]
    rows = frame.select(*columns).limit(_EXAMPLE_ROWS).toPandas()

    def plain(cell: Any) -> Any:
        array = cell.toArray() if callable(getattr(cell, "toArray", None)) else cell
        return array.tolist() if isinstance(array, np.ndarray) else array

    made: pd.DataFrame = rows.assign(
        **{name: rows[name].map(plain) for name in rows if rows[name].dtype == object}
    )
    return made


_runs: dict[int, Run] = {}
"""The runs of fits under way, by the ids of their contexts."""
_lock = threading.Lock()
_taken: set[str] = set()
"""The users' runs that a fit has been logged into."""


def _begun(context: Context) -> Run:
    """The run of a fit that begins in this thread."""
    mlflow = package()
    from mlflow.tracking.context.registry import resolve_tags
    from mlflow.tracking.fluent import _get_experiment_id, _get_latest_active_run
    from mlflow.utils.mlflow_tags import MLFLOW_AUTOLOGGING, MLFLOW_PARENT_RUN_ID

    client = mlflow.MlflowClient()
    active = mlflow.active_run()
    # As `mlflow run` names the run that its program logs into.
    given = os.environ.get("MLFLOW_RUN_ID") if active is None else active.info.run_id
    trial = trial_of(context.estimator.getCallbacks())
    tags = _tags_of(context) | ({} if trial is None else tags_of(trial))
    params = _params_of(context.estimator)
    # Threads of Spark's know nothing of the run that is active where they were started.
    around = active or _get_latest_active_run()
    context._usage_seconds = _sampling_seconds(around)
    with _lock:
        is_free = given is not None and given not in _taken and not _is_around(active, trial)
        if is_free:
            _taken.add(str(given))
    if is_free:
        run = Run(client, given, lambda: str(given), params)
        run.add_tags(tags)
        return run
    tags[MLFLOW_AUTOLOGGING] = FLAVOR
    parent = around.info.run_id if around is not None else given
    if parent is not None:
        tags[MLFLOW_PARENT_RUN_ID] = parent
    resolved = resolve_tags(tags)

    def create() -> str:
        above = None if parent is None else client.get_run(parent)
        experiment = _get_experiment_id() if above is None else above.info.experiment_id
        return str(client.create_run(experiment, tags=resolved).info.run_id)

    run = Run(client, None, create, params)
    run.add_tags({})
    return run


def _sampling_seconds(around: ActiveRun | None) -> float | None:
    """After how many seconds workers are to tell again what they use; None where MLflow logs no system
    metrics: of the run that the fit is in, else of any.
    """
    from mlflow.environment_variables import (
        MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING,
        MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING,
        MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL,
    )
    from mlflow.tracking.fluent import run_id_to_system_metrics_monitor

    if around is None:
        is_on = MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get()
    else:
        is_on = around.info.run_id in run_id_to_system_metrics_monitor
    if not is_on:
        return None
    interval = MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL.get() or _SAMPLING_SECONDS
    return float(interval * (MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING.get() or 1))


def _is_around(run: ActiveRun | None, trial: BaseTrial | None) -> bool:
    """Whether a run was there before the trial: it is that of the study, and not of this trial alone."""
    if trial is None or trial.datetime_start is None:
        return False
    return run is None or run.info.start_time < int(trial.datetime_start.timestamp() * 1000)


def _tags_of(context: Context) -> dict[str, str]:
    import pyspark
    import torch

    kind = type(context.estimator)
    spark = getattr(context.dataset, "sparkSession", None)
    return {
        "estimator_name": kind.__name__,
        "estimator_class": f"{kind.__module__}.{kind.__qualname__}",
        "estimator_uid": context.estimator.uid,
        "flambeau.version": VERSION,
        "spark.version": pyspark.__version__ if spark is None else spark.version,
        "torch.version": str(torch.__version__),
        "python.version": platform.python_version(),
    }


def _params_of(estimator: Any) -> dict[str, str]:
    """The params that are set or have a default, objects in a line, URIs without what may be secret."""
    from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH

    found = {}
    for param in estimator.params:
        value = estimator.getOrDefault(param) if estimator.isDefined(param) else None
        if value is not None and param.name != "callbacks":
            text = value if isinstance(value, str) else describe(value)
            found[param.name] = redacted(text)[:MAX_PARAM_VAL_LENGTH]
    return found


class _harmless:
    """A block whose failure is a warning: logging never ends a fit."""

    def __enter__(self) -> None:
        """Begins."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        log.warning("the fit goes on, but not all of it is logged to MLflow: %s", first_line(error))
        log.debug("what MLflow raised", exc_info=error)
        return True
