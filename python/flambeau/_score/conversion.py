"""Columns of any type as the columns that a module was trained on: what Spark's expressions do for
`transform`, for rows that come without them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flambeau._input_rows import ARROW_TYPES, cast_values, is_list, numbers, refuse_nulls
from flambeau._tensors import TensorColumns
from flambeau.errors import DataError

Array = np.ndarray[Any, Any]

VECTOR_FIELDS = {"type", "size", "indices", "values"}
"""The fields of Spark's vectors in Arrow."""


def converted_batch(inputs: Sequence[TensorColumns], columns: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
    """All inputs' columns in order, each as `converted` gives it. Raises DataError for another number of
    columns too.
    """
    named = [(name, tensor) for tensor in inputs for name in tensor.columns]
    if len(columns) != len(named):
        names = ", ".join(name for name, _ in named)
        raise DataError(f"the model takes {len(named)} columns ({names}), and got {len(columns)}")
    return tuple(
        converted(column, name, tensor) for column, (name, tensor) in zip(columns, named, strict=True)
    )


def converted(array: pa.Array, name: str, tensor: TensorColumns) -> pa.Array:
    """A column of numbers, of arrays, however deep, or of Spark's vectors, as values of the tensor's type or
    flat arrays of them.

    Raises DataError, naming the column, for a null, a number with a fraction where integers are asked for,
    nested arrays of another shape than the tensor's, and for what no tensor is made of.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    refuse_nulls(array, name)
    if tensor.dtype in ("string", "binary"):
        return _as_it_is(array, name, tensor)
    is_vector = pa.types.is_struct(array.type) and {f.name for f in array.type} == VECTOR_FIELDS
    if tensor.dtype == "sparse":
        return _sparse(array, name, is_vector)
    if is_vector:
        array = _dense(array)
    is_binary = pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)
    if is_binary != (tensor.dtype == "uint8"):
        raise DataError(f"column {name!r} is {array.type}, which cannot be read as {tensor.dtype}")
    if is_binary:
        return array
    if not is_list(array.type):
        return pa.array(numbers(array, name, tensor.dtype))
    if len(tensor.columns) > 1:
        raise DataError(
            f"column {name!r} is {array.type}; columns that are packed into one tensor are single numbers"
        )
    lengths, values = _flattened(array, name, tensor.shape)
    refuse_nulls(values, name, "an array with a null in it")
    return _lists(numbers(values, name, tensor.dtype), lengths)


def _as_it_is(array: pa.Array, name: str, tensor: TensorColumns) -> pa.Array:
    """A column of strings or binaries, or arrays of them, for `preprocess`."""
    types, is_string, is_single = pa.types, tensor.dtype == "string", tensor.shape is not None
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type.value_type if is_list(array.type) else array.type
    if is_string:
        fits = types.is_string(kind) or types.is_large_string(kind)
    else:
        fits = types.is_binary(kind) or types.is_large_binary(kind)
    # What holds no value may be any.
    is_empty = types.is_null(array.type)
    if not is_empty and (is_list(array.type) == is_single or not (fits or types.is_null(kind))):
        trained = tensor.dtype if is_single else f"arrays of {tensor.dtype}"
        raise DataError(
            f"column {name!r} is {array.type}, where preprocess was trained on {trained}: cast it"
        )
    element = pa.string() if is_string else pa.binary()
    return array.cast(element if is_single else pa.list_(element))


def of_numpy(values: Any, tensor: TensorColumns) -> list[pa.Array]:
    """An input's columns from an array of all its rows. Raises DataError, naming the input, where the shape
    is not that of the tensor's rows, or the values are no numbers that it takes.
    """
    values = np.asarray(values)
    row, given = tensor.shape or (), values.shape[1:]
    fits = values.ndim > 0 and math.prod(given) == math.prod(row)
    if not fits or (len(given) == len(row) and given != row):
        raise DataError(
            f"input {tensor.name!r} has shape {list(values.shape)}, where {['rows', *row]} was trained on"
        )
    if values.dtype.kind not in "biuf":
        raise DataError(f"input {tensor.name!r} is of {values.dtype}: give numbers or booleans")
    width = math.prod(row)
    cast = cast_values(values.reshape(len(values), width), f"input {tensor.name!r}", tensor.dtype)
    if len(tensor.columns) > 1:
        return [pa.array(cast[:, index]) for index in range(width)]
    if row == ():
        return [pa.array(cast[:, 0])]
    return [_lists(cast.reshape(-1), np.full(len(cast), width, dtype=np.int64))]


def of_series(series: Any, name: str) -> pa.Array:
    """A column of pandas as Arrow. In one of objects a missing value is a null; a NaN among numpy's numbers
    stays one. Raises DataError for objects that are no numbers, arrays or vectors.
    """
    if series.dtype != object:
        return pa.array(series, from_pandas=not isinstance(series.dtype, np.dtype))
    try:
        return pa.array([_plain(cell) for cell in series], from_pandas=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(f"column {name!r} holds objects that make no tensor: {error}") from error


def _plain(cell: Any) -> Any:
    """A cell as Arrow takes it: None where it is missing, deep arrays as lists, Spark's vectors as rows."""
    import pandas as pd

    if cell is None or cell is pd.NA or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if type(cell).__name__ == "SparseVector":
        # As Spark gives them to Arrow.
        return {
            "type": 0,
            "size": cell.size,
            "indices": cell.indices.tolist(),
            "values": cell.values.tolist(),
        }
    if type(cell).__name__ == "DenseVector":
        return {"type": 1, "size": None, "indices": None, "values": cell.values.tolist()}
    return cell.tolist() if isinstance(cell, np.ndarray) and cell.ndim > 1 else cell


def _flattened(array: pa.Array, name: str, shape: tuple[int, ...] | None) -> tuple[Array, pa.Array]:
    """How many numbers each row's array has, and these. Raises DataError for nested arrays that are not of
    the shape, where that has as many dimensions as they are deep.
    """
    sizes = [_lengths(array)]
    values = array.flatten()
    while is_list(values.type):
        refuse_nulls(values, name, "an array with a null in it")
        sizes.append(_lengths(values))
        values = values.flatten()
    if shape is not None and len(sizes) == len(shape) > 1:
        for found, wanted in zip(sizes, shape, strict=True):
            if (found != wanted).any():
                raise DataError(f"column {name!r} holds an array that is not of shape {list(shape)}")
    lengths = sizes[0]
    for inner in sizes[1:]:
        ends, totals = np.cumsum(lengths), np.concatenate([[0], np.cumsum(inner)])
        lengths = totals[ends] - totals[ends - lengths]
    return lengths, values


def _lengths(array: pa.Array) -> Array:
    lengths: Array = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _lists(values: Array, lengths: Array) -> pa.Array:
    """Arrays of those lengths over flat values."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))


def _sparse(array: pa.Array, name: str, is_vector: bool) -> pa.Array:
    """Vectors, or arrays in their place, by the places of their values."""
    if not (is_vector or is_list(array.type)):
        raise DataError(f"column {name!r} is {array.type}, where sparse vectors were trained on")
    values = pc.struct_field(array, "values") if is_vector else array
    lengths = _lengths(values)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    places, sizes = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths), lengths
    if is_vector:
        is_sparse = pc.struct_field(array, "type").to_numpy(zero_copy_only=False) == 0
        places[np.repeat(is_sparse, lengths)] = pc.struct_field(array, "indices").flatten().to_numpy()
        given = pc.struct_field(array, "size").fill_null(0).to_numpy(zero_copy_only=False)
        sizes = np.where(is_sparse, given, lengths)
    of_each = pa.array(offsets, pa.int32())
    parts = [
        pa.array(sizes, pa.int32()),
        pa.ListArray.from_arrays(of_each, pa.array(places, pa.int32())),
        pa.ListArray.from_arrays(of_each, values.flatten().cast(pa.float32())),
    ]
    return pa.StructArray.from_arrays(parts, fields=list(ARROW_TYPES["sparse"]))


def _dense(vectors: pa.StructArray) -> pa.Array:
    """Spark's vectors as arrays of doubles."""
    kinds, values = pc.struct_field(vectors, "type"), pc.struct_field(vectors, "values")
    if pc.all(pc.equal(kinds, 1)).as_py() is not False:
        return values
    rows = []
    for vector in vectors.to_pylist():
        row = np.zeros(vector["size"] or 0)
        if vector["type"] == 1:
            row = np.asarray(vector["values"])
        else:
            row[vector["indices"]] = vector["values"]
        rows.append(row)
    return pa.array(rows, pa.list_(pa.float64()))
