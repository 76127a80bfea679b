"""Spark's Python daemon with what ranks import in it, for `spark.python.daemon.module=flambeau.daemon`.

Spark forks its Python workers from a daemon, one an executor. In this one torch has been imported when the
first worker is forked, so that no worker imports it for itself, and all share its memory. It has been told of
as many threads as Spark asks for; ranks set their own.
"""

from __future__ import annotations

from flambeau._rank.imports import RANK_MODULES, import_all


def main() -> None:
    """Imports, then serves as Spark's own daemon does."""
    import_all(RANK_MODULES)
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
