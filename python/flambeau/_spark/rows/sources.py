"""The rows that a fit is given: a DataFrame's, written as shards, those that were prepared, or those of
Parquet files in place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql.types import BooleanType, StructField, StructType

from flambeau._reason import first_line
from flambeau._spark.rows import examples
from flambeau._spark.rows import shards as shard_files
from flambeau._spark.rows.in_place import PARQUET, NotInPlace, Scan
from flambeau._spark.rows.prepared import PreparedData
from flambeau._spark.rows.shards import DataColumns, ShardSet
from flambeau._spark.site import Site
from flambeau._spark.work_directory import new_id
from flambeau.errors import DataError, StoreError
from flambeau.params import HasTrainingParams

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("flambeau")

_TABLE_FORMATS = {
    "Delta": "_delta_log",
    "Iceberg": "metadata/*.metadata.json",
    "Hudi": ".hoodie",
}

_SHARDS, _BITMAPS = "data", "bitmaps"
"""What a fit's directory has: the rows, or the file that says which rows of others these are."""

Meanwhile = Callable[[], AbstractContextManager[Any]]
"""What goes on for as long as rows are written."""


@dataclass(frozen=True)
class Reading:
    """How a fit reads its rows: the params that say which columns, in which order and where, and as `resolve`
    has them, the labels' type, whether the module computes in float64, and the arguments of its forward.
    """

    params: HasTrainingParams
    label_dtype: str | None
    wide: bool
    arguments: Sequence[str] = ()


class Rows(Protocol):
    """The rows of a fit."""

    @property
    def spark(self) -> SparkSession:
        """The session that reads them."""

    @property
    def dataset(self) -> Any:
        """What was given to fit on: a DataFrame, prepared data, or a path."""

    def columns(self, reading: Reading) -> DataColumns:
        """The columns that a fit reads. Raises DataError and ParamError."""

    def first(self, columns: DataColumns) -> pa.RecordBatch:
        """What `preprocess` gets of the first rows, as `examples.first_rows` has it, for it to be tried on.
        Runs a Spark job; raises DataError.
        """

    def shards(
        self, columns: DataColumns, reading: Reading, site: Site, meanwhile: Meanwhile
    ) -> AbstractContextManager[ShardSet]:
        """The rows as Parquet files, which workers see for the time of the block."""


@contextmanager
def _held(site: Site) -> Iterator[str]:
    """A directory of the work directory, for the time of the block."""
    name = new_id()
    try:
        yield site.work.path("shards", name)
    finally:
        site.remove("shards", name)


@dataclass(frozen=True)
class FrameRows:
    """The rows of a DataFrame."""

    df: DataFrame

    @property
    def spark(self) -> SparkSession:
        """The DataFrame's session."""
        return self.df.sparkSession

    @property
    def dataset(self) -> DataFrame:
        """The DataFrame."""
        return self.df

    def columns(self, reading: Reading) -> DataColumns:
        """The columns of the DataFrame that a fit reads. Raises DataError and ParamError."""
        return shard_files.resolve(
            self.df.schema, reading.params, reading.label_dtype, reading.wide, reading.arguments
        )

    def first(self, columns: DataColumns) -> pa.RecordBatch:
        """The first rows of the DataFrame."""
        return examples.first_rows(columns.valid(self.df), columns.raw)

    @contextmanager
    def shards(
        self, columns: DataColumns, reading: Reading, site: Site, meanwhile: Meanwhile
    ) -> Iterator[ShardSet]:
        """The rows in the files that they are read from, as `inPlace` says, else written into the work
        directory, and removed at the end. Raises DataError where they are to be read in place and can't be.
        """
        with _held(site) as directory:
            with meanwhile():
                shards = self._in_place(columns, reading, site, directory)
                if shards is None:
                    shards = self._written(columns, site, f"{directory}/{_SHARDS}")
            yield shards

    def _in_place(
        self, columns: DataColumns, reading: Reading, site: Site, directory: str
    ) -> ShardSet | None:
        """The rows in the files that they are read from; None where they are not to be read there."""
        how = reading.params.getInPlace()
        if how == "never":
            return None
        try:
            scan = Scan.of(columns.valid(self.df), columns, keeps_order=not reading.params.getShuffle())
            if how == "auto" and not scan.is_reachable(site.work):
                raise NotInPlace(
                    "its store is not that of workDir, and no spark.flambeau.store option is set"
                )
            shards = scan.shards(columns, site, f"{directory}/{_BITMAPS}")
            if how == "auto" and shards.objection is not None:
                raise NotInPlace(shards.objection)
            return shards
        except (NotInPlace, DataError, StoreError) as error:
            if how == "always":
                raise DataError(f"inPlace is always, and the rows can't be read in place: {error}") from error
            if not isinstance(error, NotInPlace) or error.is_notable:
                log.info("the rows are written as shards, and not read in place: %s", first_line(error))
            return None

    def _written(self, columns: DataColumns, site: Site, directory: str) -> ShardSet:
        """The rows, written into a directory."""
        return shard_files.write(self.df, columns, site, directory)


@dataclass(frozen=True)
class PreparedRows:
    """The rows that an estimator has prepared."""

    dataset: PreparedData

    @property
    def spark(self) -> SparkSession:
        """The session of its fits."""
        return self.dataset.sparkSession

    def columns(self, reading: Reading) -> DataColumns:
        """The columns of the DataFrame that was prepared, as a fit reads them. Raises DataError and
        ParamError, also where they were not prepared.
        """
        try:
            columns = shard_files.resolve(
                self.dataset.schema, reading.params, reading.label_dtype, reading.wide, reading.arguments
            )
        except DataError as error:
            raise DataError(
                f"{error}; these are the columns that {self.dataset.path} was prepared of"
            ) from error
        self.dataset._shards(columns)
        return columns

    def first(self, columns: DataColumns) -> pa.RecordBatch:
        """The first rows of the files."""
        return examples.first_of(self.dataset._raw_frame(columns), columns.raw)

    @contextmanager
    def shards(
        self, columns: DataColumns, reading: Reading, site: Site, meanwhile: Meanwhile
    ) -> Iterator[ShardSet]:
        """The files, which stay. Raises DataError where one is not what was written."""
        with meanwhile():
            self.dataset._check()
        yield self.dataset._shards(columns)


def rows_of(dataset: DataFrame | PreparedData) -> Rows:
    """The rows that `fit` is given."""
    return PreparedRows(dataset) if isinstance(dataset, PreparedData) else FrameRows(dataset)


class ParquetRows:
    """The rows of the Parquet files under a path; nothing is copied."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.dataset = path

    @cached_property
    def _df(self) -> DataFrame:
        """What Spark reads of the path. Raises DataError for what it can't, and for tables."""
        path = self.dataset
        # As Spark itself resolves it: a path without a scheme is one of its default file system.
        for table, marker in _TABLE_FORMATS.items():
            if shard_files.exists(self.spark, f"{path.rstrip('/')}/{marker}"):
                raise DataError(
                    f"{path} is a {table} table: its directory holds removed rows too. Read it as a table, "
                    f"for example with fit(spark.read.format({table.lower()!r}).load({path!r}))"
                )
        try:
            df = self.spark.read.parquet(path)
            _ = df.schema
        except AnalysisException as error:
            raise DataError(f"{path} cannot be read as Parquet: {error}") from error
        return df

    @cached_property
    def _in_paths(self) -> set[str]:
        """The columns that are `key=value` directories."""
        return _partition_columns(self._df.inputFiles(), self.dataset)

    def columns(self, reading: Reading) -> DataColumns:
        """The columns of the files. Raises DataError, also for what is not in the files, and ParamError."""
        params, df = reading.params, self._df
        is_set = params.isDefined(params.validationIndicatorCol)
        flag = params.getValidationIndicatorCol() if is_set else None
        schema = df.schema
        if flag in self._in_paths:
            # Of whatever type Spark takes it for.
            fields = [one for one in schema.fields if one.name != flag]
            schema = StructType([*fields, StructField(str(flag), BooleanType())])
        columns = shard_files.resolve(schema, params, reading.label_dtype, reading.wide, reading.arguments)
        for name in columns.names():
            why = None
            if name in self._in_paths:
                why = "is a partition column, and not in the files"
            elif name not in schema.fieldNames():
                why = "is a field of a struct, which is not read in place"
            if why is not None:
                raise DataError(f"column {name!r} {why}: {self._instead}")
        return columns

    def first(self, columns: DataColumns) -> pa.RecordBatch:
        """The first rows of the files."""
        return examples.first_rows(columns.valid(self._df), columns.raw)

    @contextmanager
    def shards(
        self, columns: DataColumns, reading: Reading, site: Site, meanwhile: Meanwhile
    ) -> Iterator[ShardSet]:
        """The files, and which rows of them are for validation."""
        flag = columns.split.indicator if columns.split else None
        with _held(site) as directory:
            with meanwhile():
                keeps_all = columns.handle_invalid == "keep"
                if flag in self._in_paths and not keeps_all:
                    raise DataError(
                        f"handleInvalid is {columns.handle_invalid!r}, and validationIndicatorCol {flag!r} "
                        f"is a partition column: {self._instead}"
                    )
                if flag in self._in_paths:
                    files = shard_files.in_order(self._df.inputFiles())
                    train, validation = shard_files.parted(files, str(flag))
                    shards = ShardSet.inspected(columns, site, train, validation, in_place=True)
                else:
                    files = self._df.inputFiles()
                    scan = Scan(columns.valid(self._df), PARQUET, files, self.dataset, has_all=keeps_all)
                    try:
                        shards = scan.shards(columns, site, f"{directory}/{_BITMAPS}")
                    except NotInPlace as error:
                        raise DataError(f"{self.dataset}: {error}: {self._instead}") from error
            yield shards

    @property
    def _instead(self) -> str:
        return f"use fit(spark.read.parquet({self.dataset!r})) instead"


def _partition_columns(files: Sequence[str], root: str) -> set[str]:
    """The names of the `key=value` directories that the files lie in, below `root`."""
    base = root.rstrip("/").rsplit("/", 1)[-1]
    names: set[str] = set()
    for uri in files:
        _, _, below = unquote(uri).partition(f"/{base}/")
        names |= {part.split("=", 1)[0] for part in below.split("/")[:-1] if "=" in part}
    return names
