"""Files that one of Spark's processes sees and another may not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flambeau._saved.weights import WeightsRef, read_range
from flambeau._spark.session import ANSWER, answer_of, answered, setting
from flambeau._store import cached
from flambeau.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PIECE = 64 << 20


@contextmanager
def fetched(ref: WeightsRef, spark: SparkSession | None = None) -> Iterator[Path]:
    """A local file with the weights for the time of the block: the file itself where this process sees it,
    else this machine's copy, made by Hadoop where its file systems alone have the file, or through Spark's
    workers.
    """
    if ref.visible():
        yield ref.local()
        return
    if spark is None:
        from pyspark.sql import SparkSession as Session

        spark = Session.active()

    def copy(part: Path) -> None:
        if ref.is_hadoops:
            download(spark, ref.uri, part)
        else:
            read_through_spark(spark, ref, part)

    yield cached(ref.uri, ref.sha256, copy)


def handed_out(ref: WeightsRef, spark: SparkSession) -> WeightsRef:
    """The reference to a file that Hadoop's file systems alone have, for Python's workers, which have none of
    them: with its bytes as a broadcast.
    """
    with fetched(ref, spark) as path:
        return replace(ref, content=spark.sparkContext.broadcast(path.read_bytes()))


def hadoop_path(spark: SparkSession, path: str) -> Any:
    """A path or a URI as Hadoop's class of that name."""
    jvm: Any = spark.sparkContext._jvm
    has_scheme = path.startswith("file:") or "://" in path
    return jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(path) if has_scheme and "%" in path else path)


def hadoop_file_system(spark: SparkSession, path: Any) -> Any:
    """Hadoop's file system of one of its paths."""
    context: Any = spark.sparkContext
    return path.getFileSystem(context._jsc.hadoopConfiguration())


def download(spark: SparkSession, uri: str, target: Path) -> None:
    """Copies a file to a local one by Hadoop's file system."""
    source = hadoop_path(spark, uri)
    to = hadoop_path(spark, f"file://{target}")
    hadoop_file_system(spark, source).copyToLocalFile(False, source, to, True)


def hadoop_copy(spark: SparkSession, uri: str, sha256: str) -> Path:
    """This machine's copy of a file that only Hadoop's file systems have."""
    return cached(uri, sha256, lambda part: download(spark, uri, part))


def read_through_spark(spark: SparkSession, ref: WeightsRef, target: Path, chunk: int | None = None) -> None:
    """Copies a file that the workers see, and this process does not, to a local one.

    It comes in chunks, one query each, so that no result is larger than a quarter of
    `spark.driver.maxResultSize`. Raises FlambeauError where the workers do not see it either.
    """
    chunk = chunk or chunk_size(spark)
    with target.open("wb") as file:
        for start in range(0, ref.size, chunk):
            file.write(_read_range(spark, ref, start, min(start + chunk, ref.size)))


def chunk_size(spark: SparkSession) -> int:
    """Bytes to read in one query: a quarter of what a driver accepts, at most 64 MiB."""
    text = setting(spark, "spark.driver.maxResultSize", "1g")
    match = re.fullmatch(r"\s*(\d+)\s*([kmgtp]?)i?b?\s*", text.lower())
    limit = (
        int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}[match[2]] if match else 1 << 30
    )
    return min(limit // 4, _PIECE) if limit else _PIECE


def _read_range(spark: SparkSession, ref: WeightsRef, start: int, stop: int) -> bytes:
    """Bytes `start` to `stop` of a file, read by a worker."""
    step = max(1, -(-(stop - start) // 4))
    pieces = [(at, min(at + step, stop)) for at in range(start, stop, step)]

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield answer_of(partial(read_range, ref, *pieces[index]))

    # Answers come in the order of their partitions.
    answers = spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(cast(Any, read), ANSWER).collect()
    data = b"".join(map(answered, answers))
    if len(data) != stop - start:
        raise StoreError(f"{ref.uri} is shorter than its {ref.size} bytes")
    return data
