"""A run in the work directory: what a fit that did not succeed leaves for the next one to go on from.

`runs/<id>.json` says what was trained on which rows, and which attempts have its checkpoints. Only the same
job on the same rows goes on from them, since anything else would not end in what either of the two had come
to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flambeau._fit import cluster
from flambeau._fit.launch import remove
from flambeau._fit.told import digest, digest_of
from flambeau._workdir import WorkDirectory
from flambeau.errors import ParamError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql import SparkSession

_FORMAT = 2
_PIECE = 8 << 20
_END = 256 << 10

# What a run may change between its fits, since no bit of its result depends on it.
_FREE = {
    "checkpointInterval",
    "checkpointSteps",
    "collectiveTimeout",
    "heartbeatTimeout",
    "inferenceBatchSize",
    "keepCheckpoints",
    "maxRestarts",
    "memoryBudget",
    "predictionCol",
    "probabilityCol",
    "rawPredictionCol",
    "runId",
    "slotTimeout",
    "threshold",
    "thresholds",
    "verbose",
    "verifyReplicas",
    "workDir",
}


@dataclass
class Run:
    """A run of one job on some rows. `what` gives what tells the job apart from others (`job_of`), and is
    called where that is asked for; `files` are the shards. One that `is_named` has its name from the user.
    """

    spark: SparkSession
    work: WorkDirectory
    visible: bool
    id: str
    what: Callable[[], Mapping[str, Any]]
    files: Sequence[str] = field(default_factory=tuple)
    is_named: bool = True

    def attempts(self) -> list[str]:
        """The attempts that earlier fits of the run made, oldest first; none for a run that is new.

        Raises ParamError where they were of another job or on other rows, or the run's file can't be read.
        """
        told = self._read()
        if told is None:
            return []
        rows = self._all_rows if told["readAll"] else self._ends_of_rows
        then, now = {**told["what"], "rows": told["rows"]}, {**self._job, "rows": rows}
        different = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
        if different:
            said = _difference(different[0], then, now)
            raise ParamError(
                f"runId {self.id!r} in {self.work.uri} is a run of another job: {said}; "
                "take another runId to train anew, or give what it was"
            )
        names: list[str] = told["attempts"]
        return names

    def write(self, attempts: Sequence[str]) -> None:
        """Notes the attempts. Raises StoreError.

        The first time it reads all rows of a run that is named; of others, which only a failure notes, no
        more than the ends of their files.
        """
        told = {"format": _FORMAT, "attempts": list(attempts), "what": self._job, "readAll": self.is_named}
        told["rows"] = self._all_rows if self.is_named else self._ends_of_rows
        uri, data, options = self.uri, json.dumps(told).encode(), dict(self.work.store_options)

        def put() -> None:
            from flambeau import _native

            _native.Store(options).put(uri, data)

        self.here(put)

    @cached_property
    def _job(self) -> Mapping[str, Any]:
        return self.what()

    @cached_property
    def _all_rows(self) -> str:
        """A SHA-256 of the shards' bytes, in their order."""
        return digest(_hashes(self.spark, self.files, dict(self.work.store_options)))

    @cached_property
    def _ends_of_rows(self) -> str:
        """A SHA-256 of the sizes and ends of the shards, in their order: of small files the whole, of others
        the footer, which has the numbers, ranges and places of the values of each row group.
        """
        ends = self.here(partial(_ends, list(self.files), dict(self.work.store_options)))
        return digest(ends)

    def remove(self) -> None:
        """Removes the run's file; a failure is told and no more."""
        remove(self.spark, self.work, self.visible, "runs", f"{self.id}.json")

    @property
    def uri(self) -> str:
        """The run's file."""
        return self.work.path("runs", f"{self.id}.json")

    def here(self, function: Any) -> Any:
        """Calls a function of the work directory, in a Spark task where this process does not see it."""
        return function() if self.visible else cluster.on_worker(self.spark, function)

    def _read(self) -> dict[str, Any] | None:
        """What the run's file says; None where there is none, or its attempts have no checkpoint. Raises
        ParamError where it says something else.
        """
        uri, work = self.uri, self.work

        def read() -> dict[str, Any] | None:
            from flambeau import _native

            store = _native.Store(dict(work.store_options))
            if store.size(uri) is None:
                return None
            told: Any = None
            with suppress(ValueError):
                told = json.loads(store.get(uri))
            if not isinstance(told, dict) or "attempts" not in told:
                return {}
            # A sweep removes those that are old; a run's file has a name of the user's, without an age.
            places = (work.path("attempts", name, "checkpoints") for name in told["attempts"])
            if not any(found.endswith("/COMMITTED") for place in places for found in store.list(place)):
                return None
            return told if told.get("format") == _FORMAT else {}

        told: dict[str, Any] | None = self.here(read)
        if told == {}:
            raise ParamError(
                f"runId {self.id!r}: {uri} is damaged, or another version of flambeau wrote it: remove it to "
                "train anew, or take another runId"
            )
        return told


def job_of(params: Mapping[str, Any], runtime: str, objects: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a job apart from others, as JSON: its params, and a digest of each object.

    Parameters and buffers of the model do not count by their values, which a run takes from its checkpoints.
    """
    told = {name: value for name, value in params.items() if name not in _FREE}
    digests = {name: digest_of(value, trained=name == "model") for name, value in objects.items()}
    return told | {"runtime": runtime} | digests


def _difference(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if name == "rows":
        return "its rows were others, or in another order (sort them, or use fitOnParquet on files)"
    if name in ("model", "loss", "optimizer", "metrics"):
        return f"its {name} was another"
    return f"{name} was {then.get(name)!r} and is {now.get(name)!r}"


def _hashes(spark: SparkSession, files: Sequence[str], options: dict[str, str]) -> list[str]:
    """The SHA-256 of each file: here where this process sees them, else in Spark tasks."""
    from flambeau._saved.weights import local_path

    paths = [local_path(uri) for uri in files]
    if all(path is not None and path.is_file() for path in paths):
        return [_file_hash(path) for path in paths if path is not None]
    uris = list(files)

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import hashlib

        import pyarrow

        from flambeau import _native

        store = _native.Store(options)
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            found = []
            for number in numbers:
                sha, size = hashlib.sha256(), store.size(uris[number]) or 0
                for start in range(0, size, _PIECE):
                    sha.update(store.get_range(uris[number], start, min(size, start + _PIECE)))
                found.append(sha.hexdigest())
            yield pyarrow.RecordBatch.from_pydict({"number": numbers, "sha": found})

    tasks = spark.range(0, len(uris), 1, min(len(uris), 64)).mapInArrow(task, "number long, sha string")
    found = {row.number: row.sha for row in tasks.collect()}
    return [found[number] for number in range(len(uris))]


def _ends(files: Sequence[str], options: dict[str, str]) -> list[Any]:
    """The size of each file and the SHA-256 of its last bytes."""
    from concurrent.futures import ThreadPoolExecutor

    from flambeau import _native

    store = _native.Store(options)

    def end(uri: str) -> list[Any]:
        size = store.size(uri) or 0
        return [size, hashlib.sha256(store.get_range(uri, max(0, size - _END), size)).hexdigest()]

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(end, files))


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
