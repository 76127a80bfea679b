"""A run in the work directory: what a fit that did not succeed leaves for the next one to go on from.

What its file says, and which fit may go on, `native/supervisor` knows; what tells a job from others is here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from flambeau._spark import session
from flambeau._spark.fit.claim import is_lost
from flambeau._spark.fit.fingerprint import digest_of
from flambeau._spark.site import Site
from flambeau._store import local_path

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_TASKS = 64


@dataclass
class Run:
    """A run of one job on some rows. `what` gives what tells the job apart from others (`job_of`), and is
    called where that is asked for; `files` are the shards, of which `selection_digest` tells the rows where
    they are not all; rows `in_place` are the user's own files. One that `is_named` has its name from the
    user.
    """

    site: Site
    id: str
    what: Callable[[], Mapping[str, Any]]
    files: Sequence[str] = field(default_factory=tuple)
    selection_digest: str | None = None
    in_place: bool = False
    is_named: bool = True

    @property
    def is_lost(self) -> bool:
        """Whether another driver has taken it, whose checkpoints and file are left alone."""
        return self.is_named and is_lost(self.site.work, self.id)

    def attempts(self) -> list[str]:
        """The attempts that earlier fits of the run made, oldest first; none for a run that is new.

        Raises ParamError where they were of another job or on other rows, or the run's file can't be read.
        """
        found = self.site.ask("readRun", id=self.id)
        if found is None:
            return []
        # Those that were copied then are others than those of the user's files.
        work, what = self.site.work, self._identity(found["readsAll"] and not self.in_place)
        # In this process: it needs nothing of the directory.
        names: list[str] = work.ask("compareRun", id=self.id, run=found["run"], what=what)
        return names

    def write(self, attempts: Sequence[str]) -> None:
        """Notes the attempts. Raises StoreError.

        The first time it reads all rows that were written for a run that is named. Of the user's files, which
        may be many times as large, and of other runs, which only a failure notes, it reads no more than the
        ends.
        """
        if (note := self.note()) is not None:
            self.site.ask("writeRun", attempts=list(attempts), **note)

    def note(self) -> dict[str, Any] | None:
        """What the supervisor writes of the run beside its attempts; None where another driver has it."""
        if self.is_lost:
            return None
        return {"id": self.id, "what": self._identity(reads_all=self.is_named and not self.in_place)}

    def remove(self) -> None:
        """Removes the run's file; a failure is told and no more."""
        self.site.remove("runs", f"{self.id}.json")

    def _identity(self, reads_all: bool) -> dict[str, Any]:
        rows = self._all_rows if reads_all else self._ends_of_rows
        selected = [] if self.selection_digest is None else [self.selection_digest]
        return {"job": self._job, "rows": [*rows, *selected], "readsAll": reads_all}

    @cached_property
    def _job(self) -> Mapping[str, Any]:
        return self.what()

    @cached_property
    def _all_rows(self) -> list[str]:
        """A digest of each shard: here where workers are this machine's and have them as files, else in
        tasks, which share the reading.
        """
        paths = [local_path(uri) for uri in self.files]
        is_local = session.is_local(self.site.spark)
        if is_local and all(path is not None and path.is_file() for path in paths):
            here: list[str] = self.site.work.ask("digestFiles", files=list(self.files), ends=False)
            return here
        return _digests_by_tasks(self.site, list(self.files))

    @cached_property
    def _ends_of_rows(self) -> list[str]:
        found: list[str] = self.site.ask("digestFiles", files=list(self.files), ends=True)
        return found


def job_of(
    params: Mapping[str, Any], runtime: str, objects: Mapping[str, Any], initial: str | None = None
) -> dict[str, Any]:
    """What tells a job apart from others, as JSON: its params, a digest of each object, and that of the
    `initial` weights, which count by their contents, wherever they lie.

    Parameters and buffers of the model do not count by their values, which a run takes from its checkpoints.
    """
    digests = {name: digest_of(value, trained=name == "model") for name, value in objects.items()}
    job = {**params, "runtime": runtime, **digests}
    return job if initial is None else {**job, "initialModel": initial}


def _digests_by_tasks(site: Site, files: Sequence[str]) -> list[str]:
    """The digests of files, read in Spark tasks."""
    work = site.work

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            yield session.answer_of(partial(digests, batch.column(0).to_pylist()))

    def digests(numbers: Sequence[int]) -> bytes:
        found = work.ask("digestFiles", files=[files[number] for number in numbers], ends=False)
        return json.dumps(list(zip(numbers, found, strict=True))).encode()

    tasks = site.spark.range(0, len(files), 1, min(len(files), _MAX_TASKS))
    answers = tasks.mapInArrow(task, session.ANSWER).collect()
    found = dict(pair for answer in answers for pair in json.loads(session.answered(answer)))
    return [found[number] for number in range(len(files))]
