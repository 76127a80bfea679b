"""What rank 0 tells of an attempt while it trains: files of events in the work directory."""

from __future__ import annotations

import json
from typing import Any

from flambeau._spark.work_directory import WorkDirectory


class EventFiles:
    """The events of an attempt, from its numbered files, each an array of events."""

    def __init__(self, work: WorkDirectory, attempt: str) -> None:
        self._directory = work.path("attempts", attempt, "events")
        # One for all looks: each has connections of its own.
        self._store = work.store()
        self._next_file = 1

    def read(self) -> list[dict[str, Any]]:
        """The events of the next file; none where there is no such file yet.

        Raises FlambeauError, OSError or ValueError where it cannot be read yet; the next call tries again.
        """
        uri = f"{self._directory}/{self._next_file:08d}.json"
        if self._store.size(uri) is None:
            return []
        events: list[dict[str, Any]] = json.loads(self._store.get(uri))
        self._next_file += 1
        return events

    def read_all(self) -> list[dict[str, Any]]:
        """The events of all files from the next on. Raises as `read`."""
        events = []
        while more := self.read():
            events += more
        return events
