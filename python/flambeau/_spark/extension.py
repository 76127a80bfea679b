"""What the native extension alone knows, asked of it here or, on a client that has none, of a worker's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flambeau._spark import session
from flambeau._version import HAS_EXTENSION, NATIVE_PLATFORM, check_extension
from flambeau.errors import EnvironmentMismatchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def with_extension(ask: Callable[[], Any]) -> Any:
    """What `ask` returns, which is JSON, asked in this process, or of a worker of this thread's or this
    process's session where this machine has no extension. Raises what it raises, and
    EnvironmentMismatchError where there is no session of Spark Connect then.
    """
    if HAS_EXTENSION:
        return ask()
    spark = session.current()
    if spark is None or not session.is_connect(spark):
        raise EnvironmentMismatchError(
            "this machine has flambeau without its native parts, as a client of Spark Connect whose workers "
            "have them: start a session by SparkSession.builder.remote, or install flambeau where they are "
            f"({NATIVE_PLATFORM})"
        )
    return ask_worker(spark, ask)


def ask_worker(spark: SparkSession, ask: Callable[[], Any]) -> Any:
    """What `ask` returns in a Spark task, which is JSON. Raises what it raises there, and
    EnvironmentMismatchError where the worker has no extension.
    """

    def answer() -> Any:
        check_extension()
        return ask()

    return session.on_worker(spark, answer)
