"""How the ranks of an attempt end, in files of the work directory.

A barrier stage ends when all its tasks have, so a rank that is frozen, or stuck in the user's code, would
hold the others' answers back for ever. Each rank leaves a file that is empty while it runs and has its
outcome at the end. One that failed waits for the others for a while; then it fails its task, and Spark ends
the whole stage. What the ranks came to is in the files. They are also how a rank knows that Spark runs the
stage again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from flambeau._rank.worker import RankOutcome, failed_outcome
from flambeau._store import open_store
from flambeau.errors import FlambeauError, WorkerLost

NOT_ENDED = "did not end after another one had failed"
"""What the error of a stage says that was given up so."""

# Looks at the ranks' files grow rarer: on an object store each is a request for each rank.
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.1, 2.0
_STORE_ERRORS = (FlambeauError, OSError, ValueError)


@dataclass(frozen=True)
class Ending:
    """The files of one attempt's ranks, `<directory>/<rank>`, as its tasks use them."""

    directory: str
    world_size: int
    grace_seconds: float
    """How long after a failure the ranks that it does not end are waited for."""
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def begin(self, rank: int) -> RankOutcome | None:
        """Notes that a rank runs. Where it ran before, in an earlier try of Spark's at the stage, returns
        what that came to: a second one would train beside what is left of the first.
        """
        # A work directory that cannot be written to fails the training with an error that says so.
        with suppress(*_STORE_ERRORS):
            store = self._store()
            if self._size(store, rank) is None:
                store.put(self._uri(rank), b"")
            else:
                return self.outcomes()[rank]
        return None

    def end(self, outcome: RankOutcome) -> None:
        """Notes how a rank ended."""
        with suppress(*_STORE_ERRORS):
            self._store().put(self._uri(outcome.rank), outcome.to_json().encode())

    def await_others(self) -> None:
        """Waits up to `grace_seconds` for the other ranks to end; raises WorkerLost where one does not."""
        deadline, pause, store = time.monotonic() + self.grace_seconds, _FIRST_POLL_SECONDS, None
        running = list(range(self.world_size))
        while True:
            try:
                # One for all looks: each has connections of its own.
                store = store or self._store()
                running = [rank for rank in running if not self._size(store, rank)]
            except _STORE_ERRORS:
                return
            if not running:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise WorkerLost(f"{_workers(running)} {NOT_ENDED}, within {self.grace_seconds:g} s")
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LAST_POLL_SECONDS)

    def outcomes(self) -> list[RankOutcome]:
        """How each rank ended; those that did not are lost. Raises StoreError."""
        store = self._store()
        return [self._outcome(store, rank) for rank in range(self.world_size)]

    def _outcome(self, store: Any, rank: int) -> RankOutcome:
        if self._size(store, rank):
            return RankOutcome.of_json(store.get(self._uri(rank)))
        lost = WorkerLost(f"worker {rank} was lost, or {NOT_ENDED}", rank=rank)
        # A rank that noticed says more.
        outcome = failed_outcome(rank, "unknown host", "lost", lost, None, None, False)
        return dataclasses.replace(outcome, traceback=None)

    def _size(self, store: Any, rank: int) -> int | None:
        size: int | None = store.size(self._uri(rank))
        return size

    def _uri(self, rank: int) -> str:
        return f"{self.directory}/{rank}"

    def _store(self) -> Any:
        return open_store(self.store_options)


def _workers(ranks: Sequence[int]) -> str:
    return f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
