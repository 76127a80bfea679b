"""Scores the same rows by both runtimes of PySpark's models, and by the one that `transform` takes by itself,
in a session with the jar and Flambeau's extensions.

    native_transform.py --jars JARS

The outcome has, for each case, the largest difference between the runtimes, the schemas where they differ,
which one is taken by itself and why, and what is refused.
"""

from __future__ import annotations

import argparse
import json
import logging
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


def preprocess(batch: Any) -> Tensor:
    """The first of a row's numbers."""
    return torch.from_numpy(np.stack(batch["features"])[:, :1].astype("float32"))


def numbers(value: Any) -> list[float]:
    """All numbers in a value of a row."""
    if hasattr(value, "toArray"):
        value = value.toArray()
    if isinstance(value, (list, tuple, np.ndarray)):
        return [number for item in value for number in numbers(item)]
    return [float(value)]


class Told(logging.Handler):
    """Keeps why `transform` scores in Python, as the log says it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += [record.getMessage()] if record.getMessage().startswith("transform scores") else []


def in_jvm(frame: Any) -> bool:
    """Whether the JVM scores a DataFrame's rows."""
    return "Score" in frame._jdf.queryExecution().analyzed().toString()


def total_of(frame: Any) -> float:
    """The sum of the predictions."""
    [row] = frame.select(F.sum("prediction")).collect()
    return float(row[0])


def main() -> None:
    import fitted
    from local_session import session

    from flambeau import TorchEstimator, TorchRegressor
    from flambeau._score.placement import has_nvidia_driver
    from flambeau._spark_config import EXTENSIONS
    from flambeau._tensors import TensorColumns

    parser = argparse.ArgumentParser()
    parser.add_argument("--jars", required=True)
    spark = session(parser.parse_args().jars, confs={"spark.sql.extensions": EXTENSIONS})
    outcome: dict[str, Any] = {}
    told = Told()
    logging.getLogger("flambeau").addHandler(told)
    logging.getLogger("flambeau").setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        columns = [F.rand(seed).cast("float").alias(f"x{seed}") for seed in range(4)]
        spark.range(0, 5000, 1, 3).select("id", *columns).write.parquet(f"{folder}/rows")
        packed = spark.read.parquet(f"{folder}/rows")
        arrays = packed.withColumn("features", F.array("x0", "x1", "x2", "x3"))
        vectors = arrays.withColumn("features", array_to_vector(F.col("features")))

        def compare(case: str, model: Any, rows: Any) -> None:
            native = model.copy().setRuntime("native").setDevice("cpu").transform(rows)
            outcome[case] = by_itself(model, rows, native) | {"in the JVM": in_jvm(native)}

        def by_itself(model: Any, rows: Any, *others: Any) -> dict[str, Any]:
            """What `transform` takes where the runtime is left to it, and Python."""
            told.lines.clear()
            taken = model.setDevice("cpu").transform(rows)
            added = [field for field in taken.columns if field not in rows.columns]
            python = model.copy().setRuntime("python").transform(rows)
            assert not in_jvm(python)
            expected, *found = (
                [numbers(tuple(row)) for row in frame.orderBy("id").select(added).collect()]
                for frame in (python, taken, *others)
            )
            return {
                "columns": added,
                "same schema": len({frame.schema.simpleString() for frame in (python, taken, *others)}) == 1,
                "by itself": in_jvm(taken),
                "told": list(told.lines),
                "difference": max(float(np.abs(np.array(one) - np.array(expected)).max()) for one in found),
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

        exported = fitted.regressor(folder / "exported again", Exported())
        exported.write().overwrite().save(f"{folder}/exported saved")
        compare("exported and loaded", type(exported).load(f"{folder}/exported saved"), arrays)

        classifier = fitted.classifier(folder / "threshold")
        outcome["threshold"] = by_itself(classifier.setThresholds([0.2, 0.3, 0.5]), arrays)
        told.lines.clear()
        at_will = fitted.regressor(folder / "device")
        outcome["auto"] = in_jvm(at_will.transform(arrays)) != has_nvidia_driver()
        outcome["cuda"] = [in_jvm(at_will.setDevice("cuda").transform(arrays)), told.lines[-1]]
        outcome["neither, by itself"] = by_itself(
            fitted.regressor(folder / "neither", fitted.Branching()), arrays
        )
        for case, forward in (("custom operator", fitted.Custom()), ("registered", fitted.Registered())):
            made = TorchEstimator(model=forward, loss="mse")
            made = fitted.fitted(made, forward, [fitted.features(4)], folder / case)
            outcome[case] = by_itself(made, arrays)

        # Another session reads it, and a stream.
        seen = fitted.regressor(folder / "seen").setDevice("cpu")
        seen.transform(arrays).createGlobalTempView("scored")
        there = spark.newSession().table("global_temp.scored")
        outcome["another session"] = [in_jvm(there), total_of(there)]
        arrays.write.parquet(f"{folder}/stream")
        stream = spark.readStream.schema(arrays.schema).parquet(f"{folder}/stream")
        scored = seen.transform(stream)
        query = scored.writeStream.format("memory").queryName("streamed").start()
        query.processAllAvailable()
        query.stop()
        outcome["stream"] = [in_jvm(scored), total_of(spark.table("streamed"))]

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

        rows = arrays.withColumn("y", F.col("x0") + 1)
        other = TorchRegressor(model=nn.Linear(1, 1), loss="mse", preprocess=preprocess, labelCol="y")
        other.setInputCols(["features"]).setNumWorkers(1).setVerbose(0)
        outcome["preprocess"] = by_itself(other.fit(rows), arrays)
        other = TorchRegressor(model=nn.Linear(4, 1), loss="mse", labelCol="y", verbose=0)
        other.write().overwrite().save(f"{folder}/estimator")
        for case in ("trained in Python", "by an estimator that was saved"):
            outcome[case] = by_itself(other.fit(rows), arrays)
            other = TorchRegressor.load(f"{folder}/estimator")

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
