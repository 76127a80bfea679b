"""How many tasks of this machine use a GPU at a time: a semaphore across processes.

A GPU has a directory, with a file for each task that has a slot. All processes of the task hold a shared
lock (flock) on it, which the kernel gives back when a process ends, however it ends. Every look at the files,
a few system calls long, is made under one more lock, the gate's. Who waits looks again and again, in no
order.

A slot is a task's and not a process's: where two models are in one query, each task of Spark's scores in two
processes, one of which feeds the other. With a slot each, they could wait for each other without end.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from flambeau._store import private_directory
from flambeau.errors import ClusterError

with suppress(ImportError):  # on Windows, where clients alone run and no task takes a slot
    import fcntl

log = logging.getLogger("flambeau")

SETTING = "spark.flambeau.gpuTasks"
NUM_SLOTS = 2
"""How many tasks use a GPU at a time where no setting says so, as with Spark RAPIDS' concurrentGpuTasks."""

# Those ahead may score for hours. This is for one that hangs.
_LONGEST_SECONDS = 86_400.0
_POLL_SECONDS = 0.02
_FIRST_WORD_SECONDS = 5.0
_LATER_WORD_SECONDS = 60.0


@contextmanager
def held(gpu: str, num_slots: int, task: str, timeout: float = _LONGEST_SECONDS) -> Iterator[None]:
    """Holds one of the GPU's slots for the time of the block.

    `gpu` is its UUID. `task` names whom the slot is for: blocks of the same task share one. Waits for a slot
    up to `timeout` seconds, and logs whom it waits for. Raises ClusterError where none came.
    """
    directory = private_directory("flambeau-gpus") / gpu
    directory.mkdir(exist_ok=True)
    began, next_word = time.monotonic(), _FIRST_WORD_SECONDS
    while (slot := _slot(directory, num_slots, task)) is None:
        waited = time.monotonic() - began
        if waited >= min(timeout, next_word):
            _tell(directory, num_slots, waited, timeout)
            next_word = waited + _LATER_WORD_SECONDS
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        _unlock(slot)


def _slot(directory: Path, num_slots: int, task: str) -> int | None:
    """A descriptor that holds a slot for the task; None where other tasks have them all, or where another
    process looks just now.
    """
    own = directory / f"slot-{quote(task, safe='')}"
    with ExitStack() as stack:
        gate = _open(directory / "gate")
        stack.callback(_unlock, gate)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        taken = _taken(directory)
        if own not in taken and len(taken) >= num_slots:
            return None
        slot = _open(own)
        try:
            # Under the gate no one looks whether it is free.
            fcntl.flock(slot, fcntl.LOCK_SH)
            if own not in taken:
                os.pwrite(slot, str(os.getpid()).encode(), 0)
        except BaseException:
            _unlock(slot)
            raise
        return slot


def _taken(directory: Path) -> list[Path]:
    """The files of the tasks that have a slot; removes those that ended tasks left."""
    taken = []
    for path in directory.glob("slot-*"):
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        except BlockingIOError:
            taken.append(path)
        finally:
            _unlock(descriptor)
    return taken


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _unlock(descriptor: int) -> None:
    """Gives a lock back, also where a forked child has the file open still."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _tell(directory: Path, num_slots: int, waited: float, timeout: float) -> None:
    """Says what is waited for. Raises ClusterError after the time-out."""
    processes = ", ".join(sorted({_process(path) for path in directory.glob("slot-*")}))
    text = (
        f"waited {waited:.0f} s for the GPU {directory.name}, which {num_slots} tasks of a "
        f"machine may use at a time ({SETTING}); it is used by the processes {processes}"
    )
    if waited >= timeout:
        raise ClusterError(f"{text}: end them if they hang, or set device='cpu'")
    log.warning("%s", text)


def _process(path: Path) -> str:
    """The process that took a slot; nothing where it has just given it back."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
