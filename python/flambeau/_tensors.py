"""Tensors of a training job, and the columns that they are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TensorColumns:
    """One tensor and the columns that it is made of.

    `dtype` is one of float32, float64, int64, bool and uint8; of a column for `preprocess` also string,
    binary or sparse. `shape` is that of one row: () for a single
    number, (n,) for n packed columns or an array of n, (n, m) for n arrays of m, and None while it is not
    known, as for an array whose rows have not been seen. Where `keyword`, forward takes it by its name.
    """

    name: str
    columns: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...] | None
    keyword: bool = False

    @property
    def size(self) -> int:
        """How many numbers a row has, 1 while the shape is not known."""
        return math.prod(self.shape or ())

    def to_json(self) -> dict[str, Any]:
        """The tensor as the training job names it."""
        shape = None if self.shape is None else list(self.shape)
        return {"name": self.name, "columns": list(self.columns), "dtype": self.dtype, "shape": shape}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TensorColumns:
        """The inverse of `to_json`."""
        shape = value.get("shape")
        return cls(
            value["name"],
            tuple(value["columns"]),
            value["dtype"],
            None if shape is None else tuple(shape),
            value.get("keyword", False),
        )
