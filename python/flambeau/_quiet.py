"""What is tried in a process and leaves it as it was: warnings, and torch's random numbers."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

quieting = threading.RLock()
"""Held while what belongs to the process is swapped: two threads would restore it in the wrong order."""

_lock = threading.Lock()
_rng = threading.RLock()
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


@contextmanager
def forked_rng() -> Iterator[None]:
    """Leaves torch's random generator of the CPU as it was. One thread at a time is in such a block: two
    would restore each other's state.

    It keeps a copy, unlike torch.random.fork_rng, which makes a tensor of the state while torch holds the
    generator's lock. Python before 3.12 may collect garbage then, and hand the GIL over to a thread that
    waits for that lock, to seed or to fork: both stand still for ever.
    """
    import torch

    with _rng:
        kept = torch.default_generator.clone_state()
        try:
            yield
        finally:
            torch.set_rng_state(kept.get_state())
