"""MLflow: fits as runs, fitted models as models of its registry.

import flambeau.mlflow

flambeau.mlflow.autolog()
model = TorchRegressor(model=net, inputCols=["x"], labelCol="y", ...).fit(df)  # a run
model = flambeau.mlflow.load_model("models:/taxi@champion")

The package `mlflow` is needed where any of this is called.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from importlib import metadata
from pathlib import Path
from posixpath import normpath
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from flambeau import _native
from flambeau._history import RECORD_COLUMNS, best_epoch
from flambeau._quiet import without_warnings
from flambeau._spark import session
from flambeau._spark.columns import quoted
from flambeau._spark.rows.prepared import PreparedData
from flambeau._spark.saving.stages import load_here, save_here
from flambeau._spark.saving.trust import refusal
from flambeau._spark.site import first_line
from flambeau.callbacks import Callback, of_every_fit
from flambeau.errors import CancelledError, FlambeauError, ParamError
from flambeau.model import TorchModel
from flambeau.params.objects import describe

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.models import ModelSignature
    from mlflow.models.model import Model, ModelInfo

    from flambeau.callbacks import Context

log = logging.getLogger("flambeau")

FLAVOR = "flambeau"
_MODEL_NAME = "model"
_EXAMPLE_ROWS = 5
_END_SECONDS = 30.0
"""How long a fit that has ended waits for what it told to be written."""
_NUM_KEPT = 100_000
"""How many metrics are kept while they cannot be written."""
_REQUIREMENTS = ("mlflow", "torch", "pyspark", "numpy", "pandas", "pyarrow", "cloudpickle", "safetensors")
_NOT_IN_NAMES = re.compile(r"[^\w\-./ :]")
_SECRETS = re.compile(r"(?<=://)[^/@\s]*@|\?[^\s'\"]*")
"""What a URI may hold that is for nobody's eyes: a user with a password, and a query, as of a signed URL."""


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
    of_every_fit[:] = [one for one in of_every_fit if not isinstance(one, MLflow)]
    if not disable:
        of_every_fit.append(MLflow(log_models, log_every_n_steps, registered_model_name))


class MLflow(Callback):
    """A callback that makes each fit a run of MLflow's, with its params, its metrics as they come, and its
    model.

    A fit within a run that is active in its thread is logged into that run, which stays open; a second fit
    there, and fits in threads of their own, as those of a CrossValidator, are child runs of the run that is
    active. Other fits have runs of their own, which end as the fits do: FINISHED, FAILED or KILLED. Where
    MLflow cannot be reached the fit goes on, and a warning says so.

    Parameters
    ----------
    log_models : bool, default True
        Whether the fitted model is logged, as `model`, with a signature and five rows of the inputs.
    log_every_n_steps : int, default 1
        After how many optimizer steps at least a step's loss is logged again. The driver is told of one step
        a second.
    registered_model_name : str | None, default None
        The registered model that each logged model becomes a version of.
    """

    where = "driver"

    def __init__(
        self,
        log_models: bool = True,
        log_every_n_steps: int = 1,
        registered_model_name: str | None = None,
    ) -> None:
        _mlflow()
        if not isinstance(log_every_n_steps, int) or log_every_n_steps < 1:
            raise ParamError(
                f"log_every_n_steps must be a whole number of at least 1, got {log_every_n_steps!r}"
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
        values = {"train/loss": context.metrics["loss"], "train/rows_per_second": context.rows_per_second}
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
        run.add_metrics(values, context.step)

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
            told = _SECRETS.sub("", f"{type(error).__name__}: {first_line(error)}")
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
            _MODEL_NAME,
            input_example=example,
            registered_model_name=self.registered_model_name,
            run_id=run_id,
        )


def log_model(
    model: TorchModel,
    name: str = _MODEL_NAME,
    signature: ModelSignature | None = None,
    input_example: pd.DataFrame | None = None,
    registered_model_name: str | None = None,
    **options: Any,
) -> ModelInfo:
    """Logs a fitted model to MLflow, into the active run where there is one.

    `input_example` are rows of the model's input columns; the signature, where none is given, is that of
    these rows, else of the types that the model was trained on. With `registered_model_name` it becomes a
    version of that registered model. `options` are those of `mlflow.models.Model.log` and of `save_model`.
    """
    _mlflow()
    from mlflow.models import Model

    return Model.log(
        artifact_path=None,
        flavor=sys.modules[__name__],
        flavor_name=FLAVOR,
        name=name,
        model=model,
        signature=signature,
        input_example=input_example,
        registered_model_name=registered_model_name,
        **options,
    )


def save_model(
    model: TorchModel,
    path: str,
    mlflow_model: Model | None = None,
    signature: ModelSignature | None = None,
    input_example: pd.DataFrame | None = None,
    pip_requirements: list[str] | str | None = None,
    extra_pip_requirements: list[str] | str | None = None,
    conda_env: Mapping[str, Any] | str | None = None,
    code_paths: list[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Saves a fitted model as a model of MLflow's, to a directory of this machine that is not there yet; no
    Spark session is needed. Arguments are as in `log_model` and in MLflow's other flavours.

    A module that can be neither scripted nor exported is saved as a pickle, for which its own code is to be
    among `code_paths` where it is of no package.
    """
    _mlflow()
    from mlflow import pyfunc
    from mlflow.models import Model

    wrapper = _PyFunc(model)
    described = Model() if mlflow_model is None else mlflow_model
    if signature is None:
        signature = _signature(wrapper, _zeros(model) if input_example is None else input_example)
    if conda_env is None and pip_requirements is None:
        pip_requirements = get_default_pip_requirements()
    with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
        saved = Path(folder) / "model"
        save_here(model, saved)
        described.add_flavor(
            FLAVOR,
            model_data="data/model",
            model_class=type(model).__name__,
            flambeau_version=_native.__version__,
            programs=sorted(model._programs),
        )
        pyfunc.save_model(
            path,
            loader_module=__name__,
            data_path=str(saved),
            mlflow_model=described,
            signature=signature,
            input_example=input_example,
            pip_requirements=pip_requirements,
            extra_pip_requirements=extra_pip_requirements,
            conda_env=conda_env,
            code_paths=code_paths,
            metadata=metadata,
        )


def load_model(model_uri: str) -> TorchModel:
    """The fitted model that was logged or saved, by any URI that MLflow knows: `models:/name@alias`,
    `models:/name/1`, `runs:/<id>/model`, a path.

    Its files are downloaded to this machine, and executors elsewhere get its weights from the driver. In a
    session `spark.flambeau.allowPickle` and `spark.flambeau.allowScripts` hold; so does everywhere
    MLFLOW_ALLOW_PICKLE_DESERIALIZATION. Raises FlambeauError where the URI names no model of Flambeau's, and
    where its program may not be read.
    """
    mlflow = _mlflow()
    path = Path(mlflow.artifacts.download_artifacts(artifact_uri=model_uri))
    flavors = mlflow.models.Model.load(str(path)).flavors
    if FLAVOR not in flavors:
        raise FlambeauError(f"{model_uri} holds no model of Flambeau's, but one of {', '.join(flavors)}")
    code = flavors.get("python_function", {}).get("code")
    if code and str(path / code) not in sys.path:
        sys.path.insert(0, str(path / code))
    return _load(path / flavors[FLAVOR]["model_data"])


def get_default_pip_requirements() -> list[str]:
    """What a logged model needs, pinned to what is installed here."""
    found = [f"flambeau=={_native.__version__}"]
    for name in _REQUIREMENTS:
        try:
            found.append(f"{name}=={metadata.version(name).partition('+')[0]}")
        except metadata.PackageNotFoundError:
            log.debug("%s is not installed by that name", name)
    return found


def _load_pyfunc(path: str) -> _PyFunc:
    """What `mlflow.pyfunc` scores with."""
    return _PyFunc(_load(Path(path)))


class _PyFunc:
    """A fitted model as `mlflow.pyfunc` calls it: pandas in, pandas out, without Spark."""

    def __init__(self, model: TorchModel) -> None:
        self.model = model

    def predict(self, data: Any, params: Mapping[str, Any] | None = None) -> Any:
        """The output columns of a DataFrame's rows, those of arrays as lists; of arrays, arrays."""
        found = self.model.predict(data)
        if isinstance(found, (np.ndarray, dict)):
            return found
        objects = [name for name in found.columns if found[name].dtype == object]
        return found.assign(**{name: [cell.tolist() for cell in found[name]] for name in objects})

    def get_raw_model(self) -> TorchModel:
        """The model itself, as `unwrap_python_model` and the like ask for it."""
        return self.model


def _mlflow() -> Any:
    try:
        import mlflow
    except ImportError as error:
        raise FlambeauError("this needs MLflow, which is not installed: pip install mlflow") from error
    return mlflow


def _load(path: Path) -> TorchModel:
    from mlflow.environment_variables import MLFLOW_ALLOW_PICKLE_DESERIALIZATION as ALLOWED

    spark = session.current()

    def refused(form: str, read: Callable[[], bytes]) -> str | None:
        if not ALLOWED.get() and (why := refusal(None, form, read)) is not None:
            return f"{ALLOWED.name} is false: {why}"
        return None if spark is None else refusal(spark, form, read)

    model = load_here(TorchModel, path, refused)
    assert isinstance(model, TorchModel)
    return model


def _signature(wrapper: _PyFunc, rows: pd.DataFrame) -> ModelSignature:
    from mlflow.models import infer_signature

    # It warns of whole numbers, which the model takes as they are.
    with without_warnings():
        return infer_signature(rows, wrapper.predict(rows))


def _zeros(model: TorchModel) -> pd.DataFrame:
    """A row of the model's input columns, of the widest types that it takes."""
    import pandas as pd

    wide = {"float32": "float64", "uint8": "uint8"}
    row: dict[str, Any] = {}
    for tensor in model.inputs:
        zero = np.zeros(tensor.shape, wide.get(tensor.dtype, tensor.dtype))
        if len(tensor.columns) > 1:
            row |= {name: pd.Series([value]) for name, value in zip(tensor.columns, zero.flat, strict=True)}
        elif tensor.dtype == "uint8":
            row[tensor.columns[0]] = [zero.tobytes()]
        else:
            row[tensor.columns[0]] = pd.Series([zero.item()] if zero.ndim == 0 else [zero.ravel().tolist()])
    return pd.DataFrame(row)


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


def _allowed(name: str) -> str:
    """A metric's name as MLflow takes it: a path in its shortest form, of at most 250 characters."""
    return normpath(_NOT_IN_NAMES.sub("_", name).strip("/"))[:250]


def _tag(name: str) -> str:
    """A metric's name in a run, by that in a history; it is TensorBoard's."""
    if name == "loss":
        return "train/epoch_loss"
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


class _Run:
    """A run of MLflow's that a fit is logged into, and the thread that writes to it, so that a server that
    is slow or gone holds up nobody. What could not be written is tried again with what comes next.

    `create` makes the run where `id` is none; `params` are those that it gets.
    """

    def __init__(
        self, client: MlflowClient, id: str | None, create: Callable[[], str], params: Mapping[str, str]
    ) -> None:
        self.id = id
        self.last_step = 0
        self._client = client
        self._is_own = id is None
        self._create = create
        self._params = dict(params)
        self._tags: dict[str, str] = {}
        self._metrics: deque[Metric] = deque(maxlen=_NUM_KEPT)
        self._status: str | None = None
        self._has_warned = False
        self._asked: SimpleQueue[Future[None] | None] = SimpleQueue()
        threading.Thread(target=self._write_what_comes, name="flambeau-mlflow", daemon=True).start()

    def add_metrics(self, values: Mapping[str, float | None], step: int) -> None:
        """Logs metrics at a step; None stands for what is not a finite number."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        for name, value in values.items():
            number = float("nan") if value is None else float(value)
            self._metrics.append(Metric(_allowed(name), number, now, step))
        self._asked.put(Future())

    def add_tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags."""
        self._tags = {**self._tags, **tags}
        self._asked.put(Future())

    def flush(self) -> bool:
        """Waits until all is written, up to half a minute; whether it is."""
        written: Future[None] = Future()
        self._asked.put(written)
        try:
            written.result(_END_SECONDS)
        except TimeoutError:
            self._warn("it does not answer")
            return False
        except Exception:
            return False
        return True

    def end(self, status: str) -> None:
        """Ends the run, where it is the fit's own, and the thread."""
        self._status = status if self._is_own else None
        self.flush()
        self._asked.put(None)

    def _write_what_comes(self) -> None:
        is_over = False
        while not is_over:
            asked = [self._asked.get()]
            while not self._asked.empty():
                asked.append(self._asked.get())
            is_over = asked[-1] is None
            error: Exception | None = None
            try:
                self._write()
            except Exception as raised:
                error = raised
                self._warn(first_line(error))
            for one in filter(None, asked):
                one.set_exception(error) if error else one.set_result(None)

    def _write(self) -> None:
        from mlflow.entities import Param, RunTag
        from mlflow.utils.validation import MAX_METRICS_PER_BATCH, MAX_PARAMS_TAGS_PER_BATCH

        if self.id is None:
            self.id = self._create()
        if self._params:
            # A param's value never changes in MLflow, and the run may have one of that name.
            known = {} if self._is_own else self._client.get_run(self.id).data.params
            new = [Param(name, value) for name, value in self._params.items() if name not in known]
            for start in range(0, len(new), MAX_PARAMS_TAGS_PER_BATCH):
                self._send(params=new[start : start + MAX_PARAMS_TAGS_PER_BATCH])
            self._params = {}
        while tags := self._tags:
            self._send(tags=[RunTag(name, value) for name, value in tags.items()])
            self._tags = {name: value for name, value in self._tags.items() if name not in tags}
        while self._metrics:
            batch = [self._metrics.popleft() for _ in range(min(len(self._metrics), MAX_METRICS_PER_BATCH))]
            try:
                self._send(metrics=batch)
            except Exception:
                self._metrics.extendleft(reversed(batch))
                raise
        if self._status is not None:
            self._client.set_terminated(self.id, self._status)
            self._status = None

    def _send(self, **batch: Any) -> None:
        """Logs a batch; one that MLflow refuses as such is told of and let go, since it never takes it."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(self.id, **batch)
        except MlflowException as error:
            if error.get_http_status_code() != 400:
                raise
            self._warn(first_line(error))

    def _warn(self, why: str) -> None:
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        log.log(level, "the fit goes on, but not all of it is written to MLflow: %s", why)


_runs: dict[int, _Run] = {}
"""The runs of fits under way, by the ids of their contexts."""
_lock = threading.Lock()
_taken: set[str] = set()
"""The users' runs that a fit has been logged into."""


def _begun(context: Context) -> _Run:
    """The run of a fit that begins in this thread."""
    mlflow = _mlflow()
    from mlflow.tracking.context.registry import resolve_tags
    from mlflow.tracking.fluent import _get_experiment_id, _get_latest_active_run
    from mlflow.utils.mlflow_tags import MLFLOW_AUTOLOGGING, MLFLOW_PARENT_RUN_ID

    client = mlflow.MlflowClient()
    active = mlflow.active_run()
    # As `mlflow run` names the run that its program logs into.
    given = os.environ.get("MLFLOW_RUN_ID") if active is None else active.info.run_id
    tags = _tags_of(context)
    params = _params_of(context.estimator)
    with _lock:
        is_free = given is not None and given not in _taken
        if given is not None:
            _taken.add(given)
    if is_free:
        run = _Run(client, given, lambda: str(given), params)
        run.add_tags(tags)
        return run
    tags[MLFLOW_AUTOLOGGING] = FLAVOR
    # Threads of Spark's know nothing of the run that is active where they were started.
    around = active or _get_latest_active_run()
    parent = around.info.run_id if around is not None else given
    if parent is not None:
        tags[MLFLOW_PARENT_RUN_ID] = parent
    resolved = resolve_tags(tags)

    def create() -> str:
        above = None if parent is None else client.get_run(parent)
        experiment = _get_experiment_id() if above is None else above.info.experiment_id
        return str(client.create_run(experiment, tags=resolved).info.run_id)

    run = _Run(client, None, create, params)
    run.add_tags({})
    return run


def _tags_of(context: Context) -> dict[str, str]:
    import pyspark
    import torch

    kind = type(context.estimator)
    spark = getattr(context.dataset, "sparkSession", None)
    return {
        "estimator_name": kind.__name__,
        "estimator_class": f"{kind.__module__}.{kind.__qualname__}",
        "estimator_uid": context.estimator.uid,
        "flambeau.version": _native.__version__,
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
            found[param.name] = _SECRETS.sub("", text)[:MAX_PARAM_VAL_LENGTH]
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
