"""`load_pipeline`: pipelines and stages of either language."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.pipeline import PipelineSharedReadWrite
from pyspark.ml.util import DefaultParamsReader
from pyspark.sql import SparkSession

from flambeau._spark.directory import load_metadata
from flambeau._spark.session import is_connect
from flambeau.errors import FlambeauError
from flambeau.estimator import TorchClassifier, TorchEstimator, TorchRegressor
from flambeau.model import TorchClassificationModel, TorchModel, TorchRegressionModel

if TYPE_CHECKING:
    from torch import nn

_STAGES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        TorchEstimator,
        TorchRegressor,
        TorchClassifier,
        TorchModel,
        TorchRegressionModel,
        TorchClassificationModel,
    )
}


def load_pipeline(path: str, module: nn.Module | None = None) -> Any:
    """Reads a Pipeline, a PipelineModel or a single stage saved from PySpark or from Scala; needs no jar of
    Flambeau's.

    `path` is the directory that it was saved to. `module` is as in `TorchModel.load`, for a pipeline with one
    fitted model of Flambeau's.
    """
    spark = SparkSession.active()
    metadata = load_metadata(spark, path)
    package, _, name = metadata["class"].rpartition(".")
    if package == "flambeau":
        cls = _STAGES.get(name)
        if cls is None:
            raise FlambeauError(
                f"{path} is a {metadata['class']}, which this version of Flambeau does not have"
            )
        return cls.load(path, module) if module is not None and name.endswith("Model") else cls.load(path)
    if package in ("org.apache.spark.ml", "pyspark.ml.pipeline") and name in ("Pipeline", "PipelineModel"):
        uids = metadata["paramMap"]["stageUids"]
        places = [
            PipelineSharedReadWrite.getStagePath(uid, i, len(uids), os.path.join(path, "stages"))
            for i, uid in enumerate(uids)
        ]
        stages = [load_pipeline(place, module) for place in places]
        whole: Any = Pipeline(stages=stages) if name == "Pipeline" else PipelineModel(stages)
        return whole._resetUid(metadata["uid"])
    # Spark 3.5 knows the context only, later versions take either.
    stage: Any = DefaultParamsReader.loadParamsInstance(
        path, spark if is_connect(spark) else spark.sparkContext
    )
    return stage
