"""Measures `transform` of one saved model in Scala and in PySpark, in one Spark session, turn by turn.

    make jvm
    .ci/with-tools .venv/bin/python benchmarks/transform_jvm.py [--rows 3000000] [--rounds 5]

The rows lie in Parquet; results go to the `noop` sink, which writes nothing. Beside the two, the same rows
are read and dropped: the least that any `transform` costs. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from flambeau import TorchModel, TorchRegressor

ROOT = Path(__file__).resolve().parent.parent
NUM_FEATURES = 20


def session() -> SparkSession:
    """Two threads, with the jar and the environment's libtorch."""
    jars = [
        jar
        for jar in (ROOT / "build/jvm/libs").glob("flambeau-spark4_2.13-*.jar")
        if "sources" not in jar.name
    ]
    if not jars:
        raise SystemExit("build/jvm/libs has no jar: run `make jvm` first")
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", str(jars[0]))
        .config("spark.flambeau.libtorch", spec.submodule_search_locations[0])
        .config("spark.driver.memory", "3g")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


def write_rows(spark: SparkSession, num_rows: int, folder: Path) -> dict[str, DataFrame]:
    """The same rows with their features as an array and as a vector."""
    values = F.array(*[F.rand(seed).cast("float") for seed in range(NUM_FEATURES)])
    rows = spark.range(0, num_rows, 1, 8).select("id", values.alias("features"))
    rows.write.parquet(str(folder / "array"))
    rows = spark.read.parquet(str(folder / "array"))
    rows.withColumn("features", array_to_vector(F.col("features"))).write.parquet(str(folder / "vector"))
    return {kind: spark.read.parquet(str(folder / kind)) for kind in ("array", "vector")}


def write_model(rows: DataFrame, folder: Path) -> str:
    """A small network, trained for one short epoch; returns where it is saved."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Linear(NUM_FEATURES, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
    )
    labelled = rows.limit(20_000).withColumn("label", F.element_at("features", 1))
    model = TorchRegressor(model=net, loss="mse", numWorkers=1, batchSize=256, epochs=1).fit(labelled)
    model.save(str(folder))
    return str(folder)


def drain(df: Any) -> None:
    """Computes a DataFrame of either language and drops it."""
    writer = df.write if isinstance(df, DataFrame) else df.write()
    writer.format("noop").mode("overwrite").save()


def measure(contenders: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The median seconds of each, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    spark = session()
    with tempfile.TemporaryDirectory(prefix="flambeau-benchmark-") as folder:
        tables = write_rows(spark, arguments.rows, Path(folder))
        path = write_model(tables["array"], Path(folder) / "model")
        in_python = TorchModel.load(path)
        jvm: Any = spark._jvm
        in_scala = jvm.flambeau.TorchRegressionModel.load(path)
        print(
            f"Spark {spark.version}, torch {torch.__version__}, Python {platform.python_version()}, local[2],"
        )
        print(f"{arguments.rows:,} rows of {NUM_FEATURES} float32, medians of {arguments.rounds}:\n")
        print("| features | | seconds | rows/s |\n|---|---|---|---|")
        for kind, df in tables.items():
            jdf: Any = df._jdf
            medians = measure(
                {
                    "Scala": lambda jdf=jdf: drain(in_scala.transform(jdf)),  # type: ignore[misc]
                    "PySpark": lambda df=df: drain(in_python.transform(df)),  # type: ignore[misc]
                    "read only": lambda df=df: drain(df),  # type: ignore[misc]
                },
                arguments.rounds,
            )
            for name, median in medians.items():
                print(f"| {kind} | {name} | {median:.2f} | {arguments.rows / median:,.0f} |")
    spark.stop()


if __name__ == "__main__":
    main()
