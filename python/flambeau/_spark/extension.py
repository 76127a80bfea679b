"""What the native extension alone knows, asked of it here or, on a client that has none, of a worker's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flambeau._spark import session
from flambeau._version import HAS_EXTENSION
from flambeau.errors import DataError, FlambeauError, ParamError, StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CARRIED = {kind.__name__: kind for kind in (DataError, ParamError, StoreError)}
"""The errors that a worker answers with, by their names."""


def with_extension(ask: Callable[[], Any]) -> Any:
    """What `ask` returns, which is JSON, asked in this process, or of a worker of the active session where
    this machine has no extension. Raises what it raises, and FlambeauError where there is neither.
    """
    if HAS_EXTENSION:
        return ask()
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None:
        raise FlambeauError(
            "this machine has the package for clients of Spark Connect, without native parts, and there is "
            "no session whose workers have them: start one"
        )
    return ask_worker(spark, ask)


def ask_worker(spark: SparkSession, ask: Callable[[], Any]) -> Any:
    """What `ask` returns in a Spark task, which is JSON. Raises the DataError, ParamError and StoreError that
    it raises there.
    """

    def answer() -> dict[str, Any]:
        try:
            return {"answer": ask()}
        except tuple(_CARRIED.values()) as error:
            # Spark would make an exception of its own of it.
            return {"error": type(error).__name__, "message": str(error), "transient": error.is_transient}

    told = session.on_worker(spark, answer)
    if "error" in told:
        error = _CARRIED[told["error"]](told["message"])
        error.is_transient = told["transient"]
        raise error
    return told["answer"]
