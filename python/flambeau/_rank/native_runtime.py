"""`runtime="native"`, in the tasks: `flambeau-worker` as a child process that trains a rank without Python.

Each task of the barrier stage starts one, speaks JSON lines with it (`native/worker` says which), and answers
as a rank of the Python runtime does. The child exits when its standard input ends, so that it does not
outlive a task that Spark kills.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from flambeau._libtorch import WAY_OUT, libtorch_of
from flambeau._rank.log import logged
from flambeau._rank.worker import RankOutcome, checked_file, failed_outcome, failure_kind
from flambeau.errors import (
    CancelledError,
    CollectiveError,
    DataError,
    DivergedError,
    EnvironmentMismatchError,
    FlambeauError,
    ParamError,
    StoreError,
    WorkerError,
    WorkerLost,
)

_NUM_LINES = 20
_END_SECONDS = 10.0


@dataclass(frozen=True)
class NativeRequest:
    """What every rank of an attempt gets."""

    job_json: str = field(repr=False)
    """The training job; its `program` lacks the places of the files."""
    secret: bytes = field(repr=False)
    """Proves that ranks belong to the same attempt."""
    carried: Mapping[str, bytes] = field(repr=False)
    """The files that travel with the task, by their part in `program`."""
    placed: Mapping[str, str]
    """The URIs of the others."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Their SHA-256 as the driver wrote them, in lower-case hexadecimal: another program is not loaded."""
    libtorch: str | None = None
    """Where libtorch is on the workers, if a setting says so."""
    transport: str = "auto"
    """`auto`, `sharedMemory` or `tcp`."""
    meeting_place: str | None = None
    """The directory where the ranks meet; None where they meet through Spark."""

    def run(
        self,
        rank: int,
        world_size: int,
        all_gather: Callable[[bytes], list[bytes]],
        bind_address: str,
        gpu_addresses: Sequence[str] | None = None,
    ) -> RankOutcome:
        """Trains rank `rank` of `world_size` in a child process and says how it ended; no exception leaves
        it.

        `all_gather` is called at most once, from this thread, and may wait. `gpu_addresses` are the GPUs that
        Spark assigned to the task, None where it assigned none. Waits for as long as the training takes; the
        child's own waits are bounded by the job's `collectiveTimeout`.
        """
        host = socket.gethostname()
        try:
            with logged(self.job_json, rank), tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
                start = {
                    "job": self.job_with_files(Path(folder)),
                    "rank": rank,
                    "worldSize": world_size,
                    "bindAddress": bind_address,
                    "secret": base64.b64encode(self.secret).decode(),
                    "transport": self.transport,
                }
                with Child(libtorch_of(self.libtorch), gpu_addresses) as child:
                    return _converse(child, start, rank, host, all_gather)
        except BaseException as error:
            return failed_outcome(rank, host, failure_kind(error, "internal"), error, None, None, True)

    def job_with_files(self, folder: Path) -> dict[str, Any]:
        """The job with the places of the program's files; those that are code are checked, and written into
        `folder`. Weights are checked by who reads them. Raises StoreError and DataError.
        """
        job: dict[str, Any] = json.loads(self.job_json)
        program, places, files = job["program"], dict(self.placed), dict(self.carried)
        for part in self.placed.keys() - {"weights"}:
            files[part] = checked_file(job, self.placed[part], self.sha256[part])
        for part, data in files.items():
            path = folder / part
            path.write_bytes(data)
            places[part] = str(path)
        program.update(eval=places["eval"], train=places.get("train"))
        if "weights" in places:
            program["weights"]["uri"] = places["weights"]
        if "loss" in places:
            program["loss"] = {"script": places["loss"]}
        return job


def binary() -> Path:
    """The program `flambeau-worker`: the one that FLAMBEAU_WORKER names, else the package's own.

    Raises EnvironmentMismatchError where there is none.
    """
    named = os.environ.get("FLAMBEAU_WORKER")
    path = Path(named) if named else Path(__file__).parents[1] / "_bin" / "flambeau-worker"
    if not path.is_file():
        where = f"{path}, which FLAMBEAU_WORKER names," if named else str(path)
        raise EnvironmentMismatchError(
            f"there is no flambeau-worker at {where} on {socket.gethostname()}: install a wheel of Flambeau "
            f"that holds it, or set FLAMBEAU_WORKER, {WAY_OUT}"
        )
    return path


class Child:
    """A running `flambeau-worker` and the lines spoken with it. Leaving the context ends it."""

    def __init__(self, libtorch: str | None, gpu_addresses: Sequence[str] | None = None) -> None:
        command = [str(binary()), "train", "--launcher"]
        if libtorch is not None:
            command += ["--libtorch", libtorch]
        if gpu_addresses is not None:
            command += ["--gpus", ",".join(gpu_addresses)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        self.last_lines: deque[str] = deque(maxlen=_NUM_LINES)
        self._errors = threading.Thread(target=self._keep_errors, name="flambeau-stderr", daemon=True)
        self._errors.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends one line. A child that is gone is noticed by whoever listens."""
        with suppress(OSError):
            self._input.write(json.dumps(message).encode() + b"\n")
            self._input.flush()

    def hear(self) -> dict[str, Any] | None:
        """The next line, None where the child has ended. Waits for it."""
        line = self._output.readline()
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def end(self) -> int:
        """Closes the child's input, waits for its end, and returns its status: negative for a signal."""
        # Where the child is gone, what it was not sent is lost.
        with suppress(OSError):
            self._input.close()
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._errors.join(_END_SECONDS)
        self._output.close()
        return status

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _keep_errors(self) -> None:
        """Passes the child's standard error on to the task's log, and keeps its last lines."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip("\n")
                self.last_lines.append(text)
                print(text, file=sys.stderr, flush=True)


def _converse(
    child: Child,
    start: Mapping[str, Any],
    rank: int,
    host: str,
    all_gather: Callable[[bytes], list[bytes]],
) -> RankOutcome:
    """Speaks with a child from its start to its result or its error."""
    child.tell({"start": start})
    while (message := child.hear()) is not None:
        match message:
            case {"gather": payload}:
                try:
                    gathered = all_gather(base64.b64decode(payload))
                    child.tell({"gathered": [base64.b64encode(one).decode() for one in gathered]})
                except WorkerLost as lost:
                    child.tell({"left": {"rank": lost.rank}})
            case {"result": result}:
                return RankOutcome(rank, host, True, json.dumps(result))
            case {"error": error}:
                return _told(error, rank, host)
            # Progress is told by the files that rank 0 writes, which the driver reads in either runtime.
    return _died(child.end(), child.last_lines, rank, host)


_CLASSES: dict[str, type[FlambeauError]] = {
    "job": ParamError,
    "data": DataError,
    "store": StoreError,
    "collective": CollectiveError,
    "diverged": DivergedError,
    "cancelled": CancelledError,
    "environment": EnvironmentMismatchError,
}


def _told(error: Mapping[str, Any], rank: int, host: str) -> RankOutcome:
    """The outcome of a rank whose worker told what went wrong."""
    exception = _CLASSES.get(error["kind"], WorkerError)(error["message"])
    where = error["host"] or host
    return failed_outcome(
        rank, where, error["kind"], exception, error["epoch"], error["step"], error["isCause"]
    )


def _died(status: int, last_lines: Sequence[str], rank: int, host: str) -> RankOutcome:
    """The outcome of a rank whose worker ended without a word."""
    if status < 0:
        number = -status
        name = signal.Signals(number).name if number in list(signal.Signals) else "unknown"
        text = f"flambeau-worker of rank {rank} was killed by signal {number} ({name})"
        if number == signal.SIGKILL:
            text += "; the system does that where memory runs out"
        kind = "lost"
    else:
        text = f"flambeau-worker of rank {rank} ended with status {status} and no result"
        kind = "environment"
    if last_lines:
        text += "; its last lines:\n" + "\n".join(last_lines)
    lost = WorkerLost(text, rank=rank, host=host) if kind == "lost" else WorkerError(text)
    return failed_outcome(rank, host, kind, lost, None, None, True)
