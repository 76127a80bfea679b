"""Spark's Python daemon with what ranks import in it, for `spark.python.daemon.module=flambeau.daemon`.

Spark forks its Python workers from a daemon, one an executor. In this one torch has been imported when the
first worker is forked, so that no worker imports it for itself, and all share its memory.
"""

from __future__ import annotations

import os

from flambeau._rank.imports import RANK_MODULES, import_all


def main() -> None:
    """Imports, then serves as Spark's own daemon does."""
    threads = os.environ.get("OMP_NUM_THREADS")
    import_all(RANK_MODULES)
    if threads is not None:
        # Other users of these workers are to compute with as many threads as Spark says.
        os.environ["OMP_NUM_THREADS"] = threads
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
