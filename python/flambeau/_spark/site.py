"""Where the files of a fit lie, and who sees them.

A driver may not see the work directory, as a Spark Connect client on another machine. What is to be done
there is done here where this process sees it, else in a Spark task: `Site` is the one place that asks.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flambeau._reason import first_line
from flambeau._spark import session
from flambeau._spark.directory import qualified
from flambeau._spark.extension import ask_worker
from flambeau._spark.work_directory import (
    LEASE_SECONDS,
    PROBES,
    WorkDirectory,
    beating,
    new_id,
    temporary_directory,
)
from flambeau._store import STORE_SCHEMES, local_path
from flambeau.errors import FlambeauError, ParamError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger("flambeau")

WORK_DIR = "spark.flambeau.workDir"
"""The setting that names the work directory of fits whose `workDir` is not set."""

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Site:
    """A work directory as the driver and the workers of a session see it; `visible` says whether this process
    does.
    """

    spark: SparkSession
    work: WorkDirectory
    visible: bool

    @classmethod
    def of(cls, spark: SparkSession, work: WorkDirectory) -> Site:
        """The site of a work directory that workers reach; one of them writes what this process looks for."""
        return cls(spark, work, _is_visible(spark, work))

    def ask(self, ask: str, **fields: Any) -> Any:
        """The supervisor's answer to a question about the directory, as `WorkDirectory.ask`."""
        return self.where_seen(lambda work: work.ask(ask, **fields))

    def where_seen(self, act: Callable[[WorkDirectory], Any]) -> Any:
        """What `act` returns where the directory is seen, which must be JSON. Raises what it raises there."""
        work = self.work
        return act(work) if self.visible else ask_worker(self.spark, lambda: act(work))

    def put(self, uri: str, data: bytes) -> None:
        """Writes a file, however large. Raises StoreError."""
        work = self.work
        if self.visible:
            work.store().put(uri, data)
            return

        def write(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            with tempfile.NamedTemporaryFile() as file:
                for batch in batches:
                    for chunk in batch.column("chunk"):
                        file.write(chunk.as_buffer())
                file.flush()

                def put() -> bytes:
                    work.store().put_file(uri, file.name)
                    return b""

                yield session.answer_of(put)

        starts = range(0, len(data), _CHUNK_BYTES)
        chunks = [(start, bytearray(data[start : start + _CHUNK_BYTES])) for start in starts]
        rows = self.spark.createDataFrame(chunks, "start long, chunk binary").repartition(1)
        (row,) = rows.sortWithinPartitions("start").mapInArrow(write, session.ANSWER).collect()
        session.answered(row)

    def remove(self, *parts: str) -> None:
        """Deletes what lies under a path of the directory. A failure is told and no more, so that it hides
        neither a result nor an earlier error.
        """
        try:
            self.ask("remove", path="/".join(parts))
        except Exception as error:
            log.warning("%s could not be removed: %s", self.work.path(*parts), first_line(error))


@contextmanager
def leased(site: Site, since: str) -> Iterator[None]:
    """Keeps the sweeps of other fits from what was made in the directory since the id `since` was, while the
    block runs. A failure to write the lease is told and no more.
    """
    lease = new_id(since)

    def hold() -> None:
        site.ask("holdLease", lease=lease)

    def drop() -> None:
        site.ask("dropLease", lease=lease)

    with beating("the lease of a fit", hold, drop, LEASE_SECONDS, begins=True):
        yield


def _is_visible(spark: SparkSession, work: WorkDirectory) -> bool:
    """Whether this process sees what workers write into the work directory; true of classic Spark in local
    mode.
    """
    if session.classic_context(spark) is not None and session.is_local(spark):
        return True
    probe = f"{PROBES}/{new_id()}"
    uri = work.path(probe, "seen")
    ask_worker(spark, lambda: work.store().put(uri, b"seen"))
    visible = work.sees(uri)
    # What stays is swept later.
    with suppress(FlambeauError):
        ask_worker(spark, lambda: work.ask("remove", path=probe))
    return visible


def sweep(site: Site) -> None:
    """Removes what crashed fits left in the work directory long ago; a failure is told and no more."""
    try:
        for swept in site.ask("sweep"):
            uri, days, error = swept["uri"], swept["days"], swept["error"]
            if error is None:
                log.info("removed %s, left behind %s days ago", uri, days)
            else:
                log.warning("%s, left behind %s days ago, could not be removed: %s", uri, days, error)
    except Exception as error:
        uri = site.work.uri
        log.warning("what older fits left in %s could not be removed: %s", uri, first_line(error))


def work_directory(spark: SparkSession, given: str | None, store_options: Mapping[str, str]) -> WorkDirectory:
    """The work directory of a fit: the given one, that of `spark.flambeau.workDir`, or a temporary one in
    local mode.
    """
    options = tuple(sorted(store_options.items()))
    given = given or session.setting(spark, WORK_DIR) or None
    if given is not None:
        return WorkDirectory(store_uri(spark, "workDir", given), options)
    if session.is_local(spark):
        return WorkDirectory(temporary_directory(), options, is_temporary=True)
    raise ParamError(
        f"workDir must be given on a cluster, or {WORK_DIR} be set: a directory that the driver and all "
        "workers reach, such as a path on shared storage or an s3, abfss or gs URI"
    )


def store_uri(spark: SparkSession, name: str, given: str) -> str:
    """A directory as the native store takes it, of one that the param `name` names as Spark does. Raises
    ParamError where it is in a store that is not supported.
    """
    # Databricks mounts these, whatever its default file system is.
    stays = re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|/(dbfs|Volumes|Workspace)/", given)
    uri = given if stays else qualified(spark, given)
    found = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*):", uri)
    if found is None:
        # A client's own system may write paths in another way than the workers'.
        return posixpath.normpath(uri) if uri.startswith("/") else os.path.abspath(uri)
    scheme = found[1].lower()
    if scheme not in STORE_SCHEMES:
        way_out = (
            ""
            if stays
            else f"; {given} lies there by fs.defaultFS, a path that all machines see is file:///..."
        )
        raise ParamError(
            f"{name}: the scheme `{scheme}` of {uri} is not supported; "
            f"supported: local paths, {', '.join(STORE_SCHEMES[1:])}{way_out}"
        )
    is_local_file = scheme == "file" and not stays
    return str(local_path(uri)) if is_local_file else uri.rstrip("/")
