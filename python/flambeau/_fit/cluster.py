"""What the driver asks of Spark before a training: task slots, a work directory that all workers reach, equal
versions.

Everything goes through the DataFrame API, so that classic Spark and Spark Connect are one path;
`classic_context` is the one seam.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4

from flambeau._fit.worker import EnvironmentMismatchError
from flambeau._workdir import WorkDirectory, new_id, temporary_directory
from flambeau.errors import CancelledError, ClusterError, FlambeauError, ParamError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

log = logging.getLogger("flambeau")

_EXECUTOR_GPUS = "spark.executor.resource.gpu.amount"
_SLOT_POLL_SECONDS = 1.0
_REGISTRATION_SECONDS = 30.0
_CANCEL_SECONDS = 60.0
_INTERRUPT_POLL_SECONDS = 0.5

T = TypeVar("T")


def classic_context(spark: SparkSession) -> SparkContext | None:
    """The session's SparkContext, None on Spark Connect."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return None
    return spark.sparkContext


def setting(spark: SparkSession, name: str, default: str = "") -> str:
    """A Spark setting, `default` where it is not set or not told."""
    from pyspark.errors import PySparkException

    try:
        return spark.conf.get(name, default) or default
    except PySparkException:
        return default


def is_local(spark: SparkSession) -> bool:
    """Whether driver and workers are one machine and one JVM: `local`, `local[n]`."""
    return re.match(r"local(\[|$)", setting(spark, "spark.master")) is not None


def shares_machine(spark: SparkSession) -> bool:
    """Whether workers run on the driver's machine, in one JVM or several."""
    return setting(spark, "spark.master").startswith("local")


def check_slots(spark: SparkSession, num_workers: int, wait: float, num_gpus: int = 0) -> None:
    """Waits up to `wait` seconds for as many task slots as there are workers, with `num_gpus` GPUs for each.

    Raises ClusterError, with the numbers, where they don't come; and at once where dynamic allocation is on,
    which Spark refuses in barrier stages, and where Spark cannot assign GPUs that it is asked for. Executors
    of a session that has just started are waited for too.
    """
    if num_gpus:
        _check_gpus(spark)
    if setting(spark, "spark.dynamicAllocation.enabled") == "true" and not is_local(spark):
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
                f"slotTimeout waits for executors that are still starting"
            )
        pause(_SLOT_POLL_SECONDS)


def _starting_seconds(spark: SparkSession) -> float:
    """For how long executors of a session that has just started may still be on their way."""
    context = classic_context(spark)
    if context is None or is_local(spark):
        return 0.0
    return max(0.0, context.startTime / 1000 + _REGISTRATION_SECONDS - time.time())


def count_slots(spark: SparkSession, num_gpus: int = 0) -> int:
    """Tasks that can run at once, with `num_gpus` GPUs each where that is not 0, else with those that
    `spark.task.resource.gpu.amount` gives them.

    Exact on classic Spark and in local mode, else estimated from a range's partitions.
    """
    cpus = int(setting(spark, "spark.task.cpus", "1"))
    master = setting(spark, "spark.master")
    context = classic_context(spark)
    local = re.match(r"local(?:\[(\d+|\*)(?:,.*)?\])?$", master)
    if local and local.group(1) != "*":
        return int(local.group(1) or 1) // cpus
    if context is not None and local:
        jvm: Any = context._jvm
        return int(jvm.Runtime.getRuntime().availableProcessors()) // cpus
    several = re.match(r"local-cluster\[\s*\d+\s*,\s*(\d+)\s*,", master)
    cores = int(several.group(1) if several else setting(spark, "spark.executor.cores", "0"))
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
    gpus = int(setting(spark, _EXECUTOR_GPUS, "0"))
    return min(slots, executors * _tasks_on(gpus, share)) if gpus and share else slots


def gpu_profile(spark: SparkSession) -> ResourceProfile:
    """What asks Spark for one GPU for each task of a stage, on the executors that there are."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = TaskResourceRequests().cpus(int(setting(spark, "spark.task.cpus", "1"))).resource("gpu", 1)
    profile: Any = ResourceProfileBuilder().require(requests).build
    return cast("ResourceProfile", profile)


def _check_gpus(spark: SparkSession) -> None:
    """Raises ClusterError where Spark cannot assign a GPU to each task of a stage."""
    import pyspark

    version = min(pyspark.__version__, spark.version, key=lambda text: int(text.split(".")[0]))
    if is_local(spark):
        lack = "Spark assigns no GPUs in local mode"
    elif int(version.split(".")[0]) < 4:
        lack = f"Spark {version} takes no resource profile for the tasks of a DataFrame, as 4.0 does"
    elif not setting(spark, _EXECUTOR_GPUS):
        lack = f"{_EXECUTOR_GPUS} is not set, so that Spark knows of no GPUs"
    else:
        return
    raise ClusterError(
        f"numGpusPerWorker is 1, but {lack}: leave it at 0, and each worker takes a GPU of its machine"
    )


def _gpus_of_task(spark: SparkSession, num_gpus: int) -> float:
    """How many GPUs Spark assigns to a task; a part of one where several tasks share it."""
    return num_gpus or float(setting(spark, "spark.task.resource.gpu.amount", "0"))


def _tasks_on(gpus: int, share: float) -> int:
    """How many tasks have GPUs at once, as Spark counts: parts are of one GPU."""
    return gpus * int(1 / share) if share < 1 else gpus // int(share)


def interruptible(
    spark: SparkSession, action: Callable[[], T], interrupted: threading.Event | None = None
) -> T:
    """Runs `action`, which runs Spark jobs, so that an interrupt of this thread cancels them, as does
    `interrupted`, after which CancelledError is raised.

    The jobs are tagged and run from a thread of their own: an interrupt in the middle of a call to the JVM
    would leave that thread's connection unusable. An interrupt waits up to `_CANCEL_SECONDS` for the action's
    own clean-up.
    """
    tag = f"flambeau-{uuid4()}"
    context = classic_context(spark)
    add, remove, cancel = (
        (spark.addTag, spark.removeTag, spark.interruptTag)
        if context is None
        else (context.addJobTag, context.removeJobTag, context.cancelJobsWithTag)
    )
    outcome: list[T] = []
    failure: list[BaseException] = []
    done, given_up = threading.Event(), threading.Event()

    def run() -> None:
        _action.given_up = given_up
        try:
            add(tag)
            try:
                outcome.append(action())
            finally:
                remove(tag)
        except BaseException as error:
            failure.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=inheriting(spark, run), name="flambeau-fit", daemon=True)
    thread.start()
    try:
        # Training takes as long as it takes; what it waits for has deadlines. An event and not a join: an
        # interrupted join leaves Python 3.11 believing that the thread has ended.
        while not done.wait(None if interrupted is None else _INTERRUPT_POLL_SECONDS):
            if interrupted is not None and interrupted.is_set():
                raise CancelledError("the fits were interrupted")
    except BaseException:
        log.warning("cancelling the training's Spark jobs")
        given_up.set()
        cancel(tag)
        done.wait(_CANCEL_SECONDS)
        raise
    if failure:
        raise failure[0]
    return outcome[0]


_action = threading.local()


def pause(seconds: float) -> None:
    """Waits; raises CancelledError where this thread's `interruptible` action is interrupted meanwhile."""
    given_up = getattr(_action, "given_up", None) or threading.Event()
    if given_up.wait(seconds):
        raise CancelledError("the fit was interrupted")


def inheriting(spark: SparkSession, target: Callable[[], None]) -> Callable[[], None]:
    """A thread's target that has this thread's local properties and tags, so that its jobs are cancelled with
    this thread's.
    """
    from pyspark import __version__ as pyspark_version
    from pyspark import inheritable_thread_target

    # Before 4.0 a classic session's thread takes on local properties without being told the session.
    takes_session = classic_context(spark) is None or not pyspark_version.startswith("3.")
    inherit = inheritable_thread_target(spark) if takes_session else inheritable_thread_target
    inherited: Callable[[], None] = inherit(target)
    return inherited


def on_worker(spark: SparkSession, function: Callable[[], Any]) -> Any:
    """Runs `function` in one Spark task and returns its JSON-able result: for what only workers can reach."""
    schema = "result string"

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import pyarrow

        for _ in batches:
            pass
        yield pyarrow.RecordBatch.from_pydict({"result": [json.dumps(function())]})

    rows = spark.range(0, 1, 1, 1).mapInArrow(task, schema).collect()
    return json.loads(rows[0][0])


def probe(
    spark: SparkSession,
    work: WorkDirectory,
    num_workers: int,
    versions: Mapping[str, str],
    modules: Sequence[str] = (),
) -> None:
    """Has every worker write into the work directory and read what the others wrote, and compares versions.

    One barrier stage, whose workers go on to import `modules` when it has ended. Raises StoreError where the
    directory is not shared, and EnvironmentMismatchError where versions differ.
    """
    directory = work.path("probes", new_id())
    task = _probe_task(directory, dict(work.store_options), tuple(modules))
    rows = spark.range(0, num_workers, 1, num_workers).mapInArrow(
        task, "host string, error string, versions string", barrier=True
    )
    answers = [row.asDict() for row in rows.collect()]
    for answer in answers:
        if answer["error"]:
            raise StoreError(
                f"workDir {work.uri} is not a directory that all workers reach: on {answer['host']}, "
                f"{answer['error']}; give a path on storage that they share"
            )
    for answer in answers:
        for name, version in json.loads(answer["versions"]).items():
            if versions.get(name, version) != version:
                raise EnvironmentMismatchError(
                    f"{name} is {versions[name]} on the driver and {version} on the worker {answer['host']}: "
                    f"install the same version on both"
                )


def _probe_task(directory: str, store_options: dict[str, str], modules: tuple[str, ...]) -> Any:
    """What each task of `probe` runs."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import platform
        import socket
        from importlib.metadata import version

        import pyarrow
        from pyspark import BarrierTaskContext

        from flambeau import _native
        from flambeau._fit.imports import start_importing

        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        rank, world_size = context.partitionId(), len(context.getTaskInfos())
        error = None
        store = _native.Store(store_options)
        try:
            store.put(f"{directory}/{rank}", socket.gethostname().encode())
        except (OSError, ValueError) as failure:
            error = str(failure)
        failed = [message for message in context.allGather(error or "") if message]
        if not failed:
            sizes = [store.size(f"{directory}/{other}") for other in range(world_size)]
            missing = [other for other, size in enumerate(sizes) if size is None]
            error = f"files that workers {missing} wrote are not seen" if missing else None
            context.barrier()
            if rank == 0:
                store.delete_prefix(directory)
        found = {
            "Python": ".".join(platform.python_version_tuple()[:2]),
            "torch": version("torch").split("+")[0],
        }
        yield pyarrow.RecordBatch.from_pydict(
            {"host": [socket.gethostname()], "error": [error], "versions": [json.dumps(found)]}
        )
        start_importing(modules)

    return task


def is_visible(spark: SparkSession, work: WorkDirectory) -> bool:
    """Whether this process sees what workers write into the work directory; true of classic Spark in local
    mode.
    """
    if classic_context(spark) is not None and is_local(spark):
        return True
    uri, options = work.path("probes", new_id(), "seen"), dict(work.store_options)

    def write() -> None:
        from flambeau import _native

        _native.Store(options).put(uri, b"seen")

    def delete() -> None:
        from flambeau import _native

        _native.Store(options).delete(uri)

    on_worker(spark, write)
    visible = work.sees(uri)
    on_worker(spark, delete)
    return visible


def sweep(work: WorkDirectory) -> None:
    """Removes what crashed fits left in the work directory long ago; a failure is told and no more."""
    try:
        work.sweep()
    except (OSError, FlambeauError, ValueError) as error:
        log.warning("what older fits left in %s could not be removed: %s", work.uri, error)


def work_directory(spark: SparkSession, given: str | None, store_options: Mapping[str, str]) -> WorkDirectory:
    """The work directory of a fit: the given one, or a temporary one in local mode."""
    from flambeau._saved.directory import qualified
    from flambeau._saved.weights import STORE_SCHEMES, local_path

    options = tuple(sorted(store_options.items()))
    if given is not None:
        # Databricks mounts these, whatever its default file system is.
        stays = re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|/(dbfs|Volumes|Workspace)/", given)
        uri = given if stays else qualified(spark, given)
        found = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*):", uri)
        if found is None:
            return WorkDirectory(os.path.abspath(uri), options)
        scheme = found[1].lower()
        if scheme not in STORE_SCHEMES:
            way_out = (
                ""
                if stays
                else f"; {given} lies there by fs.defaultFS, a path that all machines see is file:///..."
            )
            raise ParamError(
                f"workDir: the scheme `{scheme}` of {uri} is not supported; "
                f"supported: local paths, {', '.join(STORE_SCHEMES[1:])}{way_out}"
            )
        is_local_file = scheme == "file" and not stays
        return WorkDirectory(str(local_path(uri)) if is_local_file else uri.rstrip("/"), options)
    if is_local(spark):
        return WorkDirectory(temporary_directory(), options)
    raise ParamError(
        "workDir must be given on a cluster: a directory that the driver and all workers reach, "
        "such as a path on shared storage or an s3, abfss or gs URI"
    )
