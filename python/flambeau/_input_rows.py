"""Rows as a module's inputs: Arrow columns on their way into torch's memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flambeau._tensors import TensorColumns
from flambeau.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

NUMPY = {
    "float32": np.float32,
    "float64": np.float64,
    "int64": np.int64,
    "bool": np.bool_,
    "uint8": np.uint8,
}
"""Numpy's types of the tensors' dtypes."""

ARROW_TYPES = {
    "float32": pa.float32(),
    "float64": pa.float64(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "uint8": pa.binary(),
    "binary": pa.binary(),
    "string": pa.string(),
    "sparse": pa.struct(
        [("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float32()))]
    ),
}
"""Arrow's types of what columns of the tensors' dtypes hold, and of those that stay as they are."""


@dataclass(frozen=True)
class InputRows:
    """An input's rows, still as the columns that they came in.

    `columns` holds the values of each, row after row, and shares the memory of the Arrow arrays. `shape` is
    that of one row.
    """

    columns: Sequence[np.ndarray[Any, Any]]
    shape: tuple[int, ...]

    @staticmethod
    def of(inputs: Sequence[TensorColumns], columns: Sequence[pa.Array]) -> list[InputRows]:
        """The rows of each input, from all inputs' columns in order.

        Raises DataError, naming the column, where there is a null or an array of another length than the
        input's shape.
        """
        rows, taken = [], 0
        for tensor in inputs:
            mine = columns[taken : taken + len(tensor.columns)]
            taken += len(mine)
            dtype = NUMPY[tensor.dtype]
            values = [_values(a, name, tensor, dtype) for a, name in zip(mine, tensor.columns, strict=True)]
            rows.append(InputRows(values, tensor.shape or ()))
        return rows

    def tensor(self, start: int, stop: int) -> Tensor:
        """The rows from `start` to `stop` in memory of their own, which torch aligns and the module may write
        to.
        """
        tensor = self.empty(stop - start)
        self.fill(tensor, start)
        return tensor

    def empty(self, num_rows: int, pin_memory: bool = False) -> Tensor:
        """A tensor for so many rows."""
        import torch

        dtype = getattr(torch, str(self.columns[0].dtype))
        return torch.empty((num_rows, *self.shape), dtype=dtype, pin_memory=pin_memory)

    def fill(self, tensor: Tensor, start: int) -> None:
        """Writes the rows from `start` on into a tensor, as many as it has."""
        # One column holds all of a row's numbers, several hold one each.
        width = math.prod(self.shape) // len(self.columns)
        packed = tensor.numpy().reshape(len(tensor), len(self.columns), width)
        stop = start + len(tensor)
        for index, column in enumerate(self.columns):
            packed[:, index] = column[start * width : stop * width].reshape(len(tensor), width)


Rows = tuple[Sequence[InputRows], int]
"""A batch's inputs, and its number of rows."""


def _values(array: pa.Array, name: str, tensor: TensorColumns, dtype: Any) -> np.ndarray[Any, Any]:
    """One column's values, flat but for the rows' order."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    refuse_nulls(array, name)
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        _check_lengths(pc.binary_length(array), name, tensor)
        width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
        bounds = np.frombuffer(array.buffers()[1], width)[array.offset : array.offset + len(array) + 1]
        if len(array) == 0 or bounds[0] == bounds[-1]:
            return np.empty(0, dtype)
        return np.frombuffer(array.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]
    if is_list(array.type):
        _check_lengths(pc.list_value_length(array), name, tensor)
        array = array.flatten()
        refuse_nulls(array, name, "an array with a null in it")
    elif tensor.shape not in ((), None) and len(tensor.columns) == 1 and math.prod(tensor.shape) != 1:
        raise DataError(
            f"column {name!r} holds single numbers, where arrays of {math.prod(tensor.shape)} were trained on"
        )
    values: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=False)
    return values.astype(dtype, copy=False)


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds arrays."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def numbers(values: pa.Array, name: str, dtype: str) -> np.ndarray[Any, Any]:
    """A column's flat values as a tensor's type. Raises DataError, naming the column, for what are no numbers
    and for one with a fraction where integers are asked for.
    """
    kind = values.type
    if pa.types.is_decimal(kind) or pa.types.is_null(kind):
        values = values.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"column {name!r} is {kind}, which cannot be an input: select columns of numbers, booleans, "
            "arrays of them, or vectors"
        )
    return cast_values(values.to_numpy(zero_copy_only=False), f"column {name!r}", dtype)


def cast_values(values: np.ndarray[Any, Any], what: str, dtype: str) -> np.ndarray[Any, Any]:
    """Numbers as a tensor's type; `what` names them. Raises DataError for one with a fraction where integers
    are asked for.
    """
    if dtype in ("int64", "bool") and values.dtype.kind == "f":
        wrong = values[~((np.floor(values) == values) & (np.abs(values) < 2.0**63))]
        if wrong.size:
            raise DataError(
                f"{what} holds {wrong.flat[0]}, which is not a whole number, where {dtype} is asked for: "
                "round it, or ask for float32"
            )
    if dtype == "uint8" and values.dtype.kind != "b":
        wrong = values[~((np.floor(values) == values) & (values >= 0) & (values <= 255))]
        if wrong.size:
            raise DataError(
                f"{what} holds {wrong.flat[0]}, where bytes are asked for: give whole numbers to 255"
            )
    return values.astype(NUMPY[dtype], copy=False)


def refuse_nulls_within(array: pa.Array, name: str) -> None:
    """Raises DataError where the column, or one of its arrays, holds a null."""
    refuse_nulls(array, name)
    if is_list(array.type):
        refuse_nulls(array.flatten(), name, "an array with a null in it")


def refuse_nulls(array: pa.Array, name: str, what: str = "a null") -> None:
    """Raises DataError where the column holds a null."""
    if array.null_count:
        raise DataError(
            f"column {name!r} holds {what}: fill it (Imputer, DataFrame.fillna) or drop those rows "
            "(DataFrame.dropna) before transform"
        )


def _check_lengths(lengths: pa.Array, name: str, tensor: TensorColumns) -> None:
    wanted = math.prod(tensor.shape or ())
    found = lengths.to_numpy(zero_copy_only=False)
    wrong = found[found != wanted]
    if len(wrong):
        raise DataError(
            f"column {name!r} holds an array of {wrong[0]}, where {wanted} were trained on: "
            "every row's array must have that length"
        )
