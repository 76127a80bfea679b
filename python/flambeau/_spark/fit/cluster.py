"""What the driver asks of Spark before a training: task slots, a work directory that all workers reach, equal
versions.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from flambeau._rank.imports import start_importing
from flambeau._spark import session
from flambeau._spark.work_directory import WorkDirectory, new_id
from flambeau.errors import ClusterError, EnvironmentMismatchError, StoreError

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
    versions: Mapping[str, str],
    modules: Sequence[str] = (),
) -> list[tuple[str, dict[str, str]]]:
    """Has every worker write into the work directory and read what the others wrote, and compares versions.
    Returns each worker's host and its versions, by name; pyarrow's, which need not be the driver's, too.

    One barrier stage, whose workers go on to import `modules` when it has ended. Raises StoreError where the
    directory is not shared, and EnvironmentMismatchError where a worker lacks the native parts or versions
    differ.
    """
    directory = work.path("probes", new_id())
    task = _probe_task(work, directory, tuple(modules))
    rows = spark.range(0, num_workers, 1, num_workers).mapInArrow(
        task, "host string, lacks string, error string, isTransient boolean, versions string", barrier=True
    )
    answers = [row.asDict() for row in rows.collect()]
    for answer in answers:
        if answer["lacks"]:
            raise EnvironmentMismatchError(f"the worker on {answer['host']} cannot train: {answer['lacks']}")
    for answer in answers:
        if answer["error"] and answer["isTransient"]:
            raise StoreError(f"workDir: on {answer['host']}, {answer['error']}", is_transient=True)
        if answer["error"]:
            raise StoreError(
                f"workDir {work.uri} is not a directory that all workers reach: on {answer['host']}, "
                f"{answer['error']}; give a path on storage that they share"
            )
    found = [(answer["host"], json.loads(answer["versions"])) for answer in answers]
    for host, has in found:
        for name, version in has.items():
            if versions.get(name, version) != version:
                raise EnvironmentMismatchError(
                    f"{name} is {versions[name]} on the driver and {version} on the worker {host}: "
                    f"install the same version on both"
                )
    return found


def _probe_task(work: WorkDirectory, directory: str, modules: tuple[str, ...]) -> Any:
    """What each task of `probe` runs."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import socket

        import pyarrow
        from pyspark import BarrierTaskContext

        from flambeau._rank.worker import versions

        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        rank, world_size = context.partitionId(), len(context.getTaskInfos())
        lacks = error = None
        is_transient = False
        try:
            store = work.store()
            store.put(f"{directory}/{rank}", socket.gethostname().encode())
        except EnvironmentMismatchError as failure:
            lacks = str(failure)
        except (OSError, ValueError) as failure:
            error, is_transient = str(failure), getattr(failure, "is_transient", False)
        if not any(context.allGather(lacks or error or "")):
            try:
                sizes = [store.size(f"{directory}/{other}") for other in range(world_size)]
                missing = [other for other, size in enumerate(sizes) if size is None]
                error = f"files that workers {missing} wrote are not seen" if missing else None
            except StoreError as failure:
                error, is_transient = str(failure), failure.is_transient
            context.barrier()
            if rank == 0:
                # What stays is swept later.
                with suppress(StoreError):
                    store.delete_prefix(directory)
        found = {**versions(), "pyarrow": pyarrow.__version__}
        yield pyarrow.RecordBatch.from_pydict(
            {
                "host": [socket.gethostname()],
                "lacks": [lacks],
                "error": [error],
                "isTransient": [is_transient],
                "versions": [json.dumps(found)],
            }
        )
        start_importing(modules)

    return task
