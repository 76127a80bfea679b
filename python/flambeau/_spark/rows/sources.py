"""The rows that a fit is given: a DataFrame's, written as shards, or those of Parquet files in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from flambeau._spark.rows import shards as shard_files
from flambeau._spark.rows.shards import DataColumns, ShardSet
from flambeau._spark.site import Site
from flambeau._spark.work_directory import new_id
from flambeau.params import HasTrainingParams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Meanwhile = Callable[[], AbstractContextManager[Any]]
"""What goes on for as long as rows are written."""


@dataclass(frozen=True)
class Reading:
    """How a fit reads its rows: the params that name columns, and as `resolve` has them, the labels' type,
    whether the module computes in float64, and the arguments of its forward.
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
        """What was given to fit on: a DataFrame, or a path."""

    def columns(self, reading: Reading) -> DataColumns:
        """The columns that a fit reads. Raises DataError and ParamError."""

    def shards(
        self, columns: DataColumns, site: Site, meanwhile: Meanwhile
    ) -> AbstractContextManager[ShardSet]:
        """The rows as Parquet files, which workers see for the time of the block."""


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

    @contextmanager
    def shards(self, columns: DataColumns, site: Site, meanwhile: Meanwhile) -> Iterator[ShardSet]:
        """The rows, written into the work directory, and removed at the end."""
        name = new_id()
        try:
            yield self.write(columns, site, name, meanwhile)
        finally:
            site.remove("shards", name)

    def write(self, columns: DataColumns, site: Site, name: str, meanwhile: Meanwhile) -> ShardSet:
        """Writes the rows as shards of that name."""
        with meanwhile():
            return shard_files.write(self.df, columns, site.work.path("shards", name))


class ParquetRows:
    """The rows of the Parquet files under a path; nothing is copied."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.dataset = path
        self._found: ShardSet | None = None

    def columns(self, reading: Reading) -> DataColumns:
        """The columns of the files. Runs Spark jobs; raises DataError and ParamError."""
        self._found = shard_files.in_place(
            self.spark, self.dataset, reading.params, reading.label_dtype, reading.wide, reading.arguments
        )
        return self._found.columns

    def shards(
        self, columns: DataColumns, site: Site, meanwhile: Meanwhile
    ) -> AbstractContextManager[ShardSet]:
        """The files."""
        assert self._found is not None, "a fit asks for its columns first"
        return nullcontext(self._found)
