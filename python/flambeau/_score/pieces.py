"""How many rows a module gets at once: fewer where memory does not suffice."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger("flambeau")

T = TypeVar("T")


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
                "takes: lower inferenceBatchSize or inferenceBatchBytes (%s)",
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
