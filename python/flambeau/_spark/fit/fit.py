"""One fit, from an estimator's params and a DataFrame to a fitted model."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

from flambeau._callbacks import on_driver, on_workers
from flambeau._saved.program import OutputSpec, by_keyword, forward_arguments, is_wide, probe_output
from flambeau._saved.weights import WeightsRef
from flambeau._spark import session
from flambeau._spark.extension import with_extension
from flambeau._spark.fit import cluster, warm_up
from flambeau._spark.fit.claim import claimed
from flambeau._spark.fit.initial_weights import InitialWeights
from flambeau._spark.fit.launch import Launch
from flambeau._spark.fit.listener_bus import ListenerBus
from flambeau._spark.fit.preprocess_probe import PreprocessProbe
from flambeau._spark.fit.program import Program, program_of
from flambeau._spark.fit.run import Run, job_of
from flambeau._spark.fit.trainable import Trainable
from flambeau._spark.fitted import Fitted
from flambeau._spark.labels import Say, labelled
from flambeau._spark.rows.shards import DataColumns, ShardSet
from flambeau._spark.rows.sources import Reading, Rows
from flambeau._spark.session import store_options
from flambeau._spark.site import Site, leased, store_uri, sweep, work_directory
from flambeau._spark.work_directory import WorkDirectory, new_id
from flambeau._tensors import TensorColumns
from flambeau.errors import DataError

if TYPE_CHECKING:
    from flambeau._module.layout import Layout

log = logging.getLogger("flambeau")


@dataclass(frozen=True)
class Fit:
    """A fit of an estimator on some rows, which has been checked as far as can be without a job of Spark's.

    `initial` are the weights of `initialModel`, and `initial_state` is the checkpoint of that param;
    `tensor_board` is the directory in which a run's files for TensorBoard get one of their own; `since` is
    the id that was made when the fits began that this one shares files with; of one that `is_trial` nothing
    stays, well or not; `range_test` is the job's field of that name, where the fit is a learning rate range
    test.
    """

    estimator: Trainable
    rows: Rows
    program: Program
    work: WorkDirectory
    bus: ListenerBus = field(repr=False)
    initial: InitialWeights | None = None
    initial_state: str | None = None
    tensor_board: str | None = None
    since: str | None = None
    is_trial: bool = False
    range_test: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        estimator: Trainable,
        rows: Rows,
        since: str | None = None,
        range_test: Mapping[str, Any] | None = None,
    ) -> Fit:
        """Checks params and objects. Raises ParamError."""
        params = estimator._job_params()
        _validate(_draft(estimator, range_test))
        work = work_directory(rows.spark, estimator.getWorkDir(), store_options(rows.spark))
        initial = InitialWeights.of(estimator, rows.spark)
        program = program_of(estimator, rows.spark, initial)
        names = program.metric_names(estimator.isSet("weightCol"), _validates(estimator))
        _check_monitors(estimator, *(names or ()))
        state, board = (
            None if params.get(name) is None else store_uri(rows.spark, name, params[name])
            for name in ("initialState", "tensorBoardDir")
        )
        bus = ListenerBus.of(on_driver(estimator.getCallbacks()), estimator, rows.dataset)
        return cls(estimator, rows, program, work, bus, initial, state, board, since, range_test=range_test)

    def run(self, interrupted: Event | None = None) -> Fitted:
        """Trains, and returns the fitted model. An interrupt of this thread cancels the Spark jobs, as does
        `interrupted`, after which CancelledError is raised, and a callback that fails, whose exception is
        raised.
        """
        stops = self.bus.interruption(interrupted)
        return self.bus.around(lambda: session.interruptible(self.rows.spark, self._run, stops))

    def result(self) -> dict[str, Any]:
        """Trains, and returns the training's result as `native/train` tells it. To be run in
        `session.interruptible`.
        """
        with self._trained() as (_, _, result, *_):
            return result

    def _run(self) -> Fitted:
        with self._trained() as trained:
            return self._model(*trained)

    @contextmanager
    def _trained(self) -> Iterator[_Trained]:
        """Trains. What the fit has in the work directory is there while the block runs."""
        with labelled(self.rows.spark, self._name) as say:
            say("read the rows")
            columns, preprocessed = self.read()
            say("check the cluster")
            site = self._place()
            say("find or write the rows")
            with (
                self._leased(site),
                self.rows.shards(columns, self._reading, site, self._warming_up) as shards,
            ):
                inputs, output = self._probe(columns, shards, preprocessed)
                yield inputs, output, *self._train(shards, site, preprocessed, say), preprocessed

    @property
    def _name(self) -> str:
        """What Spark's UI calls the fit."""
        run = self.estimator.getRunId()
        return f"{self.estimator.uid} (run {run})" if run else self.estimator.uid

    def read(self) -> tuple[DataColumns, PreprocessProbe | None]:
        """What is read of the rows, and what `preprocess` makes of the first, where there is one. Raises
        DataError and ParamError, also for what a worker would refuse of the objects on such inputs.
        """
        columns = self.columns()
        seed = self.estimator.getSeed()
        preprocessed = PreprocessProbe.of(self.program, self.rows, columns, seed) if columns.raw else None
        self._check(columns, preprocessed)
        return columns, preprocessed

    def columns(self) -> DataColumns:
        """What the params say is read of the rows. Raises DataError and ParamError."""
        columns = self.rows.columns(self._reading)
        if self._by_keyword:
            columns = replace(columns, inputs=tuple(replace(one, keyword=True) for one in columns.inputs))
        return columns

    @property
    def _by_keyword(self) -> bool:
        """Whether forward takes its inputs by their names."""
        params, names = self.estimator, self.estimator.getInputNames()
        return names is not None and not params._trains_natively and by_keyword(self.program.module, names)

    @property
    def _reading(self) -> Reading:
        """How the fit reads its rows."""
        params, module = self.estimator, self.program.module
        names = params.getInputNames()
        arguments = names if names is not None and self._by_keyword else forward_arguments(module)
        return Reading(params, params._label_dtype, is_wide(module), arguments)

    def _check(self, columns: DataColumns, preprocessed: PreprocessProbe | None) -> None:
        """Refuses what a worker would refuse of the objects on such inputs."""
        from flambeau._module.assembly import check_program
        from flambeau._module.checks import trainable

        params = self.estimator
        has_schedule = (
            params.getScaleLearningRate()
            or params.getWarmupEpochs() > 0
            or params.getLrSchedule() != "constant"
        )
        layout = self._layout(columns, preprocessed)
        test = self.range_test
        rate = params.getLearningRate() if test is None else test["minRate"]
        check_program(self.program.objects, layout, rate, has_schedule)
        if params.isSet("gradientGroups"):
            _validate(_draft(params, test), None, None, trainable(self.program.module)[0])

    def _layout(self, columns: DataColumns, preprocessed: PreprocessProbe | None) -> Layout:
        """What a batch of these columns is made of."""
        from flambeau._module.layout import Layout

        inputs, by_name = columns.inputs, self.estimator.getInputNames() is not None
        if preprocessed is not None:
            inputs, by_name = preprocessed.spec.inputs, preprocessed.spec.by_name
        is_weighted, validates = columns.weight is not None, _validates(self.estimator)
        return Layout(inputs, columns.labels, is_weighted, by_name, validates)

    def _place(self) -> Site:
        """Makes sure that there are slots for the workers, that these share the work directory, whose site it
        returns, and that `initialState` is there. Raises ClusterError, StoreError and ParamError.
        """
        estimator, spark = self.estimator, self.rows.spark
        num_workers, num_gpus = estimator.getNumWorkers(), estimator.getNumGpusPerWorker()
        cluster.check_slots(spark, num_workers, estimator.getSlotTimeout(), num_gpus)
        if not session.is_local(spark):
            cluster.probe(spark, self.work, num_workers, self.program.modules)
            warm_up.used(spark)
        site = Site.of(spark, self.work)
        if self.initial_state is not None:
            site.ask("checkInitialState", uri=self.initial_state)
        if not self.work.is_temporary:
            sweep(site)
        return site

    @contextmanager
    def _leased(self, site: Site) -> Iterator[None]:
        """Keeps the sweeps of other fits from what this one has in the work directory, and others from its
        run. Raises RunInUseError where another has that.
        """
        run_id = self.estimator.getRunId()
        claim = claimed(site.work, site.visible, run_id) if run_id else nullcontext()
        lease = nullcontext() if self.work.is_temporary else leased(site, self.since or new_id())
        with claim, lease:
            yield

    def _warming_up(self) -> AbstractContextManager[None]:
        """Has the workers warm up while rows are written."""
        return warm_up.warming_up(self.rows.spark, self.estimator.getNumWorkers(), self.program.modules)

    def _probe(
        self, columns: DataColumns, shards: ShardSet, preprocessed: PreprocessProbe | None
    ) -> tuple[tuple[TensorColumns, ...], OutputSpec]:
        """The inputs in terms of the rows' columns, with the shapes that the shards tell, and what the module
        makes of them. Raises ParamError for an output that the model does not take, for steps of the
        module's own that fail, and for a monitor that they do not log, before the training and not after it;
        DataError for fewer rows than workers.
        """
        num_workers = self.estimator.getNumWorkers()
        if shards.num_rows < num_workers:
            raise DataError(
                f"there are {shards.num_rows} rows to train on, fewer than numWorkers ({num_workers}): "
                f"lower numWorkers"
            )
        known = zip(columns.inputs, shards.columns.inputs, strict=True)
        inputs = tuple(replace(tensor, shape=found.shape) for tensor, found in known)
        if preprocessed is None:
            output = probe_output(self.program.module, inputs)
        else:
            inputs = columns.raw
            output = probe_output(self.program.module, preprocessed.spec.inputs, preprocessed.examples)
        self.estimator._model_class()._of_output(self.estimator, output)
        logged = self.program.logged(self._layout(shards.columns, preprocessed))
        if logged is not None:
            _check_monitors(self.estimator, *logged.values())
        return inputs, output

    def _train(
        self, shards: ShardSet, site: Site, preprocessed: PreprocessProbe | None, say: Say
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Trains on the shards: rank 0's result, with the digest of a named run's rows as `rowsSha256`,
        and what the supervisor tells of the checkpoints.

        Removes what the training left in the work directory except the model's weights, what workers wrote
        and the newest `keepCheckpoints`; where it fails, all of its checkpoints stay for the run's next fit,
        unless a callback wants nothing kept. Of a trial nothing stays.
        """
        estimator, spark = self.estimator, self.rows.spark
        id, run_id = new_id(), estimator.getRunId()

        def what() -> dict[str, Any]:
            # Of objects that no probe has run.
            objects = program_of(estimator, spark, self.initial).objects
            initial = None if self.initial is None else self.initial.file.sha256
            runtime = "native" if estimator._trains_natively else "python"
            return job_of(estimator._job_params(), runtime, objects, initial)

        launch = Launch(
            id=id,
            run_of=Run(
                site,
                run_id or id,
                what,
                shards.uris,
                shards.selection_digest,
                in_place=shards.in_place,
                is_named=bool(run_id),
            ),
            site=site,
            job=self._job(run_id or id, shards),
            payload=self.program.payload(
                shards.columns.inputs, None if preprocessed is None else preprocessed.spec
            ),
            num_workers=estimator.getNumWorkers(),
            max_restarts=estimator.getMaxRestarts(),
            slot_timeout=estimator.getSlotTimeout(),
            watch=partial(self.bus.attempt, site),
            say=say,
            num_gpus=estimator.getNumGpusPerWorker(),
            has_callbacks=bool(on_workers(estimator.getCallbacks())),
            stop_file=partial(self.bus.stop_file, site),
            usage_seconds=self.bus.usage_seconds if site.visible else None,
        )
        try:
            result = launch.run()
        except BaseException as error:
            if self.bus.gives_up or self.is_trial:
                launch.discard()
            else:
                launch.keep(error)
            raise
        finally:
            warm_up.used(spark)
        say("clean up")
        if self.is_trial:
            checkpoints = []
            launch.discard(may_write=False)
        else:
            checkpoints = launch.clean(estimator.getKeepCheckpoints())
        for warning in result["warnings"]:
            log.warning("%s", warning)
        if result["bottleneck"] is not None:
            self.bus.advise(result["bottleneck"]["advice"])
        if timeline := result.get("timeline"):
            log.info("the timeline is %s: open it in ui.perfetto.dev or chrome://tracing", timeline)
        return {**result, "rowsSha256": launch.rows}, checkpoints

    def _job(self, run: str, shards: ShardSet) -> dict[str, Any]:
        """The training job, without its attempt."""
        params, data = self._params(run), shards.job_data()
        job = {"format": 1, "store": dict(self.work.store_options)}
        if self.range_test is not None:
            # Rows are kept out of the training as ever, and nothing is made of them.
            data = {**data, "validation": []}
        return {**job, "params": params, "data": data, "rangeTest": self.range_test}

    def _params(self, run: str) -> dict[str, Any]:
        """The job's params; TensorBoard's files go to a directory of the run's own."""
        params = _job_params(self.estimator, self.range_test)
        board, state = self.tensor_board, self.initial_state
        params = params if board is None else {**params, "tensorBoardDir": f"{board}/{run}"}
        return params if state is None else {**params, "initialState": state}

    def _model(
        self,
        inputs: Sequence[TensorColumns],
        output: OutputSpec,
        result: Mapping[str, Any],
        checkpoints: Sequence[Mapping[str, Any]],
        preprocessed: PreprocessProbe | None,
    ) -> Fitted:
        """The model that the training came to."""
        weights = result["weights"]
        model = self.estimator._model_class()._create(
            self.estimator,
            programs=self.program.programs(),
            weights=WeightsRef(
                weights["uri"], weights["size"], weights["sha256"], dict(self.work.store_options)
            ),
            history=result["history"],
            inputs=inputs,
            output=output,
            num_rows=result["numRows"],
            num_steps=result["numSteps"],
            num_validation_rows=result["numValidationRows"],
            training_seconds=result["seconds"],
            bottleneck=result["bottleneck"],
            preprocess=None if preprocessed is None else preprocessed.scoring,
        )
        model._checkpoints, model._timeline = tuple(checkpoints), result.get("timeline")
        model._lineage = {
            "runId": self.estimator.getRunId(),
            "rowsSha256": result["rowsSha256"],
            "initialWeights": None if self.initial is None else self.initial.file.uri,
            "initialWeightsSha256": None if self.initial is None else self.initial.file.sha256,
            "initialState": self.initial_state,
            "checkpoint": checkpoints[-1]["uri"] if checkpoints else None,
        }
        if self.estimator._trains_natively and session.python_models(self.rows.spark) is None:
            model._set(runtime=None)
        return model


_Trained = tuple[
    tuple[TensorColumns, ...], OutputSpec, dict[str, Any], list[dict[str, Any]], PreprocessProbe | None
]
"""The inputs, what the module makes of them, rank 0's result, the checkpoints that are kept, and what makes
the inputs of rows.
"""


def _validates(estimator: Trainable) -> bool:
    """Whether there are to be validation rows."""
    return estimator.getValidationFraction() > 0 or estimator.isSet("validationIndicatorCol")


def _validate(job: str, *names: Sequence[str] | None) -> None:
    """Raises ParamError for a job that `native/train` refuses, whose module has these metrics, of training
    rows and of validation rows, and trains these parameters.
    """
    with_extension(partial(_validated, job, *names))


def _validated(job: str, *names: Sequence[str] | None) -> None:
    from flambeau import _native

    _native.validate_job(job, *names)


def _check_monitors(estimator: Trainable, *metrics: Sequence[str] | None) -> None:
    """Raises ParamError for a monitor, the estimator's or a callback's, that is none of the losses and
    metrics, and of those of validation rows alone.
    """
    needed = [name for one in on_driver(estimator.getCallbacks()) for name in one._needs]
    _validate(_draft(estimator), *metrics)
    for name in needed:
        _validate(_draft(estimator, monitor=name, monitorMode="min"), *metrics)


def _job_params(estimator: Trainable, range_test: Mapping[str, Any] | None) -> dict[str, Any]:
    """The estimator's params for a job: of a range test its first rate, and none of validation rows."""
    params = estimator._job_params()
    if range_test is None:
        return params
    left_out = ("monitor", "monitorMode", "validationFraction", "validationIndicatorCol")
    kept = {name: value for name, value in params.items() if name not in left_out}
    return {**kept, "learningRate": range_test["minRate"]}


def _draft(estimator: Trainable, range_test: Mapping[str, Any] | None = None, **params: Any) -> str:
    """A job of the estimator's params, and others in place of those, whose rows are not known yet."""
    draft = {
        "format": 1,
        "params": {**_job_params(estimator, range_test), **params},
        "data": {"train": ["draft"], "spec": {"inputs": [_DRAFT], "labels": [], "weight": None}},
        "rangeTest": range_test,
        "attempt": {"id": "draft", "workDir": "draft"},
    }
    return json.dumps(draft)


_DRAFT = {"name": "draft", "columns": ["draft"], "dtype": "float32", "shape": []}
