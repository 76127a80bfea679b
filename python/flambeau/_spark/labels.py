"""What Spark's UI says of the jobs of a fit: which fit, and which part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flambeau._spark.session import classic_context

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Properties of a thread that Spark's UI and its status tracker read, by their names in SparkContext.
_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"

Say = Callable[[str], None]


@contextmanager
def labelled(spark: SparkSession, name: str) -> Iterator[Say]:
    """Labels the jobs that this thread starts in the block as those of `name`; the given function says for
    which part of it the next ones are.

    On classic Spark the label is the jobs' description, behind the thread's own where it has one, and `name`
    is their group where the thread has none: by its own group a notebook cancels them. On Spark Connect it
    is a tag. After the block the thread has its own again.
    """
    context = classic_context(spark)
    with _tagged(spark, name) if context is None else _described(context, name) as say:
        yield say


@contextmanager
def _described(context: SparkContext, name: str) -> Iterator[Say]:
    group, own = (context.getLocalProperty(key) for key in (_GROUP, _DESCRIPTION))
    before = f"{own}: " if own else ""

    def put(key: str, value: str | None) -> None:
        # None takes a property away, which Spark's types do not say.
        context.setLocalProperty(key, value)  # type: ignore[arg-type]

    def say(part: str) -> None:
        put(_DESCRIPTION, f"{before}{name}: {part}")

    put(_GROUP, group or name)
    try:
        yield say
    finally:
        put(_GROUP, group)
        put(_DESCRIPTION, own)


@contextmanager
def _tagged(spark: SparkSession, name: str) -> Iterator[Say]:
    tags: list[str] = []

    def end() -> None:
        while tags:
            spark.removeTag(tags.pop())

    def say(part: str) -> None:
        end()
        # A tag has no comma.
        tags.append(f"{name}: {part}".replace(",", ""))
        spark.addTag(tags[0])

    try:
        yield say
    finally:
        end()
