"""What Flambeau raises.

Every class here derives from `FlambeauError`, and from the built-in class that a caller would expect
(`ValueError` for what can be mended in the call or in the data, `RuntimeError` for what happened while
running). An exception of the user's code on a worker is raised as itself where its class is one of Python's,
else as a `WorkerError`.
"""

from __future__ import annotations

from typing import Any


class FlambeauError(Exception):
    """The base of all errors that Flambeau raises itself. A note of each, which tracebacks show below the
    message, names the part of the errors page that says what to do.

    `is_transient` says that the same fit may go better when it is tried again: a worker was lost or late,
    task slots were missing, a store could not be reached, or another fit has the run. With `runId` it goes on
    from the newest checkpoint.
    """

    is_transient = False

    def __init__(self, *args: object, is_transient: bool | None = None) -> None:
        super().__init__(*args)
        if is_transient is not None:
            self.is_transient = is_transient
        public = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        self.add_note(f"see {public.__name__} on the errors page of Flambeau's documentation")


class ParamError(FlambeauError, ValueError):
    """A param, or an object given as one, that is refused; the message names it, its value and what is
    allowed.
    """


class RunInUseError(ParamError):
    """A `runId` that another fit trains now, which will have ended later."""

    is_transient = True


class DataError(FlambeauError, ValueError):
    """Data that is refused; the message names the column or tensor and how to mend it."""


class StoreError(FlambeauError, OSError):
    """A path of the store that could not be read or written; the message names the path. Transient where the
    store throttled, timed out or could not be reached.
    """


class ClusterError(FlambeauError, RuntimeError):
    """A cluster that cannot run the training: too few task slots, or settings that Spark refuses for barrier
    stages. Transient where slots are missing, which may be there later.
    """


class EnvironmentMismatchError(FlambeauError, RuntimeError):
    """A machine, mostly a worker's, that lacks what a fit needs there: a module, the driver's version of
    Python or torch, or the native parts.
    """


class WorkerError(FlambeauError, RuntimeError):
    """A failure on a worker.

    Attributes: `rank`, `host`, `epoch`, `step` (None where not known; epochs and steps count from 0),
    `traceback`, the worker's own traceback as text (None where there is none), and `error_type`, the
    qualified name of the class that was raised there where it is none of Python's or of Flambeau's (else
    None).
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        host: str | None = None,
        epoch: int | None = None,
        step: int | None = None,
        traceback: str | None = None,
        error_type: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.epoch = epoch
        self.step = step
        self.traceback = traceback
        self.error_type = error_type

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n\nThe worker's traceback:\n{self.traceback}" if self.traceback else message


class DivergedError(WorkerError):
    """The loss became NaN or infinite; `epoch` and `step` say where it began."""


class CancelledError(WorkerError):
    """The training was cancelled, by an interrupt or by the caller."""


class CallbackError(FlambeauError, RuntimeError):
    """A hook of a callback failed on the driver after a training that went well. `model` is the fitted model,
    and `__cause__` what was raised.
    """

    def __init__(self, message: str, model: Any = None) -> None:
        super().__init__(message)
        self.model = model


class CollectiveError(WorkerError):
    """A collective operation failed."""


class CollectiveTimeout(CollectiveError):
    """Ranks did not arrive at a collective operation before its deadline; the message names them and their
    hosts.
    """

    is_transient = True


class CollectiveMismatch(CollectiveError):
    """Ranks called different collective operations; the message says how they differ."""


class WorkerLost(CollectiveError):
    """A worker died or stopped answering; `rank` and `host` name it where they are known."""

    is_transient = True


class RankFailure(FlambeauError):
    """How `flambeau._native.train` ends on a failing rank: what failed, where, and whether it began here.
    Internal.

    `kind` is the name of an `ErrorKind` of `native/train`.
    `is_cause` is False where this rank only noticed that another one had failed. `__cause__` is the exception
    itself.
    """

    def __init__(
        self,
        message: str,
        kind: str,
        rank: int,
        host: str | None,
        epoch: int | None,
        step: int | None,
        is_cause: bool,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.rank = rank
        self.host = host
        self.epoch = epoch
        self.step = step
        self.is_cause = is_cause
