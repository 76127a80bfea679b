"""Launching: slots, the rendezvous of a barrier stage, whose failure is told, how a lost worker is known."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import cloudpickle
import pyarrow as pa
import pytest
from conftest import connect_server
from pyspark.sql import SparkSession

from flambeau import (
    ClusterError,
    DivergedError,
    EnvironmentMismatchError,
    FlambeauError,
    ParamError,
    StoreError,
    WorkerError,
    WorkerLost,
)
from flambeau._rank.worker import RankOutcome, WorkerRequest, failed_outcome
from flambeau._spark import session
from flambeau._spark.fit import cluster, launch
from flambeau._spark.fit.python_program import PythonProgram
from flambeau._spark.fit.run import Run
from flambeau._spark.session import store_options
from flambeau._spark.site import Site, leased, sweep, work_directory
from flambeau._spark.work_directory import WorkDirectory, new_id, spark_path
from flambeau._store import open_store


class UsersError(Exception):
    """An exception of the user's own."""


def failed(rank: int, kind: str = "model", is_cause: bool = True, **fields: Any) -> RankOutcome:
    outcome = RankOutcome(rank, "host-a", False, epoch=1, step=7, is_cause=is_cause, error_kind=kind)
    outcome = replace(outcome, error_type="m.E", message="it broke", traceback="Traceback: ...")
    return replace(outcome, **fields)


def test_slots_of_local_mode_are_exact(any_spark: SparkSession) -> None:
    assert cluster.count_slots(any_spark) == 2
    cluster.check_slots(any_spark, 2, 0)


def test_more_workers_than_slots_are_refused_at_once(any_spark: SparkSession) -> None:
    start = time.monotonic()
    with pytest.raises(ClusterError, match="numWorkers is 3 and the cluster has 2 task slots"):
        cluster.check_slots(any_spark, 3, 0)
    assert time.monotonic() - start < 20


def test_slot_timeout_waits(any_spark: SparkSession) -> None:
    start = time.monotonic()
    with pytest.raises(ClusterError, match=r"after 1\.5 s"):
        cluster.check_slots(any_spark, 3, 1.5)
    assert 1.4 < time.monotonic() - start < 20


def test_dynamic_allocation_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"spark.dynamicAllocation.enabled": "true", "spark.master": "yarn"}
    monkeypatch.setattr(session, "setting", lambda _, name, default="": settings.get(name, default))
    with pytest.raises(ClusterError, match=r"spark\.dynamicAllocation\.enabled"):
        cluster.check_slots(spark, 1, 0)


def test_a_work_directory_must_be_given_on_a_cluster(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Path(work_directory(spark, None, {}).uri).is_dir()
    settings = {"spark.master": "spark://a:7077"}
    monkeypatch.setattr(session, "setting", lambda _, name, default="": settings.get(name, default))
    with pytest.raises(ParamError, match=r"workDir must be given on a cluster, or spark\.flambeau"):
        work_directory(spark, None, {})
    assert work_directory(spark, "s3://bucket/a/", {}).uri == "s3://bucket/a"
    settings["spark.flambeau.workDir"] = "s3://bucket/all"
    assert work_directory(spark, None, {}).uri == "s3://bucket/all"
    assert work_directory(spark, "s3://bucket/a", {}).uri == "s3://bucket/a"


def test_a_work_directory_on_hdfs_is_refused_in_the_stores_own_words(spark: SparkSession) -> None:
    uri = "hdfs://name:8020/work"
    with pytest.raises(ParamError) as refused:
        work_directory(spark, uri, {})
    with pytest.raises(Exception, match="hdfs") as native:
        open_store({}).size(uri)
    assert str(refused.value) == f"workDir: {native.value}"


def test_options_of_stores_that_are_called_secret_are_redacted_by_spark(spark: SparkSession) -> None:
    confs = {"secret.azure_storage_account_key": "hidden", "aws_region": "eu-west-1"}
    names = {f"spark.flambeau.store.{name}": value for name, value in confs.items()}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        assert store_options(spark) == {"azure_storage_account_key": "hidden", "aws_region": "eu-west-1"}
        shown = {row["key"]: row["value"] for row in spark.sql("SET").collect()}
        assert [shown[name] for name in names] == ["*********(redacted)", "eu-west-1"]
    finally:
        for name in names:
            spark.conf.unset(name)


def test_paths_as_spark_takes_them() -> None:
    assert spark_path("/tmp/a") == "file:///tmp/a"
    assert spark_path("/dbfs/a") == "dbfs:/a"
    assert spark_path("/Volumes/c/s/v") == "/Volumes/c/s/v"
    assert spark_path("s3://b/a") == "s3://b/a"


def test_the_work_directory_is_seen_and_probed(any_spark: SparkSession, tmp_path: Path) -> None:
    work = WorkDirectory(str(tmp_path / "work"))
    assert Site.of(any_spark, work).visible
    cluster.probe(any_spark, work, 2)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_probe_names_what_workers_cannot_reach(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FlambeauError, match="not a directory that all workers reach"):
        cluster.probe(spark, WorkDirectory(str(tmp_path / "file")), 2)
    monkeypatch.setattr(cluster, "versions", lambda: {"torch": "0.1"})
    with pytest.raises(EnvironmentMismatchError, match=r"torch is 0\.1 on the driver"):
        cluster.probe(spark, WorkDirectory(str(tmp_path / "work")), 2)


def test_a_worker_without_native_parts_is_no_matter_of_the_work_directory(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Lacking(WorkDirectory):
        def store(self) -> Any:
            raise EnvironmentMismatchError("no native parts here")

    with pytest.raises(EnvironmentMismatchError, match=r"the worker on .* cannot train: no native"):
        cluster.probe(spark, Lacking(str(tmp_path)), 2)


@pytest.mark.parametrize("busy", ["put", "size"])
def test_a_store_that_is_busy_as_it_is_tried_may_answer_later(
    spark: SparkSession, tmp_path: Path, busy: str
) -> None:
    """To one worker of two; what the other one wrote does not stay."""

    class Busy(WorkDirectory):
        def store(self) -> Any:
            from pyspark import TaskContext

            def refuse(*of: Any) -> None:
                raise StoreError("503 Slow Down", is_transient=True)

            kept = WorkDirectory.store(self)
            if cast("TaskContext", TaskContext.get()).partitionId() == 0:
                return kept
            ways = {name: getattr(kept, name) for name in ("put", "size", "delete_prefix")}
            return SimpleNamespace(**{**ways, busy: refuse})

    with pytest.raises(StoreError, match="503 Slow Down") as failure:
        cluster.probe(spark, Busy(str(tmp_path)), 2)
    assert failure.value.is_transient
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_files_reach_the_work_directory_through_spark(any_spark: SparkSession, tmp_path: Path) -> None:
    work, data = WorkDirectory(str(tmp_path)), bytes(range(256)) * 10000
    for visible in (True, False):
        uri = work.path("programs", f"{visible}", "program.pkl")
        site = Site(any_spark, work, visible)
        site.put(uri, data)
        assert Path(uri).read_bytes() == data
        assert site.ask("newestCheckpoint", attempts=["a"]) is None
        site.remove("programs", f"{visible}")
        assert not Path(uri).exists()


def test_a_lease_is_held_while_a_fit_runs(any_spark: SparkSession, tmp_path: Path) -> None:
    """And stays where the fit goes wrong; what leases are for, `native/supervisor` tests."""
    began = new_id("20200101T000000Z-0123456789ab")
    leases = tmp_path / "leases"
    for visible in (True, False):
        site = Site(any_spark, WorkDirectory(str(tmp_path)), visible)
        with leased(site, began):
            [lease] = leases.iterdir()
            assert lease.name.startswith("20200101T000000Z-")
        assert not list(leases.iterdir())
    with pytest.raises(LookupError), leased(site, began):
        raise LookupError
    assert list(leases.iterdir())


def test_a_sweep_is_told(any_spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the driver does not see the directory."""
    old = tmp_path / "shards" / "20200101T000000Z-0123456789ab"
    for visible in (True, False):
        old.mkdir(parents=True)
        (old / "part").write_text("")
        caplog.clear()
        with caplog.at_level("INFO", "flambeau"):
            sweep(Site(any_spark, WorkDirectory(str(tmp_path)), visible))
        assert not old.exists()
        assert f"removed {old}, left behind " in caplog.text
    # What can't be swept is told and no more.
    (tmp_path / "leases").write_text("")
    sweep(Site(any_spark, WorkDirectory(str(tmp_path)), True))


def test_all_gather_over_a_barrier_stage(any_spark: SparkSession) -> None:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        from flambeau._spark.fit.launch import StageRendezvous, bind_address

        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        rank = context.partitionId()
        gathered = StageRendezvous(context, range(2)).all_gather(bytes([rank, 255]))
        address = bind_address([info.address for info in context.getTaskInfos()], rank)
        yield pa.RecordBatch.from_pydict({"row": [f"{[list(one) for one in gathered]} {address}"]})

    rows = any_spark.range(0, 2, 1, 2).mapInArrow(task, "row string", barrier=True).collect()
    assert [row[0] for row in rows] == ["[[0, 255], [1, 255]] 127.0.0.1"] * 2


def test_a_rank_that_fails_early_frees_the_others(spark: SparkSession) -> None:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        from flambeau._spark.fit.launch import StageRendezvous
        from flambeau.errors import WorkerLost

        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        rendezvous, told = StageRendezvous(context, range(2)), "left"
        if context.partitionId() == 0:
            try:
                rendezvous.all_gather(b"")
            except WorkerLost as error:
                told = f"{error.rank}: {error}"
        rendezvous.leave()
        yield pa.RecordBatch.from_pydict({"row": [told]})

    start = time.monotonic()
    rows = spark.range(0, 2, 1, 2).mapInArrow(task, "row string", barrier=True).collect()
    assert [row[0] for row in rows] == ["1: worker 1 failed before the workers met", "left"]
    assert time.monotonic() - start < 20


def test_each_rank_answers_with_a_row(spark: SparkSession) -> None:
    program = cloudpickle.dumps({"model": None})
    request = WorkerRequest("{}", bytes(16), program, versions={"torch": "0.1"})
    outcomes = launch.run_stage(spark, request, 2)
    assert [outcome.rank for outcome in outcomes] == [0, 1]
    assert {outcome.error_kind for outcome in outcomes} == {"environment"}
    with pytest.raises(EnvironmentMismatchError, match=r"torch 0\.1"):
        raise launch.exception_of(outcomes[0])


def test_a_crashed_worker_is_lost(spark: SparkSession) -> None:
    class EndsItsProcess:
        def __reduce__(self) -> tuple[Any, ...]:
            import os

            return os._exit, (9,)

    job = json.dumps({"data": {"spec": {"inputs": []}}, "params": {}})
    with pytest.raises(WorkerLost, match="a worker was lost"):
        launch.run_stage(spark, WorkerRequest(job, bytes(16), cloudpickle.dumps(EndsItsProcess())), 2)


@pytest.mark.parametrize(
    ("text", "is_lost"),
    [
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", True),
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", True),
        ("Job 3 cancelled as part of cancellation of all jobs", False),
        ("[USER_RAISED_EXCEPTION] no", False),
    ],
)
def test_which_spark_errors_are_lost_workers(text: str, is_lost: bool) -> None:
    assert any(lost in text for lost in launch._LOST_TEXTS) == is_lost


def test_the_first_cause_is_told(tmp_path: Path) -> None:
    """What comes first, `native/supervisor` tests."""

    def cause(*outcomes: RankOutcome) -> Any:
        ended = [outcome.ended() for outcome in outcomes]
        verdict = WorkDirectory(str(tmp_path)).ask("judge", ended=ended, restarts=0, maxRestarts=1)
        return verdict["cause"], verdict["again"]

    ok = RankOutcome(0, "host-a", True, "{}")
    assert cause(ok, ok) == (None, False)
    late, lost, user = failed(0, "lost", False), failed(1, "lost"), failed(2, "model")
    assert cause(ok, late, lost, user) == (3, False)
    assert cause(late, lost) == (1, True)
    assert cause(late) == (0, True)


def test_an_exception_comes_back_by_its_name() -> None:
    raised: list[BaseException] = [
        KeyError("ZZ"),
        FileNotFoundError(2, "No such file or directory"),
        FileNotFoundError(2, "No such file or directory", "embeddings.bin"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "no"),
        ParamError("epochs is 0"),
        DivergedError("the loss is nan", rank=1, epoch=1, step=7),
        EnvironmentMismatchError("torch is another"),
    ]
    for one in raised:
        told = failed_outcome(1, "host-a", "model", one, 1, 7, True)
        error = launch.exception_of(RankOutcome.of_json(told.to_json()))
        expected = WorkerError if isinstance(one, UnicodeDecodeError) else type(one)
        assert type(error) is expected and str(one) in str(error)
        assert (error.rank, error.host, error.epoch, error.step) == (1, "host-a", 1, 7)  # type: ignore[attr-defined]
        if not isinstance(error, FlambeauError):
            assert str(error) == str(one)
            assert "on worker 1 (host-a), epoch 1, step 7" in error.__notes__[0]
            assert f"{type(one).__name__}: " in error.__notes__[0]
    lost = failed_outcome(0, "host-a", "lost", WorkerLost("rank 1 is gone", rank=1, host="b"), 1, 7, False)
    error = launch.exception_of(lost)
    assert isinstance(error, WorkerLost) and (error.rank, error.host, error.step) == (1, "b", 7)


def test_a_class_of_the_users_comes_back_as_its_name() -> None:
    told = failed_outcome(1, "host-a", "model", UsersError("no such embedding"), 1, 7, True)
    named = [replace(told, error_type=name) for name in ("builtins.eval", "os.system", "builtins.SystemExit")]
    for outcome in [told, *named]:
        error = launch.exception_of(outcome)
        assert type(error) is WorkerError and error.error_type == outcome.error_type
        assert (error.rank, error.host, error.epoch, error.step) == (1, "host-a", 1, 7)
        assert f"{outcome.error_type}: no such embedding" in str(error)
        assert "UsersError: no such embedding" in (error.traceback or "")


class RunsWhereItIsRead:
    """Appends the process to a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, (f"import os; open({str(self.path)!r}, 'a').write(f'{{os.getpid()}} ')",))


@dataclass(frozen=True)
class Answers:
    """A request whose ranks answer with what they were given, and train nothing."""

    answer: Any
    meeting_place: str | None = None

    def run(
        self, rank: int, world_size: int, all_gather: Any, bind_address: str, gpu_addresses: Any = None
    ) -> RankOutcome:
        return RankOutcome(rank, "host", True, self.answer())


def test_nothing_that_a_rank_answers_is_unpickled(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "read"
    launch.run_stage(spark, Answers(lambda: RunsWhereItIsRead(path)), 1)
    assert not path.exists() or str(os.getpid()) not in path.read_text().split()


def launch_of(spark: SparkSession, work: Path, max_restarts: int) -> launch.Launch:
    program = PythonProgram(b"", {})
    site = Site(spark, WorkDirectory(str(work)), True)
    run = Run(site, "run", dict, is_named=False)
    return launch.Launch(site, {}, program, 2, max_restarts, 0.0, lambda _: nullcontext(Event()), run)


def test_the_last_lines_of_a_process_that_died_are_told_once(spark: SparkSession, tmp_path: Path) -> None:
    """They are in its error, and in its log too."""
    log = tmp_path / "attempts" / "a" / "logs" / "rank-1.log"
    log.parent.mkdir(parents=True)
    failing = launch_of(spark, tmp_path, 0)
    failing.attempts.append("a")

    def notes(message: str, *lines: str) -> list[str]:
        log.write_text("".join(f"2026-01-01T00:00:00.000Z rank 1 {line}\n" for line in lines))
        error = WorkerLost(message, rank=1)
        failing._tell_logs(error)
        return error.__notes__[1:]  # the first names the page

    end = f"the end of the log of worker 1, {log}:\n2026-01-01T00:00:00.000Z rank 1 "
    died = "it was killed; its last lines:\nout of paper\nout of ink"
    assert notes(died, "began", "out of paper", "out of ink") == [f"{end}began"]
    assert notes(died, "out of paper", "out of ink") == [f"the log of worker 1 is {log}"]
    assert notes("it was lost", "out of ink") == [f"{end}out of ink"]


def test_only_lost_workers_are_tried_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requests: list[dict[str, Any]] = []
    answers: list[Any] = []

    def stage(_: SparkSession, request: WorkerRequest, *others: Any) -> list[RankOutcome]:
        requests.append(json.loads(request.job_json)["attempt"] | {"secret": request.secret})
        checkpoint = tmp_path / "attempts" / requests[0]["id"] / "checkpoints" / "0000000003"
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "COMMITTED").write_text('{"format": 4, "parts": []}')
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    monkeypatch.setattr(launch, "run_stage", stage)
    lost = WorkerLost("a worker was lost")

    done = {"done": True, "warnings": ["slow"]}
    ranks = [RankOutcome(rank, "h", True, json.dumps(done)) for rank in range(2)]
    answers[:] = [lost, [ranks[0], failed(1, "collective")], ranks]
    assert launch_of(spark, tmp_path, 3).run() == done
    resumed = str(tmp_path / "attempts" / requests[0]["id"] / "checkpoints" / "0000000003")
    assert [one["resume"] for one in requests] == [None, resumed, resumed]
    assert len({one["id"] for one in requests}) == len({one["secret"] for one in requests}) == 3

    for kind in ("model", "data", "diverged", "environment", "cancelled", "job"):
        requests.clear()
        answers[:] = [[ranks[0], failed(1, kind)]]
        with pytest.raises(WorkerError, match="on worker 1"):
            launch_of(spark, tmp_path, 3).run()
        assert len(requests) == 1

    for kind, is_transient in (("store", True), ("data", False)):
        told = failed_outcome(1, "host-a", kind, StoreError("503 Slow Down"), None, None, True)
        answers[:] = [[ranks[0], told]]
        with pytest.raises(StoreError) as raised:
            launch_of(spark, tmp_path, 0).run()
        assert raised.value.is_transient == is_transient

    requests.clear()
    answers[:] = [lost] * 3
    with pytest.raises(WorkerLost):
        launch_of(spark, tmp_path, 2).run()
    assert len(requests) == 3


def test_a_store_that_throttles_as_an_attempt_begins_is_asked_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failures: list[Exception] = []
    waits: list[float] = []
    begin = launch.Launch._begin

    def throttled(self: launch.Launch, restarts: int) -> dict[str, Any]:
        if failures:
            raise failures.pop(0)
        return begin(self, restarts)

    monkeypatch.setattr(launch.Launch, "_begin", throttled)
    monkeypatch.setattr(session, "pause", waits.append)
    done = {"done": True, "warnings": []}
    ranks = [RankOutcome(rank, "h", True, json.dumps(done)) for rank in range(2)]
    monkeypatch.setattr(launch, "run_stage", lambda *_: ranks)
    slow = StoreError("503 Slow Down", is_transient=True)

    failures[:] = [slow, slow]
    assert launch_of(spark, tmp_path, 2).run() == done
    assert waits == [5, 10]
    failures[:] = [slow, slow]
    with pytest.raises(StoreError, match="503 Slow Down"):
        launch_of(spark, tmp_path, 1).run()
    failures[:] = [slow, StoreError("404 Not Found")]
    with pytest.raises(StoreError, match="404 Not Found") as refused:
        launch_of(spark, tmp_path, 3).run()
    assert refused.value.__cause__ is slow and not failures


def test_gpus_are_refused_where_spark_assigns_none(any_spark: SparkSession) -> None:
    text = r"numGpusPerWorker is 1, but Spark assigns no GPUs in local mode: leave it at 0"
    with pytest.raises(ClusterError, match=text):
        cluster.check_slots(any_spark, 1, 0, num_gpus=1)


@pytest.mark.parametrize(
    ("version", "gpus", "expected"),
    [
        ("3.5.6", "1", r"Spark 3\.5\.6 takes no resource profile"),
        ("4.1.4", "", r"spark\.executor\.resource\.gpu\.amount is not set"),
    ],
)
def test_what_keeps_a_cluster_from_assigning_gpus(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, version: str, gpus: str, expected: str
) -> None:
    settings = {"spark.master": "spark://a:7077", "spark.executor.resource.gpu.amount": gpus}
    monkeypatch.setattr(session, "setting", lambda _, name, default="": settings.get(name) or default)
    monkeypatch.setattr(spark, "version", version)
    with pytest.raises(ClusterError, match=expected):
        cluster.check_slots(spark, 1, 0, num_gpus=1)


@pytest.mark.parametrize(
    ("gpus", "share", "expected"), [(4, 1, 4), (4, 2, 2), (5, 2, 2), (1, 0.5, 2), (2, 0.3, 6), (1, 0.25, 4)]
)
def test_tasks_that_have_gpus_at_once(gpus: int, share: float, expected: int) -> None:
    assert cluster._tasks_on(gpus, share) == expected


def test_gpus_reach_the_ranks_of_a_connect_session(connect: SparkSession, tmp_path: Path) -> None:
    script = tmp_path / "discover"
    script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["GPU-a", "GPU-b"]}\'\n')
    script.chmod(0o755)
    settings = {
        "spark.master": "local-cluster[1,2,1024]",
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": "2",
    }
    with connect_server(tmp_path, **settings) as connect:

        def given() -> list[str]:
            cluster.check_slots(connect, 2, 30, num_gpus=1)
            outcomes = launch.run_stage(connect, TellsItsGpus(), 2, num_gpus=1)
            return [outcome.result_json or "" for outcome in outcomes]

        assert sorted(session.interruptible(connect, given)) == ["GPU-a", "GPU-b"]


class TellsItsGpus:
    """A request whose ranks train nothing and answer with the GPU that they were given."""

    meeting_place = None

    def run(
        self, rank: int, world_size: int, all_gather: Any, bind_address: str, gpu_addresses: Any = None
    ) -> RankOutcome:
        [gpu] = gpu_addresses
        return RankOutcome(rank, "host", True, gpu)
