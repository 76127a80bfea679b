"""What makes a module's inputs of columns that are no numbers: `preprocess(batch)` of an estimator::

    def decode(batch):
        return torch.stack([to_tensor(Image.open(BytesIO(jpeg))) for jpeg in batch["image"]])

    TorchClassifier(model=net, inputCols=["image"], labelCol="y", preprocess=decode).fit(df)

It is called on the workers, in threads ahead of the training, and where the fitted model scores.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import pyarrow as pa

from flambeau._input_rows import NUMPY, InputRows, is_list, numbers, refuse_nulls_within
from flambeau._suggest import suggestion
from flambeau._tensors import TensorColumns
from flambeau.errors import DataError, ParamError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Batch(Mapping[str, Any]):
    """The rows that `preprocess` makes tensors of: a mapping from the columns' names to their values.

    A column of numbers or booleans is a tensor of shape [rows], one of arrays or vectors whose shape is known
    (by inputShapes, or a vector's metadata) a tensor of shape `[rows, *shape]`. A column of arrays of any
    length is a list of tensors, one for each row, and one of strings or binaries a list of `str` or `bytes`.
    A column of vectors or arrays to which inputTypes gives "sparse" is a sparse CSR tensor of float32 and
    shape [rows, size].
    The tensors may be written to. Each is made where it is first asked for.

    Attributes
    ----------
    arrow : the columns as a `pyarrow.RecordBatch`.
    is_training : whether the rows are trained on, and not validated or scored.
    row_ids : the rows' numbers among the training rows, the same in each epoch; None where they are not
        trained on.
    """

    def __init__(
        self,
        arrow: pa.RecordBatch,
        columns: Sequence[TensorColumns],
        *,
        is_training: bool = False,
        row_ids: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> None:
        self.arrow = arrow
        self.is_training = is_training
        self.row_ids = row_ids
        self._seeds = seeds
        self._columns = {column.columns[0]: column for column in columns}
        self._made: dict[str, Any] = {}
        self._asked: str | None = None
        """The column that was asked for last."""

    @property
    def num_rows(self) -> int:
        """How many rows there are; at least 1."""
        return int(self.arrow.num_rows)

    @property
    def seeds(self) -> Sequence[int]:
        """One seed for each row, from the estimator's seed, the epoch and the row alone: random numbers of it
        are the same in whatever order and on however many workers rows are read.

        Raises ParamError where rows are not trained on: `is_training` says so.
        """
        if self._seeds is None:
            raise ParamError(
                "preprocess: rows that are validated or scored have no seeds: draw random numbers where "
                "batch.is_training is true"
            )
        return self._seeds

    def generator(self, row: int) -> torch.Generator:
        """A generator of torch's with the seed of a row, which is counted from 0 within the batch."""
        import torch

        return torch.Generator().manual_seed(self.seeds[row])

    def __getitem__(self, name: str) -> Any:
        column = self._columns.get(name)
        if column is None:
            hint = suggestion(str(name), list(self._columns))
            raise KeyError(f"no column {name!r} in the batch, which has {', '.join(self._columns)}{hint}")
        self._asked = name
        if name not in self._made:
            self._made[name] = _values(self.arrow.column(name), column)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def _row(self, row: int) -> Batch:
        """One of the rows alone."""
        ids, seeds = self.row_ids, self._seeds
        return Batch(
            self.arrow.slice(row, 1),
            list(self._columns.values()),
            is_training=self.is_training,
            row_ids=None if ids is None else ids[row : row + 1],
            seeds=None if seeds is None else seeds[row : row + 1],
        )


def as_tensors(batch: Batch) -> dict[str, Any]:
    """A `preprocess` that gives all columns to forward as they are, each as the argument of its name."""
    return dict(batch)


@dataclass(frozen=True)
class Pad:
    """A `preprocess` that pads columns of arrays to one length and leaves the others as they are::

        TorchEstimator(model=net, inputCols=["input_ids"], preprocess=Pad({"input_ids": 0}), ...)

    It makes a dict of the batch's columns, each an argument of forward by its name, and of what `mask` and
    `lengths` name.

    Attributes
    ----------
    values : for each column to be padded, the value that fills its rows up.
    length : what rows are padded to; the longest row of the batch where None. A longer row is refused.
    mask : the name of an argument that is 1 where the first of the columns has a value and 0 where it is
        padded, of shape [rows, length] and int64, such as "attention_mask". None makes none.
    lengths : the name of an argument with the numbers of values of its rows, of shape [rows] and int64. None
        makes none.
    """

    values: Mapping[str, float]
    length: SupportsIndex | None = None
    mask: str | None = None
    lengths: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping) or not self.values:
            raise ParamError(
                f"Pad: values is {self.values!r}, but must be a dict with the value that fills up each "
                'column, such as {"input_ids": 0}'
            )
        _whole("Pad", self.length)

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """The batch's columns by their names, padded."""
        import torch

        made = dict(batch)
        for name, value in self.values.items():
            made[name] = padded(batch[name], value, self.length, name)
        first = next(iter(self.values))
        sizes = torch.tensor([len(row) for row in batch[first]])
        if self.mask is not None:
            made[self.mask] = (torch.arange(made[first].shape[1]) < sizes[:, None]).long()
        if self.lengths is not None:
            made[self.lengths] = sizes
        return made


def padded(
    rows: Sequence[Tensor], value: float = 0, length: SupportsIndex | None = None, name: str = "rows"
) -> Tensor:
    """Tensors of any length as one of shape [rows, length], filled up with `value`; to the longest where
    `length` is None.

    `name` is what messages call them. Raises DataError for a row that is longer than `length`, and for what
    are no such tensors, and ParamError for a `length` that is no whole number of at least 1, and for a
    `value` that is not whole where theirs are.
    """
    import torch

    length = _whole(name, length)
    if not all(isinstance(row, torch.Tensor) and row.dim() == 1 for row in rows):
        raise DataError(f"{name}: padding takes arrays of numbers, each of any length")
    longest = max((len(row) for row in rows), default=0)
    if length is not None and longest > length:
        raise DataError(
            f"{name}: a row has {longest} values, which is more than the length {length} that rows are "
            "padded to: cut it, or pad to a greater length"
        )
    dtype = rows[0].dtype if len(rows) else torch.float32
    if not dtype.is_floating_point and not float(value).is_integer():
        kind = str(dtype).removeprefix("torch.")
        raise ParamError(
            f"{name}: arrays of {kind} are padded with {value}, but must be with a whole number: give one, "
            "or read the column as float32 by inputTypes"
        )
    made = torch.full((len(rows), length or longest), value, dtype=dtype)
    for place, row in enumerate(rows):
        made[place, : len(row)] = row
    return made


def _whole(name: str, length: SupportsIndex | None) -> int | None:
    """A length that was given, also as one of numpy's numbers. Raises ParamError for what is none."""
    if length is None:
        return None
    try:
        whole = operator.index(length)
    except TypeError:
        whole = 0
    if whole < 1 or isinstance(length, bool):
        raise ParamError(f"{name}: length is {length}, but must be a whole number of at least 1, or None")
    return whole


def row_seeds(seed: int, epoch: int, row_ids: Sequence[int]) -> list[int]:
    """For each row a number from 0 to 2^63 that seed, epoch and row alone make.

    Each of the three in turn goes through the finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable
    pseudorandom number generators", 2014).
    """
    mask, step = (1 << 64) - 1, 0x9E3779B97F4A7C15
    state = _mixed(np.array([seed & mask], np.uint64))
    for part in (np.array([epoch & mask], np.uint64), np.asarray(row_ids, np.uint64)):
        state = _mixed((state ^ part) + np.array([step], np.uint64))
    seeds: list[int] = (state >> np.uint64(1)).tolist()
    return seeds


def _mixed(state: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """SplitMix64's finalizer, in numpy's wrapping arithmetic."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    mixed: np.ndarray[Any, Any] = state ^ (state >> np.uint64(31))
    return mixed


def _values(array: pa.Array, column: TensorColumns) -> Any:
    """A column's values, as `Batch` tells of them."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    refuse_nulls_within(array, column.name)
    if column.dtype == "sparse":
        return _sparse(array, column)
    if column.dtype not in NUMPY:
        return array.to_pylist()
    if column.shape is not None:
        return InputRows.of([column], [_checked(array, column)])[0].tensor(0, len(array))
    if not is_list(array.type):
        raise DataError(f"column {column.name!r} holds single numbers, where arrays were trained on")
    import torch

    lengths = array.value_lengths().to_pylist()
    # A copy, since Arrow's memory is not to be written to.
    flat = numbers(array.flatten(), column.name, column.dtype).copy()
    return list(torch.from_numpy(flat).split(lengths))


def _sparse(vectors: pa.StructArray, column: TensorColumns) -> Tensor:
    """Vectors, by the places of their values, as one CSR tensor."""
    import torch

    sizes, indices, values = vectors.flatten()
    found = {*sizes.unique().to_pylist(), *(column.shape or ())}
    if len(found) > 1:
        raise DataError(f"column {column.name!r} holds vectors of several sizes: {sorted(found)}")
    refuse_nulls_within(values, column.name)
    ends = np.concatenate([[0], np.cumsum(values.value_lengths())])
    return torch.sparse_csr_tensor(
        torch.from_numpy(ends),
        torch.from_numpy(indices.flatten().to_numpy().astype(np.int64)),
        torch.from_numpy(values.flatten().to_numpy().copy()),
        (len(vectors), found.pop()),
        check_invariants=True,
    )


def _checked(array: pa.Array, column: TensorColumns) -> pa.Array:
    """The column, whose numbers are such as its tensor takes: files that are read in place hold any."""
    if column.dtype in ("int64", "bool"):
        numbers(array.flatten() if is_list(array.type) else array, column.name, column.dtype)
    return array
