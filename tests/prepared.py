"""Trains, in each language, on rows that the other one prepared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.ml import Pipeline
from pyspark.sql import SparkSession


def crossed(spark: SparkSession, saved: Path) -> dict[str, Any]:
    """What the estimator that Scala saved below `saved` comes to in each language, on a DataFrame, on what
    PySpark prepared of it and on what Scala did; the manifests of these, and what is refused, by language.
    Writes into the directory that the process runs in.
    """
    from golden import predictions, rows
    from make import stages
    from scala import Scala

    from flambeau import PreparedData, TorchRegressor

    scala, frame = Scala(spark), rows(spark)
    df = Pipeline(stages=stages()).fit(frame).transform(frame)
    path = str(saved / "scala" / "estimator")
    ours = TorchRegressor.load(path).setValidationFraction(0.25).setNumWorkers(2)
    theirs = scala.flambeau.TorchRegressor.load(path).setValidationFraction(0.25).setNumWorkers(2)
    places = {side: str(Path.cwd() / f"prepared by {side}") for side in ("python", "scala")}
    ours.prepare(df, places["python"])
    theirs.prepare(df._jdf, places["scala"])
    opened = {side: PreparedData.open(place) for side, place in places.items()}
    jvm_session = spark._jsparkSession
    opened_in_jvm = {
        side: scala.flambeau.PreparedData.open(jvm_session, place) for side, place in places.items()
    }

    def in_python(given: Any) -> dict[str, Any]:
        model = ours.fit(given)
        history = {name: model.history[name] for name in ("loss", "val_loss")}
        return {**history, "predictions": predictions(model.transform(df))}

    def in_scala(given: Any) -> dict[str, Any]:
        model = theirs.fit(given)
        history = {name: list(model.history().apply(name)) for name in ("loss", "val_loss")}
        return {**history, "predictions": predictions(scala.scored(model, df))}

    def refused(action: Callable[[], Any]) -> str:
        try:
            action()
        except Exception as error:
            return str(error)
        return "nothing was refused"

    outcome: dict[str, Any] = {
        "python": {name: in_python(given) for name, given in {"df": df, **opened}.items()},
        "scala": {name: in_scala(given) for name, given in {"df": df._jdf, **opened_in_jvm}.items()},
        "manifests": {
            side: json.loads((Path(place) / "manifest.json").read_text()) for side, place in places.items()
        },
    }

    def both(change: Callable[[Any], Any], side: str) -> list[str]:
        """What each language says of a fit of its estimator, changed so, on what a side prepared."""
        return [
            refused(lambda: change(ours).fit(opened[side])),
            refused(lambda: change(theirs).fit(opened_in_jvm[side])),
        ]

    missing = str(Path.cwd() / "nowhere")
    outcome["refused"] = [
        [
            refused(lambda: PreparedData.open(missing)),
            refused(lambda: scala.flambeau.PreparedData.open(jvm_session, missing)),
        ],
        both(lambda estimator: estimator.setLabelCol("carrier"), "scala"),
        both(lambda estimator: estimator.setLabelCol("category"), "scala"),
        both(lambda estimator: estimator.setLabelCol("label").setValidationFraction(0.5), "scala"),
        both(lambda estimator: estimator.setValidationFraction(0.25).setHandleInvalid("skip"), "scala"),
    ]
    next(Path(places["python"]).rglob("*.parquet")).unlink()
    outcome["refused"].append(both(lambda estimator: estimator.setHandleInvalid("keep"), "python"))
    return outcome
