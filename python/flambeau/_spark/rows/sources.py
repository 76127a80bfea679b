"""The rows that a fit is given: a DataFrame's, written as shards, those that were prepared, or those of
Parquet files in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from flambeau._spark.rows import examples
from flambeau._spark.rows import shards as shard_files
from flambeau._spark.rows.prepared import PreparedData
from flambeau._spark.rows.shards import DataColumns, ShardSet
from flambeau._spark.site import Site
from flambeau._spark.work_directory import new_id
from flambeau._tensors import TensorColumns
from flambeau.errors import DataError
from flambeau.params import HasTrainingParams

if TYPE_CHECKING:
    import pyarrow as pa
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
        """What was given to fit on: a DataFrame, prepared data, or a path."""

    def columns(self, reading: Reading) -> DataColumns:
        """The columns that a fit reads. Raises DataError and ParamError."""

    def first(self, columns: Sequence[TensorColumns]) -> pa.RecordBatch:
        """Some columns of the first rows, as `examples.first_rows` has them, for `preprocess` to be tried on.
        Runs a Spark job; raises DataError.
        """

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

    def first(self, columns: Sequence[TensorColumns]) -> pa.RecordBatch:
        """The first rows of the DataFrame."""
        return examples.first_rows(self.df, columns)

    @contextmanager
    def shards(self, columns: DataColumns, site: Site, meanwhile: Meanwhile) -> Iterator[ShardSet]:
        """The rows, written into the work directory, and removed at the end."""
        name = new_id()
        try:
            with meanwhile():
                shards = shard_files.write(self.df, columns, site.work.path("shards", name))
            yield shards
        finally:
            site.remove("shards", name)


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

    def first(self, columns: Sequence[TensorColumns]) -> pa.RecordBatch:
        """Is asked for nowhere: `columns` refuses a fit with a `preprocess`."""
        raise NotImplementedError("prepared data is for fits without a preprocess")

    @contextmanager
    def shards(self, columns: DataColumns, site: Site, meanwhile: Meanwhile) -> Iterator[ShardSet]:
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
        self._found: ShardSet | None = None

    def columns(self, reading: Reading) -> DataColumns:
        """The columns of the files. Runs Spark jobs; raises DataError and ParamError."""
        self._found = shard_files.in_place(
            self.spark, self.dataset, reading.params, reading.label_dtype, reading.wide, reading.arguments
        )
        return self._found.columns

    def first(self, columns: Sequence[TensorColumns]) -> pa.RecordBatch:
        """The first rows of the files."""
        return examples.first_rows(self.spark.read.parquet(self.dataset), columns)

    def shards(
        self, columns: DataColumns, site: Site, meanwhile: Meanwhile
    ) -> AbstractContextManager[ShardSet]:
        """The files."""
        assert self._found is not None, "a fit asks for its columns first"
        return nullcontext(self._found)
