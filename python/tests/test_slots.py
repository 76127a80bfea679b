"""The slots of a GPU, held by real processes: how many at once, and what a death leaves."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flambeau import ClusterError, ParamError
from flambeau._score import gpu_slots
from flambeau._spark.transform.udf import gpu_tasks_of

GPU = "11111111-2222-3333-4444-555555555555"
# A fresh interpreter, with none of this one's open files.
_CONTEXT = multiprocessing.get_context("spawn")
_SECONDS = 30.0


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the slots lie, empty for each test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"flambeau-gpus-{os.getuid()}" / GPU


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BaseProcess]]:
    """Starts processes that end with the test."""
    processes = []

    def started(function: Callable[..., None], *arguments: Any) -> BaseProcess:
        process = _CONTEXT.Process(target=_in_process, args=(str(tmp_path), function, *arguments))
        process.start()
        processes.append(process)
        return process

    yield started
    for process in processes:
        process.kill()
        process.join()


def _in_process(directory: str, function: Callable[..., None], *arguments: Any) -> None:
    tempfile.tempdir = directory
    function(*arguments)


def is_free(num_slots: int = 1, task: str = "asks") -> bool:
    """Whether a task gets a slot at once."""
    try:
        with gpu_slots.held(GPU, num_slots, task, 0.0):
            return True
    except ClusterError:
        return False


def until(condition: Callable[[], bool]) -> None:
    """Waits until it holds."""
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def hold_often(inside: Any, most: Any) -> None:
    """Takes a slot again and again; the first to have one waits for a second."""
    for _ in range(8):
        with gpu_slots.held(GPU, 2, f"process {os.getpid()}", _SECONDS):
            with inside.get_lock():
                inside.value += 1
                most.value = max(most.value, inside.value)
            until(lambda: most.value > 1)
            time.sleep(0.005)
            with inside.get_lock():
                inside.value -= 1


def test_as_many_at_once_as_there_are_slots(start: Callable[..., BaseProcess]) -> None:
    inside, most = _CONTEXT.Value("i", 0), _CONTEXT.Value("i", 0)
    processes = [start(hold_often, inside, most) for _ in range(5)]
    for process in processes:
        process.join(_SECONDS)
        assert process.exitcode == 0
    assert most.value == 2
    assert inside.value == 0


def hold(held: Any) -> None:
    with gpu_slots.held(GPU, 1, f"process {os.getpid()}", _SECONDS):
        held.set()
        time.sleep(_SECONDS)


def test_a_killed_process_gives_its_slot_back(start: Callable[..., BaseProcess]) -> None:
    held = _CONTEXT.Event()
    process = start(hold, held)
    assert held.wait(_SECONDS)
    assert not is_free()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert is_free()


def test_a_task_has_one_slot_until_its_last_process_leaves() -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(gpu_slots.held(GPU, 1, "task 7", 0.0))
    second.enter_context(gpu_slots.held(GPU, 1, "task 7", 0.0))
    assert not is_free()
    first.close()
    assert not is_free()
    second.close()
    assert is_free()


def test_slots_come_back_after_errors_and_from_generators_closed_early() -> None:
    with pytest.raises(LookupError), gpu_slots.held(GPU, 1, "fails", 0.0):
        raise LookupError

    def scores() -> Iterator[int]:
        with gpu_slots.held(GPU, 1, "stops early", 0.0):
            yield from range(3)

    generator = scores()
    assert next(generator) == 0 and not is_free()
    generator.close()  # type: ignore[attr-defined]
    assert is_free()


def test_whoever_waits_says_for_what(
    start: Callable[..., BaseProcess], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_slots, "_FIRST_WORD_SECONDS", 0.1)
    held = _CONTEXT.Event()
    process = start(hold, held)
    assert held.wait(_SECONDS)
    began = time.monotonic()
    with (
        caplog.at_level(logging.WARNING, "flambeau"),
        pytest.raises(ClusterError, match=f"used by the processes {process.pid}: end them if they hang"),
        gpu_slots.held(GPU, 1, "late", 0.5),
    ):
        pass
    assert 0.5 <= time.monotonic() - began < 5
    [record] = caplog.records
    assert f"waited 0 s for the GPU {GPU}, which 1 tasks" in record.message


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_the_setting_is_checked(spark: SparkSession, text: str) -> None:
    assert gpu_tasks_of(spark) == 2
    spark.conf.set(gpu_slots.SETTING, text)
    try:
        with pytest.raises(ParamError, match=f"spark.flambeau.gpuTasks is '{text}'"):
            gpu_tasks_of(spark)
        spark.conf.set(gpu_slots.SETTING, "3")
        assert gpu_tasks_of(spark) == 3
    finally:
        spark.conf.unset(gpu_slots.SETTING)
