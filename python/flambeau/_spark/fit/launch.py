"""Runs a training job on Spark: one barrier stage, one task for each rank, started again where a worker was
lost.
"""

from __future__ import annotations

import base64
import builtins
import json
import logging
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from flambeau import errors
from flambeau._rank import ending
from flambeau._rank.ending import Ending
from flambeau._rank.meeting import MeetingPlace
from flambeau._rank.worker import RankOutcome, failure_kind
from flambeau._reason import first_line
from flambeau._spark import session
from flambeau._spark.fit import cluster
from flambeau._spark.labels import Say
from flambeau._spark.site import Site
from flambeau._spark.work_directory import new_id
from flambeau.errors import (
    ClusterError,
    EnvironmentMismatchError,
    FlambeauError,
    WorkerError,
    WorkerLost,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import BarrierTaskContext
    from pyspark.sql import SparkSession

    from flambeau._spark.fit.run import Run

log = logging.getLogger("flambeau")

# Larger files go through the work directory: Spark ships a task's closure with every task.
_MAX_FILE_IN_CLOSURE = 1 << 20
# Spark kills the Python of a cancelled task some seconds after it.
_LAST_WRITE_SECONDS = 5.0

# How Spark tells that a worker went away, in its own error texts.
_LOST_TEXTS = (
    "ExecutorLostFailure",
    "Executor heartbeat timed out",
    "Python worker exited unexpectedly",
    "Python worker killed",
    "Lost executor",
    "worker lost",
    "java.net.SocketException: Connection reset",
    "java.io.EOFException",
)

# An error tells the ends of so many logs where it names no worker.
_NUM_LOGS = 3

_OK, _FAILED = "+", "-"


class RankRequest(Protocol):
    """What every rank of an attempt gets. It is pickled for Spark's tasks."""

    @property
    def meeting_place(self) -> str | None:
        """The directory where the ranks meet; None where they meet through Spark."""

    def run(
        self,
        rank: int,
        world_size: int,
        all_gather: Callable[[bytes], list[bytes]],
        bind_address: str,
        gpu_addresses: Sequence[str] | None = None,
    ) -> RankOutcome:
        """Trains a rank in the task and says how it ended; raises nothing. `gpu_addresses` are the GPUs that
        Spark assigned to the task, None where it assigned none.
        """


class Payload(Protocol):
    """What is trained, as it goes to the workers."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """Its files by name; large ones go through the work directory."""

    def request(
        self, job: Mapping[str, Any], secret: bytes, placed: Mapping[str, str], shares_machine: bool
    ) -> RankRequest:
        """The request of an attempt. `placed` has the URIs of the files in the work directory, the others
        travel with the request; `shares_machine` says whether workers run on this machine.
        """


@dataclass
class Launch:
    """A training that is ready to run.

    `job` is the training job without its `attempt`; `watch` makes what follows an attempt, given its id, and
    gives the event that is set once all ranks have ended well; `run_of` is the run that this is a fit of;
    `say` labels the attempts' jobs; `num_gpus` is how many GPUs Spark is asked for with each worker.
    `has_callbacks` says whether workers call callbacks; `stop_file` gives the file that has an attempt stop,
    where there may be one; after so many `usage_seconds` each rank tells again what it uses, None for never.
    """

    site: Site
    job: Mapping[str, Any] = field(repr=False)
    payload: Payload = field(repr=False)
    num_workers: int
    max_restarts: int
    slot_timeout: float
    watch: Callable[[str], AbstractContextManager[Event]]
    run_of: Run
    say: Say = lambda _: None
    num_gpus: int = 0
    has_callbacks: bool = False
    stop_file: Callable[[str], str | None] = lambda _: None
    usage_seconds: float | None = None
    id: str = field(default_factory=new_id)
    attempts: list[str] = field(default_factory=list)
    """The ids of the attempts that were made, newest last; those of the run's earlier fits among them."""
    failed: list[str] = field(default_factory=list)
    """Those of this fit that came to nothing."""
    rows: str | None = field(default=None, init=False)
    """The digest of the rows that a named run is compared by, once there was an attempt."""
    _num_earlier: int = field(default=0, init=False)
    """How many attempts are of earlier fits."""

    def run(self) -> dict[str, Any]:
        """Trains, and returns rank 0's result as `native/train` tells it.

        A lost worker starts the training again from the newest whole checkpoint, up to `max_restarts` times.
        Raises the exception that was raised on a worker where its class is one of Python's or of Flambeau's,
        else a WorkerError; either says where it was.
        """
        if self.run_of.is_named:
            self.attempts = self.run_of.attempts()
        self._num_earlier = len(self.attempts)
        placed = self._place_files()
        restarts, error = 0, None
        while True:
            outcomes, failure = self._attempt(restarts, placed)
            ended = [outcome.ended() for outcome in outcomes] if failure is None else [_ended_by(failure)]
            limit = self.max_restarts
            verdict = self.site.work.ask("judge", ended=ended, restarts=restarts, maxRestarts=limit)
            if verdict["cause"] is None:
                return _result(outcomes)
            self.failed = self.attempts[self._num_earlier :]
            before, error = error, failure or exception_of(outcomes[verdict["cause"]])
            if failure is None and isinstance(error, FlambeauError):
                error.is_transient = verdict["isTransient"]
            if not verdict["again"]:
                raise error from error.__cause__ or (before if failure else None)
            told = first_line(error)
            log.warning(
                "training is started again (%d of at most %d restarts): %s", restarts + 1, limit, told
            )
            session.pause(verdict["backOffSeconds"])
            self._await_slots(error, verdict["slotSeconds"])
            restarts += 1

    def clean(self, num_checkpoints: int = 0) -> list[dict[str, Any]]:
        """Removes what the attempts left in the work directory, but for the newest checkpoints with weights
        and what ranks wrote, and the run's file; returns what the supervisor tells of those, oldest first. A
        failure to do so is told and no more.
        """
        kept: list[dict[str, Any]] = []
        if self.attempts and not self.run_of.is_lost:
            try:
                kept = self.site.ask(
                    "keepCheckpoints",
                    attempts=self.attempts,
                    failed=self.failed,
                    num=num_checkpoints,
                )
            except Exception as error:
                uri = self.site.work.uri
                log.warning("the checkpoints in %s could not be sorted out: %s", uri, first_line(error))
            self.run_of.remove()
        self._remove_files()
        return kept

    def discard(self, may_write: bool = True) -> None:
        """Removes all that the attempts left in the work directory, weights of one that ended well too. Waits
        for what ranks that Spark has not ended yet `may_write` once more.
        """
        self.failed = self.attempts[self._num_earlier :]
        self.clean()
        if may_write:
            time.sleep(_LAST_WRITE_SECONDS)
        for attempt in self.failed:
            self.site.remove("attempts", attempt)

    def keep(self, error: BaseException) -> None:
        """Keeps the checkpoints of a fit that did not succeed for the run's next one, and says so in a
        warning and in a note of the error. Where there are none, no more is kept than what the ranks wrote.
        """
        self.failed = self.attempts[self._num_earlier :]
        self._tell_logs(error)
        try:
            newest = self._newest_checkpoint() if self.attempts else None
            if newest is None or self.run_of.is_lost:
                self.clean()
                return
            self._remove_files()
            for attempt in self.failed:
                # Weights of a training that ended before the fit failed.
                self.site.remove("models", attempt)
            self.run_of.write(self.attempts)
        except Exception as other:
            log.warning("what the training left in %s stays: %s", self.site.work.uri, first_line(other))
            return
        text = (
            f"the newest checkpoint is kept in {newest}: a fit of the same rows with "
            f"runId={self.run_of.id!r} and the same workDir goes on from it"
        )
        log.warning("%s", text)
        error.add_note(text)

    def _tell_logs(self, error: BaseException) -> None:
        """Tells in a note of the error what the ranks of the last attempt wrote last: the one that it names,
        else all. Lines that are in the error, as a process that died has them, are not told again.
        """
        if self.run_of.is_lost or len(self.attempts) == self._num_earlier:
            return
        try:
            ends = self.site.ask("logEnds", attempt=self.attempts[-1])
        except Exception as other:
            log.debug("the logs of the workers could not be read: %s", first_line(other))
            return
        named, told = getattr(error, "rank", None), str(error).splitlines()
        for end in [end for end in ends if end["rank"] == named] or ends[:_NUM_LOGS]:
            rank, uri = end["rank"], end["uri"]
            lines = [line for line in end["lines"] if line.partition(f" rank {rank} ")[2] not in told]
            text = "\n".join([f"the end of the log of worker {rank}, {uri}:", *lines])
            error.add_note(text if lines else f"the log of worker {rank} is {uri}")
        if ends:
            log.warning("what the workers wrote is kept in %s", ends[0]["uri"].rpartition("/")[0])

    def _remove_files(self) -> None:
        """Removes the large files that were placed in the work directory."""
        if self._large_files():
            self.site.remove("programs", self.id)

    def _begin(self, restarts: int) -> dict[str, Any]:
        """The next attempt as the supervisor begins it: `id`, `resume`, `epoch`, `rows`, `secret`,
        `graceSeconds`."""
        run = self.run_of.note() if self.run_of.is_named else None
        # The first one of a run that has no name needs nothing of the directory.
        ask = self.site.ask if self.attempts or run else self.site.work.ask
        attempt: dict[str, Any] = ask("beginAttempt", id=new_id(), attempts=self.attempts, run=run)
        if attempt["resume"] and not restarts:
            log.info("going on from %s", attempt["resume"])
        self.attempts.append(attempt["id"])
        self.rows = attempt["rows"]
        return attempt

    def _attempt(
        self, restarts: int, placed: Mapping[str, str]
    ) -> tuple[list[RankOutcome], Exception | None]:
        """How the ranks of the next attempt ended, or what kept it from beginning, or the worker that Spark
        lost.
        """
        try:
            attempt = self._begin(restarts)
        except Exception as failure:
            return [], failure
        begins = "" if attempt["epoch"] is None else f" from epoch {attempt['epoch']}"
        self.say(f"train{begins}, attempt {restarts + 1}")
        spark, work = self.site.spark, self.site.work
        where = {"id": attempt["id"], "workDir": work.uri, "resume": attempt["resume"]}
        where["restarts"] = restarts
        where["stopFile"] = self.stop_file(attempt["id"])
        where["callbacks"] = self.has_callbacks or where["stopFile"] is not None
        where["usageSeconds"] = self.usage_seconds
        request = self.payload.request(
            {**self.job, "attempt": where},
            base64.b64decode(attempt["secret"]),
            placed,
            session.shares_machine(spark),
        )
        files = Ending(
            work.path("attempts", attempt["id"], "ranks"),
            self.num_workers,
            attempt["graceSeconds"],
            dict(work.store_options),
        )
        try:
            with self.watch(attempt["id"]) as ended_well:
                outcomes = run_stage(spark, request, self.num_workers, self.num_gpus, files)
                if all(outcome.ok for outcome in outcomes):
                    ended_well.set()
                return outcomes, None
        except WorkerLost as lost:
            return [], lost

    def _large_files(self) -> dict[str, bytes]:
        """The payload's files that do not travel with the tasks."""
        return {name: data for name, data in self.payload.files.items() if len(data) > _MAX_FILE_IN_CLOSURE}

    def _place_files(self) -> dict[str, str]:
        """Writes the large files into the work directory and returns their URIs by name."""
        placed = {}
        for name, data in self._large_files().items():
            placed[name] = self.site.work.path("programs", self.id, name)
            self.site.put(placed[name], data)
        return placed

    def _newest_checkpoint(self) -> str | None:
        """The newest whole checkpoint of the attempts so far, as the workers see it."""
        found: str | None = self.site.ask("newestCheckpoint", attempts=self.attempts)
        return found

    def _await_slots(self, lost: Exception, at_least: float) -> None:
        wait = max(self.slot_timeout, at_least)
        try:
            cluster.check_slots(self.site.spark, self.num_workers, wait, self.num_gpus)
        except ClusterError as error:
            raise error from lost


def _ended_by(failure: Exception) -> dict[str, Any]:
    """What the supervisor is told of an attempt without ranks."""
    kind = "lost" if isinstance(failure, WorkerLost) else failure_kind(failure, "environment")
    return {"kind": kind, "isCause": True}


def _result(outcomes: Sequence[RankOutcome]) -> dict[str, Any]:
    """Rank 0's result, with the warnings of all ranks."""
    results = [json.loads(outcome.result_json or "{}") for outcome in outcomes]
    warnings = (warning for result in results for warning in result["warnings"])
    return {**results[0], "warnings": list(dict.fromkeys(warnings))}


def run_stage(
    spark: SparkSession,
    request: RankRequest,
    num_workers: int,
    num_gpus: int = 0,
    files: Ending | None = None,
) -> list[RankOutcome]:
    """Runs one barrier stage with a task for each rank and returns how each ended, by rank.

    With `num_gpus` of 1 Spark assigns a GPU to each task. `files` tell ranks that fail which others have
    ended; without them they are waited for without end. Waits for as long as the training takes. Raises
    WorkerLost where Spark lost a worker, and EnvironmentMismatchError where the workers' Python has no
    flambeau.
    """
    task = rank_task(request, files)
    # Spark 3.5 knows no such argument.
    profile: dict[str, Any] = {"profile": cluster.gpu_profile(spark)} if num_gpus else {}
    stage = spark.range(0, num_workers, 1, num_workers).mapInArrow(
        task, "rank int, outcome string", barrier=True, **profile
    )
    try:
        rows = stage.collect()
    except Exception as error:
        text = str(error)
        if files is not None and ending.NOT_ENDED in text:
            return _told(spark, files)
        if "No module named 'flambeau" in text:
            raise EnvironmentMismatchError(
                "the workers' Python cannot import flambeau: install it there, or point PYSPARK_PYTHON (or "
                "spark.pyspark.python) at a Python that has it"
            ) from error
        if any(lost in text for lost in _LOST_TEXTS):
            raise WorkerLost(f"a worker was lost: {_reason(text)}") from error
        raise
    return sorted((RankOutcome.of_json(row.outcome) for row in rows), key=lambda outcome: outcome.rank)


def _told(spark: SparkSession, files: Ending) -> list[RankOutcome]:
    """What the ranks of a stage that was given up left in their files."""

    def read() -> list[str]:
        return [outcome.to_json() for outcome in files.outcomes()]

    return [RankOutcome.of_json(told) for told in session.on_worker(spark, read)]


def rank_task(
    request: RankRequest, files: Ending | None = None
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """The function that Spark runs in each task of the stage: it trains one rank and yields one row.

    A rank that fails fails its task where another does not end within the grace of `files`.
    """

    def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import pyarrow
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        infos, own, place = context.getTaskInfos(), context.partitionId(), request.meeting_place
        tasks = tasks_by_host([info.address for info in infos])
        addresses, rank = [infos[task].address for task in tasks], tasks.index(own)
        rendezvous = StageRendezvous(MeetingPlace(place, own, len(tasks)) if place else context, tasks)
        address = bind_address(addresses, rank)
        gpus = context.resources().get("gpu")
        given = None if gpus is None else gpus.addresses
        outcome = files.begin(rank) if files else None
        if outcome is None:
            outcome = request.run(rank, len(addresses), rendezvous.all_gather, address, given)
        rendezvous.leave()
        if files is not None:
            files.end(outcome)
            if not outcome.ok:
                files.await_others()
        yield pyarrow.RecordBatch.from_pydict(
            {"rank": pyarrow.array([rank], "int32"), "outcome": [outcome.to_json()]}
        )

    return task


class StageRendezvous:
    """The one all-gather of a barrier stage, which a rank that fails before it leaves with a mark for the
    others.

    Without the mark they would wait for `spark.barrier.sync.timeout`, a year by default.
    """

    def __init__(self, context: BarrierTaskContext | MeetingPlace, tasks: Sequence[int]) -> None:
        """`tasks` are the tasks in the order of their ranks."""
        self._context = context
        self._tasks = tasks
        self._done = False

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Every rank's payload, by rank. Waits for all ranks; raises WorkerLost where one left instead."""
        self._done = True
        replies = self._context.allGather(_OK + base64.b64encode(payload).decode())
        replies = [replies[task] for task in self._tasks]
        left = [rank for rank, reply in enumerate(replies) if not reply.startswith(_OK)]
        if left:
            raise WorkerLost(f"worker {left[0]} failed before the workers met", rank=left[0])
        return [base64.b64decode(reply[len(_OK) :]) for reply in replies]

    def leave(self) -> None:
        """Frees the ranks that wait in `all_gather`, where this one never called it."""
        if not self._done:
            self._done = True
            self._context.allGather(_FAILED)


def bind_address(addresses: Sequence[str], rank: int) -> str:
    """The IP address that the other ranks reach this one at; loopback where all executors are on one host.

    `addresses` are the executors', `host:port`, by rank.
    """
    hosts = _hosts(addresses)
    if len(set(hosts)) == 1:
        return "127.0.0.1"
    return str(socket.getaddrinfo(hosts[rank], None, type=socket.SOCK_STREAM)[0][4][0])


def tasks_by_host(addresses: Sequence[str]) -> list[int]:
    """The tasks of a barrier stage in the order of their ranks: those of a host one after another, hosts by
    their first task. `addresses` are the executors', `host:port`, by task.

    Sums are formed from rank to rank, so that each change of host along the ranks is a way over the network;
    Spark deals tasks to executors in turn.
    """
    hosts = _hosts(addresses)
    return sorted(range(len(hosts)), key=lambda task: hosts.index(hosts[task]))


def _hosts(addresses: Sequence[str]) -> list[str]:
    return [address.rsplit(":", 1)[0].strip("[]") for address in addresses]


def exception_of(outcome: RankOutcome) -> Exception:
    """The exception of a failed rank: of its own class where that is one of Python's or of Flambeau's, else a
    WorkerError with the name of the class and the traceback.

    It says where it was, in its attributes `rank`, `host`, `epoch` and `step` and in a note.
    """
    where = f"on worker {outcome.rank} ({outcome.host})"
    if outcome.epoch is not None:
        where += f", epoch {outcome.epoch}"
    if outcome.step is not None:
        where += f", step {outcome.step}"
    place: dict[str, Any] = {"rank": outcome.rank, "host": outcome.host}
    place |= {"epoch": outcome.epoch, "step": outcome.step}
    place |= {name: value for name, value in outcome.place.items() if value is not None}
    error = _named(outcome)
    if error is None:
        return WorkerError(
            f"{outcome.error_type}: {outcome.message} ({where})",
            **place,
            traceback=outcome.traceback,
            error_type=outcome.error_type,
        )
    for name, value in place.items():
        setattr(error, name, value)
    was_raised = "Traceback (most recent" in (outcome.traceback or "")
    if not isinstance(error, FlambeauError) or (outcome.error_kind == "model" and was_raised):
        where += f"\n\nThe worker's traceback:\n{outcome.traceback}"
    error.add_note(where)
    return error


# On the driver they would end the iterator of fits that the exception comes out of.
_ENDS = (StopIteration, StopAsyncIteration)
_CLASSES = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (*vars(builtins).values(), *vars(errors).values())
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _ENDS)
}
"""The classes that an exception of a worker has again on the driver, by their names."""


def _named(outcome: RankOutcome) -> Exception | None:
    """An exception of Python's or of Flambeau's by its name; None for others, and for those that take more
    than a message.
    """
    kind = _CLASSES.get(outcome.error_type or "")
    try:
        return kind(*outcome.arguments) if kind else None
    except TypeError:
        return None


def _reason(text: str) -> str:
    """The part of a Spark error that says how a worker was lost."""
    found = re.search(r"(ExecutorLostFailure.*|Python worker exited.*|Lost executor.*)", text)
    return found.group(1).strip() if found else first_line(Exception(text))
