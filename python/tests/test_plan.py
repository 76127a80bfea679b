"""A plan against what it is a plan of: the rows, shards, steps and seconds of a fit, and what sleeps leave no
doubt of.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from test_estimator import left_in, linear_rows, regressor
from test_native_runtime import pytestmark as needs_libtorch
from test_optimization import Scheduled, Told
from test_shown import Texts
from torch import Tensor, nn

from flambeau import Callback, ParamError, TorchRegressor, _callbacks
from flambeau._plan import Plan
from flambeau.callbacks import Context

NAP, BATCH = 0.1, 16


class Slow(nn.Module):
    """Sleeps in forward, as long for any batch."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.nap(len(x))
        return self.line(x)

    def nap(self, num_rows: int) -> None:
        time.sleep(NAP)


class SlowRows(Slow):
    """Sleeps for each row, for so long that all else of a step is little beside it."""

    def nap(self, num_rows: int) -> None:
        time.sleep(6 * NAP * num_rows / BATCH)


class Greedy(Slow):
    """Asks for more memory than there is for more than a batch."""

    def nap(self, num_rows: int) -> None:
        if num_rows > BATCH:
            torch.empty(1 << 50)
        super().nap(num_rows)


class Broken(Slow):
    """Fails in training."""

    def nap(self, num_rows: int) -> None:
        if self.training and num_rows > 2:
            raise ValueError("no such batch")


class Many(nn.Module):
    """Many gradients of little work."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(2_000_000))

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1) * self.weights[0]


class SlowSGD(torch.optim.SGD):
    """Sleeps in each step."""

    def step(self, closure: Any = None) -> Any:
        time.sleep(NAP)
        return super().step(closure)


def slowly(batch: Any) -> Tensor:
    """The input, after a nap."""
    time.sleep(NAP)
    return torch.stack([torch.as_tensor(batch[name], dtype=torch.float32) for name in COLUMNS], 1)


COLUMNS = ["x0", "x1", "x2"]


def measured(test: Callable[..., None]) -> Callable[..., None]:
    """A test of what is measured: it is tried up to three times, as what else runs may get in the way."""

    @wraps(test)
    def tried(**fixtures: Any) -> None:
        for _ in range(2):
            with suppress(AssertionError):
                return test(**fixtures)
        return test(**fixtures)

    return tried


@pytest.mark.parametrize(
    ("part", "params"),
    [
        (
            "data",
            {"preprocess": slowly, "preprocessThreads": 1, "inputCols": COLUMNS, "featuresCol": None},
        ),
        ("model", {"model": Slow()}),
        # The largest entries of millions are looked for in the averaging.
        ("reduce", {"model": Many(), "gradientCompression": "topk"}),
        ("optimizer", {"optimizer": lambda parameters: SlowSGD(parameters, lr=0.01)}),
    ],
)
@measured
def test_a_plan_is_held_up_by_what_holds_the_fit_up(
    spark: SparkSession, part: str, params: dict[str, Any]
) -> None:
    df = linear_rows(spark, 640)
    estimator = regressor(optimizer="sgd", batchSize=BATCH, epochs=3).copy()
    estimator._set(**params)
    plan, summary = estimator.plan(df, numSteps=4), estimator.fit(df).summary
    assert plan.bottleneck is not None and summary.bottleneck is not None
    assert plan.bottleneck.part == summary.bottleneck.part == part, (plan, summary)
    for found in (plan.bottleneck, summary.bottleneck):
        assert ("preprocessThreads" in found.advice) == ("preprocess" in params), found
    parts = {name: getattr(plan, f"{name}Seconds") for name in ("data", "model", "reduce", "optimizer")}
    assert max(parts, key=lambda name: parts[name]) == part
    assert plan.epochs * plan.stepsPerEpoch == summary.numSteps
    # What computes takes longer where others do so too; sleeps do not.
    if part != "reduce":
        assert parts[part] > NAP * 0.8
        assert summary.trainingSeconds is not None
        assert 0.5 < plan.expectedSeconds / summary.trainingSeconds < 2


def test_rows_and_steps_are_those_of_the_fit(any_spark_long: SparkSession, tmp_path: Path) -> None:
    df = linear_rows(any_spark_long, 500)
    work = tmp_path / "work"
    estimator = regressor(validationFraction=0.2, epochs=2, workDir=str(work), keepCheckpoints=2)
    before = {param.name: estimator._value(param.name) for param in estimator.params}
    plan = estimator.plan(df, numSteps=1)
    assert left_in(work) == set()
    assert before == {param.name: estimator._value(param.name) for param in estimator.params}
    summary = estimator.fit(df).summary
    assert plan.numRows + plan.numValidationRows == df.count()
    assert (plan.numRows, plan.numValidationRows) == (summary.numRows, summary.numValidationRows)
    assert plan.epochs * plan.stepsPerEpoch == summary.numSteps
    assert plan.validationSeconds > 0
    assert plan.peakMemoryBytes > 1 << 20


def test_validation_rows_may_come_first(spark: SparkSession) -> None:
    df = linear_rows(spark, 300).withColumn("held", F.col("id") < 60)
    plan = regressor(validationIndicatorCol="held", batchSize=8).plan(df, numSteps=1)
    assert (plan.numRows, plan.numValidationRows) == (240, 60)


@pytest.mark.parametrize("runtime", ["python", pytest.param("native", marks=needs_libtorch)])
def test_bytes_are_those_of_the_shards(spark: SparkSession, tmp_path: Path, runtime: str) -> None:
    numbers = F.transform(F.sequence(F.lit(1), F.lit(64)), lambda i: F.sin(F.col("id") * i).cast("float"))
    df = spark.range(0, 8000, 1, 2).select(numbers.alias("features"), F.cos("id").alias("label"))
    estimator = TorchRegressor(
        model=nn.Linear(64, 1), optimizer="sgd", runtime=runtime, numWorkers=2, batchSize=256, verbose=0
    )
    plan = estimator.plan(df, numSteps=1)
    with estimator.prepare(df, path=str(tmp_path / "prepared")):
        written = sum(path.stat().st_size for path in tmp_path.rglob("*.parquet"))
    assert plan.numBytes == pytest.approx(written, rel=0.2)
    assert regressor(inPlace="always").plan(linear_rows(spark, 100), numSteps=1).numBytes == 0


@measured
def test_what_is_faster_is_suggested(spark: SparkSession) -> None:
    df = linear_rows(spark, 2000)
    plan = regressor(model=Slow(), batchSize=BATCH, numWorkers=1, numThreads=2).plan(df, numSteps=16)
    found = plan.suggestions()
    # A step takes as long with any batch, and with two workers.
    assert max(trial.batchSize for trial in plan.trials) == 8 * BATCH
    # A sleep needs no threads.
    assert found == {"batchSize": 8 * BATCH, "numWorkers": 2, "numThreads": 1}
    assert len(plan.trials) == 6
    by_size = {trial.batchSize: trial.rowsPerSecond for trial in plan.trials if trial.numWorkers == 1}
    assert by_size[8 * BATCH] == pytest.approx(8 * BATCH / NAP, rel=0.3)


@measured
def test_what_is_not_faster_is_not_suggested(spark: SparkSession) -> None:
    plan = regressor(model=SlowRows(), batchSize=BATCH).plan(linear_rows(spark, 640), numSteps=4)
    found = plan.suggestions()
    assert (found["batchSize"], found["numWorkers"]) == (BATCH, 2)
    # The first of twice the size ends the search; there are slots for two workers, so that one was tried.
    assert [(trial.batchSize, trial.numWorkers) for trial in plan.trials[1:3]] == [(2 * BATCH, 2), (BATCH, 1)]


@measured
def test_memory_ends_the_search_for_a_batch_size(spark: SparkSession, tmp_path: Path) -> None:
    estimator = regressor(model=Greedy(), batchSize=BATCH // 2, workDir=str(tmp_path))
    plan = estimator.plan(linear_rows(spark, 640), numSteps=8)
    (failed,) = (trial for trial in plan.trials if trial.rowsPerSecond is None)
    assert failed.batchSize == 2 * BATCH and "allocate memory" in str(failed.error)
    assert plan.suggestions()["batchSize"] == BATCH
    assert "allocate memory" in plan._repr_html_()
    assert left_in(tmp_path) == set()


def cached(spark: SparkSession) -> set[int]:
    """The numbers of what the session keeps in memory."""
    context: Any = spark.sparkContext
    return set(context._jsc.getPersistentRDDs().keySet())


def test_a_batch_that_fails_otherwise_fails_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    before = cached(spark)
    with pytest.raises(ValueError, match="no such batch"):
        regressor(model=Broken(), workDir=str(tmp_path)).plan(linear_rows(spark, 200), numSteps=2)
    assert left_in(tmp_path) == set()
    assert cached(spark) <= before


@contextmanager
def interrupted_when_training(directory: Path) -> Iterator[None]:
    """Sends this process an interrupt once an attempt has written events."""

    def interrupt() -> None:
        deadline = time.monotonic() + 120
        while not list(directory.glob("attempts/*/events/*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join()


def test_an_interrupted_plan_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    before = cached(spark)
    with interrupted_when_training(tmp_path):
        regressor(model=Slow(), workDir=str(tmp_path)).plan(linear_rows(spark, 2000), numSteps=10_000)
    assert left_in(tmp_path) == set()
    assert cached(spark) <= before


class OwnTold(Callback):
    """One of the estimator's, of a class that has nothing to do with the other's."""

    where = "driver"

    def __init__(self) -> None:
        self.hooks: list[str] = []

    def on_train_begin(self, context: Context) -> None:
        self.hooks.append("on_train_begin")


def test_a_plan_is_no_fit_to_callbacks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told, own, df = Told(), OwnTold(), linear_rows(spark, 100)
    monkeypatch.setattr(_callbacks, "of_every_fit", [told])
    estimator = regressor(callbacks=[own], tensorBoardDir=str(tmp_path / "board"), epochs=1)
    estimator.plan(df, numSteps=1)
    assert told.hooks == own.hooks == [] and not (tmp_path / "board").exists()
    estimator.fit(df)
    assert told.hooks == own.hooks == ["on_train_begin"] and (tmp_path / "board").exists()


def test_a_module_with_a_scheduler_of_its_own_is_planned(spark: SparkSession) -> None:
    plan = regressor(model=Scheduled(), optimizer=None).plan(linear_rows(spark, 100), numSteps=1)
    assert plan.stepsPerEpoch == 2


def test_a_rate_that_diverges_is_planned(spark: SparkSession) -> None:
    """What the plan is of does not come into it."""
    plan = regressor(optimizer="sgd", learningRate=1e30).plan(linear_rows(spark, 300), numSteps=1)
    assert plan.secondsPerStep > 0


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return linear_rows(spark, 200)


def test_a_plan_is_shown(df: DataFrame) -> None:
    plan: Plan = regressor(batchSize=8).plan(df, numSteps=4)
    text = str(plan)
    for told in ("rows: 200, and 0 for validation", "8 epochs, 13 steps in each", "batchSize", "numWorkers"):
        assert told in text
    assert plan.bottleneck is not None and plan.bottleneck.advice in text
    texts = Texts(plan._repr_html_()).texts
    assert {"Plan", "trials", "rows a second"} <= set(texts)
    assert all(f"{trial.rowsPerSecond:,.0f}" in texts for trial in plan.trials)


def test_what_is_no_plan_is_refused(df: DataFrame) -> None:
    with pytest.raises(ParamError, match="numSteps is 0, but must be at least 1"):
        regressor().plan(df, numSteps=0)
    with regressor().prepare(df) as prepared, pytest.raises(ParamError, match="this is prepared data"):
        regressor().plan(prepared)  # type: ignore[arg-type]
