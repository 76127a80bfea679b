"""MLflow: fits as runs, fitted models as models of its registry::

    import flambeau.mlflow

    flambeau.mlflow.autolog()
    model = TorchRegressor(model=net, inputCols=["x"], labelCol="y", ...).fit(df)  # a run
    model = flambeau.mlflow.load_model("models:/taxi@champion")

The package `mlflow` is needed where any of this is called.
"""

from __future__ import annotations

from flambeau._mlflow import FLAVOR
from flambeau._mlflow.fits import MLflow, autolog
from flambeau._mlflow.models import get_default_pip_requirements, load_model, log_model, save_model
from flambeau._mlflow.models import load_pyfunc as _load_pyfunc  # noqa: F401  as MLflow calls it

__all__ = [
    "FLAVOR",
    "MLflow",
    "autolog",
    "get_default_pip_requirements",
    "load_model",
    "log_model",
    "save_model",
]
