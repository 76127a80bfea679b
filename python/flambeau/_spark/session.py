"""What is asked of a Spark session: its settings, what it can do, one task of its workers, and jobs that an
interrupt ends.

Everything goes through the DataFrame API, so that classic Spark and Spark Connect are one path;
`classic_context` is the one seam.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import uuid4

from flambeau import errors
from flambeau._reason import first_line
from flambeau._spark_config import EXTENSIONS
from flambeau.errors import CancelledError, FlambeauError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import Row, SparkSession

log = logging.getLogger("flambeau")

LIBTORCH = "spark.flambeau.libtorch"
"""The setting that names libtorch's directory on the workers."""

_CANCEL_SECONDS = 60.0
_INTERRUPT_POLL_SECONDS = 0.5
_LATE_TASK_SECONDS, _LATE_TASK_POLL_SECONDS = 30.0, 0.05
_UNSEEN_TASK_SECONDS = 2.0

T = TypeVar("T")


class Flag(Protocol):
    """What says whether something is so by now, as an Event does."""

    def is_set(self) -> bool:
        """Whether it is."""


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a Spark Connect client."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_running() -> bool:
    """Whether this process has a session, or is told of a server that is to give it one."""
    import pyspark

    # A client of Spark Connect alone comes without the class.
    context: Any = getattr(pyspark, "SparkContext", None)
    is_told = any(name in os.environ for name in ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"))
    is_classic = context is not None and context._active_spark_context is not None
    return is_told or is_classic or _connect_session() is not None


def current() -> SparkSession | None:
    """The session of this thread, else of this process; None where there is none."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession as Session

    try:
        return _connect_session() or (Session.active() if is_running() else None)
    except PySparkException:
        return None


def _connect_session() -> Any:
    """The session of Spark Connect's own builder, which tells nobody else; None where there is none."""
    module: Any = sys.modules.get("pyspark.sql.connect.session")
    if module is None:
        return None
    return module.SparkSession.getActiveSession() or module.SparkSession._get_default_session()


def classic_context(spark: SparkSession) -> SparkContext | None:
    """The session's SparkContext, None on Spark Connect."""
    return None if is_connect(spark) else spark.sparkContext


def setting(spark: SparkSession, name: str, default: str = "") -> str:
    """A Spark setting, `default` where it is not set or not told."""
    from pyspark.errors import PySparkException

    try:
        return spark.conf.get(name, default) or default
    except PySparkException:
        return default


def store_options(spark: SparkSession) -> dict[str, str]:
    """The options of the object stores: the session's confs `spark.flambeau.store.<name>`, and
    `spark.flambeau.store.secret.<name>`, whose values Spark shows nowhere.
    """
    prefix = "spark.flambeau.store."
    return {
        name.removeprefix(prefix).removeprefix("secret."): value
        for name, value in _settings(spark).items()
        if name.startswith(prefix)
    }


def _settings(spark: SparkSession) -> dict[str, str]:
    """All of a session's settings; without a query where Spark tells them so, from 4.0 on."""
    if hasattr(spark.conf, "getAll"):
        return dict(spark.conf.getAll)
    # A query redacts values, a single setting's is told as it is.
    return {name: str(spark.conf.get(name)) for name, *_ in spark.sql("SET").collect()}


def python_models(spark: SparkSession) -> Any:
    """What scores Python's models in the session's JVM; None where that has no jar of Flambeau's, and where
    there is no JVM.
    """
    context = classic_context(spark)
    if context is None:
        return None
    jvm: Any = context._jvm
    # A name that means no class is one of a package.
    found = jvm.flambeau.PythonModel
    return found if type(found).__name__ == "JavaClass" else None


def has_extensions(spark: SparkSession) -> bool:
    """Whether the session has Flambeau's extensions, by which its JVM scores where it can."""
    return classic_context(spark) is not None and EXTENSIONS in setting(spark, "spark.sql.extensions")


def is_local(spark: SparkSession) -> bool:
    """Whether driver and workers are one machine and one JVM: `local`, `local[n]`."""
    return re.match(r"local(\[|$)", setting(spark, "spark.master")) is not None


def shares_machine(spark: SparkSession) -> bool:
    """Whether workers run on the driver's machine, in one JVM or several."""
    return setting(spark, "spark.master").startswith("local")


def interruptible(spark: SparkSession, action: Callable[[], T], interrupted: Flag | None = None) -> T:
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


def inheriting(spark: SparkSession, target: Callable[[], T]) -> Callable[[], T]:
    """A thread's target that has this thread's local properties and tags, so that its jobs are cancelled with
    this thread's.
    """
    from pyspark import __version__ as pyspark_version
    from pyspark import inheritable_thread_target

    # Before 4.0 a classic session's thread takes on local properties without being told the session.
    takes_session = classic_context(spark) is None or not pyspark_version.startswith("3.")
    inherit = inheritable_thread_target(spark) if takes_session else inheritable_thread_target
    inherited: Callable[[], T] = inherit(target)
    return inherited


@contextmanager
def until_tasks_end(spark: SparkSession) -> Iterator[None]:
    """Where the block fails, which runs Spark jobs on this thread, waits until their tasks have ended too, so
    that none of them writes any more; up to `_LATE_TASK_SECONDS`, after which a warning is logged.

    Spark fails a job with its first task that fails, and tells the others to end, which they do at their next
    row. Spark Connect tells nothing of tasks: there they are given `_UNSEEN_TASK_SECONDS`, which a slow one
    may outlast.
    """
    context, tag = classic_context(spark), f"flambeau-{uuid4()}"
    if context is not None:
        context.addJobTag(tag)
    try:
        yield
    except BaseException:
        if context is None:
            time.sleep(_UNSEEN_TASK_SECONDS)
        else:
            _await_tasks(context, tag)
        raise
    finally:
        if context is not None:
            context.removeJobTag(tag)


def _await_tasks(context: SparkContext, tag: str) -> None:
    """Waits until no task of the jobs with this tag, which have failed or ended, runs any more. A failure is
    told and no more.
    """
    deadline, last = time.monotonic() + _LATE_TASK_SECONDS, f"{tag}-last"
    try:
        # What failed may be this process alone.
        context.cancelJobsWithTag(tag)
        # Spark's tracker is told of jobs late, and in their order: once it knows of this one, which has no
        # tasks, it knows of all.
        context.addJobTag(last)
        try:
            context._jsc.emptyRDD().count()
        finally:
            context.removeJobTag(last)
        while not _job_ids(context, last) or _has_tasks(context, tag):
            if time.monotonic() > deadline:
                raise TimeoutError(f"they have not ended {_LATE_TASK_SECONDS:.0f} s after it")
            time.sleep(_LATE_TASK_POLL_SECONDS)
    except Exception as error:
        log.warning("tasks of a failed Spark job may still write: %s", first_line(error))


def _job_ids(context: SparkContext, tag: str) -> list[int]:
    """The jobs with a tag."""
    return list(context._jsc.sc().statusTracker().getJobIdsForTag(tag))


def _has_tasks(context: SparkContext, tag: str) -> bool:
    """Whether a job with this tag runs, or a task of one."""
    tracker = context.statusTracker()
    jobs = [job for job in map(tracker.getJobInfo, _job_ids(context, tag)) if job is not None]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    return any(job.status == "RUNNING" for job in jobs) or any(
        stage.numActiveTasks > 0 for stage in stages if stage is not None
    )


def on_worker(spark: SparkSession, function: Callable[[], Any]) -> Any:
    """Runs `function` in one Spark task and returns its JSON-able result: for what only workers can reach.
    Raises the FlambeauError that it raises there.
    """
    return json.loads(bytes_on_worker(spark, lambda: json.dumps(function()).encode()))


def bytes_on_worker(spark: SparkSession, function: Callable[[], bytes]) -> bytes:
    """Runs `function` in one Spark task and returns its bytes. Raises the FlambeauError that it raises
    there.
    """

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for _ in batches:
            pass
        yield answer_of(function)

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(task, ANSWER).collect()
    return answered(row)


ANSWER = "result binary, error string"
"""The columns of `answer_of`."""


def answer_of(function: Callable[[], bytes]) -> pa.RecordBatch:
    """What `function` returns, or the FlambeauError that it raises, as a row: Spark would make an exception
    of its own of that.
    """
    import pyarrow

    result = error = None
    try:
        result = function()
    except FlambeauError as failure:
        kind = type(failure).__name__
        error = json.dumps({"class": kind, "message": str(failure), "isTransient": failure.is_transient})
    return pyarrow.RecordBatch.from_pydict(
        {
            "result": pyarrow.array([result], pyarrow.binary()),
            "error": pyarrow.array([error], pyarrow.string()),
        }
    )


def answered(row: Row) -> bytes:
    """The result in a row of `answer_of`. Raises the error in it, of its class where that is one of
    `flambeau.errors`, else as FlambeauError.
    """
    if row["error"] is None:
        return bytes(row["result"])
    told = json.loads(row["error"])
    error: FlambeauError = getattr(errors, told["class"], FlambeauError)(told["message"])
    error.is_transient = told["isTransient"]
    raise error
