"""The estimators: `TorchEstimator` for any module and loss, `TorchRegressor` and `TorchClassifier` for the
usual two.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from pyspark.ml import Estimator
from pyspark.ml.param import Param
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter

from flambeau._fit import cluster
from flambeau._fit.multiple import Fits
from flambeau._fit.training import Training
from flambeau._workdir import new_id, temporary_directory
from flambeau.errors import ParamError
from flambeau.params import HasRuntime, HasTrainingParams
from flambeau.params.arguments import EstimatorArguments, resolve_arguments
from flambeau.params.objects import OBJECT_PARAMS, PYTHON_PARAMS, HasObjects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from flambeau.model import TorchModel

log = logging.getLogger("flambeau")


class TorchEstimator(HasTrainingParams, HasRuntime, HasObjects, Estimator[Any], MLWritable, MLReadable[Any]):
    """Trains a `torch.nn.Module` on a DataFrame, data-parallel on `numWorkers` tasks of one barrier stage.

    Every param can be given as a keyword; Horovod's names (`num_proc`, `feature_cols`, `batch_size`, ...) are
    taken too. `model` and `loss` are needed; `optimizer` is "adam" where none is given. `explainParams()`
    tells of all.

    TorchEstimator(model=net, loss="mse", inputCols=["x"], labelCol="y", numWorkers=2, epochs=5).fit(df)

    `fit` copies the module, so that it is never changed and fits can run side by side.
    """

    __module__ = "flambeau"

    _label_dtype: str | None = None
    """The type that labels are read as; None follows their columns."""
    _default_loss: str | None = None

    def __init__(self, **arguments: Unpack[EstimatorArguments]) -> None:
        super().__init__()
        self._setDefault(optimizer="adam")
        if self._default_loss is not None:
            self._setDefault(loss=self._default_loss)
        self.setParams(**arguments)

    def setParams(self, **arguments: Unpack[EstimatorArguments]) -> Self:
        """Sets params by keyword, under the names that the constructor takes."""
        return self._set(**resolve_arguments(self, arguments))

    def fitMultiple(
        self, dataset: DataFrame, paramMaps: Sequence[Mapping[Param[Any], Any]]
    ) -> Iterator[tuple[int, TorchModel]]:
        """Fits a model for each param map; the rows are written once for all maps that read the same columns.

        The iterator is safe to share among threads and gives `(index, model)`; each `next` waits for one fit.
        Raises ParamError where several maps have one `runId`.
        """
        objects = sorted({p.name for m in paramMaps for p, v in m.items() if _is_object(p, v)})
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

        Below `key=value` directories such a column may be the `validationIndicatorCol`. Delta, Iceberg and
        Hudi tables, Spark vectors, and partition columns as inputs are refused with DataError; `fit` reads
        those.
        """
        from pyspark.sql import SparkSession

        training = Training.of(self, SparkSession.getActiveSession() or SparkSession.builder.getOrCreate())

        def train() -> TorchModel:
            shards = training.in_place(path)
            visible = training.prepare()
            with training.leased(visible):
                return training.run(shards, shards.columns.inputs, visible)

        return cluster.interruptible(training.spark, train)

    def write(self) -> MLWriter:
        """A writer that saves the params as Spark ML does, and the objects beside them."""
        from flambeau._saved.saving import EstimatorWriter

        return EstimatorWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """A reader for what `write` saved. `spark.flambeau.allowPickle=false` refuses objects that are
        pickles, and programs that do more than compute.
        """
        from flambeau._saved.saving import EstimatorReader

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

    def _fit(self, dataset: DataFrame) -> TorchModel:
        training = Training.of(self, dataset.sparkSession)
        columns = training.columns(dataset.schema)

        def train() -> TorchModel:
            visible = training.prepare()
            with training.leased(visible), training.written(dataset, columns, visible) as shards:
                return training.run(shards, columns.inputs, visible)

        return cluster.interruptible(training.spark, train)

    def _job_params(self) -> dict[str, Any]:
        """The training job's `params`: every param with a value that is JSON."""
        params = [p for p in self.params if p.name not in PYTHON_PARAMS and self.isDefined(p)]
        values = [(param, self.getOrDefault(param)) for param in params]
        return {param.name: value for param, value in values if not _is_object(param, value)}

    def _model_class(self) -> type[TorchModel]:
        from flambeau.model import TorchModel

        return TorchModel


class TorchRegressor(TorchEstimator):
    """Trains a module that predicts numbers: labels become floats, and the loss is "mse" where none is."""

    __module__ = "flambeau"

    _label_dtype = "float32"
    _default_loss = "mse"

    def _model_class(self) -> type[TorchModel]:
        from flambeau.model import TorchRegressionModel

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

    def _model_class(self) -> type[TorchModel]:
        from flambeau.model import TorchClassificationModel

        return TorchClassificationModel


def _is_object(param: Param[Any], value: Any) -> bool:
    """Whether a param's value is an object of Python's rather than text."""
    return param.name in (*OBJECT_PARAMS, "initialModel") and not isinstance(value, str)
