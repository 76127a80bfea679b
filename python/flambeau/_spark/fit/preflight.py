"""What a session has of what a fit needs, found by the checks that a fit begins with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flambeau._reason import worker_line
from flambeau._report import Fact
from flambeau._spark import session
from flambeau._spark.fit import cluster
from flambeau._spark.site import Site, work_directory
from flambeau.errors import ClusterError, EnvironmentMismatchError, ParamError, StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_facts(spark: SparkSession, num_workers: int | None, work_dir: str | None) -> Iterator[Fact]:
    """The facts, one after the other as they are looked up, for a fit with so many workers, None for as many
    as there are task slots, and the work directory that is given.
    """
    kind = "Spark Connect" if session.is_connect(spark) else "classic Spark"
    master = session.setting(spark, "spark.master") or "a master that is not told"
    yield Fact("session", f"{kind} {spark.version}, {master}")
    slots = cluster.count_slots(spark)
    wanted = num_workers or max(1, slots)
    try:
        cluster.check_slots(spark, wanted, 0)
    except ClusterError as error:
        yield _refused("task slots", error)
    else:
        yield Fact("task slots", f"{cluster.count_slots(spark)}, for numWorkers {wanted}")
        yield from _of_workers(spark, wanted, work_dir)
    yield _jar(spark)


def _of_workers(spark: SparkSession, num_workers: int, work_dir: str | None) -> Iterator[Fact]:
    """What so many workers have, and whether they and the driver share the work directory."""
    try:
        work = work_directory(spark, work_dir, session.store_options(spark))
        found = cluster.probe(spark, work, num_workers)
    except (ParamError, StoreError) as error:
        yield _refused("work directory", error)
        return
    except EnvironmentMismatchError as error:
        yield _refused("workers", error)
        return
    except Exception as error:  # Spark's own, for what a worker lacks
        remedy = "install Flambeau and what it needs into the workers' Python, which PYSPARK_PYTHON names"
        yield Fact("workers", worker_line(error), remedy)
        return
    kinds = Counter(", ".join(f"{name} {version}" for name, version in has.items()) for _, has in found)
    hosts = len({host for host, _ in found})
    on = "1 host" if hosts == 1 else f"{hosts} hosts"
    yield Fact("workers", f"{'; '.join(f'{kind} ({num})' for kind, num in kinds.items())}, on {on}")
    sees = Site.of(spark, work).visible
    driver = "the driver sees it" if sees else "the driver does not see it, and asks for it in tasks"
    yield Fact("work directory", f"{work.uri}, which all workers reach; {driver}")


def _refused(name: str, error: Exception) -> Fact:
    """What a check of a fit refused, in its own words."""
    return Fact(name, "a fit would be refused", str(error))


def _jar(spark: SparkSession) -> Fact:
    if session.is_connect(spark):
        return Fact("jar on the session", "not told on Spark Connect, where transform computes in Python")
    if session.python_models(spark) is not None:
        which = "models" if session.has_extensions(spark) else "models with runtime='native'"
        return Fact("jar on the session", f"there, so that {which} transform in the JVM")
    remedy = "give the session the settings of flambeau.spark_config(), for transform in the JVM"
    return Fact("jar on the session", "not there, so that transform computes in Python", remedy, False)
