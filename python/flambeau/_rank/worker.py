"""One rank of a training, in the Python process that Spark (or another launcher) started for it.

Importing this module imports no torch: PySpark forks its workers from a daemon that must stay light, and the
driver needs only the two messages.
"""

from __future__ import annotations

import gc
import hashlib
import json
import pickle
import platform
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

from flambeau._rank.callbacks import rank_callbacks
from flambeau._rank.imports import finish_importing, forget_threads
from flambeau._rank.log import logged
from flambeau._store import open_store
from flambeau.errors import (
    DataError,
    EnvironmentMismatchError,
    ParamError,
    RankFailure,
    StoreError,
    WorkerError,
)

if TYPE_CHECKING:
    from flambeau._module.preprocessor import PreprocessSpec

_MAX_TEXT = 64 << 10
_PLACE = ("rank", "host", "epoch", "step")


@dataclass(frozen=True)
class WorkerRequest:
    """What every rank of an attempt gets."""

    job_json: str = field(repr=False)
    """The training job, with the options of the stores."""
    secret: bytes = field(repr=False)
    """Proves that ranks belong to the same attempt."""
    program: bytes | None = field(default=None, repr=False)
    """The cloudpickle of a dict with `model`, `loss`, `optimizer` and `metrics`, and with `callbacks`, and
    `preprocess` and `validationPreprocess`, where workers have such.
    """
    program_uri: str | None = None
    """Where that lies in the store, if it is not `program`."""
    program_sha256: str | None = None
    """Its SHA-256 as the driver wrote it, in lower-case hexadecimal: another file is not unpickled."""
    sys_path: tuple[str, ...] = ()
    """Directories to import the user's modules from, beyond the worker's own."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """The driver's versions, as `versions` gives them; workers must have the same."""
    transport: str = "auto"
    """`auto`, `sharedMemory` or `tcp`."""
    preprocessing: PreprocessSpec | None = None
    """What the program's `preprocess` makes, where it has one."""
    preprocess_threads: int = 1
    """How many threads it runs in."""
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
        """As `run_rank`, with what the process writes kept as the rank's log."""
        with logged(self.job_json, rank):
            return run_rank(self, rank, world_size, all_gather, bind_address, gpu_addresses)


@dataclass(frozen=True)
class RankOutcome:
    """How a rank ended. Where `ok` is False the fields from `error_kind` on say what failed."""

    rank: int
    host: str
    ok: bool
    result_json: str | None = None
    """The training's result, where `ok`."""
    error_kind: str | None = None
    """As `RankFailure.kind`, or `environment` where the worker itself lacks something."""
    error_type: str | None = None
    """The exception's class, qualified."""
    message: str | None = None
    traceback: str | None = None
    arguments: Sequence[Any] = ()
    """What the exception is made of again, as JSON has it: its own arguments where they are all that its
    message is made of, else the message.
    """
    place: Mapping[str, Any] = field(default_factory=dict)
    """Which `rank`, `host`, `epoch` and `step` the exception itself names: those of the rank that was lost,
    on one that noticed it.
    """
    epoch: int | None = None
    step: int | None = None
    is_cause: bool = False
    """False where this rank only noticed that another one had failed."""

    def to_json(self) -> str:
        """The outcome as text, for the driver: nothing that comes from a worker is unpickled there."""
        return json.dumps(asdict(self))

    def ended(self) -> dict[str, Any]:
        """What the supervisor judges by."""
        kind = None if self.ok else self.error_kind
        silent = not self.ok and self.traceback is None
        return {"kind": kind, "isCause": self.is_cause, "isSilent": silent}

    @classmethod
    def of_json(cls, text: str | bytes) -> RankOutcome:
        """The outcome that `to_json` gave."""
        return cls(**json.loads(text))


def versions() -> dict[str, str]:
    """What must agree between driver and workers, by name: Python to its minor version, torch without its
    build. Nothing is imported for that.
    """
    major, minor, _ = platform.python_version_tuple()
    return {"Python": f"{major}.{minor}", "torch": metadata.version("torch").split("+")[0]}


def run_rank(
    request: WorkerRequest,
    rank: int,
    world_size: int,
    all_gather: Callable[[bytes], list[bytes]],
    bind_address: str,
    gpu_addresses: Sequence[str] | None = None,
) -> RankOutcome:
    """Trains rank `rank` of `world_size` and says how it ended; no exception leaves it, whatever happens.

    `all_gather` is called at most once, from this thread, and may wait. `bind_address` is the IP address that
    the other ranks reach this process at. `gpu_addresses` are the GPUs that the scheduler assigned to the
    rank: ordinals among those that the process sees, or UUIDs; None where it assigned none. Waits are bounded
    by the job's `collectiveTimeout`.
    """
    outcome = _outcome(
        rank, lambda: _train(request, rank, world_size, all_gather, bind_address, gpu_addresses)
    )
    _free_memory(outcome)
    return outcome


def _outcome(rank: int, train: Callable[[], str]) -> RankOutcome:
    """How a training ends; the frames that an exception of it holds end with this call."""
    host = socket.gethostname()
    try:
        return RankOutcome(rank, host, True, train())
    except RankFailure as failure:
        exception = failure.__cause__ or failure
        # A model's or a callback's is the user's, unless it is one of ours that says otherwise.
        kind = failure_kind(exception, "model") if failure.kind == "model" else failure.kind
        return failed_outcome(
            rank, failure.host or host, kind, exception, failure.epoch, failure.step, failure.is_cause
        )
    except BaseException as exception:
        return failed_outcome(rank, host, failure_kind(exception, "model"), exception, None, None, True)


def _free_memory(outcome: RankOutcome) -> None:
    """Gives back what a training had: this process lives on for Spark's next task."""
    torch: Any = sys.modules.get("torch")
    used_gpu = torch is not None and torch.cuda.is_initialized()
    if used_gpu or not outcome.ok:
        # An exception and the frames that it went through hold each other, and those frames all else.
        gc.collect()
    if used_gpu:
        # What torch keeps for itself. After a failed assertion on the GPU, CUDA refuses everything.
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def _train(
    request: WorkerRequest,
    rank: int,
    world_size: int,
    all_gather: Callable[[bytes], list[bytes]],
    bind_address: str,
    gpu_addresses: Sequence[str] | None,
) -> str:
    for directory in request.sys_path:
        if directory not in sys.path:
            sys.path.append(directory)
    finish_importing()
    forget_threads()
    # Here, since what cannot be imported is an answer of the rank's.
    try:
        from flambeau import _native
        from flambeau._module.adapter import ModuleModel
        from flambeau._module.layout import Layout
        from flambeau._module.precision import tensor_float32
        from flambeau._module.preprocessor import Ahead
    except ImportError as error:
        raise EnvironmentMismatchError(
            f"the worker on {socket.gethostname()} can't import flambeau or what it needs: {error}; "
            "install the same packages on the workers as on the driver"
        ) from error
    _check_versions(request.versions)
    job = json.loads(request.job_json)
    params = job["params"]
    precision = params.get("precision", "float32")
    # No name holds the pickle: it may be as large as the module, which trains for hours.
    program = _load_program(_pickle_of(request, job))
    layout = Layout.of(job["data"], params)
    made = request.preprocessing
    if made is not None:
        layout = replace(layout, inputs=made.inputs, by_name=made.by_name)
    adapter = ModuleModel(
        program,
        layout,
        params.get("learningRate"),
        precision,
        params.get("compile", False),
    )
    callbacks = rank_callbacks(program.get("callbacks", ()), adapter, rank, world_size)
    with tensor_float32(precision), ExitStack() as threads:
        if made is not None:
            functions = program["preprocess"], program["validationPreprocess"]
            ahead = Ahead(made, functions, request.preprocess_threads, params["seed"])
            adapter.ahead = threads.enter_context(ahead)
        return _native.train(
            request.job_json,
            rank,
            world_size,
            all_gather,
            request.secret,
            bind_address,
            adapter,
            callbacks,
            request.transport,
            None if gpu_addresses is None else list(gpu_addresses),
        )


def _check_versions(expected: Mapping[str, str]) -> None:
    own = versions()
    for name, version in expected.items():
        if own.get(name, version) != version:
            raise EnvironmentMismatchError(
                f"the driver has {name} {version}, but the worker on {socket.gethostname()} has "
                f"{name} {own[name]}; "
                "use the same version on both (PYSPARK_PYTHON names the workers' Python)"
            )


def _pickle_of(request: WorkerRequest, job: Mapping[str, Any]) -> bytes:
    if request.program is not None:
        return request.program
    return checked_file(job, request.program_uri or "", request.program_sha256 or "")


def checked_file(job: Mapping[str, Any], uri: str, sha256: str) -> bytes:
    """A file that the driver placed for a job. Raises StoreError where it cannot be read, and DataError where
    it is another one now: what is in it is run.
    """
    data: bytes = open_store(job.get("store") or {}).get(uri)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DataError(f"{uri} is not the program that the driver wrote there")
    return data


def _load_program(program: bytes) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = pickle.loads(program)
        return loaded
    except ModuleNotFoundError as error:
        raise EnvironmentMismatchError(
            f"the model, loss, optimizer, metrics or callbacks come from the module {error.name!r}, which "
            f"the worker on {socket.gethostname()} does not have; install it there, send it with addPyFile "
            f"or addArtifacts, or call cloudpickle.register_pickle_by_value({error.name})"
        ) from error
    except (AttributeError, ImportError) as error:
        raise EnvironmentMismatchError(
            "the model, loss, optimizer, metrics or callbacks can't be unpickled on "
            f"{socket.gethostname()}: {error}; the worker has "
            "another version of the module that defines them"
        ) from error


def failure_kind(exception: BaseException, otherwise: str) -> str:
    """The `RankFailure.kind` of an exception; `otherwise` for one that says nothing of itself."""
    if isinstance(exception, EnvironmentMismatchError):
        return "environment"
    if isinstance(exception, StoreError):
        return "store" if exception.is_transient else "data"
    if isinstance(exception, DataError):
        return "data"
    if isinstance(exception, ParamError):
        return "job"
    return "cancelled" if isinstance(exception, KeyboardInterrupt) else otherwise


def failed_outcome(
    rank: int,
    host: str,
    kind: str,
    exception: BaseException,
    epoch: int | None,
    step: int | None,
    is_cause: bool,
) -> RankOutcome:
    """The outcome of a rank that ended in an exception."""
    cls = type(exception)
    try:
        message = str(exception)
        text = "".join(traceback.format_exception(exception))
    except Exception as error:  # an exception whose own __str__ fails
        message = text = f"{cls.__qualname__} (its message can't be made: {error!r})"
    return RankOutcome(
        rank=rank,
        host=host,
        ok=False,
        error_kind=kind,
        error_type=f"{cls.__module__}.{cls.__qualname__}",
        message=message[-_MAX_TEXT:],
        traceback=text[-_MAX_TEXT:],
        arguments=_arguments(exception, message[-_MAX_TEXT:]),
        place={name: getattr(exception, name) for name in _PLACE if isinstance(exception, WorkerError)},
        epoch=epoch,
        step=step,
        is_cause=is_cause,
    )


def _arguments(exception: BaseException, message: str) -> list[Any]:
    """The exception's arguments where they are plain and make the same message, else its message."""
    arguments = list(exception.args)
    try:
        is_plain = all(isinstance(one, (str, int, float, bool, type(None))) for one in arguments)
        is_same = is_plain and str(type(exception)(*arguments)) == message
    except Exception:
        is_same = False
    return arguments if is_same else [message]
