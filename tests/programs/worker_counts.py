"""Fits the same rows with 1, 2, 3 and 4 workers and prints weights and losses of each as one JSON line."""

import argparse
import json
from typing import Any

import torch
from pyspark.sql import SparkSession

from flambeau import TorchRegressor

GLOBAL_BATCH = 48


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    arguments = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    torch.manual_seed(0)
    # Smooth activations: through a ReLU one rounding may flip a unit.
    module = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    outcome: dict[str, Any] = {"initial": flat(module)}
    for num_workers in (1, 2, 3, 4):
        model = TorchRegressor(
            model=module,
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
            featuresCol=["a", "b", "c"],
            labelCol="label",
            numWorkers=num_workers,
            dataLanes=4,
            batchSize=GLOBAL_BATCH // num_workers,
            epochs=3,
            seed=2,
            verifyReplicas=True,
            verbose=0,
        ).fitOnParquet(arguments.data)
        outcome[str(num_workers)] = {"weights": flat(model.module()), "loss": model.history["loss"]}
    spark.stop()
    print("OUTCOME " + json.dumps(outcome), flush=True)


def flat(module: torch.nn.Module) -> list[float]:
    """All parameters, one after the other."""
    vector: list[float] = torch.nn.utils.parameters_to_vector(module.parameters()).tolist()
    return vector


if __name__ == "__main__":
    main()
