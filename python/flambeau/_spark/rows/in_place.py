"""The rows of a DataFrame where they lie: in the files that it is read from, of which it may have some.

Spark stays the authority. One aggregate asks it where each row of the DataFrame lies, as a bitmap of each
file's rows, after filters, deletion vectors, time travel and whatever else a table's format knows; the
columns that a fit reads must be the files' own, which the optimized plan tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from flambeau._spark import session
from flambeau._spark.rows.shards import (
    DataColumns,
    DataFile,
    ShardSet,
    flag_of,
    in_order,
    refusals,
)
from flambeau._spark.site import Site
from flambeau._spark.work_directory import WorkDirectory, new_id
from flambeau._store import local_path
from flambeau.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARQUET = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
_DELTA = ".DeltaParquetFileFormat"
_ICEBERG = "org.apache.iceberg.spark.source.SparkTable"

_IN_ORDER = {"Project", "Filter", "SubqueryAlias"}
"""The steps of a plan after which rows are those of their files, in their order."""
_IN_SOME_ORDER = _IN_ORDER | {
    "GlobalLimit",
    "LocalLimit",
    "Repartition",
    "RepartitionByExpression",
    "Sample",
    "Sort",
    "Window",
}
"""Those after which they are, in any order. Others may make rows, or drop some by their hidden columns."""

_BUCKET_ROWS = 32768
"""Rows of a bitmap of Spark's `bitmap_construct_agg`, which has 4 KiB."""


class NotInPlace(Exception):
    """Why rows can't be read in place. `is_scan` says whether they are those of one table or of files."""

    def __init__(self, reason: str, is_scan: bool = True) -> None:
        super().__init__(reason)
        self.is_scan = is_scan


@dataclass(frozen=True)
class Scan:
    """A DataFrame whose rows are some of those of files, each once."""

    df: DataFrame
    file: str = "_metadata.file_path"
    """The hidden column that has the file of a row."""
    row: str = "_metadata.row_index"
    """That with its number in the file, from 0 on."""
    has_all: bool = False
    """Whether it has all rows of its files."""
    has_paths: bool = False
    """Whether `file` gives paths that are no URIs: what URIs escape is as it is in them."""

    @classmethod
    def of(cls, df: DataFrame, columns: DataColumns, keeps_order: bool) -> Scan:
        """How the rows of a DataFrame are read of its files, of which those columns are to be; with
        `keeps_order` as the DataFrame has them, else in any order. Raises NotInPlace.
        """
        if session.classic_context(df.sparkSession) is None:
            raise NotInPlace("Spark Connect does not tell which files a DataFrame is read from", False)
        from py4j.protocol import Py4JError

        try:
            return cls._of(df, columns, keeps_order)
        except Py4JError as error:
            raise NotInPlace(f"its plan can't be read ({type(error).__name__})", False) from error

    @classmethod
    def _of(cls, df: DataFrame, columns: DataColumns, keeps_order: bool) -> Scan:
        execution = df._jdf.queryExecution()
        # As they were asked for: the optimizer makes one step of what is not alike here.
        *steps, _ = _steps(execution.analyzed())
        plan = execution.optimizedPlan()
        *_, leaf = _steps(plan)
        kind = leaf.getClass().getSimpleName()
        if kind == "LogicalRelation" and hasattr(leaf.relation(), "fileFormat"):
            scan = _of_files(cls(df), leaf.relation())
        elif kind == "DataSourceV2ScanRelation" and _class_of(leaf.relation().table()) == _ICEBERG:
            _refuse_renamed(leaf.relation().table().table(), columns.names())
            scan = cls(df, "_file", "_pos", has_paths=True)
        else:
            raise NotInPlace("it is not read from Parquet files, a Delta table or an Iceberg table", False)
        if others := set(steps) - _IN_SOME_ORDER:
            raise NotInPlace(f"not all of its rows are rows of files as they are ({min(others)})")
        if keeps_order and (others := set(steps) - _IN_ORDER):
            raise NotInPlace(f"shuffle is off, and its rows are not in the order of files ({min(others)})")
        output, own, names = plan.output(), leaf.outputSet(), df.columns
        for name in columns.names():
            if names.count(name) != 1:
                raise NotInPlace(f"column {name!r} is not one of the files' own")
            if not own.contains(output.apply(names.index(name))):
                raise NotInPlace(f"column {name!r} is computed, and not one of the files' own")
        if scan.file.partition(".")[0] in names:
            raise NotInPlace(f"it has a column {scan.file.partition('.')[0]!r}")
        return replace(scan, has_all=scan.has_all and set(steps) <= {"Project", "SubqueryAlias"})

    @contextmanager
    def shards(self, columns: DataColumns, site: Site) -> Iterator[ShardSet]:
        """The rows for the time of the block. Runs Spark jobs where these are not all rows of the files.

        Raises DataError and StoreError for what workers would not read, and NotInPlace.
        """
        if self.has_all and columns.split is None:
            yield inspected(columns, site, in_order(self.df.inputFiles()), [])
            return
        name = new_id()
        uri = site.work.path("shards", name, "rows")
        bits = bytearray()
        files: list[list[DataFile]] = [[], []]
        for path, is_validation, bitmap in self._bitmaps(columns):
            rows = {"uri": uri, "offset": len(bits), "length": len(bitmap)}
            files[is_validation].append({"uri": path, "rows": rows})
            bits += bitmap
        try:
            site.put(uri, bytes(bits))
            yield inspected(columns, site, *files)
        finally:
            site.remove("shards", name)

    def _bitmaps(self, columns: DataColumns) -> Iterator[tuple[str, bool, bytes]]:
        """Of each file with rows, the URI, whether they are for validation, and which they are, a bit for
        each from the file's first on. Ordered by the file.
        """
        flag = F.lit(False) if columns.split is None else flag_of(columns.split)
        # Spark's bitmaps number from 1 on.
        row = F.col("row") + 1
        bits = F.bitmap_construct_agg(F.bitmap_bit_position(row))
        try:
            rows = self.df.select(
                F.col(self.file).alias("file"), F.col(self.row).alias("row"), flag.alias("flag")
            )
            found = rows.groupBy("file", "flag", F.bitmap_bucket_number(row).alias("bucket")).agg(
                F.count("*").alias("count"), bits.alias("bits")
            )
            # Most are full, where few rows are left out.
            is_full = F.col("count") == _BUCKET_ROWS
            found = found.withColumn("bits", F.when(~is_full, F.col("bits")))
            with refusals():
                buckets = found.collect()
        except AnalysisException as error:
            raise NotInPlace(f"Spark does not tell where its rows lie ({error.getCondition()})") from error
        by_file: dict[tuple[str, bool], dict[int, bytes]] = {}
        for file, is_validation, bucket, count, part in buckets:
            part = b"\xff" * (_BUCKET_ROWS // 8) if part is None else bytes(part)
            if int.from_bytes(part).bit_count() != count:
                raise NotInPlace("it has some rows of its files more than once")
            by_file.setdefault((self._uri(file), is_validation), {})[bucket - 1] = part
        for file, is_validation in sorted(by_file, key=lambda key: (key[0].rsplit("/", 1), key[1])):
            parts = by_file[file, is_validation]
            empty = bytes(_BUCKET_ROWS // 8)
            whole = b"".join(parts.get(bucket, empty) for bucket in range(max(parts) + 1))
            yield file, is_validation, whole.rstrip(b"\0")

    def _uri(self, file: str) -> str:
        scheme, separator, path = file.partition(":")
        return f"{scheme}:{quote(path)}" if self.has_paths and separator else file


def reaches(df: DataFrame, work: WorkDirectory) -> bool:
    """Whether workers can be expected to read what `df` is read from: files of theirs, or of a store like
    that of the work directory, or of one that options were given for.
    """
    files = df.inputFiles()[:1]
    schemes = [uri.partition(":")[0] for uri in files if local_path(uri) is None]
    return bool(work.store_options) or all(work.uri.startswith(f"{scheme}:") for scheme in schemes)


def _of_files(scan: Scan, relation: Any) -> Scan:
    """The scan of a relation of Spark's own. Raises NotInPlace."""
    format = relation.fileFormat()
    if (name := _class_of(format)) == _PARQUET:
        if not relation.overlappedPartCols().isEmpty():
            raise NotInPlace("its partition columns are in the files too")
        return replace(scan, has_all=True)
    if not name.endswith(_DELTA):
        raise NotInPlace(f"its files are read by {name.rsplit('.', 1)[-1]}, and not as Parquet", False)
    if format.columnMappingMode().name() != "none":
        raise NotInPlace("the columns of its files have other names (column mapping)")
    return scan


def _refuse_renamed(table: Any, names: Sequence[str]) -> None:
    """Raises NotInPlace where a column of an Iceberg table had another name once, or its name was another's:
    files keep the names that they were written with.
    """
    for name in names:
        field = table.schema().findField(name)
        if field is None:
            raise NotInPlace(f"column {name!r} is not one of the files' own")
        for schema in table.schemas().values():
            named, same = schema.findField(name), schema.findField(field.fieldId())
            if named is not None and (same is None or not same.equals(named)):
                raise NotInPlace(f"column {name!r} was another once, or of another type")
            if named is None and same is not None:
                raise NotInPlace(f"column {name!r} had another name once")


def _steps(plan: Any) -> list[Any]:
    """The names of a plan's steps from the last one on, and at the end the plan of what they read. Raises
    NotInPlace where that is several things.
    """
    steps: list[Any] = []
    while (children := plan.children()).size() == 1:
        steps.append(plan.nodeName())
        plan = children.apply(0)
    if children.size() > 1:
        raise NotInPlace("it is made of several tables", False)
    return [*steps, plan]


def _class_of(thing: Any) -> str:
    return str(thing.getClass().getName())


def inspected(
    columns: DataColumns, site: Site, train: Sequence[DataFile], validation: Sequence[DataFile]
) -> ShardSet:
    """The files as a training finds them. Raises DataError and StoreError as it would."""
    counts = [0, 0]
    known = columns
    for place, files in enumerate((train, validation)):
        found = site.ask("inspectRows", files=list(files), spec=known.spec_json()) if files else None
        if found is not None:
            counts[place] = found["numRows"]
            known = _with_shapes(known, found["spec"])
    if counts[0] == 0:
        why = "all rows are for validation" if counts[1] else "there are no rows"
        raise DataError(f"there is nothing to train on: {why}")
    return ShardSet(known, list(train), list(validation), *counts)


def _with_shapes(columns: DataColumns, spec: Mapping[str, Any]) -> DataColumns:
    """The columns with the shapes that a spec has."""
    tensors = [*spec["inputs"], *spec["labels"], *([spec["weight"]] if spec["weight"] else [])]
    shapes = {(one["name"], *one["columns"]): tuple(one["shape"]) for one in tensors}
    return columns.with_shapes(lambda tensor: shapes[tensor.name, *tensor.columns])
