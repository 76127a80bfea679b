"""Cross-validation on one copy of the rows."""

from __future__ import annotations

from functools import partial
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyspark
from pyspark.ml import tuning
from pyspark.ml.tuning import CrossValidatorModel, CrossValidatorReader
from pyspark.ml.util import DefaultParamsReader
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType

from flambeau._spark.columns import REFUSAL, REFUSAL_END, find_field, quoted, type_name
from flambeau._spark.fit.multiple import Fits
from flambeau._spark.fit.prepare import prepared_meanwhile
from flambeau._spark.rows.prepared import PreparedData
from flambeau._spark.session import inheriting
from flambeau.errors import DataError, ParamError
from flambeau.estimator import TorchEstimator

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class CrossValidator(tuning.CrossValidator):
    """Spark ML's CrossValidator, with its params, folds and results, for an estimator of Flambeau's: the rows
    are written once, and the fits of all folds and param maps, and that of the best map at the end, read the
    files of the folds that they train on.

    With `foldCol` the folds are those of that column, else random ones by `seed`, as Spark draws them. The
    DataFrame is computed once and cached: models are scored on its own rows, those that they were not trained
    on. `validationFraction`, `validationIndicatorCol` and `handleInvalid` must be the same for all maps; the
    rows that the first two choose are validation rows wherever their fold is trained on.

    Raises DataError for a `foldCol` that is not the number of a fold in every row, and for a fold without
    rows or with all of the validation rows::

        CrossValidator(estimator=estimator, estimatorParamMaps=maps, evaluator=evaluator, numFolds=5).fit(df)
    """

    __module__ = "flambeau"

    @classmethod
    def read(cls) -> CrossValidatorReader:
        """What reads a saved one."""
        return _Reader(cls)

    def _fit(self, dataset: DataFrame) -> CrossValidatorModel:
        estimator, maps = self.getEstimator(), self.getEstimatorParamMaps()
        if not isinstance(estimator, TorchEstimator):
            raise ParamError(
                f"estimator is a {type(estimator).__name__}, and this CrossValidator takes Flambeau's own: "
                "pyspark.ml.tuning.CrossValidator takes all, and writes the rows of each fold"
            )
        if not maps:
            raise ParamError("estimatorParamMaps is empty: give one map or more; {} is one")
        if any(estimator.copy(dict(params)).isDefined("runId") for params in maps):
            raise ParamError(
                "runId is set, which names one run, and each fold is a run of its own: leave it unset"
            )
        if isinstance(dataset, PreparedData):
            raise ParamError(
                "give the DataFrame: models are scored on its rows, which are written once in all"
            )
        estimators = [estimator.copy(dict(params)) for params in maps]
        # Folds that are drawn again may come out otherwise: a row's place depends on the plan.
        numbered = self._numbered(dataset).persist()
        try:
            with prepared_meanwhile(estimators, numbered, F.col(self._number)) as prepared:
                trains = [prepared._without(fold) for fold in range(self.getNumFolds())]
                metrics, models = self._scores(trains, numbered)
                means, deviations = self._gen_avg_and_std_metrics(metrics)
                best = np.argmax(means) if self.getEvaluator().isLargerBetter() else np.argmin(means)
                best_model = estimator.fit(prepared, maps[int(best)])
        finally:
            numbered.unpersist()
        return self._copyValues(CrossValidatorModel(best_model, means, models, deviations))

    def _scores(
        self, trains: list[PreparedData], numbered: DataFrame
    ) -> tuple[list[list[float]], list[list[Any]] | None]:
        """The metric of each map in each fold, and their models where they are asked for."""
        estimator, maps, keeps = self.getEstimator(), self.getEstimatorParamMaps(), self.getCollectSubModels()
        metrics = [[0.0] * len(maps) for _ in trains]
        models: list[list[Any]] = [[None] * len(maps) for _ in trains]
        with ThreadPool(min(self.getParallelism(), len(maps))) as pool:
            for fold, train in enumerate(trains):
                validation = numbered.filter(F.col(self._number) == fold).drop(self._number)
                fits = cast(Fits, estimator.fitMultiple(cast(Any, train), maps))
                score = partial(self._score, fits, validation)
                tasks = [inheriting(train.sparkSession, score) for _ in maps]
                try:
                    for index, metric, model in pool.imap_unordered(lambda task: task(), tasks):
                        metrics[fold][index], models[fold][index] = metric, model if keeps else None
                except BaseException:
                    # The files that the others read go when this is left.
                    fits.interrupt()
                    pool.close()
                    pool.join()
                    raise
        return metrics, models if keeps else None

    def _score(self, fits: Fits, validation: DataFrame) -> tuple[int, float, Any]:
        """The next fit's map, metric and model."""
        index, model = next(fits)
        scored = model.transform(validation, self.getEstimatorParamMaps()[index])
        return index, self.getEvaluator().evaluate(scored), model

    @property
    def _number(self) -> str:
        """The column with the number of a row's fold."""
        return f"{self.uid}_fold"

    def _numbered(self, dataset: DataFrame) -> DataFrame:
        """The rows with the numbers of their folds."""
        if self.getFoldCol():
            return dataset.withColumn(self._number, self._given(dataset))
        count, drawn = self.getNumFolds(), f"{self.uid}_rand"
        fold = F.lit(count - 1)
        # As `_kFold` has it.
        for number in reversed(range(count - 1)):
            fold = F.when(F.col(drawn) < (number + 1) * (1.0 / count), number).otherwise(fold)
        rows = dataset.withColumn(drawn, F.rand(self.getSeed()))
        return rows.withColumn(self._number, fold).drop(drawn)

    def _given(self, dataset: DataFrame) -> Column:
        """The number of a row's fold by `foldCol`; another value is refused."""
        name, count = self.getFoldCol(), self.getNumFolds()
        allowed = f"foldCol names a column of whole numbers from 0 to {count - 1} (numFolds is {count})"
        dtype = find_field(dataset.schema, name, "fold").dataType
        if not isinstance(dtype, IntegralType):
            raise DataError(f"column {name!r} is {type_name(dtype)}; {allowed}: cast it")
        fold = F.col(quoted(name))
        held = F.coalesce(fold.cast("string"), F.lit("a null"))
        refusal = F.concat(
            F.lit(f"{REFUSAL}column {name!r} holds "), held, F.lit(f": {allowed}{REFUSAL_END}")
        )
        return F.when(fold.between(0, count - 1), fold.cast("int")).otherwise(F.raise_error(refusal))


class _Reader(CrossValidatorReader):
    """Reads one of Flambeau's. Spark's own makes one of Spark's, and takes what is no class of PySpark's for
    something that Scala saved.
    """

    def load(self, path: str) -> CrossValidator:
        """The one that was saved at `path`."""
        # Spark 3.5 reads by the context, and later ones by the session.
        session: Any = self.sc if pyspark.__version__.startswith("3.") else self.sparkSession
        metadata = DefaultParamsReader.loadMetadata(path, session)
        as_pysparks = {**metadata, "class": "pyspark.ml.tuning.CrossValidator"}
        _, estimator, evaluator, maps = tuning._ValidatorSharedReadWrite.load(path, session, as_pysparks)
        found = CrossValidator(estimator=estimator, estimatorParamMaps=maps, evaluator=evaluator)
        DefaultParamsReader.getAndSetParams(found, metadata, skipParams=["estimatorParamMaps"])
        return found._resetUid(metadata["uid"])
