"""Where the ranks of one machine meet: a directory, in which each leaves a message for the others.

Spark's own all-gather takes a second, since a task sleeps that long between two looks at whether all have
come. A directory takes milliseconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flambeau._store import local_path
from flambeau.errors import WorkerLost

# A rank that is late imports or reads its model. One that dies ends the stage, and with it the others' waits.
_LONGEST_SECONDS = 3600.0
_POLL_SECONDS = 0.002


def meeting_place(job: Mapping[str, Any], shares_machine: bool) -> str | None:
    """The directory where the ranks of a job's attempt meet, for workers that share a machine and have the
    work directory among its files; None for others.
    """
    attempt = job["attempt"]
    work_dir = local_path(attempt["workDir"]) if shares_machine else None
    return None if work_dir is None else str(work_dir / "attempts" / attempt["id"] / "meeting")


class MeetingPlace:
    """A directory of one attempt, as one of its ranks uses it. `BarrierTaskContext` has the same method."""

    def __init__(self, directory: str, rank: int, world_size: int) -> None:
        self._directory = Path(directory)
        self._rank = rank
        self._world_size = world_size

    def allGather(self, message: str = "") -> list[str]:
        """Every rank's message, by rank. Waits for all ranks, up to an hour, then raises WorkerLost."""
        self._directory.mkdir(parents=True, exist_ok=True)
        part = self._directory / f"{self._rank}.part"
        part.write_text(message)
        os.replace(part, self._directory / str(self._rank))
        deadline = time.monotonic() + _LONGEST_SECONDS
        return [self._await(self._directory / str(rank), rank, deadline) for rank in range(self._world_size)]

    @staticmethod
    def _await(path: Path, rank: int, deadline: float) -> str:
        while True:
            try:
                return path.read_text()
            except FileNotFoundError:
                if time.monotonic() > deadline:
                    raise WorkerLost(f"worker {rank} did not come within an hour", rank=rank) from None
            time.sleep(_POLL_SECONDS)
