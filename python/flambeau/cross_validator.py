"""Cross-validation on one copy of the rows."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.ml import tuning
from pyspark.ml.tuning import CrossValidatorModel
from pyspark.sql import functions as F

from flambeau._spark.columns import quoted
from flambeau._spark.fit.prepare import prepared_meanwhile
from flambeau._spark.rows.prepared import PreparedData
from flambeau._spark.session import inheriting
from flambeau.errors import ParamError
from flambeau.estimator import TorchEstimator

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Task = Callable[[], tuple[int, float, Any]]


class CrossValidator(tuning.CrossValidator):
    """Spark ML's CrossValidator, with its params, folds and results, for an estimator of Flambeau's: the rows
    are written once, and the fits of all folds and param maps, and that of the best map at the end, read the
    files of the folds that they train on.

    With `foldCol` the folds are those of that column, else random ones by `seed`, as Spark draws them. Models
    are scored on the DataFrame's own rows. `validationFraction` and `validationIndicatorCol` must be the same
    for all maps; the rows that they choose are validation rows wherever their fold is trained on.

    CrossValidator(estimator=estimator, estimatorParamMaps=maps, evaluator=evaluator, numFolds=5).fit(df)
    """

    __module__ = "flambeau"

    def _fit(self, dataset: DataFrame) -> CrossValidatorModel:
        estimator, maps = self.getEstimator(), self.getEstimatorParamMaps()
        if not isinstance(estimator, TorchEstimator):
            raise ParamError(
                f"estimator is a {type(estimator).__name__}, and this CrossValidator takes Flambeau's own: "
                "pyspark.ml.tuning.CrossValidator takes all, and writes the rows of each fold"
            )
        if isinstance(dataset, PreparedData):
            raise ParamError(
                "give the DataFrame: models are scored on its rows, which are written once in all"
            )
        estimators = [estimator.copy(dict(params)) for params in maps]
        drawn = dataset.withColumn(self._drawn, F.rand(self.getSeed()))
        folds = [validation for _, validation in self._kFold(dataset)]
        with prepared_meanwhile(estimators, drawn, self._fold()) as prepared:
            metrics, models = self._scores(prepared, folds)
            means, deviations = self._gen_avg_and_std_metrics(metrics)
            best = np.argmax(means) if self.getEvaluator().isLargerBetter() else np.argmin(means)
            best_model = estimator.fit(prepared, maps[int(best)])
        return self._copyValues(CrossValidatorModel(best_model, means, models, deviations))

    def _scores(
        self, prepared: PreparedData, folds: list[DataFrame]
    ) -> tuple[list[list[float]], list[list[Any]] | None]:
        """The metric of each map in each fold, and their models where they are asked for."""
        maps, keeps = self.getEstimatorParamMaps(), self.getCollectSubModels()
        metrics = [[0.0] * len(maps) for _ in folds]
        models: list[list[Any]] = [[None] * len(maps) for _ in folds]
        with ThreadPool(min(self.getParallelism(), len(maps))) as pool:
            for fold, validation in enumerate(folds):
                train: Any = prepared._without(fold)
                validation.cache()
                try:
                    tasks: list[Task] = tuning._parallelFitTasks(
                        self.getEstimator(), train, self.getEvaluator(), validation, maps, keeps
                    )
                    started = [inheriting(prepared.sparkSession, task) for task in tasks]
                    for index, metric, model in pool.imap_unordered(lambda task: task(), started):
                        metrics[fold][index], models[fold][index] = metric, model
                finally:
                    validation.unpersist()
        return metrics, models if keeps else None

    @property
    def _drawn(self) -> str:
        """The column that Spark draws folds by."""
        return f"{self.uid}_rand"

    def _fold(self) -> Column:
        """The number of a row's fold; as `_kFold` has it, where that draws."""
        if self.getFoldCol():
            return F.col(quoted(self.getFoldCol()))
        count = self.getNumFolds()
        width, drawn = 1.0 / count, F.col(self._drawn)
        fold = F.when(drawn < width, 0)
        for number in range(1, count):
            fold = fold.when(drawn < (number + 1) * width, number)
        return fold
