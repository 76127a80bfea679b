"""The user's `preprocess` as training and scoring call it: checked, and in threads ahead of the training.

Importing this module imports no torch: what a rank is sent names it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyarrow as pa

from flambeau._saved.program import by_keyword, forward_arguments
from flambeau._tensors import TensorColumns
from flambeau.errors import DataError, FlambeauError, ParamError
from flambeau.preprocessing import Batch, row_seeds

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flambeau._module.devices import TensorBatch

Preprocess = Callable[[Batch], Any]


@dataclass(frozen=True)
class PreprocessSpec:
    """What `preprocess` makes of which columns, as it was found on a few rows.

    `columns` has one entry for each column. `inputs` are the tensors that it makes, in the order of forward's
    arguments; their shapes are those of that batch. `by_name` says whether it returns them by name.
    """

    columns: tuple[TensorColumns, ...]
    inputs: tuple[TensorColumns, ...]
    by_name: bool

    def tensors(self, function: Preprocess, batch: Batch) -> list[Tensor]:
        """The module's inputs of a batch, in the order of forward's arguments.

        Raises DataError, naming column and row, where the function fails, and ParamError where it returns
        something else than it did.
        """
        named, by_name = returned(function, batch)
        known = [one.name for one in self.inputs]
        if by_name == self.by_name and (set(named) == set(known) if by_name else len(named) == len(known)):
            return [named[name] for name in known] if by_name else list(named.values())
        raise ParamError(
            f"{_name(function, batch)} returns {', '.join(named)}, and returned {', '.join(known)} on the "
            "first rows of the DataFrame: return the same for each batch, of training and of others"
        )

    @classmethod
    def found(
        cls, module: nn.Module, functions: Sequence[Preprocess], batches: Sequence[Batch]
    ) -> tuple[PreprocessSpec, list[Tensor]]:
        """What the functions, for training and for validation, make of such batches, and the inputs that the
        latter makes. Raises DataError and ParamError as `tensors` does, and ParamError for names that are not
        those of forward's arguments, and types that differ.
        """
        from flambeau._module.steps import predicts

        columns = tuple(batches[0]._columns.values())
        named, by_name = returned(functions[0], batches[0])
        if by_name and predicts(module):
            raise ParamError(
                f"{_name(functions[0], batches[0])} returns a dict, and {type(module).__name__} has a "
                "predict_step and no forward, whose arguments would be the names: return a tensor or a "
                "tuple, or give the module a forward"
            )
        arguments = forward_arguments(module)
        names = list(named)
        keyword = by_name and by_keyword(module, names)
        if by_name and not keyword and arguments:
            if set(names) != set(arguments[: len(names)]):
                raise ParamError(
                    f"{_name(functions[0], batches[0])} returns {', '.join(map(str, names))}, but must name "
                    f"the first of forward's arguments, in any order: {', '.join(arguments)}"
                )
            names = arguments[: len(names)]
        if not by_name:
            names = [*arguments[: len(names)], *names[len(arguments) :]]
            named = dict(zip(names, named.values(), strict=True))
        inputs = tuple(_told(name, named[name], keyword) for name in names)
        made = cls(columns, inputs, by_name)
        examples = made.tensors(functions[1], batches[1])
        for one, example in zip(inputs, examples, strict=True):
            other = _told(one.name, example, keyword)
            if other.dtype != one.dtype:
                raise ParamError(
                    f"validationPreprocess returns {one.name} as {other.dtype}, and preprocess as "
                    f"{one.dtype}: return the same type from both"
                )
        return made, examples


@dataclass(frozen=True)
class ScoringPreprocess:
    """The `preprocess` of a fitted model: that of its validation, as a cloudpickle, and what it makes."""

    pickle: bytes
    spec: PreprocessSpec

    def arrow(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """The columns in their order as what `tensors` takes, under the names that they had in training."""
        names = [column.columns[0] for column in self.spec.columns]
        whole = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
        return pa.RecordBatch.from_arrays(whole, names)

    def tensors(self, arrow: pa.RecordBatch) -> list[Tensor]:
        """The module's inputs of some rows. Raises DataError and ParamError."""
        made = self.spec
        return made.tensors(_unpickled(self.pickle), Batch(arrow, made.columns))


class Ahead:
    """Runs the functions for training and for validation in threads, ahead of who takes what they make.

    `seed` is the estimator's. To be closed: that ends the threads once the batches that they are at are done.
    """

    def __init__(
        self,
        preprocessing: PreprocessSpec,
        functions: tuple[Preprocess, Preprocess],
        num_threads: int,
        seed: int,
    ) -> None:
        self.num_batches = 2 * num_threads
        self._preprocessing = preprocessing
        self._training, self._validation = functions
        self._seed = seed
        self._threads = ThreadPoolExecutor(num_threads, "flambeau-preprocess")

    def submit(
        self,
        raw: Any,
        labels: list[Tensor],
        weight: Tensor | None,
        row_ids: Sequence[int],
        epoch: int,
        is_training: bool,
    ) -> Future[TensorBatch]:
        """Begins with a batch, given as what Arrow takes, with the columns in their order."""
        from flambeau._module.devices import TensorBatch

        columns = self._preprocessing.columns
        # Files may have the columns under other names.
        names = [column.columns[0] for column in columns]
        arrow = pa.RecordBatch.from_arrays(pa.record_batch(raw).columns, names)

        def run() -> TensorBatch:
            if is_training:
                seeds = row_seeds(self._seed, epoch, row_ids)
                batch = Batch(arrow, columns, is_training=True, row_ids=row_ids, seeds=seeds)
            else:
                batch = Batch(arrow, columns)
            function = self._training if is_training else self._validation
            return TensorBatch(self._preprocessing.tensors(function, batch), labels, weight, batch.num_rows)

        return self._threads.submit(run)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *raised: object) -> None:
        self._threads.shutdown(cancel_futures=True)


def returned(function: Preprocess, batch: Batch) -> tuple[dict[str, Tensor], bool]:
    """The tensors that a function makes of a batch, and whether it gives them names; others are numbered.

    Raises DataError, naming column and row, where the function fails, and ParamError for what are no tensors
    with one row for each of the batch's.
    """
    import torch

    try:
        made = function(batch)
    except FlambeauError:
        raise
    except Exception as error:
        raise _located(function, batch, error) from error
    by_name = isinstance(made, Mapping)
    several = made if by_name else made if isinstance(made, tuple | list) else (made,)
    named = dict(several) if by_name else {f"input {i + 1}": one for i, one in enumerate(several)}
    for name, value in named.items():
        if not isinstance(value, torch.Tensor):
            raise ParamError(
                f"{_name(function, batch)} returns {type(value).__name__} as {name}; return a tensor, or a "
                "tuple or dict of tensors"
            )
        if value.dim() == 0 or len(value) != batch.num_rows:
            raise ParamError(
                f"{_name(function, batch)} returns {name} of shape {list(value.shape)} for "
                f"{batch.num_rows} rows; its first dimension must be the rows"
            )
    if not named:
        raise ParamError(f"{_name(function, batch)} returns no tensor")
    return named, by_name


def pickled(function: Preprocess) -> bytes:
    """The function as a fitted model keeps it."""
    data: bytes = cloudpickle.dumps(function)
    return data


@functools.lru_cache(maxsize=8)
def _unpickled(data: bytes) -> Preprocess:
    function: Preprocess = cloudpickle.loads(data)
    return function


def _told(name: str, tensor: Tensor, keyword: bool) -> TensorColumns:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorColumns(name, (name,), dtype, tuple(tensor.shape[1:]), keyword)


def _name(function: Preprocess, batch: Batch) -> str:
    """What a message calls the function: the param, and its own name."""
    which = "" if batch.is_training else " of validation and scoring"
    return f"preprocess{which} ({getattr(function, '__qualname__', type(function).__qualname__)})"


def _located(function: Preprocess, batch: Batch, error: Exception) -> DataError:
    """The error with the row that it comes from, found by calling the function on one after another."""
    asked, place = batch._asked, f"a batch of {batch.num_rows} rows"
    for row in range(batch.num_rows):
        one = batch._row(row)
        try:
            function(one)
        except Exception as own:
            asked, error = one._asked or asked, own
            place = f"row {row} of {place}" + (f" (row id {one.row_ids[0]})" if one.row_ids else "")
            break
    column = f"column {asked!r}, " if asked is not None else ""
    return DataError(f"{_name(function, batch)} fails at {column}{place}: {type(error).__name__}: {error}")
