"""A worker's imports ahead of time, on a thread of their own, while its process has nothing to do."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

log = logging.getLogger("flambeau")

# The task that asks for the imports ends first: beside them, which hold the interpreter for long, it would
# take as long as they do, and keep its slot.
_DELAY_SECONDS = 0.2

RANK_MODULES = ("flambeau._native", "flambeau._module.adapter")
"""What every rank imports that trains in Python, torch with it."""

_importing: threading.Thread | None = None


def start_importing(modules: Sequence[str]) -> None:
    """Imports modules on a thread of their own, soon; `finish_importing` waits for it.

    What cannot be imported is left to whoever needs it.
    """
    global _importing
    is_busy = _importing is not None and _importing.is_alive()
    if not is_busy and not all(name in sys.modules for name in modules):
        _importing = threading.Timer(_DELAY_SECONDS, _import_as_a_rank, [tuple(modules)])
        _importing.daemon = True
        _importing.start()


def finish_importing() -> None:
    """Waits until what `start_importing` began has come in: of modules that import each other on two threads,
    one may see the other half made.
    """
    if _importing is not None:
        _importing.join()


def forget_threads() -> None:
    """Has torch, which reads it at its import, not know how many threads PySpark asks for.

    PySpark sets OMP_NUM_THREADS to spark.task.cpus; threads come from the job, as soon as the ranks of this
    host are known.
    """
    os.environ.pop("OMP_NUM_THREADS", None)


def _import_as_a_rank(modules: Sequence[str]) -> None:
    forget_threads()
    # Next to nothing of what an import makes is garbage, and looking for it takes a tenth of its time.
    gc.disable()
    try:
        for name in modules:
            import_module(name)
    except Exception as error:
        log.debug("what a rank needs could not be imported ahead of time: %s", error)
    finally:
        gc.enable()
