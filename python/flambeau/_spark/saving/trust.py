"""Which saved programs a session reads.

A program is code of whoever wrote it. With `spark.flambeau.allowPickle=false` only those are read that can do
nothing but compute: they call the operators of `native/train/src/job/pure_operators.txt` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from flambeau._saved.purity import check_pure
from flambeau._spark.extension import with_extension
from flambeau._version import HAS_EXTENSION
from flambeau.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALLOW_PICKLE = "spark.flambeau.allowPickle"
ALLOW_SCRIPTS = "spark.flambeau.allowScripts"
# The first torch that holds a tensor's sizes and strides against its storage where it loads them.
CHECKED_BY = (2, 13)


def pickle_allowed(spark: SparkSession) -> bool:
    """Whether the session lets saved models and estimators hold pickles, and reads them and programs that do
    more than compute: `spark.flambeau.allowPickle`.
    """
    return _is_on(spark, ALLOW_PICKLE)


def refusal(spark: SparkSession | None, form: str, read: Callable[[], bytes]) -> str | None:
    """Why the session does not read a program that was saved in this form, or a loss that is `scripted`; None
    where it does. Nothing of it is run. `read` gives its bytes, and is called where they matter. Without a
    session, whose settings are not known then, only those are read that do nothing but compute.
    """
    if spark is not None and form == "scripted" and not _is_on(spark, ALLOW_SCRIPTS):
        return f"{ALLOW_SCRIPTS} is false"
    if spark is not None and pickle_allowed(spark):
        return None
    off = f"{ALLOW_PICKLE} is false" if spark is not None else f"no Spark session allows it ({ALLOW_PICKLE})"
    if form == "pickle":
        return off
    import torch

    # By numbers: 2.13.0a0 comes before 2.13.
    if tuple(map(int, torch.__version__.split(".")[:2])) < CHECKED_BY:
        return (
            f"{off}, and torch {torch.__version__} takes on trust that a program's tensors "
            f"lie in their memory: take torch {'.'.join(map(str, CHECKED_BY))}, or give the module"
        )
    if spark is None and not HAS_EXTENSION:
        return f"{off}, and this machine has not what knows the programs that do nothing but compute"
    try:
        with_extension(partial(check_pure, form, read()))
    except DataError as error:
        return f"{off}, and {error}"
    return None


def _is_on(spark: SparkSession, name: str) -> bool:
    return str(spark.conf.get(name, "true")).strip().lower() != "false"
