"""One fit, from an estimator's params and a DataFrame to a fitted model."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flambeau._columns import TensorColumns
from flambeau._fit import cluster, warm_up
from flambeau._fit import shards as shard_files
from flambeau._fit.claim import claimed
from flambeau._fit.launch import Launch, Payload, remove
from flambeau._fit.progress import Progress
from flambeau._fit.run import Run, job_of
from flambeau._fit.shards import DataColumns, ShardSet
from flambeau._fit.worker import versions
from flambeau._transform import native_scoring
from flambeau._workdir import WorkDirectory, beating, new_id
from flambeau.errors import DataError, ParamError
from flambeau.params.objects import OBJECT_PARAMS, describe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from torch.nn import Module

    from flambeau.estimator import TorchEstimator
    from flambeau.model import TorchModel

log = logging.getLogger("flambeau")

T = TypeVar("T")


class Program(Protocol):
    """What a fit trains, in the form that its runtime takes."""

    @property
    def module(self) -> Module:
        """This fit's own copy of the module."""

    @property
    def modules(self) -> tuple[str, ...]:
        """What a rank imports to train it."""

    @property
    def objects(self) -> Mapping[str, Any]:
        """The module as `model`, and `loss`, `optimizer` and `metrics`."""

    @property
    def metric_names(self) -> list[str]:
        """The metrics of the history by name. Raises ParamError for what is none."""

    def validation_metrics(self, weighted: bool, validates: bool) -> list[str]:
        """The metrics that only validation rows have, for rows with or without weights and such rows. Raises
        ParamError for what can't be had of them.
        """

    def check(self, inputs: Sequence[TensorColumns]) -> None:
        """Refuses what a worker would refuse of the objects on these inputs. Raises ParamError."""

    def programs(self) -> dict[str, bytes]:
        """The forms of the module that the fitted model holds."""

    def payload(self, inputs: Sequence[TensorColumns]) -> Payload:
        """What goes to the workers, for inputs whose shapes are known. Raises ParamError."""


def program_of(estimator: TorchEstimator, spark: SparkSession) -> Program:
    """What the estimator trains, with the weights of `initialModel` where that is set.

    Raises ParamError that names the object which is missing, of the wrong kind, or not for this runtime, and
    where the initial weights are not those of such a module.
    """
    import torch

    from flambeau._fit.native_program import NativeProgram
    from flambeau._fit.python_runtime import PythonProgram

    given = {name: estimator._value(name) for name in OBJECT_PARAMS}
    native = estimator.getRuntime() == "native"
    if isinstance(given["model"], str) and not native:
        raise ParamError(
            f"model is the path {given['model']!r}: set runtime='native', which trains programs in files, or "
            "give a torch.nn.Module"
        )
    if isinstance(given["model"], torch.jit.ScriptModule) and not native:
        raise ParamError(
            "model is a TorchScript module: set runtime='native', which trains those, or give the "
            "torch.nn.Module that it was made of"
        )
    if not isinstance(given["model"], (str, torch.nn.Module)):
        raise ParamError(f"model must be a torch.nn.Module, got {describe(given['model'])}")
    if given["loss"] is None:
        raise ParamError("loss must be given: a name such as 'mse', a torch.nn loss module, or a callable")
    model = estimator.getInitialModel()
    initial = None if model is None else InitialWeights(model, spark)
    if native and estimator.getCompile():
        raise ParamError(
            "compile is True, but runtime='native' trains programs, which are compiled already: "
            "leave it False, or take runtime='python'"
        )
    if native:
        return NativeProgram.of(given, initial, spark)
    return PythonProgram.of(given, initial, estimator.getCompile())


@dataclass(frozen=True)
class InitialWeights:
    """The weights of `initialModel`, the directory of a saved model or a fitted one."""

    model: str | TorchModel
    spark: SparkSession

    def load(self, module: Module) -> None:
        """Gives a module the weights. Raises ParamError where they do not fit."""
        self._load(module, lambda path: None)

    def load_file(self, module: Module) -> bytes:
        """Gives a module the weights, and returns their file. Raises ParamError where they do not fit."""
        return self._load(module, Path.read_bytes)

    def _load(self, module: Module, use: Callable[[Path], T]) -> T:
        from flambeau._saved.saving import weights_of
        from flambeau._saved.weights import fetched, load_into

        with fetched(weights_of(self.spark, self.model), self.spark) as path:
            try:
                load_into(module, path)
            except ParamError as error:
                raise ParamError(f"initialModel {self.model}: {error}") from None
            return use(path)


@dataclass(frozen=True)
class Training:
    """A fit that has been checked as far as can be without running anything on Spark."""

    estimator: TorchEstimator
    spark: SparkSession
    program: Program
    work: WorkDirectory

    @classmethod
    def of(cls, estimator: TorchEstimator, spark: SparkSession) -> Training:
        """Checks params and objects. Raises ParamError."""
        from flambeau import _native
        from flambeau._saved.weights import store_options

        draft = {
            "format": 1,
            "params": estimator._job_params(),
            "data": {"train": ["draft"], "spec": {"inputs": [_DRAFT], "labels": [], "weight": None}},
            "attempt": {"id": "draft", "workDir": "draft"},
        }
        draft_json = json.dumps(draft)
        _native.validate_job(draft_json)
        work = cluster.work_directory(spark, estimator.getWorkDir(), store_options(spark))
        program = program_of(estimator, spark)
        validates = estimator.getValidationFraction() > 0 or estimator.isSet("validationIndicatorCol")
        of_validation = program.validation_metrics(estimator.isSet("weightCol"), validates)
        _native.validate_job(draft_json, program.metric_names, of_validation)
        return cls(estimator, spark, program, work)

    def columns(self, schema: StructType) -> DataColumns:
        """What this fit reads from a DataFrame of that schema. Raises DataError and ParamError."""
        columns = shard_files.resolve(schema, self.estimator, self._label_dtype(), self._wide)
        self.program.check(columns.inputs)
        return columns

    def prepare(self) -> bool:
        """Makes sure that there are slots for the workers and that these share the work directory; returns
        whether this process sees it too. Raises ClusterError and StoreError.
        """
        estimator = self.estimator
        num_gpus = estimator.getNumGpusPerWorker()
        cluster.check_slots(self.spark, estimator.getNumWorkers(), estimator.getSlotTimeout(), num_gpus)
        if not cluster.is_local(self.spark):
            num_workers, modules = self.estimator.getNumWorkers(), self.program.modules
            cluster.probe(self.spark, self.work, num_workers, versions(), modules)
            warm_up.used(self.spark)
        visible = cluster.is_visible(self.spark, self.work)
        if visible and self.estimator.getWorkDir() is not None:
            cluster.sweep(self.work)
        return visible

    @contextmanager
    def leased(self, visible: bool, since: str | None = None) -> Iterator[None]:
        """Keeps the sweeps of other fits from what this one, or the fits that began with the id `since`, have
        in the work directory, and other fits from its run. Raises ParamError where another has that.
        """
        run_id = self.estimator.getRunId()
        claim = claimed(self.work, visible, run_id) if run_id else nullcontext()
        with claim, self._leased(visible, since) if self.estimator.getWorkDir() else nullcontext():
            yield

    @contextmanager
    def _leased(self, visible: bool, since: str | None) -> Iterator[None]:
        uri, options = self.work.lease(since or new_id()), dict(self.work.store_options)

        def act(write: bool) -> None:
            from flambeau import _native

            store = _native.Store(options)
            if write:
                store.put(uri, new_id().encode())
            else:
                store.delete(uri)

        def run(write: bool) -> None:
            act(write) if visible else cluster.on_worker(self.spark, partial(act, write))

        with beating(partial(run, True), partial(run, False)):
            yield

    def in_place(self, path: str) -> ShardSet:
        """The Parquet files under `path` as this fit's shards."""
        shards = shard_files.in_place(self.spark, path, self.estimator, self._label_dtype(), self._wide)
        self.program.check(shards.columns.inputs)
        return shards

    def run(self, shards: ShardSet, inputs: tuple[TensorColumns, ...], visible: bool) -> TorchModel:
        """Trains on the shards and makes the model; `inputs` are in terms of the DataFrame's columns.

        Removes what the training left in the work directory except the model's weights and the newest
        `keepCheckpoints`; where it fails, all of its checkpoints stay for the run's next fit.
        """
        from flambeau._saved.program import probe_output
        from flambeau._saved.weights import WeightsRef

        estimator = self.estimator
        num_workers = estimator.getNumWorkers()
        if shards.num_rows < num_workers:
            raise DataError(
                f"there are {shards.num_rows} rows to train on, fewer than numWorkers ({num_workers}): "
                f"lower numWorkers"
            )
        shapes = [tensor.shape for tensor in shards.columns.inputs]
        inputs = tuple(replace(tensor, shape=shape) for tensor, shape in zip(inputs, shapes, strict=True))
        output = probe_output(self.program.module, inputs)
        model_class = estimator._model_class()
        # An output that this kind of model does not take is refused now rather than after the training.
        model_class._of_output(estimator, output)
        id, run_id = new_id(), estimator.getRunId()

        def what() -> dict[str, Any]:
            # Of objects that no probe has run.
            objects = program_of(estimator, self.spark).objects
            return job_of(estimator._job_params(), estimator.getRuntime(), objects)

        files = (*shards.train, *shards.validation)
        launch = Launch(
            id=id,
            run_of=Run(self.spark, self.work, visible, run_id or id, what, files, bool(run_id)),
            spark=self.spark,
            work=self.work,
            job={
                "format": 1,
                "params": estimator._job_params(),
                "data": shards.job_data(),
                "store": dict(self.work.store_options),
            },
            payload=self.program.payload(shards.columns.inputs),
            num_workers=num_workers,
            max_restarts=estimator.getMaxRestarts(),
            slot_timeout=estimator.getSlotTimeout(),
            visible=visible,
            watch=lambda attempt: Progress(self.work, attempt, visible, estimator.getVerbose()),
            num_gpus=estimator.getNumGpusPerWorker(),
        )
        try:
            result = launch.run()
        except BaseException as error:
            launch.keep(error)
            raise
        finally:
            warm_up.used(self.spark)
        checkpoints = launch.clean(estimator.getKeepCheckpoints())
        for warning in result["warnings"]:
            log.warning("%s", warning)
        weights = result["weights"]
        model = model_class._create(
            estimator,
            programs=self.program.programs(),
            weights=WeightsRef(
                weights["uri"], weights["size"], weights["sha256"], dict(self.work.store_options)
            ),
            history=result["history"],
            inputs=list(inputs),
            output=output,
            num_rows=result["numRows"],
            num_steps=result["numSteps"],
            num_validation_rows=result["numValidationRows"],
            training_seconds=result["seconds"],
        )
        model._checkpoints = tuple(checkpoints)
        if not native_scoring.is_possible(self.spark):
            model._set(runtime=None)
        return model

    @contextmanager
    def written(self, df: DataFrame, columns: DataColumns, visible: bool) -> Iterator[ShardSet]:
        """The rows of `df` as shards in the work directory, which are removed at the end."""
        name = new_id()
        try:
            yield self.write(df, columns, name)
        finally:
            self.remove_shards(name, visible)

    def write(self, df: DataFrame, columns: DataColumns, name: str) -> ShardSet:
        """Writes the rows of `df` as shards of that name, and has the workers warm up meanwhile."""
        modules = self.program.modules
        with warm_up.warming_up(self.spark, self.estimator.getNumWorkers(), modules):
            return shard_files.write(df, columns, self.work.path("shards", name))

    def remove_shards(self, name: str, visible: bool) -> None:
        """Deletes the shards of that name; a failure is told and no more."""
        remove(self.spark, self.work, visible, "shards", name)

    def _label_dtype(self) -> str | None:
        return self.estimator._label_dtype

    @cached_property
    def _wide(self) -> bool:
        """Whether the module computes in float64."""
        floats = (p.dtype for p in self.program.module.parameters() if p.dtype.is_floating_point)
        return str(next(floats, None)) == "torch.float64"


_DRAFT = {"name": "draft", "columns": ["draft"], "dtype": "float32", "shape": []}
