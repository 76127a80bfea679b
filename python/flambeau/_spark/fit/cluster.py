"""What the driver asks of Spark before a training: task slots, a work directory that all workers reach, equal
versions.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from flambeau._rank.imports import start_importing
from flambeau._rank.worker import versions
from flambeau._spark import session
from flambeau._spark.work_directory import PROBES, WorkDirectory, new_id
from flambeau.errors import ClusterError, EnvironmentMismatchError, FlambeauError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

log = logging.getLogger("flambeau")

_EXECUTOR_GPUS = "spark.executor.resource.gpu.amount"
_SLOT_POLL_SECONDS = 1.0
_REGISTRATION_SECONDS = 30.0


def check_slots(spark: SparkSession, num_workers: int, wait: float, num_gpus: int = 0) -> None:
    """Waits up to `wait` seconds for as many task slots as there are workers, with `num_gpus` GPUs for each.

    Raises ClusterError, with the numbers, where they don't come; and at once where dynamic allocation is on,
    which Spark refuses in barrier stages, and where Spark cannot assign GPUs that it is asked for. Executors
    of a session that has just started are waited for too.
    """
    if num_gpus:
        _check_gpus(spark)
    if session.setting(spark, "spark.dynamicAllocation.enabled") == "true" and not session.is_local(spark):
        raise ClusterError(
            "spark.dynamicAllocation.enabled is true, and Spark runs no barrier stage with it: "
            f"set it to false and ask for the executors that {num_workers} workers need"
        )
    deadline = time.monotonic() + max(wait, _starting_seconds(spark))
    while (slots := count_slots(spark, num_gpus)) < num_workers:
        if time.monotonic() >= deadline:
            waited = f" after {wait:g} s (slotTimeout)" if wait else ""
            share = _gpus_of_task(spark, num_gpus)
            gpus = f" of {share:g} GPUs each" if share else ""
            raise ClusterError(
                f"numWorkers is {num_workers} and the cluster has {slots} task slots{gpus}{waited}: "
                f"lower numWorkers, add executors, or lower spark.task.cpus; "
                f"slotTimeout waits for executors that are still starting",
                is_transient=True,
            )
        session.pause(_SLOT_POLL_SECONDS)


def _starting_seconds(spark: SparkSession) -> float:
    """For how long executors of a session that has just started may still be on their way."""
    context = session.classic_context(spark)
    if context is None or session.is_local(spark):
        return 0.0
    return max(0.0, context.startTime / 1000 + _REGISTRATION_SECONDS - time.time())


def count_slots(spark: SparkSession, num_gpus: int = 0) -> int:
    """Tasks that can run at once, with `num_gpus` GPUs each where that is not 0, else with those that
    `spark.task.resource.gpu.amount` gives them.

    Exact on classic Spark and in local mode, else estimated from a range's partitions.
    """
    cpus = int(session.setting(spark, "spark.task.cpus", "1"))
    master = session.setting(spark, "spark.master")
    context = session.classic_context(spark)
    local = re.match(r"local(?:\[(\d+|\*)(?:,.*)?\])?$", master)
    if local and local.group(1) != "*":
        return int(local.group(1) or 1) // cpus
    if context is not None and local:
        jvm: Any = context._jvm
        return int(jvm.Runtime.getRuntime().availableProcessors()) // cpus
    several = re.match(r"local-cluster\[\s*\d+\s*,\s*(\d+)\s*,", master)
    cores = int(several.group(1) if several else session.setting(spark, "spark.executor.cores", "0"))
    if context is not None:
        # One of the infos is the driver's own.
        executors = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1
        slots = executors * (cores // cpus) if cores else context.defaultParallelism // cpus
    else:
        from pyspark.sql import functions as F

        many = spark.range(0, 1 << 20).select(F.spark_partition_id().alias("p")).distinct().count()
        # Where an executor's cores are not told, each slot may be an executor's.
        executors = int(many) // cores if cores else int(many)
        slots = int(many) // cpus
    share = _gpus_of_task(spark, num_gpus)
    gpus = int(session.setting(spark, _EXECUTOR_GPUS, "0"))
    return min(slots, executors * _tasks_on(gpus, share)) if gpus and share else slots


def gpu_profile(spark: SparkSession) -> ResourceProfile:
    """What asks Spark for one GPU for each task of a stage, on the executors that there are."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = (
        TaskResourceRequests().cpus(int(session.setting(spark, "spark.task.cpus", "1"))).resource("gpu", 1)
    )
    profile: Any = ResourceProfileBuilder().require(requests).build
    return cast("ResourceProfile", profile)


def _check_gpus(spark: SparkSession) -> None:
    """Raises ClusterError where Spark cannot assign a GPU to each task of a stage."""
    import pyspark

    version = min(pyspark.__version__, spark.version, key=lambda text: int(text.split(".")[0]))
    if session.is_local(spark):
        lack = "Spark assigns no GPUs in local mode"
    elif int(version.split(".")[0]) < 4:
        lack = f"Spark {version} takes no resource profile for the tasks of a DataFrame, as 4.0 does"
    elif not session.setting(spark, _EXECUTOR_GPUS):
        lack = f"{_EXECUTOR_GPUS} is not set, so that Spark knows of no GPUs"
    else:
        return
    raise ClusterError(
        f"numGpusPerWorker is 1, but {lack}: leave it at 0, and each worker takes a GPU of its machine"
    )


def _gpus_of_task(spark: SparkSession, num_gpus: int) -> float:
    """How many GPUs Spark assigns to a task; a part of one where several tasks share it."""
    return num_gpus or float(session.setting(spark, "spark.task.resource.gpu.amount", "0"))


def _tasks_on(gpus: int, share: float) -> int:
    """How many tasks have GPUs at once, as Spark counts: parts are of one GPU."""
    return gpus * int(1 / share) if share < 1 else gpus // int(share)


def probe(
    spark: SparkSession,
    work: WorkDirectory,
    num_workers: int,
    modules: Sequence[str] = (),
) -> list[tuple[str, dict[str, str]]]:
    """Has every worker write into the work directory and read what the others wrote, and compares its
    versions with the driver's. Returns each worker's host and its versions, by name; pyarrow's,
    which need not be the driver's, too.

    One barrier stage, whose workers go on to import `modules` when it has ended. Raises StoreError where the
    directory is not shared, transient where its store did not answer, and EnvironmentMismatchError where a
    worker lacks the native parts or versions differ.
    """
    own = versions()
    directory = work.path(PROBES, new_id())
    task = _probe_task(work, directory, tuple(modules))
    rows = spark.range(0, num_workers, 1, num_workers).mapInArrow(task, session.ANSWER, barrier=True)
    found: list[tuple[str, dict[str, str]]] = []
    failures: list[FlambeauError] = []
    for row in rows.collect():
        try:
            host, has = json.loads(session.answered(row))
            found.append((host, has))
        except FlambeauError as failure:
            failures.append(failure)
    if failures:
        # What a machine lacks before what a store does, and what stays so before what may pass.
        raise min(failures, key=lambda error: (isinstance(error, StoreError), error.is_transient))
    for host, has in found:
        for name, version in has.items():
            if own.get(name, version) != version:
                raise EnvironmentMismatchError(
                    f"{name} is {own[name]} on the driver and {version} on the worker {host}: "
                    f"install the same version on both"
                )
    return found


def _probe_task(work: WorkDirectory, directory: str, modules: tuple[str, ...]) -> Any:
    """What each task of `probe` runs."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for _ in batches:
            pass
        yield session.answer_of(lambda: _probed(work, directory))
        start_importing(modules)

    return task


def _probed(work: WorkDirectory, directory: str) -> bytes:
    """This worker's host and versions, as JSON, when all workers have written and seen each other's files.
    Raises what keeps this one from training.
    """
    import pyarrow
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    rank, world_size = context.partitionId(), len(context.getTaskInfos())
    host = socket.gethostname()
    failure = _failure(work, host, lambda: work.store().put(f"{directory}/{rank}", host.encode()))
    has_written = failure is None
    all_wrote = not any(context.allGather("failed" if failure else ""))
    if all_wrote:
        failure = _failure(work, host, lambda: _check_seen(work, directory, world_size))
        context.barrier()
    if has_written and (rank == 0 or not all_wrote or failure is not None):
        # Each its own where they do not see the same. What stays in a work directory is swept later.
        with suppress(FlambeauError):
            work.store().delete_prefix(directory)
    if failure is not None:
        raise failure
    return json.dumps([host, {**versions(), "pyarrow": pyarrow.__version__}]).encode()


def _check_seen(work: WorkDirectory, directory: str, world_size: int) -> None:
    """Raises StoreError where a file of another worker is not seen."""
    store = work.store()
    missing = [rank for rank in range(world_size) if store.size(f"{directory}/{rank}") is None]
    if missing:
        raise StoreError(f"files that workers {missing} wrote are not seen")


def _failure(work: WorkDirectory, host: str, act: Callable[[], None]) -> FlambeauError | None:
    """What `act` raises, as the driver is to tell it: something that this machine lacks, or the work
    directory.
    """
    try:
        act()
    except EnvironmentMismatchError as failure:
        return EnvironmentMismatchError(f"the worker on {host} cannot train: {failure}")
    except (FlambeauError, OSError, ValueError) as failure:
        if getattr(failure, "is_transient", False):
            return StoreError(f"workDir: on {host}, {failure}", is_transient=True)
        return StoreError(
            f"workDir {work.uri} is not a directory that all workers reach: on {host}, {failure}; "
            "give a path on storage that they share"
        )
    return None
