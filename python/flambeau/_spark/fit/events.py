"""What ranks tell of an attempt while it trains, in files of the work directory: rank 0 its events, and all
what they use.
"""

from __future__ import annotations

import json
import time
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
        events: list[dict[str, Any]] = json.loads(self._store.get(uri))
        self._next_file += 1
        self.has_end = self.has_end or any(event["kind"] == "end" for event in events)
        return events

    def read_all(self) -> tuple[list[dict[str, Any]], str | None]:
        """The newest events of all files that can be read, and what one says that cannot. Raises as `read`
        where the files cannot be listed.
        """
        found = _read_each(self._store, sorted(self._store.list(self._directory)))
        events = [event for file in found if not isinstance(file, Exception) for event in file]
        errors = [str(file) for file in found if isinstance(file, Exception)]
        return newest(events), errors[0] if errors else None


class UsageFiles:
    """What the ranks of an attempt use, from their files, each with its rank's newest sample."""

    def __init__(self, work: WorkDirectory, attempt: str, seconds: float) -> None:
        self._directory = work.path("attempts", attempt, "usage")
        self._store = work.store()
        self._seconds = seconds
        self._due = 0.0
        self._told: dict[int, int] = {}
        """The number of each rank's last sample that was read."""

    def read(self) -> list[dict[str, Any]]:
        """The samples that are new, by rank; none until `seconds` after they were last looked for.

        A file that cannot be read is passed over: its rank writes the next one soon. Raises as
        `EventFiles.read` where the files cannot be listed, or none can be read.
        """
        if time.monotonic() < self._due:
            return []
        self._due = time.monotonic() + self._seconds
        found = _read_each(self._store, self._store.list(self._directory))
        samples: list[dict[str, Any]] = [file for file in found if not isinstance(file, Exception)]
        if found and not samples:
            raise found[0]
        new = [sample for sample in samples if self._told.get(sample["rank"]) != sample["number"]]
        self._told |= {sample["rank"]: sample["number"] for sample in new}
        return sorted(new, key=lambda sample: sample["rank"])


def _read_each(store: Any, uris: Sequence[str]) -> list[Any]:
    """What stands in each file, or the error of one that cannot be read, many read at once."""

    def read(uri: str) -> Any:
        try:
            return json.loads(store.get(uri))
        except STORE_ERRORS as error:
            return error

    with ThreadPoolExecutor(_NUM_READERS) as pool:
        return list(pool.map(read, uris))


def newest(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without each progress that another one follows on."""
    following = [event["kind"] for event in events[1:]]
    kinds = zip(events, [*following, None], strict=False)
    return [event for event, then in kinds if not event["kind"] == then == "progress"]
