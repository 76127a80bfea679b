"""The rows of a DataFrame where they lie: in the files that it is read from, of which it may have some.

Spark stays the authority. One aggregate asks it where each row of the DataFrame lies, as a bitmap of each
file's rows, or their number where they are its first ones or all, after filters, deletion vectors, time
travel and whatever else a table's format knows; the columns that a fit reads must be the files' own, which
the optimized plan tells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from flambeau._reason import first_line
from flambeau._spark import session
from flambeau._spark.columns import find_field, quoted, type_name
from flambeau._spark.rows.shards import (
    DataColumns,
    ShardSet,
    Split,
    flag_of,
    in_order,
    refusals,
)
from flambeau._spark.site import Site
from flambeau._spark.work_directory import WorkDirectory
from flambeau._store import local_path
from flambeau.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_PARQUET_FORMAT = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
_DELTA_FORMAT = ".DeltaParquetFileFormat"
_ICEBERG_TABLE = "org.apache.iceberg.spark.source.SparkTable"
_ICEBERG_BASE = "org.apache.iceberg.BaseTable"

_RAW_TYPES = {"string", "binary", "long"}
"""The types that files have as `preprocess` gets them."""

_KEEP_ALL = {"Project", "SubqueryAlias"}
"""The operators of a plan that give all rows of what they read, in its order."""
_KEEP_ORDER = _KEEP_ALL | {"Filter"}
"""Those that give some, in its order."""
_KEEP_ROWS = _KEEP_ORDER | {
    "GlobalLimit",
    "LocalLimit",
    "Repartition",
    "RepartitionByExpression",
    "Sample",
    "Sort",
    "Window",
}
"""Those that give some, in any order. Others make rows, or drop some by their hidden columns too."""

_TABLES = {"LogicalRelation", "DataSourceV2ScanRelation"}
"""What plans read tables and files by."""

_STORES = {"s3a": "s3", "abfss": "abfs"}
"""Schemes that mean the same store as others."""


class NotInPlace(Exception):
    """Why rows can't be read in place. `is_notable` where a user may have expected otherwise, so that a log
    tells it.
    """

    def __init__(self, reason: str, *, is_notable: bool = True) -> None:
        super().__init__(reason)
        self.is_notable = is_notable


@dataclass(frozen=True)
class Format:
    """How files, or a table, tell of their rows."""

    file: str = "_metadata.file_path"
    """The hidden column that has the file of a row."""
    row: str = "_metadata.row_index"
    """That with its number in the file, from 0 on."""
    gives_paths: bool = False
    """Whether `file` gives paths that are no URIs: what URIs escape is as it is in them."""


PARQUET = DELTA = Format()
ICEBERG = Format("_file", "_pos", gives_paths=True)


@dataclass(frozen=True)
class Scan:
    """A DataFrame whose rows are some of those of files, each once, or all of them."""

    df: DataFrame
    format: Format
    files: Sequence[str]
    """Those that it reads, where they are known without a query, else none."""
    place: str
    """One of them, or the directory of the table."""
    has_all: bool
    constants: Sequence[str] = ()
    """The columns of a fit that have one value in each file, and are not in it."""

    @classmethod
    def of(cls, df: DataFrame, columns: DataColumns, keeps_order: bool) -> Scan:
        """How the rows of a DataFrame are read of its files, of which those columns are to be; with
        `keeps_order` as the DataFrame has them, else in any order. Raises NotInPlace.
        """
        if session.classic_context(df.sparkSession) is None:
            raise NotInPlace("Spark Connect does not tell which files a DataFrame is read from")
        from py4j.protocol import Py4JError

        try:
            return cls._of(df, columns, keeps_order)
        except Py4JError as error:
            raise NotInPlace(f"its plan can't be read ({type(error).__name__})", is_notable=False) from error

    @classmethod
    def _of(cls, df: DataFrame, columns: DataColumns, keeps_order: bool) -> Scan:
        execution = df._jdf.queryExecution()
        plan = execution.optimizedPlan()
        _, leaf = _chain(plan)
        format, files, place, constants = _read_by(leaf, columns.names())
        # The analyzed plan: the optimizer makes one operator of several, and drops views.
        operators, _ = _chain(execution.analyzed())
        if others := operators - _KEEP_ROWS:
            raise NotInPlace(f"not all of its rows are rows of files as they are ({min(others)})")
        if keeps_order and (others := operators - _KEEP_ORDER):
            raise NotInPlace(f"shuffle is off, and its rows are not in the order of files ({min(others)})")
        output, own, names = plan.output(), leaf.outputSet(), df.columns
        for name in columns.names():
            if names.count(name) != 1:
                raise NotInPlace(f"column {name!r} is not one of the files' own")
            if not own.contains(output.apply(names.index(name))):
                raise NotInPlace(f"column {name!r} is computed, and not one of the files' own")
        hidden = format.file.partition(".")[0]
        if hidden in map(str.lower, names):
            raise NotInPlace(f"it has a column {hidden!r}")
        _refuse_other_types(df.schema, columns)
        for tensor in columns.raw:
            if tensor.columns[0] in constants:
                raise NotInPlace(f"column {tensor.columns[0]!r} is a partition column, for preprocess")
        has_all = bool(files) and not constants and operators <= _KEEP_ALL
        return cls(df, format, files, place, has_all, constants)

    def shards(self, columns: DataColumns, site: Site, bitmaps: str) -> ShardSet:
        """The rows. Runs a Spark job where the plan doesn't say that these are all rows of the files, and
        writes `bitmaps`, a file of the work directory, where they are not the first ones of each.

        Raises DataError and StoreError for what workers would not read, and NotInPlace.
        """
        if self.has_all and columns.split is None:
            return ShardSet.inspected(columns, site, in_order(self.files), [], in_place=True)
        data = bytearray()
        train: list[dict[str, Any]] = []
        validation: list[dict[str, Any]] = []
        told: list[Any] = []
        for uri, is_validation, found, values in self._parts(columns.split):
            rows: Any = found
            if isinstance(found, bytes):
                rows = {"uri": bitmaps, "offset": len(data), "length": len(found)}
                data += found
            file = {"uri": uri, "rows": rows} | ({"values": values} if values else {})
            (validation if is_validation else train).append(file)
            told.append([is_validation, found if isinstance(found, int) else [len(found)], values])
        if data:
            site.put(bitmaps, bytes(data))
        digest = hashlib.sha256(json.dumps(told).encode() + data).hexdigest()
        shards = ShardSet.inspected(columns, site, train, validation, in_place=True)
        return replace(shards, selection_digest=digest)

    def _parts(self, split: Split | None) -> list[tuple[str, bool, int | bytes, dict[str, str]]]:
        """Of each file with rows, the URI, whether they are for validation, which they are (their number
        where they are the file's first ones, else a bit for each of the file's, from the first on, up to the
        last of them), and its values of `constants`. Ordered by the file.
        """
        flag = F.lit(False) if split is None else flag_of(split)
        values = [F.max(f"value{place}").alias(f"value{place}") for place in range(len(self.constants))]
        try:
            rows = self.df.select(
                F.col(self.format.file).alias("file"),
                F.col(self.format.row).alias("row"),
                flag.alias("flag"),
                *[
                    _as_text(self.df, name).alias(f"value{place}")
                    for place, name in enumerate(self.constants)
                ],
            )
            # Numbers are hashed; for Spark's own bitmaps (`bitmap_construct_agg`) all rows would be sorted
            # first, which takes three times as long.
            words = rows.groupBy("file", "flag", F.expr("row div 64").alias("word")).agg(
                F.count("*").alias("n"),
                F.expr("bit_or(shiftleft(1L, cast(row % 64 AS INT)))").alias("bits"),
                *values,
            )
            of_files = words.groupBy("file", "flag").agg(
                F.sum("n").alias("n"), F.collect_list(F.struct("word", "bits")).alias("words"), *values
            )
            told = "".join(f", value{place} string" for place in range(len(values)))
            joined = of_files.mapInArrow(
                _joined, f"file string, flag boolean, n long{told}, repeats boolean, bitmap binary"
            )
            with refusals():
                found = joined.collect()
        except AnalysisException as error:
            raise NotInPlace(f"Spark does not tell where its rows lie: {first_line(error)}") from error
        except DataError:
            raise
        except Exception as error:
            session.pause(0)
            if "cancel" in str(error).lower():
                raise
            # Such as for want of memory: it asks for more than writing the rows does.
            raise NotInPlace(f"the query of where its rows lie failed: {first_line(error)}") from error
        if any(row.repeats for row in found):
            raise NotInPlace("it has some rows of its files more than once")
        of_file = {(self._uri(row.file), row.flag): row for row in found}
        parts: list[tuple[str, bool, int | bytes, dict[str, str]]] = []
        for uri in in_order({uri for uri, _ in of_file}):
            for is_validation in (False, True):
                if (row := of_file.get((uri, is_validation))) is None:
                    continue
                constants = {name: row[f"value{place}"] for place, name in enumerate(self.constants)}
                for name, value in constants.items():
                    if value is None:
                        raise NotInPlace(f"column {name!r} holds a null")
                rows_read = row.n if row.bitmap is None else bytes(row.bitmap)
                parts.append((uri, is_validation, rows_read, constants))
        return parts

    def _uri(self, file: str) -> str:
        if not self.format.gives_paths or "://" not in file:
            return file
        scheme, _, rest = file.partition("://")
        authority, slash, path = rest.partition("/")
        return f"{scheme}://{authority}{slash}{quote(path)}"

    def is_reachable(self, work: WorkDirectory) -> bool:
        """Whether workers can be expected to read the files: they are files of theirs, or in a store like
        that of the work directory, or options were given for stores.
        """
        if local_path(self.place) is not None or work.store_options:
            return True
        here, there = (uri.partition(":")[0].lower() for uri in (self.place, work.uri))
        return _STORES.get(here, here) == _STORES.get(there, there)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """The words of each file as one bitmap, without the zeros at its end, and none where the rows are the
    file's first ones; and whether they have fewer bits than rows were counted.
    """
    import numpy as np
    import pyarrow

    for batch in batches:
        bitmaps, repeats = [], []
        for words, count in zip(batch.column("words"), batch.column("n").to_pylist(), strict=True):
            word, bits = (one.to_numpy() for one in words.values.flatten())
            whole = np.zeros(int(word.max()) + 1, "<i8")
            whole[word] = bits
            data = whole.view(np.uint8)
            bits = np.unpackbits(data, bitorder="little")
            bitmaps.append(None if bits[:count].all() else data.tobytes().rstrip(b"\0"))
            repeats.append(int(bits.sum(dtype=np.int64)) != count)
        kept = {name: batch.column(name) for name in batch.schema.names if name != "words"}
        made = {"repeats": repeats, "bitmap": pyarrow.array(bitmaps, pyarrow.binary())}
        yield pyarrow.RecordBatch.from_pydict(kept | made)


def _as_text(df: DataFrame, name: str) -> Column:
    """A column of numbers or booleans as workers take its value."""
    others = {"boolean": "int", "float": "double"}
    kind = df.schema[name].dataType.typeName()
    return F.col(quoted(name)).cast(others.get(kind, "string")).cast("string")


def _refuse_other_types(schema: StructType, columns: DataColumns) -> None:
    """Raises NotInPlace for columns that workers would find or read otherwise than Spark does, or gives them
    to `preprocess`.
    """
    for tensor, role in columns.tensors():
        for name in tensor.columns:
            field = find_field(schema, name, role)
            kind = field.dataType
            # Which Spark may look for in place of the name.
            if "parquet.field.id" in field.metadata:
                raise NotInPlace(f"column {name!r} has an id in its files (parquet.field.id)")
            if tensor.dtype == "bool" and kind.typeName() != "boolean":
                raise NotInPlace(f"column {name!r} is {type_name(kind)}, and read as bool")
    for tensor in columns.raw:
        kind = find_field(schema, tensor.columns[0], "input").dataType
        if kind.typeName() not in _RAW_TYPES:
            raise NotInPlace(f"column {tensor.columns[0]!r} is {type_name(kind)}, for preprocess")


def _read_by(leaf: Any, names: Sequence[str]) -> tuple[Format, Sequence[str], str, Sequence[str]]:
    """The format of what a plan reads, of which those columns are to be, the files that it reads as a whole
    where there are such, where they lie, and which of the columns have one value in each file and are not in
    it. Raises NotInPlace.
    """
    kind = leaf.getClass().getSimpleName()
    if kind == "LogicalRelation" and _class_of(leaf.relation()) == _FILES:
        return _of_files(leaf.relation(), names)
    if kind == "DataSourceV2ScanRelation" and _class_of(leaf.relation().table()) == _ICEBERG_TABLE:
        table = leaf.relation().table().table()
        _refuse_renamed(table, names)
        return ICEBERG, [], table.location(), ()
    if kind == "InMemoryRelation":
        raise NotInPlace("it is cached, and its rows are those of the cache")
    raise NotInPlace("it is not read from Parquet files, a Delta table or an Iceberg table", is_notable=False)


def _of_files(relation: Any, names: Sequence[str]) -> tuple[Format, Sequence[str], str, Sequence[str]]:
    """The same of a relation of Spark's own."""
    format, location = relation.fileFormat(), relation.location()
    # Of these, Spark has the values from its catalog, or from a table's log.
    constants = [name for name in relation.partitionSchema().fieldNames() if name in names]
    if (name := _class_of(format)) == _PARQUET_FORMAT:
        files = list(location.inputFiles())
        if len(set(files)) < len(files):
            raise NotInPlace("it has some rows of its files more than once")
        return PARQUET, files, files[0] if files else "", constants
    if not name.endswith(_DELTA_FORMAT):
        reason = f"its files are read by {name.rsplit('.', 1)[-1]}, and not as Parquet"
        raise NotInPlace(reason, is_notable=False)
    if format.columnMappingMode().name() != "none":
        raise NotInPlace("the columns of its files have other names (column mapping)")
    # Not its files, of which there may be very many.
    return DELTA, [], location.rootPaths().head().toString(), constants


def _refuse_renamed(table: Any, names: Sequence[str]) -> None:
    """Raises NotInPlace where a column of an Iceberg table may have had another name once, or its name may
    have been another's: files keep the names that they were written with.
    """
    if _class_of(table) != _ICEBERG_BASE:
        raise NotInPlace("it is not a table's rows, but rows about them", is_notable=False)
    if table.properties().containsKey("schema.name-mapping.default"):
        raise NotInPlace("the columns of its files have other names (schema.name-mapping.default)")
    now, schemas = table.schema(), table.schemas()
    if len(schemas) <= now.schemaId():
        raise NotInPlace("some of its former schemas are forgotten")
    for name in names:
        field = now.findField(name)
        if field is None:
            raise NotInPlace(f"column {name!r} is not one of the files' own")
        for schema in schemas.values():
            named, same = schema.findField(name), schema.findField(field.fieldId())
            if named is not None and (same is None or not same.equals(named)):
                raise NotInPlace(f"column {name!r} was another once, or of another type")
            if named is None and same is not None:
                raise NotInPlace(f"column {name!r} had another name once")


def _chain(plan: Any) -> tuple[set[str], Any]:
    """The operators of a plan by their names, and the plan of what they read. Raises NotInPlace where that is
    several things.
    """
    operators: set[str] = set()
    while (children := plan.children()).size() == 1:
        operators.add(plan.nodeName())
        plan = children.apply(0)
    if children.size() > 1:
        leaves = plan.collectLeaves()
        kinds = {leaves.apply(place).getClass().getSimpleName() for place in range(leaves.size())}
        raise NotInPlace("it is made of several tables", is_notable=bool(kinds & _TABLES))
    return operators, plan


def _class_of(thing: Any) -> str:
    return str(thing.getClass().getName())
