"""How many tasks of this machine use a GPU at a time: a semaphore across processes, with slots for each GPU.

A GPU has a directory, with a file for each slot. Who holds a slot holds a lock (flock) on its file, which the
kernel gives back when the process ends, however it ends. Those who wait queue up, each with a numbered file
that it holds locked as well, so that slots are given in the order in which they were asked for, and whoever
died while waiting is passed over. Every look at the files, a few system calls long, is made under one more
lock, the gate's.

A slot is a task's and not a process's: where two models are in one query, each task of Spark's scores in two
processes, one of which feeds the other. With a slot each, they could wait for each other without end.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flambeau._store import private_directory
from flambeau.errors import ClusterError

if TYPE_CHECKING:
    pass

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
    in the order of the calls, up to `timeout` seconds, and logs whom it waits for. Raises ClusterError where
    none came.
    """
    directory = private_directory("flambeau-gpus") / gpu
    directory.mkdir(exist_ok=True)
    slot = _Queue(directory, num_slots, task, timeout).slot()
    try:
        yield
    finally:
        slot.release()


class _LockedFile:
    """A file that this process holds a lock on."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def taken(cls, path: Path) -> _LockedFile | None:
        """The file, made where it is missing, with an exclusive lock; None where others have one on it."""
        file = cls(path, os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        if file._lock(fcntl.LOCK_EX):
            return file
        os.close(file._descriptor)
        return None

    @classmethod
    def shared(cls, path: Path) -> _LockedFile:
        """The file with a shared lock, for whoever knows that no one has it exclusively."""
        file = cls(path, os.open(path, os.O_RDWR))
        file.share()
        return file

    def share(self) -> None:
        """Lets others have the lock too. Between the old lock and the new one there is none."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def write(self, text: str) -> None:
        """Makes `text` all that the file holds."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def release(self) -> None:
        """Gives the lock back, also where a forked child has the file open still."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)

    def _lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class _Queue:
    """A task's wait for a slot of a GPU."""

    def __init__(self, directory: Path, num_slots: int, task: str, timeout: float) -> None:
        self._directory = directory
        self._num_slots = num_slots
        self._task = task
        self._timeout = timeout
        self._began = time.monotonic()
        self._next_word = _FIRST_WORD_SECONDS
        self._ticket: _LockedFile | None = None

    def slot(self) -> _LockedFile:
        """The slot, once it is there. Raises ClusterError after the time-out."""
        try:
            while True:
                gate = _LockedFile.taken(self._directory / "gate")
                if gate is not None:
                    try:
                        slot = self._tasks_own() or self._next_in_turn()
                    finally:
                        gate.release()
                    if slot is not None:
                        return slot
                self._tell()
                time.sleep(_POLL_SECONDS)
        finally:
            if self._ticket is not None:
                self._ticket.path.unlink(missing_ok=True)
                self._ticket.release()

    def _tasks_own(self) -> _LockedFile | None:
        """The slot that another process of the task holds."""
        for path in self._directory.glob("slot-*"):
            free = _LockedFile.taken(path)
            if free is not None:
                free.release()
            elif _holder(path)[0] == self._task:
                return _LockedFile.shared(path)
        return None

    def _next_in_turn(self) -> _LockedFile | None:
        """A free slot, where there is one and no one came earlier. Queues up at the first call."""
        tickets = sorted(self._directory.glob("ticket-*"))
        if self._ticket is None:
            number = int(tickets[-1].name.removeprefix("ticket-")) + 1 if tickets else 0
            self._ticket = _LockedFile.taken(self._directory / f"ticket-{number:012}")
            assert self._ticket is not None, "no one else makes tickets while the gate is held"
        for path in tickets:
            if path < self._ticket.path and not _is_abandoned(path):
                return None
        for index in range(self._num_slots):
            slot = _LockedFile.taken(self._directory / f"slot-{index}")
            if slot is not None:
                slot.write(f"{self._task}\n{os.getpid()}")
                # Under the gate no one can come between.
                slot.share()
                return slot
        return None

    def _tell(self) -> None:
        """Says now and then what is waited for. Raises ClusterError after the time-out."""
        waited = time.monotonic() - self._began
        if waited < min(self._timeout, self._next_word):
            return
        paths = sorted(self._directory.glob("slot-*"))[: self._num_slots]
        processes = ", ".join(sorted({_holder(path)[1] for path in paths}))
        text = (
            f"waited {waited:.0f} s for the GPU {self._directory.name}, which {self._num_slots} tasks of a "
            f"machine may use at a time ({SETTING}); it is used by the processes {processes}"
        )
        if waited >= self._timeout:
            raise ClusterError(f"{text}: end them if they hang, or set device='cpu'")
        log.warning("%s", text)
        self._next_word = waited + _LATER_WORD_SECONDS


def _holder(path: Path) -> tuple[str, str]:
    """The task that a slot was last given to, and the process that asked for it."""
    task, _, process = path.read_text().partition("\n")
    return task, process


def _is_abandoned(ticket: Path) -> bool:
    """Whether the process that queued up with a ticket is gone; then removes it."""
    file = _LockedFile.taken(ticket)
    if file is None:
        return False
    file.path.unlink(missing_ok=True)
    file.release()
    return True
