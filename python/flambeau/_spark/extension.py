"""What the native extension alone knows, asked of it here or, on a client that has none, of a worker's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flambeau._spark import session
from flambeau._version import HAS_EXTENSION, NATIVE_PLATFORM
from flambeau.errors import (
    DataError,
    EnvironmentMismatchError,
    FlambeauError,
    ParamError,
    RunInUseError,
    StoreError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CARRIED = {
    kind.__name__: kind
    for kind in (DataError, EnvironmentMismatchError, ParamError, RunInUseError, StoreError)
}
"""The errors that a worker answers with, by their names."""


def with_extension(ask: Callable[[], Any]) -> Any:
    """What `ask` returns, which is JSON, asked in this process, or of a worker of this thread's or this
    process's session where this machine has no extension. Raises what it raises, and FlambeauError where
    there is no session of Spark Connect then.
    """
    if HAS_EXTENSION:
        return ask()
    spark = session.current()
    if spark is None or not session.is_connect(spark):
        raise FlambeauError(
            "this machine has flambeau without its native parts, as a client of Spark Connect whose workers "
            "have them: start a session by SparkSession.builder.remote, or install flambeau where they are "
            f"({NATIVE_PLATFORM})"
        )
    return ask_worker(spark, ask)


def ask_worker(spark: SparkSession, ask: Callable[[], Any]) -> Any:
    """What `ask` returns in a Spark task, which is JSON. Raises the DataError, ParamError and StoreError that
    it raises there, and EnvironmentMismatchError where the worker has no extension.
    """

    def answer() -> dict[str, Any]:
        from flambeau import _version

        try:
            if not _version.HAS_EXTENSION:
                raise EnvironmentMismatchError(
                    f"the workers' flambeau has no native parts: they are for {_version.NATIVE_PLATFORM}"
                )
            return {"answer": ask()}
        except tuple(_CARRIED.values()) as error:
            # Spark would make an exception of its own of it.
            told = {"error": type(error).__name__, "message": str(error)}
            return {**told, "is_transient": error.is_transient}

    told = session.on_worker(spark, answer)
    if "error" in told:
        raise _CARRIED[told["error"]](told["message"], is_transient=told["is_transient"])
    return told["answer"]
