"""Whose a named run is: one fit at a time writes its checkpoints and goes on from them. How a driver takes a
run and keeps it, `native/supervisor` knows; when it does so is here.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

from flambeau._spark import session
from flambeau._spark.work_directory import WorkDirectory, beating
from flambeau.errors import FlambeauError, ParamError

log = logging.getLogger("flambeau")

_BEAT_SECONDS = 10.0
_lock = threading.Lock()
_held: dict[str, dict[str, Any]] = {}
"""The claims of the fits of this process, as the supervisor told them last, by the runs' files."""


@contextmanager
def claimed(work: WorkDirectory, visible: bool, run: str) -> Iterator[None]:
    """Holds the run of that name while the block runs.

    Where this process sees the work directory (`visible`), what another driver left there is watched for up
    to 70 s, longer than mounts of object stores show what was. Raises ParamError where another fit of this
    process has the run, or such a driver still writes; StoreError where this one can't.
    """
    uri = work.path("runs", f"{run}.owner")
    with _lock:
        if uri in _held:
            raise ParamError(
                f"runId {run!r} in {work.uri} is being trained by another fit of this process: wait until "
                "that fit has ended, interrupt it, or take another runId"
            )
        _held[uri] = claim = {"own": secrets.token_hex(8), "beatSeconds": _BEAT_SECONDS}
    try:
        with _beating(work, run, claim) if visible else nullcontext():
            yield
    finally:
        with _lock:
            del _held[uri]


def is_lost(work: WorkDirectory, run: str) -> bool:
    """Whether another driver has taken a run that a fit of this process trains: what the run has in the work
    directory is that one's now. Looks there, since this process may have stood still after its last beat.
    """
    claim = _held.get(work.path("runs", f"{run}.owner"), {})
    if "phase" not in claim:
        return False
    # What can't be read is no other driver.
    with suppress(FlambeauError):
        _beat(work, run, claim)
    return bool(claim["phase"] == "lost")


def _beat(work: WorkDirectory, run: str, claim: dict[str, Any]) -> None:
    before = claim["phase"]
    claim.update(work.ask("advanceClaim", id=run, claim=claim))
    if claim["phase"] == "lost" != before:
        log.warning(
            "runId %r in %s is being trained by another driver too, whose run it is now: this fit goes "
            "on and leaves the run's checkpoints alone",
            run,
            work.uri,
        )


@contextmanager
def _beating(work: WorkDirectory, run: str, claim: dict[str, Any]) -> Iterator[None]:
    def advance() -> None:
        claim.update(work.ask("advanceClaim", id=run, claim=claim))

    def release() -> None:
        work.ask("releaseClaim", id=run, own=claim["own"])

    try:
        advance()
        if "watching" in claim["phase"]:
            log.info("runId %r has an owner: waiting whether another driver still writes", run)
        while "held" not in claim["phase"]:
            session.pause(claim["waitSeconds"])
            advance()
    except BaseException:
        with suppress(Exception):
            release()
        raise
    with beating(
        "the claim of a run", partial(_beat, work, run, claim), release, _BEAT_SECONDS, ends_always=True
    ):
        yield
