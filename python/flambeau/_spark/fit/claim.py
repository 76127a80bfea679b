"""Whose a named run is: one fit at a time writes its checkpoints and goes on from them. How a driver takes a
run and keeps it, `native/supervisor` knows; when it does so is here.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from flambeau._spark import session
from flambeau._spark.work_directory import WorkDirectory, beating
from flambeau.errors import FlambeauError, RunInUseError

log = logging.getLogger("flambeau")

_BEAT_SECONDS = 10.0
_lock = threading.Lock()


class _Claim:
    """A run that a fit of this process wants, or has."""

    def __init__(self, work: WorkDirectory, run: str) -> None:
        self.own = secrets.token_hex(8)
        self._work, self._run = work, run
        self._state: dict[str, Any] = {"own": self.own, "beatSeconds": _BEAT_SECONDS}
        # Beats come from a thread of their own.
        self._lock = threading.Lock()

    def advance(self) -> None:
        """Takes the next step, which is a beat once the run is held. Raises StoreError, and RunInUseError
        where another driver has it.
        """
        with self._lock:
            was_lost = self.is_in("lost")
            self._state = self._work.ask("advanceClaim", id=self._run, claim=self._state)
            if self.is_in("lost") and not was_lost:
                log.warning(
                    "runId %r in %s is being trained by another driver too, whose run it is now: this "
                    "fit goes on and leaves the run's checkpoints alone",
                    self._run,
                    self._work.uri,
                )

    def release(self) -> None:
        """Gives the run up, unless it is another driver's."""
        self._work.ask("releaseClaim", id=self._run, own=self.own)

    def is_in(self, phase: str) -> bool:
        """Whether it has come as far as that."""
        return phase in self._state.get("phase", ())

    @property
    def wait_seconds(self) -> float:
        """Seconds until the next step."""
        return float(self._state["waitSeconds"])


_held: dict[str, _Claim] = {}
"""The claims of the fits of this process, by the runs' files."""


@contextmanager
def claimed(work: WorkDirectory, visible: bool, run: str) -> Iterator[None]:
    """Holds the run of that name while the block runs.

    Where this process sees the work directory (`visible`), what another driver left there is watched for up
    to 70 s, longer than mounts of object stores show what was. Raises RunInUseError where another fit of this
    process has the run, or such a driver still writes; StoreError where this one can't.
    """
    uri = work.path("runs", f"{run}.owner")
    with _lock:
        if uri in _held:
            raise RunInUseError(
                f"runId {run!r} in {work.uri} is being trained by another fit of this process: wait until "
                "that fit has ended, interrupt it, or take another runId"
            )
        _held[uri] = claim = _Claim(work, run)
    try:
        with _beating(claim, run) if visible else nullcontext():
            yield
    finally:
        with _lock:
            del _held[uri]


def is_lost(work: WorkDirectory, run: str) -> bool:
    """Whether another driver has taken a run that a fit of this process trains: what the run has in the work
    directory is that one's now. Looks there, since this process may have stood still after its last beat.
    """
    claim = _held.get(work.path("runs", f"{run}.owner"))
    if claim is None or not claim.is_in("held"):
        return claim is not None and claim.is_in("lost")
    # What can't be read is no other driver.
    with suppress(FlambeauError):
        claim.advance()
    return claim.is_in("lost")


@contextmanager
def _beating(claim: _Claim, run: str) -> Iterator[None]:
    try:
        claim.advance()
        if claim.is_in("watching"):
            log.info("runId %r has an owner: waiting whether another driver still writes", run)
        while not claim.is_in("held"):
            session.pause(claim.wait_seconds)
            claim.advance()
    except BaseException:
        with suppress(Exception):
            claim.release()
        raise
    with beating("the claim of a run", claim.advance, claim.release, _BEAT_SECONDS, ends_always=True):
        yield
