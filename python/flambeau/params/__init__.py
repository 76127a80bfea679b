"""The params of the estimators and models: Spark ML's own where it has one, and ours beside them.

Names, defaults, bounds and docs are those of the training job's schema (`docs/training-job.schema.json`),
of which `declared` is made. A value of None unsets a param.
"""

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
