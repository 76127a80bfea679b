"""What rank 0 tells of an attempt while it trains: files of events in the work directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flambeau._spark.work_directory import WorkDirectory
from flambeau.errors import FlambeauError

STORE_ERRORS = (FlambeauError, OSError, ValueError)
"""What reading them may raise."""

_NUM_READERS = 32


class EventFiles:
    """The events of an attempt, from its numbered files, each an array of events."""

    def __init__(self, work: WorkDirectory, attempt: str) -> None:
        self._directory = work.path("attempts", attempt, "events")
        # One for all looks: each has connections of its own.
        self._store = work.store()
        self._next_file = 1
        self.has_end = False
        """Whether the end of a training that ended well was read."""

    def read(self) -> list[dict[str, Any]]:
        """The events of the next file; none where there is no such file yet.

        Raises FlambeauError, OSError or ValueError where it cannot be read yet; the next call tries again.
        """
        uri = f"{self._directory}/{self._next_file:08d}.json"
        if self._store.size(uri) is None:
            return []
        events = self._events(uri)
        self._next_file += 1
        self.has_end = self.has_end or any(event["kind"] == "end" for event in events)
        return events

    def read_all(self) -> tuple[list[dict[str, Any]], str | None]:
        """The newest events of all files that can be read, and what one says that cannot. Raises as `read`
        where the files cannot be listed.
        """
        with ThreadPoolExecutor(_NUM_READERS) as pool:
            found = list(pool.map(self._try, sorted(self._store.list(self._directory))))
        events = [event for file in found if not isinstance(file, Exception) for event in file]
        errors = [str(file) for file in found if isinstance(file, Exception)]
        return newest(events), errors[0] if errors else None

    def _events(self, uri: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = json.loads(self._store.get(uri))
        return events

    def _try(self, uri: str) -> list[dict[str, Any]] | Exception:
        try:
            return self._events(uri)
        except STORE_ERRORS as error:
            return error


def newest(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without each progress that another one follows on."""
    following = [event["kind"] for event in events[1:]]
    kinds = zip(events, [*following, None], strict=False)
    return [event for event, then in kinds if not event["kind"] == then == "progress"]
