"""Trains, in one language, the estimators that the other one saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.ml import Pipeline
from pyspark.sql import SparkSession


def refitted(spark: SparkSession, saved: Path) -> dict[str, Any]:
    """What the estimators below `saved` predict after a training in the other language, by the way that they
    went; `refused` is why Scala reads no pickle. Writes into the directory that the process runs in.
    """
    from golden import predictions, rows
    from make import stages
    from scala import Scala

    from flambeau import TorchRegressor

    scala, frame = Scala(spark), rows(spark)
    outcome: dict[str, Any] = {}

    theirs = TorchRegressor.load(str(saved / "scala" / "estimator"))
    prepared = Pipeline(stages=[*stages(), theirs])
    outcome["scala estimator in python"] = predictions(prepared.fit(frame).transform(frame))

    read = scala.flambeau.TorchRegressor.load(str(saved / "scala" / "estimator"))
    whole = scala.pipeline([*stages(), read])
    whole.write().save(f"file://{Path.cwd()}/pipeline")
    fitted = Pipeline.load("file://" + str(Path.cwd() / "pipeline")).fit(frame)
    outcome["scala pipeline by PySpark's reader"] = predictions(fitted.transform(frame))

    theirs.save(str(Path.cwd() / "estimator"))
    ours = scala.flambeau.TorchRegressor.load(str(Path.cwd() / "estimator"))
    model = scala.pipeline([*stages(), ours]).fit(frame._jdf)
    outcome["python estimator in scala"] = predictions(scala.scored(model, frame))

    try:
        scala.flambeau.TorchRegressor.load(str(saved / "python" / "estimator"))
    except Exception as error:
        outcome["refused"] = str(error)
    return outcome
