"""Starts the workers' Python processes, and what they import, while Spark still writes the shards.

Spark keeps a Python worker for the next task of its executor. So a small job is run early whose tasks do
nothing but start a thread that imports what a rank needs, and the barrier stage meets workers that have it.
Where Spark gives the ranks other processes (`spark.python.worker.reuse` is off, other executors, a wait of
more than a minute) they import it themselves, as if nothing had been done.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from flambeau._rank.imports import start_importing
from flambeau._spark.session import inheriting, setting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger("flambeau")

# Spark ends a Python worker that has been idle for a minute.
_IDLE_SECONDS = 50.0

_last_used: WeakKeyDictionary[SparkSession, float] = WeakKeyDictionary()


@contextmanager
def warming_up(spark: SparkSession, num_workers: int, modules: Sequence[str]) -> Iterator[None]:
    """Warms the workers for the ranks of a fit while the block runs, unless a fit has just used them.

    The job has left its task slots when the context is left. It ends when Spark has started its Python
    workers; their imports may go on.
    """
    if setting(spark, "spark.python.worker.reuse") == "false" or is_warm(spark):
        yield
        return

    def run() -> None:
        try:
            tasks = spark.range(0, num_workers, 1, num_workers)
            tasks.mapInArrow(_task(tuple(modules)), "started boolean").collect()
        except Exception as error:
            # The training says better what is wrong with the workers.
            log.debug("the workers could not be warmed up: %s", error)

    thread = threading.Thread(target=inheriting(spark, run), name="flambeau-warm-up", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def is_warm(spark: SparkSession) -> bool:
    """Whether the workers that ranks of this session used last still live, as far as can be told."""
    return time.monotonic() - _last_used.get(spark, -math.inf) < _IDLE_SECONDS


def used(spark: SparkSession) -> None:
    """Tells that ranks have just run on the session's workers."""
    _last_used[spark] = time.monotonic()


def _task(modules: tuple[str, ...]) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """What each task of the job runs."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import pyarrow

        for _ in batches:
            pass
        yield pyarrow.RecordBatch.from_pydict({"started": [True]})
        start_importing(modules)

    return task
