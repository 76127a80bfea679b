"""Fits and scores on GPUs by both runtimes of PySpark, and prints what came of it beside the same on the CPU.

    gpu_jobs.py --jars JARS --num-workers N

Run as its own process, since a Spark session's master cannot change within one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from pyspark.sql import DataFrame
from torch import Tensor, nn

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent / "python" / "tests")]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))


def on_gpu(output: Tensor, label: Tensor) -> Tensor:
    """Mean squared error, of what lies on a GPU."""
    assert output.is_cuda and label.is_cuda
    return nn.functional.mse_loss(output, label.reshape(output.shape))


def predictions(scored: DataFrame) -> list[float]:
    """By the order of the rows."""
    return [row["prediction"] for row in scored.orderBy("id").select("prediction").collect()]


def main() -> None:
    from local_session import session

    from flambeau import TorchRegressor

    parser = argparse.ArgumentParser()
    parser.add_argument("--jars", required=True)
    parser.add_argument("--num-workers", type=int, required=True)
    arguments = parser.parse_args()
    spark = session(jars=arguments.jars)
    rows = spark.range(600).selectExpr(
        "id", "transform(array(1, 2, 3, 4), k -> float(sin(id * k))) as features", "float(cos(id)) as label"
    )
    outcome: dict[str, Any] = {}
    for runtime in ("python", "native"):
        for device in ("cpu", "cuda"):
            estimator = TorchRegressor(
                model=network(),
                loss=on_gpu if (runtime, device) == ("python", "cuda") else "mse",
                optimizer="adam",
                numWorkers=arguments.num_workers,
                epochs=2,
                batchSize=32,
                learningRate=0.01,
                validationFraction=0.2,
                device=device,
                runtime=runtime,
                seed=1,
                verbose=0,
            )
            model = estimator.fit(rows)
            outcome[f"{runtime} {device}"] = {
                "losses": model.history["loss"] + model.history["val_loss"],
                "predictions": predictions(model.transform(rows)),
            }
    spark.stop()
    print("OUTCOME " + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
