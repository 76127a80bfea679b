"""Several fits on one DataFrame, whose rows are written once for all fits that read the same."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from flambeau._spark.fit.fit import Fit
from flambeau._spark.fit.trainable import Trainable
from flambeau._spark.rows.shards import DataColumns, ShardSet
from flambeau._spark.rows.sources import FrameRows, Meanwhile
from flambeau._spark.site import Site
from flambeau._spark.work_directory import WorkDirectory, new_id
from flambeau.errors import CancelledError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Fits(Iterator[tuple[int, Any]]):
    """Gives `(index, model)` for each estimator, each fitted when it is asked for; safe to share among
    threads.

    Shards are removed when the last fit has ended, well or not, or when the iterator is given up. An
    interrupt of the main thread, which waits for a pool of threads that fit, ends all fits.
    """

    def __init__(self, estimators: Sequence[Trainable], df: DataFrame) -> None:
        self._estimators = estimators
        self._df = df
        self._lock = threading.Lock()
        self._next = 0
        self._unfinished = len(estimators)
        self._id = new_id()
        self._num_running = 0
        self._shards: dict[tuple[DataColumns, WorkDirectory], _SharedShards] = {}
        self._interrupted = threading.Event()
        note_interrupts(self._interrupted)
        weakref.finalize(self, _remove_visible, self._shards)

    def __next__(self) -> tuple[int, Any]:
        with self._lock:
            index = self._next
            if index == len(self._estimators):
                raise StopIteration
            if self._interrupted.is_set():
                raise CancelledError("the fits were interrupted")
            self._next += 1
            self._num_running += 1
        try:
            return index, self._fit(self._estimators[index])
        finally:
            with self._lock:
                self._unfinished -= 1
                self._num_running -= 1
                is_last = not self._unfinished or (self._interrupted.is_set() and not self._num_running)
                shared = list(self._shards.values()) if is_last else []
            for shards in shared:
                shards.remove()

    def _fit(self, estimator: Trainable) -> Any:
        rows = _SharedRows(self._df, self._shards, self._lock)
        return Fit.of(estimator, rows, self._id).run(self._interrupted)


@dataclass(frozen=True)
class _SharedRows(FrameRows):
    """The rows of several fits, written by the first of those that read the same columns."""

    written: dict[tuple[DataColumns, WorkDirectory], _SharedShards] = field(repr=False)
    lock: threading.Lock = field(repr=False)

    @contextmanager
    def shards(self, columns: DataColumns, site: Site, meanwhile: Meanwhile) -> Iterator[ShardSet]:
        """The shards, which stay for the other fits."""
        with self.lock:
            shared = self.written.setdefault((columns, site.work), _SharedShards(site))
        yield shared.get(lambda name: self.write(columns, site, name, meanwhile))


class _SharedShards:
    """One shard set, written by the first fit that asks for it while the others wait."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._name = new_id()
        self._lock = threading.Lock()
        self._written: ShardSet | None = None
        self._removed = False

    def get(self, write: Callable[[str], ShardSet]) -> ShardSet:
        """The shards, which `write` makes where there are none yet. Waits for the Spark job that does."""
        with self._lock:
            if self._written is None:
                # What an earlier try left would make Spark refuse the directory.
                self._name = new_id()
                self._written = write(self._name)
            return self._written

    def remove(self) -> None:
        """Deletes the shards; a failure is told and no more."""
        if not self._removed:
            self._removed = True
            with suppress(Exception):
                self._site.remove("shards", self._name)

    @property
    def visible(self) -> bool:
        """Whether this process sees the shards."""
        return self._site.visible


def _remove_visible(shards: dict[Any, _SharedShards]) -> None:
    """Deletes the shards of fits that nobody will ask for. Others than files that are seen from here are left
    to the sweep: no Spark job runs from a collector of garbage.
    """
    for one in shards.values():
        if one.visible:
            one.remove()


_waiting: weakref.WeakSet[threading.Event] = weakref.WeakSet()


def note_interrupts(event: threading.Event) -> None:
    """Has an interrupt (SIGINT) set `event` before it goes its usual way, for as long as the event lives.

    Python tells the main thread alone of an interrupt, and only there can it be asked to tell: where this is
    another thread, or the process does not act on interrupts, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    _waiting.add(event)
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or getattr(before, "notes_interrupts", False):
        return

    def handle(number: int, frame: FrameType | None) -> Any:
        for waiting in list(_waiting):
            waiting.set()
        return before(number, frame)

    handle.notes_interrupts = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, handle)
