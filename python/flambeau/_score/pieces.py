"""How many rows a module gets at once: fewer where memory does not suffice."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from flambeau._saved.program import OutputSpec
from flambeau._tensors import TensorColumns

if TYPE_CHECKING:
    import torch

log = logging.getLogger("flambeau")

T = TypeVar("T")

MAX_BYTES = 64 << 20
"""The most bytes that an input's rows, or an output's, take at a time; a single row may take more."""


def rows_at_once(inputs: Sequence[TensorColumns], output: OutputSpec, batch_size: int) -> int:
    """How many rows are scored at once: `batch_size`, or as many as `MAX_BYTES` has room for."""
    import torch

    def row_bytes(shape: Sequence[int] | None, dtype: str) -> int:
        size: torch.dtype = getattr(torch, dtype)
        return math.prod(shape or ()) * size.itemsize

    given = [row_bytes(tensor.shape, tensor.dtype) for tensor in inputs]
    made = [row_bytes(tensor.shape, tensor.dtype) for tensor in output.tensors]
    return max(1, min(batch_size, MAX_BYTES // max(1, *given, *made)))


class Pieces:
    """Runs over rows in pieces. Where one does not fit into memory it is halved, and so are those after it;
    a task's first halving is told in a warning.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._has_warned = False

    def over(
        self, num_rows: int, run: Callable[[int, int], T], take: Callable[[T], object] = lambda _: None
    ) -> None:
        """Calls `run` with the bounds of each piece, again with closer ones where memory ran out, and `take`
        once with what it returns. Raises what they raise otherwise, and for a single row.
        """
        start = 0
        while start < num_rows:
            stop = min(start + self.num_rows, num_rows)
            try:
                made = run(start, stop)
            except (MemoryError, RuntimeError) as error:
                if stop - start == 1 or not _is_out_of_memory(error):
                    raise
                self._halve(stop - start, str(error))
            else:
                take(made)
                # The next piece's lies in the same memory.
                del made
                start = stop

    def _halve(self, num_rows: int, why: str) -> None:
        self.num_rows = num_rows // 2
        if not self._has_warned:
            log.warning(
                "memory is too small for the module and %d rows at once, which are halved as often as it "
                "takes: lower inferenceBatchSize (%s)",
                num_rows,
                why.partition("\n")[0],
            )
            self._has_warned = True


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    # Torch's allocator of the CPU has no class for it, and says another thing on each system.
    return "DefaultCPUAllocator" in str(error) or "not enough memory" in str(error)
