"""The scalar-iterator UDF that `transform` scores with: on Arrow arrays where Spark has such (4.1), else on
pandas.

On the same rows the Arrow form takes half the time of the pandas form, which makes a numpy array of each
row's array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from flambeau._input_rows import ARROW_TYPES
from flambeau._score.conversion import converted_batch, of_series
from flambeau._score.gpu_slots import NUM_SLOTS, SETTING
from flambeau._spark.columns import REFUSAL, REFUSAL_END
from flambeau._spark.session import setting
from flambeau.errors import ParamError

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType

    from flambeau._score.scoring import Scorer


def takes_arrow() -> bool:
    """Whether this Spark has UDFs on Arrow arrays."""
    return hasattr(F, "arrow_udf")


def scalar_udf(scorer: Scorer, returns: DataType, num_columns: int, converts: bool = False) -> Any:
    """The UDF of the inputs' columns, to be called with them. It `converts` them where no expressions have
    made them what the model was trained on.
    """
    made: Any = F
    if takes_arrow():
        function = _annotated(
            _converting(scorer) if converts else scorer.score, pa.Array, num_columns, pa.Array
        )
        return made.arrow_udf(function, returns)

    import pandas as pd
    from pyspark.sql.types import StructType

    types = [ARROW_TYPES[tensor.dtype] for tensor in scorer.inputs for _ in tensor.columns]

    def score(batches: Iterator[Any]) -> Iterator[Any]:
        if converts:
            results = _converting(scorer)(_any_of_pandas(batch) for batch in batches)
        else:
            results = scorer.score(_of_pandas(batch, types) for batch in batches)
        for result in results:
            yield _to_pandas(result)

    result = pd.DataFrame if isinstance(returns, StructType) else pd.Series
    return made.pandas_udf(_annotated(score, pd.Series, num_columns, result), returns)


def whole_arrays(column: Column, name: str, kind: DataType) -> Column:
    """The column, refusing rows with a null inside their array; pandas would make a NaN of it."""
    if takes_arrow() or kind.typeName() != "array":
        return column
    text = f"{REFUSAL}column {name!r} holds an array with a null in it: drop those rows{REFUSAL_END}"
    return F.when(F.exists(column, lambda item: item.isNull()), F.raise_error(F.lit(text))).otherwise(column)


def _annotated(function: Any, given: Any, num_columns: int, result: Any) -> Any:
    """A function that does what `function` does, with the type hints by which Spark tells its UDFs apart."""

    def flambeau_score(batches: Any) -> Any:
        yield from function(batches)

    one: Any = given if num_columns == 1 else tuple.__class_getitem__((given, ...))
    iterator: Any = Iterator
    flambeau_score.__annotations__ = {"batches": iterator[one], "return": iterator[result]}
    return flambeau_score


def _converting(scorer: Scorer) -> Callable[[Iterator[Any]], Iterator[pa.Array]]:
    """`score` of columns of any type that can be what the model was trained on."""

    def score(batches: Iterator[Any]) -> Iterator[pa.Array]:
        columns = (batch if isinstance(batch, tuple) else (batch,) for batch in batches)
        yield from scorer.score(converted_batch(scorer.inputs, batch) for batch in columns)

    return score


def _any_of_pandas(batch: Any) -> tuple[pa.Array, ...]:
    """A batch's columns as Arrow arrays of the types that they have."""
    series = batch if isinstance(batch, tuple) else (batch,)
    return tuple(
        of_series(one, f"argument {number}") if one.ndim == 1 else _vectors(one)
        for number, one in enumerate(series, 1)
    )


def _vectors(frame: Any) -> pa.Array:
    """Spark's vectors, of which pandas gets a frame of their fields."""
    types = {
        "type": pa.int8(),
        "size": pa.int32(),
        "indices": pa.list_(pa.int32()),
        "values": pa.list_(pa.float64()),
    }
    parts = [pa.array(frame[name], kind, from_pandas=True) for name, kind in types.items()]
    return pa.StructArray.from_arrays(parts, list(types))


def _of_pandas(batch: Any, types: Sequence[pa.DataType]) -> tuple[pa.Array, ...]:
    """A batch's columns as Arrow arrays."""
    series = batch if isinstance(batch, tuple) else (batch,)
    return tuple(_of_type(one, kind) for one, kind in zip(series, types, strict=True))


def _of_type(series: Any, kind: pa.DataType) -> pa.Array:
    """A pandas column as Arrow; one of numpy arrays becomes lists, a frame structs. A NaN stays one."""
    if series.ndim == 2:
        parts = [pa.array(series[field.name], field.type, from_pandas=False) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind))
    if len(series) and isinstance(series.iloc[0], np.ndarray):
        kind = pa.list_(kind)
    return pa.array(series, type=kind, from_pandas=False)


def _to_pandas(result: pa.Array) -> Any:
    """A column of results as pandas wants it: a frame for a struct, numpy arrays for lists."""
    import pandas as pd

    if pa.types.is_struct(result.type):
        return pd.DataFrame({f.name: _to_pandas(result.field(i)) for i, f in enumerate(result.type)})
    if pa.types.is_list(result.type):
        return pd.Series(list(result.to_numpy(zero_copy_only=False)), dtype=object)
    return result.to_pandas()


def gpu_tasks_of(spark: SparkSession) -> int:
    """What `spark.flambeau.gpuTasks` says, or its default. Raises ParamError where it is no number from 1."""
    text = setting(spark, SETTING, str(NUM_SLOTS))
    if not (text.isdecimal() and int(text) > 0):
        raise ParamError(f"{SETTING} is {text!r}: give a whole number of tasks, from 1")
    return int(text)
