"""Why something failed, in one line."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def worker_line(error: BaseException) -> str:
    """What an error of Spark's says of a task that failed: what ends its Python worker's traceback where it
    has one, else its first line.
    """
    _, _, traceback = str(error).partition("Traceback (most recent call last):\n")
    # Frames are indented.
    ends = (line for line in traceback.splitlines() if line[:1].strip())
    return next(ends, first_line(error))
