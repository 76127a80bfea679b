"""Training rows as Parquet shards, written from a DataFrame in one job."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from flambeau._spark import session
from flambeau._spark.columns import (
    REFUSAL,
    REFUSAL_END,
    Role,
    column_of,
    expressions,
    find_field,
    nesting,
    quoted,
    resolve_inputs,
    resolve_raw,
    resolve_tensor,
    type_name,
    valid_rows,
)
from flambeau._spark.site import Site
from flambeau._spark.work_directory import spark_path
from flambeau._tensors import TensorColumns
from flambeau.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from flambeau.params import HasLabelColumns, HasTrainingParams

# The partition column that separates validation rows; its name is not one that a user's column has.
FLAG = "flambeau_validation"

# Small enough that a rank that reads part of a row group decodes little in vain, large enough to decode
# in bulk.
_ROW_GROUP_BYTES = 16 << 20

DataFile = str | Mapping[str, Any]
"""A file of a training job: its URI, or with `uri` and `rows` a file of which some rows are read."""


@dataclass(frozen=True)
class Split:
    """Which rows are for validation: those of a boolean column, or a seeded random fraction."""

    indicator: str | None = None
    fraction: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class DataColumns:
    """The tensors of a training, in terms of a DataFrame's columns, and how its rows are split."""

    inputs: tuple[TensorColumns, ...]
    labels: tuple[TensorColumns, ...]
    weight: TensorColumns | None
    split: Split | None
    raw: tuple[TensorColumns, ...] = ()
    """In place of inputs, the columns that `preprocess` makes those of, as they are."""
    handle_invalid: str = "keep"
    """What becomes of rows with a null or a NaN in those columns of the DataFrame, as the param says."""

    def tensors(self) -> list[tuple[TensorColumns, Role]]:
        """Every tensor with what it is for."""
        inputs: list[tuple[TensorColumns, Role]] = [(tensor, "input") for tensor in self.inputs]
        labels: list[tuple[TensorColumns, Role]] = [(tensor, "label") for tensor in self.labels]
        weight: list[tuple[TensorColumns, Role]] = [(self.weight, "weight")] if self.weight else []
        return inputs + labels + weight

    def names(self) -> list[str]:
        """The columns of all tensors, each once."""
        tensors = [*self.raw, *(tensor for tensor, _ in self.tensors())]
        return list(dict.fromkeys(name for tensor in tensors for name in tensor.columns))

    def valid(self, df: DataFrame) -> DataFrame:
        """The DataFrame's rows as `handle_invalid` has them."""
        return valid_rows(df, [*self.inputs, *self.raw], self.handle_invalid)

    def with_shapes(self, shape: Callable[[TensorColumns], tuple[int, ...] | None]) -> DataColumns:
        """The same with the shapes of tensors that have none."""

        def known(tensor: TensorColumns) -> TensorColumns:
            return tensor if tensor.shape is not None else replace(tensor, shape=shape(tensor))

        weight = known(self.weight) if self.weight else None
        inputs, labels = tuple(map(known, self.inputs)), tuple(map(known, self.labels))
        return replace(self, inputs=inputs, labels=labels, weight=weight)

    def as_found(self, spec: Mapping[str, Any]) -> DataColumns:
        """The same tensors with the columns and shapes that a spec of theirs, from the native side, has."""

        def found(tensor: TensorColumns, there: Mapping[str, Any]) -> TensorColumns:
            shape = there["shape"]
            named = replace(tensor, columns=tuple(there["columns"]))
            return replace(named, shape=None if shape is None else tuple(shape))

        return replace(
            self,
            inputs=tuple(map(found, self.inputs, spec["inputs"])),
            labels=tuple(map(found, self.labels, spec["labels"])),
            weight=found(self.weight, spec["weight"]) if self.weight else None,
            raw=tuple(
                replace(tensor, columns=(name,))
                for tensor, name in zip(self.raw, spec.get("rawColumns", ()), strict=True)
            ),
        )

    def spec_json(self) -> dict[str, Any]:
        """The tensors as the training job's `data.spec` names them."""
        spec: dict[str, Any] = {
            "inputs": [tensor.to_json() for tensor in self.inputs],
            "labels": [tensor.to_json() for tensor in self.labels],
            "weight": self.weight.to_json() if self.weight else None,
        }
        return spec | {"rawColumns": [one.columns[0] for one in self.raw]} if self.raw else spec


@dataclass(frozen=True)
class ShardSet:
    """Parquet files with the rows. `columns` are in terms of the files, all shapes known."""

    columns: DataColumns
    train: list[DataFile]
    validation: list[DataFile] = field(default_factory=list)
    num_rows: int = 0
    num_validation_rows: int = 0
    objection: str | None = None
    """Why they had better be written anew than be read where they lie."""
    in_place: bool = False
    """Whether the files are the user's, and no copy."""
    num_bytes: int = 0
    """What the files take, 0 where that was not looked at."""
    selection_digest: str | None = None
    """Of what says which rows of the files these are, where they are not all."""

    @classmethod
    def inspected(
        cls,
        columns: DataColumns,
        site: Site,
        train: Sequence[DataFile],
        validation: Sequence[DataFile],
        *,
        in_place: bool,
    ) -> ShardSet:
        """Files, with the rows and shapes that a training finds there. Raises DataError and StoreError as it
        would.
        """
        read, kept = list(train), list(validation)
        found = site.ask("inspectRows", train=read, validation=kept, spec=columns.spec_json())
        counts = found["numRows"], found["numValidationRows"]
        refuse_none(*counts)
        columns = columns.as_found(found["spec"])
        return cls(columns, read, kept, *counts, found["objection"], in_place, found["numBytes"])

    @property
    def uris(self) -> list[str]:
        """The files that the rows lie in, each once."""
        files = [*self.train, *self.validation]
        return list(dict.fromkeys(one if isinstance(one, str) else str(one["uri"]) for one in files))

    def job_data(self) -> dict[str, Any]:
        """The training job's `data`."""
        return {"train": self.train, "validation": self.validation, "spec": self.columns.spec_json()}


def resolve(
    schema: StructType,
    params: HasTrainingParams,
    label_dtype: str | None,
    wide: bool,
    arguments: Sequence[str] = (),
) -> DataColumns:
    """The columns that a fit with these params reads from a DataFrame of this schema, and how it splits the
    rows.

    `label_dtype` None takes the labels' types from their columns; `wide` (a module in float64) makes labels
    and the weight float64 where they would be float32. `arguments` are those of its forward. Raises DataError
    and ParamError as `resolve_inputs` does.
    """
    tensors = _resolve_tensors(schema, params, label_dtype, wide, arguments)
    return replace(tensors, split=_split(schema, params), handle_invalid=params.getHandleInvalid())


def _resolve_tensors(
    schema: StructType,
    params: HasTrainingParams,
    label_dtype: str | None,
    wide: bool,
    arguments: Sequence[str],
) -> DataColumns:
    """What `resolve` gives, without the split."""
    if params.hasParam("preprocess") and params.isDefined("preprocess"):
        raw = tuple(resolve_raw(schema, params))
        return replace(resolve_labels(schema, params, label_dtype, wide), raw=raw)
    inputs = tuple(resolve_inputs(schema, params, arguments))
    return replace(resolve_labels(schema, params, label_dtype, wide), inputs=inputs)


def resolve_labels(
    schema: StructType, params: HasLabelColumns, label_dtype: str | None, wide: bool
) -> DataColumns:
    """The labels and the weight that `resolve` gives, without inputs and split."""
    label_cols = params.getLabelCols() or [params.getLabelCol()]
    labels = [resolve_tensor(schema, name, [name], label_dtype, "label") for name in label_cols]
    weight = None
    if params.isDefined(params.weightCol):
        name = params.getWeightCol()
        weight = _widen(resolve_tensor(schema, name, [name], "float32", "weight"), wide)
        if weight.shape != ():
            dtype = find_field(schema, name, "weight").dataType
            raise DataError(f"column {name!r} is {type_name(dtype)}; the weight of a row is a single number")
    return DataColumns((), tuple(_widen(label, wide) for label in labels), weight, None)


def _widen(tensor: TensorColumns, wide: bool) -> TensorColumns:
    return replace(tensor, dtype="float64") if wide and tensor.dtype == "float32" else tensor


def _split(schema: StructType, params: HasTrainingParams) -> Split | None:
    """How the params split the rows; None where all rows are trained on."""
    if params.isDefined(params.validationIndicatorCol):
        name = params.getValidationIndicatorCol()
        dtype = find_field(schema, name, "validation indicator").dataType
        if dtype.typeName() != "boolean":
            raise DataError(
                f"column {name!r} is {type_name(dtype)}; validationIndicatorCol names a boolean column: "
                f"cast it, for example with col({name!r}) == 1"
            )
        return Split(indicator=name)
    if params.getValidationFraction() > 0:
        return Split(fraction=params.getValidationFraction(), seed=params.getSeed())
    return None


class Selection:
    """What is written of a DataFrame's columns: a column that two tensors want as different types, or one of
    them as the label, once for each.
    """

    def __init__(self, schema: StructType) -> None:
        self._schema = schema
        self.names: dict[tuple[str, str, Role], str] = {}
        """What columns are called in the files, by their name, type and role."""
        self.shapes: dict[tuple[str, str, Role], tuple[int, ...] | None] = {}
        """The shapes of their tensors, as far as they are known."""
        self.expressions: list[Column] = []

    def place(self, columns: DataColumns) -> DataColumns:
        """The same tensors in terms of the names that they have in the files."""
        raw = tuple(self._place(tensor, "raw") for tensor in columns.raw)
        inputs = tuple(self._place(tensor, "input") for tensor in columns.inputs)
        labels = tuple(self._place(tensor, "label") for tensor in columns.labels)
        weight = self._place(columns.weight, "weight") if columns.weight else None
        return replace(columns, inputs=inputs, labels=labels, weight=weight, raw=raw)

    def _place(self, tensor: TensorColumns, role: Role) -> TensorColumns:
        names = []
        for name, expression in zip(tensor.columns, expressions(self._schema, tensor, role), strict=True):
            # The label's and the weight's own checks are part of what is written, and what is raw has rows of
            # any length.
            key = (name, tensor.dtype, role)
            if key not in self.names:
                use = tensor.dtype if role == "input" else f"{tensor.dtype} {role}"
                self.names[key] = f"{name} as {use}" if name in self.names.values() else name
                self.shapes[key] = tensor.shape if len(tensor.columns) == 1 else ()
                self.expressions.append(expression.alias(self.names[key]))
            names.append(self.names[key])
        return replace(tensor, columns=tuple(names))


def write(df: DataFrame, columns: DataColumns, site: Site, directory: str) -> ShardSet:
    """Writes the columns' valid rows under `directory`, computing `df` once, and returns what was written.

    Raises DataError, with the column's name, at the first row that is refused, and where no row is left to
    train on.
    """
    df = columns.valid(df)
    columns = with_nested_shapes(df, columns)
    selection = Selection(df.schema)
    in_files = selection.place(columns)
    partitions = {} if columns.split is None else {FLAG: flag_of(columns.split)}
    files = in_order(save(df, selection, partitions, directory).inputFiles())
    train, validation = parted(files, FLAG) if partitions else (files, [])
    return ShardSet.inspected(in_files, site, train, validation, in_place=False)


def save(df: DataFrame, selection: Selection, partitions: Mapping[str, Column], directory: str) -> DataFrame:
    """Writes what is selected as Parquet files, with those partition columns, and returns what reads them.

    Raises DataError, with the column's name, at the first row that is refused.
    """
    rows = df.select(*selection.expressions, *[value.alias(name) for name, value in partitions.items()])
    floats = [name for (_, dtype, _), name in selection.names.items() if dtype.startswith("float")]
    writer = rows.write.options(**_write_options(floats))
    if partitions:
        writer = writer.partitionBy(*partitions)
    # Who removes what a failed job has written does so when no task of it writes there any more.
    with refusals(), session.until_tasks_end(df.sparkSession):
        writer.parquet(spark_path(directory))
    # The schema is given, since a directory without rows may be without files to take it from.
    return df.sparkSession.read.schema(rows.schema).parquet(spark_path(directory))


def _write_options(floats: Iterable[str]) -> dict[str, str]:
    """How Spark's Parquet writer is to write columns, of which `floats` hold floats."""
    options = {
        "compression": "zstd",
        "parquet.compression.codec.zstd.level": "1",
        "parquet.block.size": str(_ROW_GROUP_BYTES),
    }
    for name in floats:
        # They hardly repeat: a dictionary would be built, found too large and thrown away.
        options[f"parquet.enable.dictionary#{name}"] = "false"
        options[f"parquet.enable.dictionary#{name}.list.element"] = "false"
    return options


@contextmanager
def refusals() -> Iterator[None]:
    """Turns a refusal that a query of `expressions` raised into the DataError that it stands for."""
    try:
        yield
    except Exception as error:
        found = re.search(re.escape(REFUSAL) + "(.*?)" + re.escape(REFUSAL_END), str(error), re.DOTALL)
        if found is None:
            raise
        raise DataError(found.group(1)) from error


def flag_of(split: Split, in_folds: bool = False) -> Column:
    """Whether a row is for validation; of rows `in_folds`, by other numbers than a fold is drawn by with the
    same seed.
    """
    if split.indicator is None:
        seed = zlib.crc32(f"validation {split.seed}".encode()) if in_folds else split.seed
        return F.rand(seed) < split.fraction
    column = F.col(quoted(split.indicator))
    message = (
        f"{REFUSAL}column {split.indicator!r} holds a null: it says of each row whether it is for validation"
    )
    return F.when(column.isNull(), F.raise_error(F.lit(message + REFUSAL_END))).otherwise(column)


def refuse_none(num_rows: int, num_validation_rows: int = 0) -> None:
    """Raises DataError where there are no rows to train on."""
    if num_rows == 0:
        why = "all rows are for validation" if num_validation_rows else "there are no rows"
        raise DataError(f"there is nothing to train on: {why}")


def in_order(files: Iterable[str]) -> list[str]:
    """Files by directory, then by name: Spark names them by the number of the partition that wrote them."""
    return sorted(files, key=lambda uri: uri.rsplit("/", 1))


def parted(files: Sequence[str], flag: str) -> tuple[list[str], list[str]]:
    """The files of the rows that are trained on, and those of the others, by the partition column `flag`."""
    flags = [_is_true(_partition_value(uri, flag), flag) for uri in files]
    train = [uri for uri, flagged in zip(files, flags, strict=True) if not flagged]
    return train, [uri for uri, flagged in zip(files, flags, strict=True) if flagged]


def _is_true(value: str | None, column: str) -> bool:
    """Whether a partition column's value says that its rows are for validation."""
    text = str(value).lower()
    if text in ("true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise DataError(
        f"column {column!r} holds {value!r}; validationIndicatorCol names a column of true and false"
    )


def with_nested_shapes(df: DataFrame, columns: DataColumns) -> DataColumns:
    """The columns with the shapes of nested arrays, where none is given that of the first row without a null.

    All rows are held to it as they are written.
    """
    nested = {
        tensor.columns[0]
        for tensor, role in columns.tensors()
        if tensor.shape is None and nesting(find_field(df.schema, tensor.columns[0], role).dataType) > 1
    }
    if not nested:
        return columns
    values = {name: column_of(df.schema, name) for name in sorted(nested)}
    has_all = reduce(and_, [value.isNotNull() for value in values.values()])
    row = (
        df.filter(has_all).select(*[value.alias(f"c{i}") for i, value in enumerate(values.values())]).first()
    )
    if row is None:
        return columns
    shapes = {name: _shape_of(value) for name, value in zip(values, row, strict=True)}
    return columns.with_shapes(lambda tensor: shapes.get(tensor.columns[0]))


def _shape_of(value: Any) -> tuple[int, ...]:
    """The shape of nested lists, by the first of each."""
    sizes = []
    while isinstance(value, list):
        sizes.append(len(value))
        value = value[0] if value else None
    return tuple(sizes)


def _partition_value(uri: str, name: str) -> str | None:
    """The value of a partition column in a file's path."""
    for part in uri.split("/"):
        key, separator, value = part.partition("=")
        if separator and unquote(key) == name:
            return unquote(value)
    return None


def exists(spark: SparkSession, path: str) -> bool:
    """Whether Spark finds something at a path or glob."""
    try:
        # Twice, since Spark looks for a streaming sink's metadata in a single path, and warns with a stack
        # trace where there is no such path.
        return bool(spark.read.text([path, path]).schema)
    except AnalysisException:
        return False
