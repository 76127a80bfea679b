"""Trains the flights example in Python and in Scala on the same shards; prints losses and predictions as one
JSON line.

    flights_both.py --output DIRECTORY --jars JARS
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from pyspark.ml import Pipeline
from pyspark.ml.feature import StringIndexerModel
from pyspark.ml.functions import vector_to_array
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples")]

STEPS, BATCH, ROWS = 100, 512, 20_000
OPTIMIZER = {"name": "adamw", "options": {"lr": 3e-3}}


def main() -> None:
    import flights
    from local_session import session
    from scala import Scala

    import flambeau

    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--jars", required=True)
    options = parser.parse_args()
    spark = session(options.jars)
    scala = Scala(spark)
    rows = str(options.output / "rows.parquet")
    flights.read_flights(spark, options.output).limit(ROWS).repartition(2, "distance").write.parquet(rows)
    frame = spark.read.parquet(rows)
    preparation = Pipeline(stages=flights.preparation()).fit(frame)
    inputs = ["features", *flights.indexed(flights.CATEGORIES)]
    indexer = preparation.stages[0]
    assert isinstance(indexer, StringIndexerModel)
    counts = [len(labels) + 1 for labels in indexer.labelsArray]
    torch.manual_seed(0)
    module = flights.DelayNet(len(flights.NUMBERS), counts)
    program = str(options.output / "program")
    examples = [torch.zeros(2, len(flights.NUMBERS)), *(torch.zeros(2, dtype=torch.int64) for _ in counts)]
    flambeau.save_program(module, program, inputs=examples)

    common: dict[str, Any] = {
        "optimizer": OPTIMIZER,
        "inputCols": inputs,
        "labelCol": "arr_delay",
        "numWorkers": 2,
        "batchSize": BATCH,
        "seed": 1,
        "verbose": 0,
    }
    outcome: dict[str, Any] = {}

    # One global batch is an epoch, so that the history has the loss of each step.
    shards = str(options.output / "shards")
    plain = [F.col(name).cast("int").alias(name) for name in inputs[1:]]
    prepared = preparation.transform(frame).limit(2 * BATCH)
    numbers = vector_to_array(F.col("features"), "float32").alias("features")
    prepared.select("arr_delay", numbers, *plain).repartition(2).write.parquet(shards)
    python = flambeau.TorchRegressor(model=module, epochs=STEPS, **common).fitOnParquet(shards)
    board = {"tensorBoardDir": str(options.output / "board"), "logEveryNSteps": 1}
    jvm = scala.estimator("TorchRegressor", model=program, epochs=STEPS, **common, **board)
    jvm = jvm.fitOnParquet(shards)
    outcome["losses"] = {"python": python.history["loss"], "scala": list(jvm.history().apply("loss"))}

    # Whole pipelines, with validation, cross over.
    held_out: dict[str, Any] = {"validationFraction": 0.1, "metrics": ["rmse", "mae"], "epochs": 2}
    stage = flambeau.TorchRegressor(model=module, **common, **held_out)
    python_model = Pipeline(stages=[*flights.preparation(), stage]).fit(frame)
    stage = scala.estimator("TorchRegressor", model=program, **common, **held_out)
    scala_model = scala.pipeline([*flights.preparation(), stage]).fit(frame._jdf)
    python_model.save(str(options.output / "python"))
    scala_model.write().save(f"file://{options.output}/scala")
    trained = python_model.stages[-1]
    assert isinstance(trained, flambeau.TorchModel)
    histories = trained.history, scala_model.stages()[3].history()
    outcome["rmse"] = {
        "python": histories[0]["val_rmse"],
        "scala": list(histories[1].apply("val_rmse")),
    }

    def predictions(scored: DataFrame) -> list[float]:
        keyed = scored.orderBy(*[F.col(name) for name in frame.columns]).limit(2000)
        return [row["prediction"] for row in keyed.select("prediction").collect()]

    read = scala.flambeau.PipelineModels.load(str(options.output / "python"))
    outcome["python pipeline"] = {
        "python": predictions(python_model.transform(frame)),
        "scala": predictions(scala.scored(read, frame)),
    }
    outcome["scala pipeline"] = {
        "scala": predictions(scala.scored(scala_model, frame)),
        "python": predictions(flambeau.load_pipeline(str(options.output / "scala")).transform(frame)),
    }
    spark.stop()
    print("OUTCOME " + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
