"""Runs: a fit that does not succeed keeps its checkpoints, and the next one of the same name goes on from
them to the bits of a fit that nothing stopped.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from safetensors.torch import load_file
from test_native_runtime import await_children, in_background
from test_stuck_workers import regressor, rows, weights
from torch import Tensor, nn

from flambeau import ParamError, WorkerLost, _workdir
from flambeau._fit import claim, run
from flambeau._workdir import WorkDirectory, beating, new_id


class Fails(nn.Module):
    """A net with dropout that raises in its 25th training forward where the file `fuse` is."""

    def __init__(self, fuse: Path) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.fuse = str(fuse)
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += self.training
        if self.forwards == 25 and os.path.exists(self.fuse):
            raise LookupError("no such embedding: 'ZZ'")
        return self.net(x)


def fails(fuse: Path) -> Fails:
    torch.manual_seed(1)
    return Fails(fuse)


def files_of(directory: Path) -> list[str]:
    left = {path.relative_to(directory).parts[0] for path in directory.rglob("*") if path.is_file()}
    return sorted(left - {"leases"})


def test_a_failed_fit_is_gone_on_with(spark: SparkSession, tmp_path: Path) -> None:
    df, work, fuse = rows(spark), tmp_path / "work", tmp_path / "fuse"
    params: dict[str, Any] = {"workDir": str(work), "runId": "nightly", "epochs": 4}
    undisturbed = regressor(fails(fuse), epochs=4).fit(df)
    fuse.touch()
    with pytest.raises(LookupError) as failure:
        # Their weights are parts of checkpoints too.
        regressor(fails(fuse), keepCheckpoints=1, **params).fit(df)
    newest = max(work.glob("attempts/*/checkpoints/*"))
    assert f"the newest checkpoint is kept in {newest}: a fit of the same rows" in failure.value.__notes__[-1]
    assert files_of(work) == ["attempts", "runs"]

    fuse.unlink()
    others: list[tuple[dict[str, Any], Any, str]] = [
        ({"batchSize": 20}, df, "batchSize was 10 and is 20"),
        ({"optimizer": "adam"}, df, "its optimizer was another"),
        ({"model": nn.Linear(4, 1)}, df, "its model was another"),
        ({}, df.withColumn("label", F.col("label") + 1), "its rows were others"),
    ]
    for changed, other_rows, said in others:
        with pytest.raises(ParamError, match=f"runId 'nightly' .* another job: {said}"):
            regressor(**({"model": fails(fuse)} | params | changed)).fit(other_rows)

    resumed = regressor(fails(fuse), verifyReplicas=True, **params).fit(df)
    for name, weight in undisturbed.module().state_dict().items():
        assert torch.equal(resumed.module().state_dict()[name], weight), name
    assert resumed.history["loss"] == undisturbed.history["loss"]
    assert files_of(work) == ["models"]
    # The run has ended: the next fit of that name begins anew, with any job.
    assert len(regressor(nn.Linear(4, 1), **params).fit(df).history["loss"]) == 4


def test_a_run_of_which_nothing_is_left_is_a_new_one(spark: SparkSession, tmp_path: Path) -> None:
    """As after a sweep, which knows the age of attempts and not that of a name."""
    work = WorkDirectory(str(tmp_path))
    run.Run(spark, work, True, "nightly", {"epochs": 1}).write(["first"])
    other = run.Run(spark, work, True, "nightly", {"epochs": 2})
    assert other.attempts() == []
    (tmp_path / "attempts" / "first").mkdir(parents=True)
    (tmp_path / "attempts" / "first" / "events").write_text("")
    with pytest.raises(ParamError, match="epochs was 1 and is 2"):
        other.attempts()


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="SKIPPED: flambeau-worker runs on torch 2.13"
)
def test_a_fit_without_a_name_says_its_own(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the native runtime, by a worker that is killed."""
    df, work = rows(spark), tmp_path / "work"
    torch.manual_seed(1)
    net = nn.Linear(4, 1)
    params: dict[str, Any] = {
        "runtime": "native",
        "epochs": 300,
        "checkpointInterval": 10,
        "workDir": str(work),
    }
    undisturbed = regressor(net, **params).fit(df)
    thread, outcome = in_background(lambda: regressor(net, maxRestarts=0, **params).fit(df))
    deadline = time.monotonic() + 60
    while not list(work.glob("attempts/*/checkpoints/*/COMMITTED")):
        assert time.monotonic() < deadline, outcome
        time.sleep(0.02)
    os.kill(await_children(2, 10)[1], signal.SIGKILL)
    thread.join(60)
    assert isinstance(outcome[0], WorkerLost)
    [kept] = work.glob("runs/*.json")
    assert f"runId={kept.stem!r}" in caplog.text
    resumed = regressor(net, runId=kept.stem, **params).fit(df)
    assert torch.equal(weights(resumed), weights(undisturbed))
    assert files_of(work) == ["models"]


def test_fits_without_names_read_no_rows_as_they_fail(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a process keeps the checkpoints of the last one alone."""
    monkeypatch.setattr(run, "_hashes", None)
    df, work, fuse = rows(spark), tmp_path / "work", tmp_path / "fuse"
    fuse.touch()
    notes = []
    for _ in range(2):
        with pytest.raises(LookupError) as failure:
            regressor(fails(fuse), workDir=str(work)).fit(df)
        notes.append(failure.value.__notes__[-1])
    [kept] = work.glob("runs/*")
    assert len(list(work.glob("attempts/*/checkpoints"))) == 1
    assert f"runId={kept.stem!r}" in notes[-1]
    params: dict[str, Any] = {"runId": kept.stem, "workDir": str(work)}
    with pytest.raises(ParamError, match="its rows were others"):
        regressor(fails(fuse), **params).fit(df.withColumn("label", F.col("label") * 2))
    # Once it is asked for by name, it is kept beside the next one without.
    with pytest.raises(LookupError):
        regressor(fails(fuse), workDir=str(work)).fit(df)
    assert len(list(work.glob("runs/*"))) == len(list(work.glob("attempts/*/checkpoints"))) == 2


def test_a_run_has_one_fit_at_a_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "_BEAT_SECONDS", 0.05)
    work = WorkDirectory(str(tmp_path))
    owner = tmp_path / "runs" / "nightly.owner"
    params: dict[str, Any] = {"workDir": str(tmp_path), "runId": "nightly"}
    with claim.claimed(work, True, "nightly"):
        with pytest.raises(ParamError, match=r"'nightly' .* is being trained by another fit of this process"):
            regressor(nn.Linear(4, 1), **params).fit(rows(spark))
        with claim.claimed(work, True, "weekly"):
            pass
        first = json.loads(owner.read_text())["beat"]
        deadline = time.monotonic() + 10
        while json.loads(owner.read_text())["beat"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert not owner.exists()

    def left_by(host: str, process: int, seconds: float) -> None:
        stamp = (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y%m%dT%H%M%SZ")
        told = {"owner": "other", "host": host, "process": process, "beat": new_id(stamp)}
        owner.write_text(json.dumps(told))

    for host, process in [("elsewhere", 1), (socket.gethostname(), os.getppid())]:
        left_by(host, process, 5)
        with pytest.raises(
            ParamError, match=f"trained by process {process} on {host}, last heard of [5-9] s"
        ):
            regressor(nn.Linear(4, 1), **params).fit(rows(spark))
        assert files_of(tmp_path) == ["runs"]
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for host, process, seconds in [("elsewhere", 1, 61.0), (socket.gethostname(), ended.pid, 5.0)]:
        left_by(host, process, seconds)
        with claim.claimed(work, True, "nightly"):
            pass
        assert not owner.exists()


def test_a_grid_gives_each_fit_a_run_of_its_own(spark: SparkSession) -> None:
    estimator = regressor(nn.Linear(4, 1), runId="nightly")
    maps: list[dict[Any, Any]] = [{estimator.seed: 1}, {estimator.seed: 2}]
    with pytest.raises(ParamError, match="runId 'nightly' names one run, and 2 of these param maps have it"):
        estimator.fitMultiple(rows(spark), maps)
    estimator.fitMultiple(rows(spark), [{**one, estimator.runId: f"n{i}"} for i, one in enumerate(maps)])


def test_the_end_of_a_fit_waits_for_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats of a directory that the driver doesn't see are Spark jobs."""
    monkeypatch.setattr(_workdir, "_LAST_BEAT_SECONDS", 0.1)
    beats, never = threading.Semaphore(0), threading.Event()

    def beat() -> None:
        beats.release()
        if threading.current_thread() is not threading.main_thread():
            never.wait()

    start = time.monotonic()
    with beating(beat, lambda: None, 0.01):
        assert beats.acquire(timeout=10) and beats.acquire(timeout=10)
    never.set()
    assert time.monotonic() - start < 9


def test_the_newest_checkpoints_are_models(spark: SparkSession, tmp_path: Path) -> None:
    df = rows(spark)
    torch.manual_seed(1)
    net = nn.Linear(4, 1)
    model = regressor(net, epochs=4, keepCheckpoints=2, workDir=str(tmp_path)).fit(df)
    assert [(one.epoch, one.step) for one in model.checkpoints] == [(2, 20), (3, 30)]
    shorter = regressor(net, epochs=2).fit(df)
    then = model.checkpoints[0].model()
    assert torch.equal(weights(then), weights(shorter))
    assert then.history["loss"] == shorter.history["loss"]
    assert then.transform(df).collect() == shorter.transform(df).collect()
    stored = load_file(f"{model.checkpoints[1].uri}/weights/weights.safetensors")
    assert set(stored) == {"weight", "bias"}
    assert {path.name for path in tmp_path.glob("attempts/*/*")} == {"checkpoints", "KEPT"}
    assert {path.name for path in tmp_path.glob("attempts/*/checkpoints/*") if any(path.iterdir())} == {
        "0000000020",
        "0000000030",
    }
