"""The params of the estimators and models: Spark ML's own where it has one, and ours beside them.

Names, defaults, bounds and docs are those of the training job's schema (`docs/training-job.schema.json`),
of which `declared` is made. A value of None unsets a param.
"""

from typing import Self

from pyspark.ml.param import Param

from flambeau.params.declared import (
    HasClassColumns,
    HasConstructor,
    HasDevice,
    HasEarlyStopping,
    HasInitialModel,
    HasInputColumns,
    HasLabelColumns,
    HasLearningRate,
    HasOutputColumns,
    HasTrainingLoop,
    HasValidation,
    HasWorkers,
)
from flambeau.params.objects import HasRuntime

__all__ = [
    "HasClassColumns",
    "HasConstructor",
    "HasDevice",
    "HasInputColumns",
    "HasLabelColumns",
    "HasOutputColumns",
    "HasRuntime",
    "HasTrainingParams",
]


class HasTrainingParams(
    HasInputColumns,
    HasOutputColumns,
    HasClassColumns,
    HasLabelColumns,
    HasInitialModel,
    HasValidation,
    HasTrainingLoop,
    HasLearningRate,
    HasEarlyStopping,
    HasDevice,
    HasWorkers,
):
    """Every param of a training job."""

    @property
    def stepSize(self) -> Param[float]:
        """`learningRate`, by Spark ML's name."""
        return self.learningRate

    def setStepSize(self, value: float | None) -> Self:
        """Sets `learningRate`, by Spark ML's name; None unsets it."""
        return self.setLearningRate(value)

    def getStepSize(self) -> float | None:
        """The value of `learningRate`, None when it is not set."""
        return self.getLearningRate()
