"""What is particular to Spark Connect, and an interrupt of either kind of session."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from torch import nn

from flambeau import DataError, PreparedData, TorchRegressor
from flambeau._spark import session
from flambeau._spark.labels import labelled


class Slow(nn.Module):
    """Tells that it has begun, and then takes a minute."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.marker = marker

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            Path(self.marker).touch()
            time.sleep(60)
        return self.linear(x)


def test_the_session_is_a_connect_one(connect: SparkSession) -> None:
    assert session.classic_context(connect) is None
    assert session.is_local(connect)


def test_no_context_is_touched(connect: SparkSession) -> None:
    """A fit and a transform with a session that has no SparkContext, no JVM and no RDD."""
    for name in ("sparkContext", "_jvm", "_jsparkSession"):
        with pytest.raises(Exception, match=r"not supported|no attribute|not available|JVM_ATTRIBUTE"):
            getattr(connect, name)
    df = connect.range(0, 64, 1, 2).select((F.col("id") / 64).alias("x"), (F.col("id") / 32).alias("label"))
    estimator = TorchRegressor(
        model=nn.Linear(1, 1), inputCols=["x"], inputShapes=[[1]], numWorkers=2, epochs=2, verbose=0
    )
    model = estimator.fit(df)
    assert model.transform(df).select("prediction").count() == 64
    assert len(model.history["loss"]) == 2


def test_prepared_rows_are_fitted_on(connect: SparkSession, tmp_path: Path) -> None:
    df = connect.range(0, 64, 1, 2).select((F.col("id") / 64).alias("x"), (F.col("id") / 32).alias("label"))
    estimator = TorchRegressor(
        model=nn.Linear(1, 1), inputCols=["x"], inputShapes=[[1]], validationFraction=0.5, verbose=0
    )
    with estimator.prepare(df, str(tmp_path / "there")) as prepared:
        assert prepared.numRows + prepared.numValidationRows == 64
        model = estimator.fit(PreparedData.open(str(tmp_path / "there"), connect))
        assert model.summary.numRows == prepared.numRows
    assert not (tmp_path / "there").exists()


def test_nothing_is_written_once_what_failed_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    """One task is refused its row while the other is at work on its own. Connect's client can't know that."""
    begun, there = tmp_path / "begun", tmp_path / "there"

    def late(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            if batch["id"][0].as_py() == 0:
                while not begun.exists():
                    time.sleep(0.01)
            else:
                begun.touch()
                time.sleep(3)
            yield batch

    rows = spark.range(0, 2, 1, 2).mapInArrow(late, "id long")
    df = rows.select(F.col("id").alias("x"), F.when(F.col("id") > 0, 1.0).alias("label"))
    estimator = TorchRegressor(model=nn.Linear(1, 1), inputCols=["x"], inputShapes=[[1]], verbose=0)
    with pytest.raises(DataError, match="column 'label' holds a null"):
        estimator.prepare(df, str(there))
    assert not there.exists()
    # Spark may have killed the task, or let it go on.
    time.sleep(4)
    assert not there.exists()


def test_a_large_program_goes_through_the_work_directory(connect: SparkSession) -> None:
    df = connect.range(0, 8, 1, 2).select(
        (F.col("id") / 8).alias("x"), F.col("id").cast("double").alias("label")
    )
    module = nn.Sequential(nn.Linear(1, 700), nn.Linear(700, 700), nn.Linear(700, 1))
    model = TorchRegressor(model=module, inputCols=["x"], inputShapes=[[1]], numWorkers=2, verbose=0).fit(df)
    assert len(model.history["loss"]) == 1


def test_an_interrupt_cancels_the_stage(any_spark: SparkSession, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    df = any_spark.range(0, 8, 1, 2).select(
        (F.col("id") / 8).alias("x"), F.col("id").cast("double").alias("label")
    )
    estimator = TorchRegressor(
        model=Slow(str(marker)), inputCols=["x"], inputShapes=[[1]], workDir=str(tmp_path / "work"), verbose=0
    )

    def interrupt() -> None:
        deadline = time.monotonic() + 100
        while not marker.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        # A real signal: it ends the wait in a system call, as the notebook's stop button does.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(df)
    assert time.monotonic() - start < 50
    assert not list((tmp_path / "work").glob("shards/*/*"))
    # The slots are free again.
    assert (
        any_spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long", barrier=True).count() == 2
    )


def test_the_jobs_of_a_fit_have_a_tag_that_says_which_part_of_it(connect_session: SparkSession) -> None:
    connect_session.addTag("mine")
    with labelled(connect_session, "TorchRegressor_1") as say:
        say("train, attempt 1")
        assert connect_session.getTags() == {"mine", "TorchRegressor_1: train attempt 1"}
        # Jobs run with it.
        assert connect_session.range(3).count() == 3
        say("clean up")
        assert connect_session.getTags() == {"mine", "TorchRegressor_1: clean up"}
    assert connect_session.getTags() == {"mine"}
    connect_session.clearTags()
