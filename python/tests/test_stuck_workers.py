"""Workers that are frozen, or stuck in the user's code: the fit goes on without waiting for them. The oracle
is a fit that nothing disturbed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from test_native_runtime import await_children, in_background
from torch import Tensor, nn

from flambeau import TorchRegressor, WorkerLost
from flambeau._rank.ending import Ending
from flambeau._rank.worker import RankOutcome
from flambeau._spark.fit import launch


class Stops(nn.Module):
    """A layer whose forward does something else, once, in step `at` of a process that claims `marker`."""

    def __init__(self, marker: Path, at: int, behaviour: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.marker = str(marker)
        self.at = at
        self.behaviour = behaviour
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.forwards += 1
            if self.forwards == self.at and self.claims():
                if self.behaviour == "freezes":
                    os.kill(os.getpid(), signal.SIGSTOP)
                elif self.behaviour == "deadlocks":
                    threading.Event().wait()
            elif self.forwards == self.at and self.behaviour == "deadlocks beside an error":
                threading.Event().wait()
        return self.layer(x)

    def claims(self) -> bool:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        if self.behaviour == "deadlocks beside an error":
            raise LookupError("no such embedding: 'ZZ'")
        return True


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = launch.Launch._begin

    def hasty(self: launch.Launch, restarts: int) -> dict[str, Any]:
        return {**begin(self, restarts), "graceSeconds": 1.0}

    monkeypatch.setattr(launch.Launch, "_begin", hasty)


def rows(spark: SparkSession) -> DataFrame:
    x = np.random.default_rng(3).standard_normal((200, 4))
    return spark.createDataFrame([(xs.tolist(), float(xs.sum())) for xs in x], "x array<float>, label float")


def regressor(model: nn.Module, **params: Any) -> TorchRegressor:
    settings: dict[str, Any] = {"inputCols": ["x"], "optimizer": "sgd", "numWorkers": 2, "numThreads": 1}
    settings |= {
        "batchSize": 10,
        "epochs": 3,
        "collectiveTimeout": 60.0,
        "heartbeatTimeout": 2.0,
        "verbose": 0,
    }
    return TorchRegressor(model=model, **(settings | params))


def weights(model: Any) -> Tensor:
    weight: Tensor = next(iter(model.module().parameters()))
    return weight


def stops(marker: Path, behaviour: str) -> Stops:
    torch.manual_seed(1)
    return Stops(marker, 15, behaviour)


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    """The weights of the same fit without anything in its way."""
    claimed = tmp_path_factory.mktemp("undisturbed") / "claimed"
    claimed.touch()
    return weights(regressor(stops(claimed, "freezes")).fit(rows(spark)))


@pytest.mark.parametrize("behaviour", ["freezes", "deadlocks"])
def test_a_worker_that_does_not_end_is_replaced(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    undisturbed: Tensor,
    behaviour: str,
) -> None:
    timeout = 3.0 if behaviour == "deadlocks" else 60.0
    model = regressor(stops(tmp_path / "marker", behaviour), collectiveTimeout=timeout).fit(rows(spark))
    assert (tmp_path / "marker").exists()
    assert torch.equal(weights(model), undisturbed)
    assert "training is started again (1 of at most 3 restarts)" in caplog.text


def test_without_restarts_the_lost_worker_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(WorkerLost, match=r"lost rank [01] .* the process is stopped"):
        regressor(stops(tmp_path / "marker", "freezes"), maxRestarts=0).fit(rows(spark))


def test_an_error_is_told_though_another_worker_does_not_end(spark: SparkSession, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(LookupError, match="no such embedding: 'ZZ'") as told:
        regressor(stops(tmp_path / "marker", "deadlocks beside an error"), collectiveTimeout=600.0).fit(
            rows(spark)
        )
    # The other is waited for a while, and by no means for collectiveTimeout.
    assert time.monotonic() - start < 120
    assert "in claims" in told.value.__notes__[0]


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="SKIPPED: flambeau-worker runs on torch 2.13"
)
def test_a_frozen_program_is_replaced(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    df, params = rows(spark), {"runtime": "native", "epochs": 300, "checkpointInterval": 10}
    torch.manual_seed(1)
    net = nn.Linear(4, 1)
    undisturbed = regressor(net, **params).fit(df)
    thread, outcome = in_background(lambda: regressor(net, workDir=str(tmp_path), **params).fit(df))
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("attempts/*/checkpoints/*/COMMITTED")):
        assert time.monotonic() < deadline, outcome
        time.sleep(0.02)
    frozen = await_children(2, 10)[1]
    os.kill(frozen, signal.SIGSTOP)
    thread.join(60)
    os.kill(frozen, signal.SIGKILL)
    assert torch.equal(weights(outcome[0]), weights(undisturbed))
    assert "training is started again" in caplog.text


def test_looks_at_a_rank_that_does_not_end_grow_rarer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, looks, size = Ending(str(tmp_path), 3, grace_seconds=1.0), [], Ending._size
    for rank in range(3):
        files.begin(rank)
    files.end(RankOutcome(2, "host", False))

    def noted(self: Ending, store: Any, rank: int) -> int | None:
        looks.append(rank)
        return size(self, store, rank)

    monkeypatch.setattr(Ending, "_size", noted)
    start = time.monotonic()
    with pytest.raises(WorkerLost, match=r"workers 0, 1 did not end .* within 1 s"):
        files.await_others()
    assert 1 <= time.monotonic() - start < 2
    assert looks.count(2) == 1 and looks.count(0) == looks.count(1) <= 6


def test_a_stage_that_spark_runs_again_trains_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The second try answers with what the first came to: the driver, which knows the checkpoints, starts
    again.
    """
    files = Ending(str(tmp_path / "ranks"), 2, grace_seconds=30.0)
    first = launch.run_stage(spark, Answers(), 2, files=files)
    (tmp_path / "ranks" / "1").write_bytes(b"")
    again = launch.run_stage(spark, Answers(), 2, files=files)
    assert [outcome.result_json for outcome in first] == ["trained", "trained"]
    assert again[0] == first[0]
    assert (again[1].ok, again[1].error_kind) == (False, "lost")


class Answers:
    """A request whose ranks train nothing."""

    meeting_place = None

    def run(
        self, rank: int, world_size: int, all_gather: Any, bind_address: str, gpu_addresses: Any = None
    ) -> RankOutcome:
        return RankOutcome(rank, "host", True, "trained")
