"""transform: scoring a DataFrame with a fitted model.

Rows a second of `local[2]`, from Parquet to the `noop` sink, which writes nothing. What runs in Spark runs in
one session, but for MLflow and Horovod, whose packages need environments of their own. Models are trained for
an epoch on a few rows; the peers score with the same trained module. Horovod, which scores row by row, is
timed on two of the eight files.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from harness import Case, Child, Contender, Goal, Skipped, peer, spark_jars, spark_session
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from flambeau import TorchClassifier, TorchEstimator, TorchModel, TorchRegressor

UDFS: Any = F
"""What PySpark's types leave out of its functions."""
COLUMNS = [f"x{index}" for index in range(10)]
NUM_ROWS = 3_300_000
NUM_CLASSES = 3
NUM_PROCESSES = 2
PEERS = ("mlflow", "horovod")

PYTHON = "Flambeau"
NATIVE = 'Flambeau, runtime="native"'
SCALA = "Flambeau, Scala"
PANDAS_UDF = "pandas_udf"
MAP_IN_PANDAS = "mapInPandas"
MLFLOW = "mlflow.pyfunc.spark_udf"
HOROVOD = "Horovod TorchModel"
MODEL_ALONE = "limit: the model alone on tensors, two processes"
SCAN = "limit: a scan of the columns"
IDLE_UDF = "limit: a UDF on the columns that computes nothing"


def cases(full: bool, scratch: Path) -> Iterator[Case | Skipped]:
    """A linear model and an MLP; with `full` three times the rows, arrays, vectors and a classifier.

    Each is two cases with a goal for their first: scored by Python, and scored by the JVM.
    """
    with ExitStack() as stack:
        spark = spark_session("transform", **with_jar())
        stack.callback(spark.stop)
        num_rows = NUM_ROWS if full else NUM_ROWS // 3
        size = f"{num_rows / 1e6:.1f} M rows"
        rows = written(spark, num_rows, scratch / "columns")
        linear = Scoring.trained("linear", nn.Linear(10, 1), rows, scratch)
        mlp = Scoring.trained("mlp", mlp_of(1), rows, scratch)

        mlflow = stack.enter_context(mlflow_child())
        horovod = stack.enter_context(Child(peer("horovod")))
        work = f"linear model, 10 columns, {size}"
        contenders = linear.python() | linear.peers()
        contenders |= {MLFLOW: linear.mlflow(mlflow), HOROVOD: linear.horovod(horovod)}
        contenders |= {SCAN: linear.scan(), IDLE_UDF: linear.idle_udf()}
        yield Case("transform", work, "rows/s", contenders, [Goal(PANDAS_UDF, 3)])
        contenders = linear.jvm() | linear.python() | linear.peers() | {SCAN: linear.scan()}
        yield in_jvm(work, contenders, Goal(PANDAS_UDF, 3))

        pool = stack.enter_context(ProcessPoolExecutor(NUM_PROCESSES, mp_context=get_context("spawn")))
        work = f"MLP 10-256-256-1, 10 columns, {size}"
        contenders = mlp.python() | mlp.peers()
        contenders |= {MLFLOW: mlp.mlflow(mlflow), HOROVOD: mlp.horovod(horovod)}
        contenders |= {MODEL_ALONE: mlp.alone(pool), IDLE_UDF: mlp.idle_udf()}
        yield Case("transform", work, "rows/s", contenders, [Goal(MODEL_ALONE, 0.9)])
        contenders = mlp.jvm() | mlp.python() | mlp.peers() | {MODEL_ALONE: mlp.alone(pool)}
        yield in_jvm(work, contenders, Goal(MODEL_ALONE, 0.9))
        if not full:
            return
        array = rows.select(F.array(*COLUMNS).alias("features"))
        vector = array.select(array_to_vector(F.col("features")).alias("features"))
        for kind, made in (("array<float>", array), ("vector", vector)):
            kept = kept_as(made, scratch / kind.partition("<")[0])
            scoring = Scoring.trained(f"linear-{kind.partition('<')[0]}", nn.Linear(10, 1), kept, scratch)
            work = f"linear model, {kind} of 10, {size}"
            yield Case("transform", work, "rows/s", scoring.python() | {SCAN: scoring.scan()})
            yield in_jvm(work, scoring.jvm() | scoring.python() | {SCAN: scoring.scan()})
        classes = Scoring.trained("classes", mlp_of(NUM_CLASSES), rows, scratch)
        work = f"MLP 10-256-256-3, a classifier with its three columns, {size}"
        alone = {MODEL_ALONE: classes.alone(pool)}
        yield Case("transform", work, "rows/s", classes.python() | alone)
        yield in_jvm(work, classes.jvm() | classes.python() | alone)


def in_jvm(work: str, contenders: dict[str, Contender], *goals: Goal) -> Case | Skipped:
    """The same work scored by the JVM, where the jar is built: the goals are for `runtime="native"`."""
    name = f"{work}, in the JVM"
    if spark_jars() is None:
        return Skipped("transform", name, "there is no jar: `make jvm` builds it")
    return Case("transform", name, "rows/s", contenders, goals)


def mlp_of(num_outputs: int) -> nn.Module:
    """Two hidden layers of 256."""
    return nn.Sequential(
        nn.Linear(10, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, num_outputs)
    )


def written(spark: SparkSession, num_rows: int, folder: Path) -> DataFrame:
    """Rows of ten float columns, in Parquet of eight files."""
    columns = [F.rand(seed).cast("float").alias(name) for seed, name in enumerate(COLUMNS)]
    return kept_as(spark.range(0, num_rows, 1, 8).select(*columns), folder)


def kept_as(rows: DataFrame, folder: Path) -> DataFrame:
    """The rows as they lie in Parquet."""
    rows.write.mode("overwrite").parquet(str(folder))
    return rows.sparkSession.read.parquet(str(folder))


@dataclass(frozen=True)
class Scoring:
    """A trained model and the rows that it is to score."""

    model: TorchModel
    path: Path
    """Where the model is saved."""
    rows: DataFrame
    num_rows: int

    @staticmethod
    def trained(name: str, module: nn.Module, rows: DataFrame, scratch: Path) -> Scoring:
        """One short epoch, and what it gave, saved."""
        torch.manual_seed(1)
        features = rows.columns if len(rows.columns) > 1 else rows.columns[0]
        outputs = list(module.parameters())[-1].numel()
        settings: dict[str, Any] = {"model": module, "featuresCol": features, "numWorkers": 1, "verbose": 0}
        settings |= {"batchSize": 256, "epochs": 1}
        if outputs > 1:
            estimator: TorchEstimator = TorchClassifier(loss="cross_entropy", **settings)
        else:
            estimator = TorchRegressor(loss="mse", **settings)
        label = (F.rand(0) * outputs).cast("int" if outputs > 1 else "float")
        model = estimator.fit(rows.limit(10_000).withColumn("label", label))
        path = scratch / f"model-{name}"
        model.write().overwrite().save(str(path))
        return Scoring(model, path, rows, rows.count())

    def python(self) -> dict[str, Contender]:
        """PySpark's model as it is by default."""
        return {PYTHON: self.timed(lambda: drain(self.model.transform(self.rows)))}

    def jvm(self) -> dict[str, Contender]:
        """PySpark's model with its runtime native, and Scala's; where the jar is built."""
        if spark_jars() is None:
            return {}
        native = self.model.copy().setRuntime("native")
        jvm: Any = self.rows.sparkSession._jvm
        in_scala = getattr(jvm.flambeau, type(self.model).__name__).load(str(self.path))
        java_rows = self.rows._jdf
        return {
            NATIVE: self.timed(lambda: drain(native.transform(self.rows))),
            SCALA: self.timed(lambda: drain(in_scala.transform(java_rows))),
        }

    def peers(self) -> dict[str, Contender]:
        """What users write by hand, with the trained module broadcast."""
        module = self.rows.sparkSession.sparkContext.broadcast(self.model.module())

        def by_series() -> DataFrame:
            return self.rows.withColumn("prediction", by_pandas_udf(module)(*COLUMNS))

        return {
            PANDAS_UDF: self.timed(lambda: drain(by_series())),
            MAP_IN_PANDAS: self.timed(lambda: drain(by_map_in_pandas(module, self.rows))),
        }

    def mlflow(self, child: Child) -> Contender:
        """MLflow's UDF, in its own environment."""
        module, rows = self.path.with_suffix(".pt"), self.rows.inputFiles()
        torch.save(self.model.module(), module)
        return lambda: self.num_rows / child.call(module=str(module), files=rows)["seconds"]

    def horovod(self, child: Child) -> Contender:
        """Horovod's model, in its own environment."""
        module, files = self.path.with_suffix(".pt"), self.rows.inputFiles()[:NUM_PROCESSES]
        torch.save(self.model.module(), module)

        def rows_per_second() -> float:
            scored = child.call(what="transform", module=str(module), files=files)
            return float(scored["rows"] / scored["seconds"])

        return rows_per_second

    def alone(self, pool: ProcessPoolExecutor) -> Contender:
        """Two processes, each of which has its half of the rows in a tensor."""
        module = self.path.with_suffix(".pt")
        torch.save(self.model.module(), module)
        half, size = self.num_rows // NUM_PROCESSES, self.model.getInferenceBatchSize()

        def rows_per_second() -> float:
            runs = [pool.submit(score_alone, str(module), half, size) for _ in range(NUM_PROCESSES)]
            return sum(half / run.result() for run in runs)

        return rows_per_second

    def scan(self) -> Contender:
        """Reading the rows and dropping them."""
        return self.timed(lambda: drain(self.rows))

    def idle_udf(self) -> Contender:
        """What Spark's way to Python and back costs at least."""
        return self.timed(lambda: drain(self.rows.withColumn("prediction", idle()(*COLUMNS))))

    def timed(self, run: Callable[[], None]) -> Contender:
        """The rows a second of something that goes through all of them."""

        def rows_per_second() -> float:
            begun = time.perf_counter()
            run()
            return self.num_rows / (time.perf_counter() - begun)

        return rows_per_second


def by_pandas_udf(broadcast: Any) -> Any:
    """The UDF from an iterator of batches, which Spark's guide has for state such as a model."""

    def predict(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        module = broadcast.value
        with torch.inference_mode():
            for columns in batches:
                features = torch.from_numpy(np.column_stack(columns))
                yield pd.Series(module(features).squeeze(1).numpy())

    return UDFS.pandas_udf(predict, "double")


def by_map_in_pandas(broadcast: Any, rows: DataFrame) -> DataFrame:
    """Whole rows as frames, which come back with one more column."""

    def predict(frames: Iterable[pd.DataFrame]) -> Iterable[pd.DataFrame]:
        module = broadcast.value
        with torch.inference_mode():
            for frame in frames:
                features = torch.from_numpy(frame.to_numpy())
                yield frame.assign(prediction=module(features).squeeze(1).double().numpy())

    return rows.mapInPandas(predict, rows.schema.simpleString()[len("struct<") : -1] + ", prediction double")


def idle() -> Any:
    """A UDF that returns its first column."""

    def first(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        for columns in batches:
            yield columns[0]

    return UDFS.arrow_udf(first, "float")


def mlflow_child() -> Child:
    """MLflow's program, whose Spark starts its workers with its own Python."""
    command = peer("mlflow")
    python = str(command[0])
    return Child(command, {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python})


@cache
def prepared(path: str, num_rows: int) -> tuple[nn.Module, torch.Tensor]:
    """A module and its rows, made once in a process."""
    torch.set_num_threads(1)
    return torch.load(path, weights_only=False).eval(), torch.rand(num_rows, 10)


def score_alone(path: str, num_rows: int, batch_size: int) -> float:
    """The seconds that the module itself takes for the rows, batch by batch."""
    module, rows = prepared(path, num_rows)
    begun = time.perf_counter()
    with torch.inference_mode():
        for start in range(0, num_rows, batch_size):
            module(rows[start : start + batch_size])
    return time.perf_counter() - begun


def drain(rows: Any) -> None:
    """Computes a DataFrame of either language and drops it."""
    writer = rows.write if isinstance(rows, DataFrame) else rows.write()
    writer.format("noop").mode("overwrite").save()


def with_jar() -> dict[str, str]:
    """The settings with which Scala finds its classes and libtorch."""
    spec, jars = importlib.util.find_spec("torch"), spark_jars()
    if jars is None or spec is None or not spec.submodule_search_locations:
        return {}
    return {"spark.jars": jars, "spark.flambeau.libtorch": spec.submodule_search_locations[0]}
