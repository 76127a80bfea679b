"""Several fits on one DataFrame, whose rows are written once for all fits that read the same."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from flambeau._spark.fit.fit import Fit
from flambeau._spark.fit.trainable import Trainable
from flambeau._spark.rows.prepared import PreparedData, write
from flambeau._spark.rows.shards import DataColumns, ShardSet
from flambeau._spark.rows.sources import FrameRows, Reading, rows_of
from flambeau._spark.site import Site
from flambeau._spark.work_directory import new_id
from flambeau.errors import CancelledError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


_Found = TypeVar("_Found")


class Fits(Iterator[tuple[int, Any]]):
    """Gives `(index, model)` for each estimator, each fitted when it is asked for; safe to share among
    threads.

    What is written of a DataFrame is removed when the last fit has ended, well or not, or when the iterator
    is given up. An interrupt of the main thread, which waits for a pool of threads that fit, ends all fits.
    """

    def __init__(self, estimators: Sequence[Trainable], dataset: DataFrame | PreparedData) -> None:
        self._estimators = estimators
        self._written: list[PreparedData] = []
        self._directories: list[tuple[Site, str]] = []
        rows = rows_of(dataset)
        if isinstance(rows, FrameRows):
            rows = _SharedRows(rows.df, self._written, self._directories)
        self._rows = rows
        self._lock = threading.Lock()
        self._next = 0
        self._unfinished = len(estimators)
        self._id = new_id()
        self._num_running = 0
        self._interrupted = threading.Event()
        note_interrupts(self._interrupted)
        weakref.finalize(self, _remove_visible, self._written, self._directories)

    def interrupt(self) -> None:
        """Ends the fits that are under way, and lets no other begin: these raise CancelledError."""
        self._interrupted.set()

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
            return index, Fit.of(self._estimators[index], self._rows, self._id).run(self._interrupted)
        finally:
            with self._lock:
                self._unfinished -= 1
                self._num_running -= 1
                is_last = not self._unfinished or (self._interrupted.is_set() and not self._num_running)
            if is_last:
                _remove(self._written, self._directories)


@dataclass(frozen=True)
class _SharedRows(FrameRows):
    """The rows of several fits, computed by the first of those that read the same columns."""

    written: list[PreparedData] = field(repr=False)
    directories: list[tuple[Site, str]] = field(repr=False)
    """Below `shards`, of the bitmaps of rows in place, and of rows that are no prepared data."""
    in_place: dict[tuple[Any, ...], ShardSet | None] = field(default_factory=dict, repr=False)
    """None in place of rows that can't be read in place."""
    own: dict[tuple[Any, ...], ShardSet] = field(default_factory=dict, repr=False)
    """Those of fits that read the very same columns and rows."""
    firsts: dict[DataColumns, pa.RecordBatch] = field(default_factory=dict, repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def first(self, columns: DataColumns) -> pa.RecordBatch:
        """The first rows of the DataFrame. Waits for another fit that computes them."""
        with self.lock:
            if columns not in self.firsts:
                self.firsts[columns] = super().first(columns)
            return self.firsts[columns]

    def _in_place(
        self, columns: DataColumns, reading: Reading, site: Site, directory: str
    ) -> ShardSet | None:
        """The rows in their files, the same for all fits. Waits for another fit that looks for them."""
        params, find = reading.params, super()._in_place
        key = (columns, site.work.uri, params.getInPlace(), params.getShuffle())
        return self._once(self.in_place, key, site, lambda place: find(columns, reading, site, place))

    def _written(self, columns: DataColumns, site: Site, directory: str) -> ShardSet:
        """The shards, which stay for the other fits. Waits for another fit that writes."""
        if columns.handle_invalid != "keep":
            # Which rows these are depends on the columns.
            write_own = super()._written
            key = (columns, site.work.uri)
            return self._once(self.own, key, site, lambda place: write_own(columns, site, place))
        with self.lock:
            shared = next((one for one in self.written if one._serves(columns, site.work)), None)
            if shared is None:
                place = replace(site, work=replace(site.work, uri=site.work.path("shards", new_id())))
                shared = write(self.df, [columns], place)
                self.written.append(shared)
        return shared._shards(columns)

    def _once(
        self,
        found: dict[tuple[Any, ...], _Found],
        key: tuple[Any, ...],
        site: Site,
        find: Callable[[str], _Found],
    ) -> _Found:
        """What `find` gives for a directory, for the first fit that asks with that key."""
        with self.lock:
            if key not in found:
                name = new_id()
                self.directories.append((site, name))
                found[key] = find(site.work.path("shards", name))
            return found[key]


def _remove(written: list[PreparedData], directories: list[tuple[Site, str]]) -> None:
    """Deletes what was written; a failure is told and no more."""
    while written:
        written.pop()._remove()
    while directories:
        site, name = directories.pop()
        site.remove("shards", name)


def _remove_visible(written: list[PreparedData], directories: list[tuple[Site, str]]) -> None:
    """Deletes the rows of fits that nobody will ask for. Others than files that are seen from here are left
    to the sweep: no Spark job runs from a collector of garbage.
    """
    _remove([one for one in written if one._site.visible], [one for one in directories if one[0].visible])


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
