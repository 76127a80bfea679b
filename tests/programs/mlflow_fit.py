"""Fits in Scala that MLflow is told of, one after the other, and prints what a test needs of each as one JSON
line.

    mlflow_fit.py --jars JARS --uri URI --experiment NAME --data FILE --net FILE
        --behaviours whole,given,failed,interrupted [--run ID] [--load URI,URI]

Runs have the names of their behaviours. A fit that is `given` the run is made twice, with an alias that
MLflow refuses; one that fails has a label that is null; one that is interrupted is so once the server has a
loss of a step and what the worker uses. With `--load` the version that a whole fit registers is the
challenger, which becomes the champion, and the models of these URIs are loaded.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import mlflow

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))


def interrupt(jvm: Any, options: argparse.Namespace) -> None:
    """Interrupts the thread of the JVM that fits, once the server has a loss of a step of its run and
    what the worker uses.
    """
    mlflow.set_tracking_uri(options.uri)
    query = {"experiment_names": [options.experiment], "output_format": "list"}
    found = (
        "attributes.run_name = 'interrupted' and metrics.`train/loss_step` > -1"
        " and metrics.`system/rank_0/process_memory_usage_megabytes` > 0"
    )
    deadline = time.monotonic() + 120
    while not mlflow.search_runs(filter_string=found, **query) and time.monotonic() < deadline:
        time.sleep(0.2)
    for entry in jvm.java.lang.Thread.getAllStackTraces().entrySet():
        if any(frame.getClassName() == "flambeau.TorchEstimator" for frame in entry.getValue()):
            entry.getKey().interrupt()


def fit(spark: Any, scala: Any, behaviour: str, options: argparse.Namespace) -> dict[str, Any]:
    """What comes of a fit with that behaviour."""
    frame = spark.read.parquet(options.data)
    estimator = scala.estimator(
        "TorchRegressor",
        model=options.net,
        optimizer={"name": "sgd", "options": {"lr": 0.1}},
        metrics=["mae"],
        featuresCols=["x1", "x2", "x3"],
        labelCol="hole" if behaviour == "failed" else "y",
        validationIndicatorCol="held_out",
        monitor="val_loss",
        earlyStoppingPatience=100_000,
        batchSize=16,
        numWorkers=1,
        epochs=100_000 if behaviour == "interrupted" else 3,
        logGradientNorm=True,
        verbose=0,
    )
    told = scala.flambeau.MLflow().setTrackingUri(options.uri).setRunName(behaviour)
    told.setExperiment(options.experiment)
    if behaviour == "whole" and options.load:
        told.setRegisteredModelName("from_scala").setAlias("challenger")
    if behaviour == "given":
        told.setRunId(options.run).setRegisteredModelName("given").setAlias("latest")
    estimator.addListener(told)
    if behaviour == "interrupted":
        threading.Thread(target=interrupt, args=(scala.jvm, options), daemon=True).start()
    try:
        model = estimator.fit(frame._jdf)
        if behaviour == "given":
            model = estimator.fit(frame._jdf)
    except Exception as error:
        return {"message": str(error)}
    scored = scala.scored(model, frame).select("prediction").collect()
    names = ("steps", "epoch", "loss", "mae", "val_loss", "val_mae", "learning_rate", "gradient_norm")
    return {
        "uid": model.uid(),
        "history": {name: list(model.history().apply(name)) for name in names},
        "predictions": [row.prediction for row in scored],
    }


def load(spark: Any, scala: Any, uri: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a model of the server gives, or why it is none, with credentials in the server's URI."""
    try:
        model = scala.flambeau.MLflow.load(uri, options.uri.replace("://", "://ann:word@"))
    except Exception as error:
        return {"message": str(error)}
    scored = scala.scored(model, spark.read.parquet(options.data)).select("prediction").collect()
    return {"uid": model.uid(), "predictions": [row.prediction for row in scored]}


def main() -> None:
    from local_session import session
    from scala import Scala

    parser = argparse.ArgumentParser()
    for name in ("jars", "uri", "experiment", "data", "net", "behaviours"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--run")
    parser.add_argument("--load")
    options = parser.parse_args()
    spark = session(options.jars)
    scala = Scala(spark)
    outcomes = {name: fit(spark, scala, name, options) for name in options.behaviours.split(",")}
    if options.load:
        challenger = "models:/from_scala@challenger"
        scala.flambeau.MLflow.setRegisteredModelAlias(challenger, "champion", options.uri)
        outcomes["loaded"] = {uri: load(spark, scala, uri, options) for uri in options.load.split(",")}
    spark.stop()
    print("OUTCOME " + json.dumps(outcomes), flush=True)


if __name__ == "__main__":
    main()
