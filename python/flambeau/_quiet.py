"""Warnings that are not shown."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

quieting = threading.RLock()
"""Held while what belongs to the process is swapped: two threads would restore it in the wrong order."""


@contextmanager
def without_warnings() -> Iterator[None]:
    """Shows none of the process's warnings. Other threads that want that wait."""
    with quieting, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
