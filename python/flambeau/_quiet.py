"""Warnings that are not shown."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

quieting = threading.RLock()
"""Held while what belongs to the process is swapped: two threads would restore it in the wrong order."""

_lock = threading.Lock()
_swapped = ExitStack()
_num_quiet = 0


@contextmanager
def without_warnings() -> Iterator[None]:
    """Shows none of the process's warnings: the first of several threads saves what the last one restores."""
    global _num_quiet
    with _lock:
        if not _num_quiet:
            _swapped.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        _num_quiet += 1
    try:
        yield
    finally:
        with _lock:
            _num_quiet -= 1
            if not _num_quiet:
                _swapped.close()
