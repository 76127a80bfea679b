"""A pipeline like the README's second example, in a session with the jars of an installed Flambeau.

    installed.py [--confs JSON]

The settings are `flambeau.spark_config()`, or these. The outcome has where Flambeau was imported from, the
session's jars, whether the JVM scored, and the largest difference between its predictions and Python's.
"""

import argparse
import json
import tempfile
from typing import Any

import torch
from pyspark.ml import Pipeline
from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler
from pyspark.sql import SparkSession
from torch import Tensor, nn

import flambeau
from flambeau import TorchRegressor, load_pipeline


class Net(nn.Module):
    """The README's, smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.carrier = nn.Embedding(4, 2)
        self.layers = nn.Sequential(nn.Linear(2 + 2, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, numbers: Tensor, carrier: Tensor) -> Tensor:
        return self.layers(torch.cat([numbers, self.carrier(carrier)], dim=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--confs", type=json.loads)
    given = parser.parse_args().confs
    confs = flambeau.spark_config() if given is None else given
    quiet = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in {**quiet, **confs}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = [(("AA", "UA", "DL")[row % 3], row % 37 - 8.0, 100.0 + 29 * row % 2900) for row in range(600)]
    flights = spark.createDataFrame(
        [(carrier, delay, distance, delay - distance / 500) for carrier, delay, distance in rows],
        "carrier string, dep_delay double, distance double, arr_delay double",
    )
    regressor = TorchRegressor(
        model=Net(),
        loss="mse",
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        metrics=["mae"],
        inputCols=["features", "carrier_index"],
        labelCol="arr_delay",
        validationFraction=0.1,
        numWorkers=2,
        batchSize=64,
        epochs=2,
    )
    stages: list[Any] = [
        StringIndexer(inputCol="carrier", outputCol="carrier_index", handleInvalid="keep"),
        VectorAssembler(inputCols=["dep_delay", "distance"], outputCol="numbers"),
        StandardScaler(inputCol="numbers", outputCol="features", withMean=True),
        regressor,
    ]
    model: Any = Pipeline(stages=stages).fit(flights)
    with tempfile.TemporaryDirectory() as folder:
        model.write().save(f"{folder}/delays")
        again = load_pipeline(f"{folder}/delays")
        again.stages[-1].setDevice("cpu")
        if given is not None:
            again.stages[-1].setRuntime("native")
        native = again.transform(flights)
        again.stages[-1].setRuntime("python")
        python = again.transform(flights)
        pairs = zip(python.collect(), native.collect(), strict=True)
        outcome = {
            "from": flambeau.__file__,
            "epochs": len(model.stages[-1].history["val_mae"]),
            "jars": spark.sparkContext.getConf().get("spark.jars"),
            "in the JVM": "Score" in native._jdf.queryExecution().toString(),
            "difference": max(abs(one.prediction - other.prediction) for one, other in pairs),
        }
    spark.stop()
    print("OUTCOME " + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
