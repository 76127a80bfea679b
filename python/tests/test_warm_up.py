"""Workers that import while Spark writes, and ranks of one machine that meet in a directory."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from flambeau._rank import imports, meeting
from flambeau._rank.meeting import MeetingPlace, meeting_place
from flambeau._spark.fit import warm_up
from flambeau._spark.fit.launch import StageRendezvous, tasks_by_host
from flambeau.errors import WorkerLost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pids_with(spark: SparkSession, module: str) -> set[tuple[int, bool]]:
    """The Python workers of a stage of two tasks, and whether each has a module once its imports are over."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        from flambeau._rank.imports import finish_importing

        for _ in batches:
            pass
        finish_importing()
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "has": [module in sys.modules]})

    rows = spark.range(0, 2, 1, 2).mapInArrow(task, "pid long, has boolean", barrier=True).collect()
    return {(row.pid, row.has) for row in rows}


def test_the_stage_after_meets_workers_that_have_imported(
    any_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "is_warm", lambda _: False)
    assert not any(has for _, has in pids_with(any_spark, "this"))
    with warm_up.warming_up(any_spark, 2, ["this", "no.such.module"]):
        pass
    assert any(has for _, has in pids_with(any_spark, "this"))


def test_a_session_is_warm_after_a_fit(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_last_used", type(warm_up._last_used)())
    assert not warm_up.is_warm(spark)
    warm_up.used(spark)
    assert warm_up.is_warm(spark)
    monkeypatch.setattr(warm_up, "_IDLE_SECONDS", 0.0)
    assert not warm_up.is_warm(spark)


def test_a_job_that_fails_is_no_ones_matter(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "is_warm", lambda _: False)
    monkeypatch.setattr(warm_up, "_task", lambda _: 1 / 0)
    ran = []
    with warm_up.warming_up(spark, 2, ["this"]):
        ran.append(True)
    assert ran


def test_imports_are_finished_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.5)\ndone = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    imports.start_importing(["slow_to_import"])
    imports.start_importing(["this"])  # while one is under way, others are left
    imports.finish_importing()
    assert sys.modules["slow_to_import"].done and "this" not in sys.modules
    del sys.modules["slow_to_import"]


def test_where_ranks_meet() -> None:
    job: dict[str, Any] = {"attempt": {"id": "a1", "workDir": "/work"}}
    assert meeting_place(job, True) == "/work/attempts/a1/meeting"
    assert meeting_place(job, False) is None
    assert meeting_place({"attempt": {"id": "a1", "workDir": "s3://bucket"}}, True) is None


def gathered(directory: Path, payloads: list[bytes | None]) -> list[Any]:
    """What each rank hears; one whose payload is None leaves before."""
    heard: list[Any] = [None] * len(payloads)

    def run(rank: int, payload: bytes | None) -> None:
        place = MeetingPlace(str(directory), rank, len(payloads))
        rendezvous = StageRendezvous(place, range(len(payloads)))
        try:
            heard[rank] = "left" if payload is None else rendezvous.all_gather(payload)
        except WorkerLost as error:
            heard[rank] = error
        rendezvous.leave()

    threads = [threading.Thread(target=run, args=one) for one in enumerate(payloads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return heard


def test_ranks_are_numbered_by_host_and_meet_so(tmp_path: Path) -> None:
    addresses = ["b:1", "a:1", "c:1", "b:2", "a:2", "c:2", "b:3"]
    tasks = tasks_by_host(addresses)
    meeting, heard = str(tmp_path / "meeting"), {}

    def run(task: int) -> None:
        place = MeetingPlace(meeting, task, len(tasks))
        heard[tasks.index(task)] = StageRendezvous(place, tasks).all_gather(addresses[task].encode())

    threads = [threading.Thread(target=run, args=(task,)) for task in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    by_host = [b"b:1", b"b:2", b"b:3", b"a:1", b"a:2", b"c:1", b"c:2"]
    assert heard == {rank: by_host for rank in range(7)}


@pytest.mark.parametrize("num_hosts", [1, 2, 4, 5])
def test_a_sum_crosses_the_network_as_seldom_as_can_be(num_hosts: int) -> None:
    contiguous = [f"[fe80::{task // 4}]:{task}" for task in range(4 * num_hosts)]
    assert tasks_by_host(contiguous) == list(range(4 * num_hosts))
    for seed in range(20):
        dealt = random.Random(seed).sample(contiguous, len(contiguous))
        tasks = tasks_by_host(dealt)
        assert tasks[0] == 0 and sorted(tasks) == list(range(4 * num_hosts))
        hosts = [dealt[task].rsplit(":", 1)[0] for task in tasks]
        assert sum(one != other for one, other in pairwise(hosts)) == num_hosts - 1


def test_ranks_meet_in_a_directory(tmp_path: Path) -> None:
    payloads = [bytes([rank]) * rank * 10_000 for rank in range(8)]
    assert gathered(tmp_path / "meeting", payloads) == [payloads] * 8  # type: ignore[arg-type]


def test_a_rank_that_leaves_frees_the_others(tmp_path: Path) -> None:
    first, second, third = gathered(tmp_path / "meeting", [b"a", None, b"c"])
    assert second == "left" and (first.rank, third.rank) == (1, 1)
    assert "worker 1 failed before the workers met" in str(first)


def test_a_rank_that_never_comes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_LONGEST_SECONDS", 0.05)
    with pytest.raises(WorkerLost, match="worker 1 did not come") as raised:
        MeetingPlace(str(tmp_path), 0, 2).allGather("here")
    assert raised.value.rank == 1
