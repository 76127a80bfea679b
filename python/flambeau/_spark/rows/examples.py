"""A few rows of a fit, as a worker will have them: what `preprocess` is tried on before work starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flambeau._input_rows import ARROW_TYPES
from flambeau._spark.columns import expressions
from flambeau._spark.rows.shards import refusals, refuse_none
from flambeau._tensors import TensorColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUM_ROWS = 2


def first_rows(df: DataFrame, columns: Sequence[TensorColumns]) -> pa.RecordBatch:
    """The columns' values in the first two rows that Spark finds, or one where there is one.

    Raises DataError for rows that are refused, and where there are none.
    """
    selected = [one for column in columns for one in expressions(df.schema, column, "input")]
    return first_of(df.select(*[one.alias(f"c{place}") for place, one in enumerate(selected)]), columns)


def first_of(df: DataFrame, columns: Sequence[TensorColumns]) -> pa.RecordBatch:
    """The same of a DataFrame that has nothing but the columns' values, in their order."""
    with refusals():
        rows = df.limit(NUM_ROWS).collect()
    refuse_none(len(rows))
    arrays = [_array([row[place] for row in rows], column) for place, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, [column.columns[0] for column in columns])


def _array(values: Sequence[Any], column: TensorColumns) -> pa.Array:
    """A column's values as Arrow; Spark has them as Python's lists, numbers, strings, bytearrays and rows."""
    kind = ARROW_TYPES[column.dtype]
    if column.dtype == "sparse":
        values = [value.asDict() for value in values]
    is_list = isinstance(values[0], list)
    return pa.array(values, pa.list_(kind) if is_list else kind)
