"""Several fits on one DataFrame, whose rows are written once for all fits that read the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flambeau._fit import cluster
from flambeau._fit.shards import DataColumns, ShardSet
from flambeau._fit.training import Training
from flambeau._workdir import WorkDirectory, new_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from flambeau.estimator import TorchEstimator


class Fits(Iterator[tuple[int, Any]]):
    """Gives `(index, model)` for each estimator, each fitted when it is asked for; safe to share among
    threads.

    Shards are removed when the last fit has ended, well or not.
    """

    def __init__(self, estimators: Sequence[TorchEstimator], df: DataFrame) -> None:
        self._estimators = estimators
        self._df = df
        self._lock = threading.Lock()
        self._next = 0
        self._unfinished = len(estimators)
        self._shards: dict[tuple[DataColumns, WorkDirectory], _SharedShards] = {}

    def __next__(self) -> tuple[int, Any]:
        with self._lock:
            index = self._next
            if index == len(self._estimators):
                raise StopIteration
            self._next += 1
        try:
            return index, self._fit(self._estimators[index])
        finally:
            with self._lock:
                self._unfinished -= 1
                shared = list(self._shards.values()) if self._unfinished == 0 else []
            for shards in shared:
                shards.remove()

    def _fit(self, estimator: TorchEstimator) -> Any:
        training = Training.of(estimator, self._df.sparkSession)
        columns = training.columns(self._df.schema)

        def train() -> Any:
            visible = training.prepare()
            with self._lock:
                key = (columns, training.work)
                shared = self._shards.setdefault(key, _SharedShards(training, visible))
            return training.run(shared.get(self._df, columns), columns.inputs, visible)

        return cluster.interruptible(training.spark, train)


class _SharedShards:
    """One shard set, written by the first fit that asks for it while the others wait."""

    def __init__(self, training: Training, visible: bool) -> None:
        self._training = training
        self._visible = visible
        self._name = new_id()
        self._lock = threading.Lock()
        self._written: ShardSet | None = None

    def get(self, df: DataFrame, columns: DataColumns) -> ShardSet:
        """The shards. Waits for the Spark job that writes them."""
        with self._lock:
            if self._written is None:
                # What an earlier try left would make Spark refuse the directory.
                self._name = new_id()
                self._written = self._training.write(df, columns, self._name)
            return self._written

    def remove(self) -> None:
        """Deletes the shards; a failure is told and no more."""
        with suppress(Exception):
            self._training.remove_shards(self._name, self._visible)
