"""Scores the same rows by both runtimes of PySpark's models, in a session with the jar.

    native_transform.py --jars JARS

The outcome has, for each case, the largest difference between the runtimes, the schemas where they differ,
and what is refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F
from torch import Tensor, nn

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent / "python" / "tests")]


class Several(nn.Module):
    """A number and an array, by name."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"mean": x.mean(1), "top": x.topk(2, dim=1).indices}


class Exported(nn.Module):
    """What torch.export takes and TorchScript does not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.tanh(self.layer(inputs[0]))


class Large(nn.Module):
    """A program of 24 MB: its table is no buffer, so it is none of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.table = torch.randn(6_000_000, generator=torch.Generator().manual_seed(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.table[-1]


def numbers(value: Any) -> list[float]:
    """All numbers in a value of a row."""
    if hasattr(value, "toArray"):
        value = value.toArray()
    if isinstance(value, (list, tuple, np.ndarray)):
        return [number for item in value for number in numbers(item)]
    return [float(value)]


def main() -> None:
    import fitted
    from local_session import session

    from flambeau import TorchEstimator, TorchRegressor
    from flambeau._tensors import TensorColumns

    parser = argparse.ArgumentParser()
    parser.add_argument("--jars", required=True)
    spark = session(parser.parse_args().jars)
    outcome: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        columns = [F.rand(seed).cast("float").alias(f"x{seed}") for seed in range(4)]
        spark.range(0, 5000, 1, 3).select("id", *columns).write.parquet(f"{folder}/rows")
        packed = spark.read.parquet(f"{folder}/rows")
        arrays = packed.withColumn("features", F.array("x0", "x1", "x2", "x3"))
        vectors = arrays.withColumn("features", array_to_vector(F.col("features")))

        def compare(case: str, model: Any, rows: Any) -> None:
            added = [field for field in model.transform(rows).columns if field not in rows.columns]
            python = model.setRuntime("python").transform(rows)
            native = model.setRuntime("native").transform(rows)
            pairs = zip(
                *([numbers(tuple(row)) for row in frame.orderBy("id").select(added).collect()]
                  for frame in (python, native)),
                strict=True,
            )  # fmt: skip
            outcome[case] = {
                "columns": added,
                "same schema": python.schema.simpleString() == native.schema.simpleString(),
                "in the JVM": "Score" in native._jdf.queryExecution().toString(),
                "difference": max(
                    abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True)
                ),
            }

        names = ("x0", "x1", "x2", "x3")
        module = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
        tensor = TensorColumns("features", names, "float32", (4,))
        estimator = TorchRegressor(model=module, loss="mse", featuresCol=list(names))
        regressor = fitted.fitted(estimator, module, [tensor], folder / "packed")
        compare("packed columns", regressor, packed)
        # What the JVM has of its program stays behind.
        compare("pickled", cloudpickle.loads(cloudpickle.dumps(regressor)), packed)
        compare("arrays", fitted.regressor(folder / "arrays"), arrays)
        compare("vectors", fitted.classifier(folder / "vectors"), vectors)
        several = TorchEstimator(model=Several(), loss="mse")
        compare(
            "several",
            fitted.fitted(several, Several(), [fitted.features(4)], folder / "several"),
            arrays,
        )
        several = TorchEstimator(model=Several(), loss="mse", outputCols=["mean", "top"])
        compare(
            "output columns",
            fitted.fitted(several, Several(), [fitted.features(4)], folder / "columns"),
            arrays,
        )
        compare("exported", fitted.regressor(folder / "exported", Exported()), arrays)

        compare("large", fitted.regressor(folder / "large", Large()), arrays)

        regressor.setRuntime("native").write().overwrite().save(f"{folder}/saved")
        loaded = type(regressor).load(f"{folder}/saved")
        outcome["loaded"] = loaded.getRuntime()
        compare("saved and loaded", loaded, packed)

        made = TorchRegressor(
            model=nn.Linear(4, 1),
            loss="mse",
            optimizer="sgd",
            runtime="native",
            featuresCol=list(names),
        )
        made.setLabelCol("y").setNumWorkers(1).setVerbose(0)
        trained = made.fit(packed.withColumn("y", F.col("x0") + 1))
        outcome["taken over"] = trained.getRuntime()
        compare("trained", trained, packed)

        def refused(case: str, action: Any) -> None:
            try:
                action()
            except Exception as error:
                outcome[case] = f"{type(error).__name__}: {error}"

        branching = fitted.regressor(folder / "branching", fitted.Branching()).setRuntime("native")
        refused("neither form", lambda: branching.transform(arrays))
        nulls = packed.withColumn("x2", F.when(F.col("id") != 77, F.col("x2")))
        refused("null", lambda: regressor.setRuntime("native").transform(nulls).collect())
        refused("column", lambda: regressor.transform(packed.drop("x3")))
    spark.stop()
    print("OUTCOME " + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
