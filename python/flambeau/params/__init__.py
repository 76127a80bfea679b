"""The params of the estimators and models: Spark ML's own where it has one, and ours beside them.

Names, defaults, bounds and docs are those of the training job's schema (`docs/training-job.schema.json`),
which a test holds them against. A value of None unsets a param.
"""

from flambeau.params.columns import (
    HasClassColumns,
    HasInputColumns,
    HasLabelColumns,
    HasOutputColumns,
    HasValidation,
)
from flambeau.params.training import HasEarlyStopping, HasInitialModel, HasLearningRate, HasTrainingLoop
from flambeau.params.workers import HasDevice, HasRuntime, HasWorkers

__all__ = [
    "HasClassColumns",
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
