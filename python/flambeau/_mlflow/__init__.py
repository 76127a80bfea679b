"""Fits and fitted models in MLflow. Users have all of it as `flambeau.mlflow`."""

from __future__ import annotations

from typing import Any

from flambeau.errors import FlambeauError

FLAVOR = "flambeau"


def package() -> Any:
    """The package `mlflow`. Raises FlambeauError where it is not installed."""
    try:
        import mlflow
    except ImportError as error:
        raise FlambeauError("this needs MLflow, which is not installed: pip install mlflow") from error
    return mlflow
