"""Train PyTorch models as a Spark ML estimator, on native Rust workers.

Importing this imports neither torch nor pyspark: what it names is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flambeau._doctor import doctor
    from flambeau._pipelines import load_pipeline
    from flambeau._spark.rows.prepared import PreparedData
    from flambeau._spark.saving.save_program import save_program
    from flambeau._spark_config import spark_config
    from flambeau.callbacks import Callback
    from flambeau.cross_validator import CrossValidator
    from flambeau.errors import (
        CallbackError,
        CancelledError,
        ClusterError,
        CollectiveError,
        CollectiveMismatch,
        CollectiveTimeout,
        DataError,
        DivergedError,
        EnvironmentMismatchError,
        FlambeauError,
        ParamError,
        RunInUseError,
        StoreError,
        WorkerError,
        WorkerLost,
    )
    from flambeau.estimator import TorchClassifier, TorchEstimator, TorchRegressor
    from flambeau.model import TorchClassificationModel, TorchModel, TorchRegressionModel

__all__ = [
    "Callback",
    "CallbackError",
    "CancelledError",
    "ClusterError",
    "CollectiveError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "CrossValidator",
    "DataError",
    "DivergedError",
    "EnvironmentMismatchError",
    "FlambeauError",
    "ParamError",
    "PreparedData",
    "RunInUseError",
    "StoreError",
    "TorchClassificationModel",
    "TorchClassifier",
    "TorchEstimator",
    "TorchModel",
    "TorchRegressionModel",
    "TorchRegressor",
    "WorkerError",
    "WorkerLost",
    "doctor",
    "load_pipeline",
    "save_program",
    "spark_config",
]

_MODULES = {
    "Callback": "flambeau.callbacks",
    "CrossValidator": "flambeau.cross_validator",
    "PreparedData": "flambeau._spark.rows.prepared",
    "TorchClassificationModel": "flambeau.model",
    "TorchClassifier": "flambeau.estimator",
    "TorchEstimator": "flambeau.estimator",
    "TorchModel": "flambeau.model",
    "TorchRegressionModel": "flambeau.model",
    "TorchRegressor": "flambeau.estimator",
    "doctor": "flambeau._doctor",
    "load_pipeline": "flambeau._pipelines",
    "save_program": "flambeau._spark.saving.save_program",
    "spark_config": "flambeau._spark_config",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'flambeau' has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "flambeau.errors")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
