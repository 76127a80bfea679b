"""Runs: a fit that does not succeed keeps its checkpoints, and the next one of the same name goes on from
them to the bits of a fit that nothing stopped.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from safetensors.torch import load_file
from test_callbacks import Epochs
from test_native_runtime import await_children, in_background
from test_stuck_workers import regressor, rows, weights
from torch import Tensor, nn

from flambeau import (
    Callback,
    CancelledError,
    FlambeauError,
    ParamError,
    PreparedData,
    RunInUseError,
    StoreError,
    WorkerLost,
)
from flambeau._spark import session, work_directory
from flambeau._spark.fit import claim, run
from flambeau._spark.fit.launch import Launch
from flambeau._spark.site import Site
from flambeau._spark.work_directory import WorkDirectory, beating
from flambeau.callbacks import Context


class Fails(nn.Module):
    """A net with dropout that raises in its 25th training forward where the file `fuse` is. What it keeps of
    a forward depends on its weights.
    """

    def __init__(self, fuse: Path) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.fuse = str(fuse)
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += self.training
        if self.forwards == 25 and os.path.exists(self.fuse):
            raise LookupError("no such embedding: 'ZZ'")
        output: Tensor = self.net(x)
        self.kept = output.detach()
        self.total = float(self.kept.sum())
        return output


def fails(fuse: Path, seed: int = 1) -> Fails:
    torch.manual_seed(seed)
    return Fails(fuse)


def files_of(directory: Path) -> list[str]:
    left = {path.relative_to(directory).parts[0] for path in directory.rglob("*") if path.is_file()}
    return sorted(left - {"leases"})


def test_a_failed_fit_is_gone_on_with(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "_BEAT_SECONDS", 1.0)
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
        ({"initialModel": undisturbed}, df, "its initialModel was another"),
        ({}, df.withColumn("label", F.col("label") + 1), "its rows were others"),
    ]
    for changed, other_rows, said in others:
        with pytest.raises(ParamError, match=f'runId "nightly" .* another job: {said}'):
            regressor(**({"model": fails(fuse)} | params | changed)).fit(other_rows)

    resumed = regressor(fails(fuse, seed=2), verifyReplicas=True, **params).fit(df)
    for name, weight in undisturbed.module().state_dict().items():
        assert torch.equal(resumed.module().state_dict()[name], weight), name
    assert resumed.history["loss"] == undisturbed.history["loss"]
    assert files_of(work) == ["models"]
    # The run has ended: the next fit of that name begins anew, with any job.
    assert len(regressor(nn.Linear(4, 1), **params).fit(df).history["loss"]) == 4


class Dies(Fails):
    """One whose worker is killed then."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            return super().forward(x)
        except LookupError:
            os.kill(os.getpid(), signal.SIGKILL)
            raise


@pytest.mark.long
def test_a_run_on_prepared_data_is_gone_on_with(spark: SparkSession, tmp_path: Path) -> None:
    """On the rows that were prepared, where the DataFrame has others each time."""
    work, fuse = tmp_path / "work", tmp_path / "fuse"
    drawn = F.udf(lambda label: label + random.random(), "float").asNondeterministic()
    df = rows(spark).withColumn("label", drawn("label"))
    params: dict[str, Any] = {"workDir": str(work), "runId": "nightly", "epochs": 4, "maxRestarts": 0}
    torch.manual_seed(1)
    net = Dies(fuse)
    with regressor(net).prepare(df, str(tmp_path / "prepared")) as prepared:
        files = {path: path.read_bytes() for path in Path(prepared.path).rglob("*") if path.is_file()}
        undisturbed = regressor(net, epochs=4).fit(prepared)
        fuse.touch()
        with pytest.raises(WorkerLost):
            regressor(net, **params).fit(prepared)
        assert files_of(work) == ["attempts", "runs"]
        fuse.unlink()
        with pytest.raises(ParamError, match="its rows were others"):
            regressor(net, **params).fit(df)
        # As another process would tomorrow.
        again, epochs = PreparedData.open(prepared.path, spark), Epochs()
        resumed = regressor(net, callbacks=[epochs], **params).fit(again)
        assert epochs.told == [2, 3]
        assert resumed.history["loss"] == undisturbed.history["loss"]
        for name, weight in undisturbed.module().state_dict().items():
            assert torch.equal(resumed.module().state_dict()[name], weight), name
        assert files_of(work) == ["models"]
        for path, content in files.items():
            assert path.read_bytes() == content
        assert {path for path in Path(prepared.path).rglob("*") if path.is_file()} == set(files)


def test_a_run_is_read_where_its_directory_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    """By this process or in Spark's tasks; what is compared, `native/supervisor` tests."""
    shards = []
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
        shards.append(str(tmp_path / name))
    checkpoint = tmp_path / "attempts" / "first" / "checkpoints" / "0000000010"
    checkpoint.mkdir(parents=True)
    (checkpoint / "COMMITTED").write_text("")
    seen = Site(spark, WorkDirectory(str(tmp_path)), True)
    unseen = Site(spark, seen.work, False)
    for site, other in ((seen, unseen), (unseen, seen)):
        run.Run(site, "nightly", lambda: {"epochs": 1}, shards).write(["first"])
        assert run.Run(other, "nightly", lambda: {"epochs": 1}, shards).attempts() == ["first"]
        for wrong in (shards[::-1], shards[:2]):
            with pytest.raises(ParamError, match="its rows were others"):
                run.Run(other, "nightly", lambda: {"epochs": 1}, wrong).attempts()
        (tmp_path / "runs" / "nightly.json").write_text("{")
        with pytest.raises(ParamError, match=r"nightly\.json is damaged, .* remove it to train anew"):
            run.Run(other, "nightly", lambda: {"epochs": 1}, shards).attempts()
    here = run.Run(seen, "nightly", dict, shards)._all_rows
    assert run._digests_by_tasks(unseen, shards) == here
    with pytest.raises(FlambeauError, match="gone"):
        run._digests_by_tasks(unseen, [*shards, str(tmp_path / "gone")])


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
    """And what one has kept, another one leaves."""
    monkeypatch.setattr(run.Run, "_all_rows", None)
    df, work, fuse = rows(spark), tmp_path / "work", tmp_path / "fuse"
    fuse.touch()
    for num in (1, 2):
        with pytest.raises(LookupError) as failure:
            regressor(fails(fuse), workDir=str(work)).fit(df)
        assert len(list(work.glob("runs/*"))) == len(list(work.glob("attempts/*/checkpoints"))) == num
    kept = max(work.glob("runs/*"), key=lambda path: path.stat().st_mtime_ns)
    assert f"runId={kept.stem!r}" in failure.value.__notes__[-1]
    params: dict[str, Any] = {"runId": kept.stem, "workDir": str(work)}
    with pytest.raises(ParamError, match="its rows were others"):
        regressor(fails(fuse), **params).fit(df.withColumn("label", F.col("label") * 2))


def test_a_run_has_one_fit_at_a_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "_BEAT_SECONDS", 1.0)
    work = WorkDirectory(str(tmp_path))
    owner = tmp_path / "runs" / "nightly.owner"
    params: dict[str, Any] = {"workDir": str(tmp_path), "runId": "nightly"}
    with claim.claimed(work, True, "nightly"):
        said = r"'nightly' .* is being trained by another fit of this process"
        with pytest.raises(RunInUseError, match=said) as refused:
            regressor(nn.Linear(4, 1), **params).fit(rows(spark))
        assert refused.value.is_transient
        with claim.claimed(work, True, "weekly"):
            pass
        first = owner.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(claim, "_held", {})
            with pytest.raises(RunInUseError, match="is being trained by another driver") as refused:
                regressor(nn.Linear(4, 1), **params).fit(rows(spark))
            assert refused.value.is_transient
        assert owner.read_bytes() != first
        assert files_of(tmp_path) == ["runs"]
    assert not owner.exists()
    # What a driver left that was killed, whole or in the middle of a write.
    monkeypatch.setattr(claim, "_BEAT_SECONDS", 0.1)
    for left in (first, b"", b"\xff"):
        owner.write_bytes(left)
        with claim.claimed(work, True, "nightly"):
            pass
        assert not owner.exists()
    # One that ends meanwhile.
    owner.write_bytes(first)
    monkeypatch.setattr(claim, "_BEAT_SECONDS", 2.0)
    threading.Timer(0.1, owner.unlink).start()
    start = time.monotonic()
    with claim.claimed(work, True, "nightly"):
        assert time.monotonic() - start < 10


def test_a_run_that_another_driver_took_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(claim, "_BEAT_SECONDS", 0.05)
    work, owner = WorkDirectory(str(tmp_path)), tmp_path / "runs" / "nightly.owner"
    with claim.claimed(work, True, "nightly"):
        owner.write_text("another")
        deadline = time.monotonic() + 10
        while "whose run it is now" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        checkpoint = tmp_path / "attempts" / "a" / "checkpoints" / "1" / "COMMITTED"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.touch()
        site = Site(cast(Any, None), work, True)
        nightly = run.Run(site, "nightly", dict)
        nightly.write(["a"])
        payload: Any = SimpleNamespace(files={})
        launch = Launch(site, {}, payload, 1, 0, 0.0, cast(Any, None), nightly, attempts=["a"])
        assert launch.clean() == []
        launch.keep(ValueError())
    assert files_of(tmp_path) == ["attempts", "runs"] and checkpoint.exists()
    assert [file.name for file in owner.parent.iterdir()] == [owner.name]
    assert owner.read_text() == "another"
    assert caplog.text.count("whose run it is now") == 1
    assert not claim.is_lost(work, "nightly")


def test_a_driver_that_stood_still_looks_before_it_touches_its_run(tmp_path: Path) -> None:
    work, owner = WorkDirectory(str(tmp_path)), tmp_path / "runs" / "nightly.owner"
    with claim.claimed(work, True, "nightly"):
        assert not claim.is_lost(work, "nightly")
        owner.write_text("another")
        # The next beat is ten seconds away.
        assert claim.is_lost(work, "nightly")
    assert owner.read_text() == "another"


def test_an_owner_that_can_not_be_written_is_told_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(StoreError), claim.claimed(WorkDirectory(str(tmp_path)), True, "nightly"):
        raise AssertionError("not reached")


def test_an_interrupt_ends_the_watching(spark: SparkSession, tmp_path: Path) -> None:
    work, interrupted = WorkDirectory(str(tmp_path)), threading.Event()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "nightly.owner").write_text("another")

    def watch() -> None:
        threading.Timer(0.1, interrupted.set).start()
        with claim.claimed(work, True, "nightly"):
            raise AssertionError("not reached")

    start = time.monotonic()
    with pytest.raises(CancelledError):
        session.interruptible(spark, watch, interrupted)
    assert time.monotonic() - start < 30
    assert not claim._held


def test_a_grid_gives_each_fit_a_run_of_its_own(spark: SparkSession) -> None:
    estimator = regressor(nn.Linear(4, 1), runId="nightly")
    maps: list[dict[Any, Any]] = [{estimator.seed: 1}, {estimator.seed: 2}]
    with pytest.raises(ParamError, match="runId 'nightly' names one run, and 2 of these param maps have it"):
        estimator.fitMultiple(rows(spark), maps)
    estimator.fitMultiple(rows(spark), [{**one, estimator.runId: f"n{i}"} for i, one in enumerate(maps)])


def test_the_end_of_a_fit_waits_for_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats of a directory that the driver doesn't see are Spark jobs."""
    monkeypatch.setattr(work_directory, "_LAST_BEAT_SECONDS", 0.1)
    beats, never = threading.Semaphore(0), threading.Event()

    def beat() -> None:
        beats.release()
        if threading.current_thread() is not threading.main_thread():
            never.wait()

    start = time.monotonic()
    with beating("a lease", beat, lambda: None, 0.01, begins=True):
        assert beats.acquire(timeout=10) and beats.acquire(timeout=10)
    never.set()
    assert time.monotonic() - start < 30


class Stops(Callback):
    """Ends the training with its second epoch."""

    where = "ranks"

    def on_epoch_end(self, context: Context) -> None:
        if context.epoch == 1:
            context.stop()


@pytest.mark.parametrize(
    "params",
    [
        {"callbacks": [Stops()], "checkpointInterval": 5},
        {"callbacks": [Stops()], "checkpointInterval": -1, "checkpointSteps": 10},
        {"epochs": 2, "checkpointInterval": -1},
    ],
)
def test_the_last_checkpoint_is_of_the_end(
    spark: SparkSession, tmp_path: Path, params: dict[str, Any]
) -> None:
    """However the training ended: its weights are the model's."""
    settings: dict[str, Any] = {"epochs": 4, "keepCheckpoints": 1, "workDir": str(tmp_path)} | params
    model = regressor(nn.Linear(4, 1), **settings).fit(rows(spark))
    (last,) = model.checkpoints
    assert last.step == model.summary.numSteps == 20
    assert torch.equal(weights(last.model()), weights(model))
    assert last.model().lineage.checkpoint == last.uri == model.lineage.checkpoint


def test_the_newest_checkpoints_are_models(spark: SparkSession, tmp_path: Path) -> None:
    df = rows(spark)
    torch.manual_seed(1)
    net = nn.Linear(4, 1)
    model = regressor(net, epochs=4, keepCheckpoints=2, workDir=str(tmp_path)).fit(df)
    assert [(one.epoch, one.step) for one in model.checkpoints] == [(3, 30), (4, 40)]
    shorter = regressor(net, epochs=3).fit(df)
    then = model.checkpoints[0].model()
    assert torch.equal(weights(then), weights(shorter))
    assert then.history["loss"] == shorter.history["loss"]
    assert then.transform(df).collect() == shorter.transform(df).collect()
    stored = load_file(f"{model.checkpoints[1].uri}/weights/weights.safetensors")
    assert set(stored) == {"weight", "bias"}
    assert {path.name for path in tmp_path.glob("attempts/*/*")} == {"checkpoints", "KEPT"}
    assert {path.name for path in tmp_path.glob("attempts/*/checkpoints/*") if any(path.iterdir())} == {
        "0000000030",
        "0000000040",
    }
