"""The estimators: `TorchEstimator` for any module and loss, `TorchRegressor` and `TorchClassifier` for the
usual two.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast, overload

from pyspark.ml import Estimator
from pyspark.ml.param import Param
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import SparkSession

from flambeau._shown import lines, page
from flambeau._spark.fit.fit import Fit
from flambeau._spark.fit.multiple import Fits
from flambeau._spark.fit.plan import plan
from flambeau._spark.fit.prepare import prepare
from flambeau._spark.fit.range_test import range_test
from flambeau._spark.fit.trainable import Trainable, is_object
from flambeau._spark.rows.prepared import PreparedData
from flambeau._spark.rows.sources import ParquetRows, rows_of
from flambeau._spark.saving.stages import EstimatorReader, EstimatorWriter
from flambeau._spark.work_directory import new_id, temporary_directory
from flambeau.errors import ParamError
from flambeau.model import TorchClassificationModel, TorchModel, TorchRegressionModel
from flambeau.params import HasConstructor
from flambeau.params.objects import params_text

if TYPE_CHECKING:
    from pyspark.ml._typing import ParamMap
    from pyspark.sql import DataFrame

    from flambeau._plan import Plan
    from flambeau._range_test import RangeTest

log = logging.getLogger("flambeau")


class TorchEstimator(HasConstructor, Trainable, Estimator["TorchModel"], MLWritable, MLReadable[Any]):
    """Trains a `torch.nn.Module` on a DataFrame, data-parallel on `numWorkers` tasks of one barrier stage.

    Every param can be given as a keyword; Horovod's names (`num_proc`, `feature_cols`, `batch_size`, ...) are
    taken too. `model` and `loss` are needed; `optimizer` is "adam" where none is given. `explainParams()`
    tells of all::

        TorchEstimator(model=net, loss="mse", inputCols=["x"], labelCol="y", numWorkers=2, epochs=5).fit(df)

    `fit` copies the module, so that it is never changed and fits can run side by side.
    """

    __module__ = "flambeau"

    def prepare(self, dataset: DataFrame, path: str | None = None) -> PreparedData:
        """Writes the columns that a fit reads, once: `fit(prepared)` then trains on them as often as you
        like, also with other params and other estimators.

        `path` is a directory that is not there yet, on storage that the driver and all workers reach; by
        default it lies in the work directory. It stays until `prepared.delete()`. Validation rows are those
        of `validationFraction` and `seed`, or of `validationIndicatorCol`, as they are now::

            with estimator.prepare(df) as prepared:
                models = [estimator.copy({estimator.seed: seed}).fit(prepared) for seed in range(5)]
        """
        return prepare(self, dataset, path)

    if TYPE_CHECKING:

        @overload
        def fit(self, dataset: DataFrame | PreparedData, params: ParamMap | None = None) -> TorchModel: ...
        @overload
        def fit(
            self, dataset: DataFrame | PreparedData, params: list[ParamMap] | tuple[ParamMap]
        ) -> list[TorchModel]: ...
        def fit(self, dataset: Any, params: Any = None) -> Any: ...

    def fitMultiple(
        self, dataset: DataFrame | PreparedData, paramMaps: Sequence[Mapping[Param[Any], Any]]
    ) -> Iterator[tuple[int, TorchModel]]:
        """Fits a model for each param map; the rows are written once for all maps that read the same columns,
        and not at all where they are prepared.

        The iterator is safe to share among threads and gives `(index, model)`; each `next` waits for one fit.
        Raises ParamError where several maps have one `runId`.
        """
        objects = sorted({p.name for m in paramMaps for p, v in m.items() if is_object(p, v)})
        if objects:
            log.warning(
                "this grid has objects as values of %s; it can be fitted, but a CrossValidatorModel or "
                "TrainValidationSplitModel of it cannot be saved (its bestModel can)",
                ", ".join(objects),
            )
        estimators = [self.copy(dict(paramMap)) for paramMap in paramMaps]
        runs = Counter(one.getRunId() for one in estimators if one.getRunId() is not None)
        for run, count in runs.items():
            if count > 1:
                raise ParamError(
                    f"runId {run!r} names one run, and {count} of these param maps have it: leave it unset, "
                    "as a CrossValidator needs it, or give each map its own"
                )
        return Fits(estimators, dataset)

    def fitOnParquet(self, path: str) -> TorchModel:
        """Fits on the Parquet files under `path`, a directory or a file, where they lie: nothing is copied.

        Below `key=value` directories such a column may be the `validationIndicatorCol` too. Delta, Iceberg
        and Hudi tables, and partition columns as inputs, are refused with DataError; `fit` reads those.
        """
        spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        return cast("TorchModel", Fit.of(self, ParquetRows(spark, path)).run())

    def findLearningRate(
        self,
        dataset: DataFrame | PreparedData,
        minRate: float = 1e-8,
        maxRate: float = 1.0,
        numSteps: int = 100,
    ) -> RangeTest:
        """A learning rate range test: trains with a rate that grows by the same factor from step to step,
        from `minRate` to `maxRate` in `numSteps`, and tells the losses; `suggestion()` is the rate at which
        they fall most steeply. It ends early where the loss is no finite number, or four times its least,
        both smoothed.

        It trains as `fit` does on these params, but for schedules, callbacks, checkpoints, files of
        TensorBoard's, `profile`, validation, `emaDecay` and `syncEvery`; the estimator stays as it is, and
        nothing stays in the work directory. Every parameter group of the optimizer has the rate of the test.
        Raises ParamError for what is no range, and for a LightningModule whose configure_optimizers returns a
        scheduler, which would set the rates too: have it return the optimizer alone.
        """
        return range_test(self, rows_of(dataset), minRate, maxRate, numSteps)

    def plan(self, dataset: DataFrame, numSteps: int = 20) -> Plan:
        """What a fit on these params would take, and which `batchSize`, `numWorkers` and `numThreads` would
        be faster: counts the rows, and trains on the first of them in trials of `numSteps` steps, one with
        the estimator's params and up to five with others.

        A trial has no schedules, callbacks, checkpoints, files of TensorBoard's and `profile`, and a learning
        rate of 1e-12, unless a LightningModule configures its own optimizer; the estimator stays as it is,
        and nothing stays in the work directory. One that fails for want of memory or slots stands in
        `trials` with its `error`. Raises what a fit raises, and ParamError for no steps and for prepared
        data.
        """
        return plan(self, dataset, numSteps)

    def write(self) -> MLWriter:
        """A writer that saves the params as Spark ML does, and the objects beside them."""
        return EstimatorWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """A reader for what `write` saved. `spark.flambeau.allowPickle=false` refuses objects that are
        pickles, and programs that do more than compute.
        """
        return EstimatorReader(cls)

    @classmethod
    def _from_java(cls, java_stage: Any) -> Self:
        """The estimator of the same name that a JVM pipeline holds, by way of a temporary directory of the
        driver.

        That directory holds its program, and lasts as long as this process.
        """
        path = f"file://{temporary_directory()}/estimators/{new_id()}"
        java_stage.write().overwrite().save(path)
        return cast("Self", cls.load(path))

    def _repr_html_(self) -> str:
        """The estimator as a notebook shows it."""
        return page(f"{type(self).__name__} {self.uid}", [("params", lines(params_text(self)))])

    def _fit(self, dataset: DataFrame | PreparedData) -> TorchModel:
        return cast("TorchModel", Fit.of(self, rows_of(dataset)).run())

    def _model_class(self) -> type[TorchModel]:
        return TorchModel


class TorchRegressor(TorchEstimator):
    """Trains a module that predicts numbers: labels become floats, and the loss is "mse" where none is."""

    __module__ = "flambeau"

    _label_dtype = "float32"
    _default_loss = "mse"

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
        def fit(
            self, dataset: DataFrame | PreparedData, params: ParamMap | None = None
        ) -> TorchRegressionModel: ...
        @overload
        def fit(
            self, dataset: DataFrame | PreparedData, params: list[ParamMap] | tuple[ParamMap]
        ) -> list[TorchRegressionModel]: ...
        def fit(self, dataset: Any, params: Any = None) -> Any: ...
        def fitOnParquet(self, path: str) -> TorchRegressionModel: ...

    def _model_class(self) -> type[TorchModel]:
        return TorchRegressionModel


class TorchClassifier(TorchEstimator):
    """Trains a module that gives the logits of classes: labels are class numbers from 0 in any numeric
    column.

    The loss is "cross_entropy" where none is given. The fitted model writes `rawPrediction`, `probability`
    and `prediction`.
    """

    __module__ = "flambeau"

    _label_dtype = "int64"
    _default_loss = "cross_entropy"

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
        def fit(
            self, dataset: DataFrame | PreparedData, params: ParamMap | None = None
        ) -> TorchClassificationModel: ...
        @overload
        def fit(
            self, dataset: DataFrame | PreparedData, params: list[ParamMap] | tuple[ParamMap]
        ) -> list[TorchClassificationModel]: ...
        def fit(self, dataset: Any, params: Any = None) -> Any: ...
        def fitOnParquet(self, path: str) -> TorchClassificationModel: ...

    def _model_class(self) -> type[TorchModel]:
        return TorchClassificationModel
