"""Scoring in this process, without Spark: rows of pandas and numpy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from flambeau._input_rows import ARROW_TYPES, NUMPY
from flambeau._score.conversion import VECTOR_FIELDS, converted_batch, of_numpy, of_series
from flambeau._suggest import suggestion
from flambeau.errors import DataError, ParamError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.types import DataType

    from flambeau._score.scoring import Scorer
    from flambeau._spark.outputs import OutputColumn
    from flambeau._tensors import TensorColumns

Columns = tuple[Sequence[pa.Array], Sequence["TensorColumns"]]
"""The inputs' columns in order, and the tensors that they make."""


def predicted(
    scorer: Scorer, columns: Sequence[pa.Array], outputs: Sequence[OutputColumn]
) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs by name: columns as they are in `transform`, the fields of a struct each by its path."""
    [result] = scorer.score_here(iter([tuple(columns)]))
    parts = [(one.name, result if one.field is None else result.field(one.field)) for one in outputs]
    return {name: _values(leaf) for root, part in parts for name, leaf in _leaves(root, part)}


def as_frame(outputs: Mapping[str, np.ndarray[Any, Any]], index: Any) -> pd.DataFrame:
    """The outputs as columns, those of arrays as one of objects."""
    import pandas as pd

    made = {
        name: values if values.ndim == 1 else pd.Series(list(values), index, dtype=object)
        for name, values in outputs.items()
    }
    return pd.DataFrame(made, index=index)


def of_frame(
    frame: pd.DataFrame,
    needed: Collection[str],
    tensors_of: Callable[[StructType], Sequence[TensorColumns]],
) -> Columns:
    """A frame's columns, of which the `needed` are read, and the tensors that `tensors_of` makes of them."""
    found = {name: of_series(frame[name], name) for name in frame.columns if name in needed}
    schema = StructType(
        [
            StructField(str(name), _spark_type(found[name].type) if name in found else NullType())
            for name in frame.columns
        ]
    )
    tensors = tensors_of(schema)
    columns = [found[name] for tensor in tensors for name in tensor.columns]
    return converted_batch(tensors, columns), tensors


def of_nothing(tensors: Sequence[TensorColumns]) -> Columns:
    """The inputs' columns without rows."""
    columns = [
        [pa.array([], ARROW_TYPES[tensor.dtype])]
        if tensor.dtype not in NUMPY
        else of_numpy(np.empty((0, *(tensor.shape or ()))), tensor)
        for tensor in tensors
    ]
    return [column for of_one in columns for column in of_one], tensors


def of_arrays(data: Any, tensors: Sequence[TensorColumns]) -> Columns:
    """An array of the only input, or a dict of arrays by input, as the inputs' columns. Raises ParamError for
    names that are not those of the inputs, and DataError for arrays that are not of their shapes.
    """
    names = [tensor.name for tensor in tensors]
    if not isinstance(data, Mapping):
        if len(tensors) > 1:
            raise ParamError(
                f"the model has {len(names)} inputs, {', '.join(names)}: give a dict of arrays by these names"
            )
        data = {names[0]: data}
    for name in data:
        if name not in names:
            hint = suggestion(str(name), names)
            raise ParamError(f"there is no input {name!r}: the model has {', '.join(names)}{hint}")
    missing = [name for name in names if name not in data]
    if missing:
        raise ParamError(f"no array is given for the input {', '.join(missing)}: give one for each")
    columns = [column for tensor in tensors for column in of_numpy(data[tensor.name], tensor)]
    if len({len(column) for column in columns}) > 1:
        sizes = ", ".join(f"{name} {len(data[name])}" for name in names)
        raise DataError(f"the inputs have different numbers of rows: {sizes}")
    return columns, tensors


def _spark_type(kind: pa.DataType) -> DataType:
    """Spark's type of a column, of those that `columns` tells apart."""
    types = pa.types
    if types.is_struct(kind) and {field.name for field in kind} == VECTOR_FIELDS:
        return VectorUDT()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return ArrayType(_spark_type(kind.value_type))
    known: list[tuple[Any, DataType]] = [
        (types.is_boolean, BooleanType()),
        (types.is_integer, LongType()),
        # A column of nothing but nulls, and one without rows, may be any.
        (lambda kind: types.is_floating(kind) or types.is_null(kind), DoubleType()),
        (types.is_decimal, DecimalType()),
        (lambda kind: types.is_binary(kind) or types.is_large_binary(kind), BinaryType()),
        (types.is_timestamp, TimestampType()),
        (types.is_date, DateType()),
    ]
    # What is left is refused as a string is, categories among it.
    return next((spark_type for is_one, spark_type in known if is_one(kind)), StringType())


def _leaves(name: str, array: pa.Array) -> list[tuple[str, pa.Array]]:
    """A column, or the fields of a struct, however deep, by their paths."""
    if not pa.types.is_struct(array.type):
        return [(name, array)]
    fields = [(f"{name}.{f.name}", array.field(index)) for index, f in enumerate(array.type)]
    return [leaf for path, part in fields for leaf in _leaves(path, part)]


def _values(array: pa.Array) -> np.ndarray[Any, Any]:
    """A column of results, whose arrays all have one shape, as one array."""
    sizes = [len(array)]
    while pa.types.is_list(array.type):
        sizes.append(int(pc.list_value_length(array[0]).as_py()) if len(array) else 0)
        array = array.flatten()
    values: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=False)
    return values.reshape(sizes)
