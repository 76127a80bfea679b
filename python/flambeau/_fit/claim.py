"""Whose a named run is: one fit at a time writes its checkpoints and goes on from them."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from flambeau._workdir import WorkDirectory, age_of, beating, new_id
from flambeau.errors import ParamError

log = logging.getLogger("flambeau")

_BEAT_SECONDS = 10.0
# A driver that was killed counts as ended so long after its last beat; one of this machine at once.
FRESH = timedelta(seconds=60)
_lock = threading.Lock()
_held: set[str] = set()


@contextmanager
def claimed(work: WorkDirectory, visible: bool, run: str) -> Iterator[None]:
    """Holds the run of that name while the block runs.

    Raises ParamError where a fit of this process holds it, or another driver that was heard of within
    `FRESH`: its beats are seen where this process sees the work directory (`visible`).
    """
    uri = work.path("runs", f"{run}.owner")
    with _lock:
        if uri in _held:
            raise _refusal(work, run, "another fit of this process")
        _held.add(uri)
    try:
        if visible:
            with _beating(work, run, uri):
                yield
        else:
            yield
    finally:
        with _lock:
            _held.discard(uri)


@contextmanager
def _beating(work: WorkDirectory, run: str, uri: str) -> Iterator[None]:
    from flambeau import _native

    store = _native.Store(dict(work.store_options))
    own = {"owner": new_id(), "host": socket.gethostname(), "process": os.getpid()}

    def check() -> None:
        told: dict[str, Any] = {} if store.size(uri) is None else json.loads(store.get(uri))
        age = age_of(told["beat"]) if told else None
        if age is None or age > FRESH or told["owner"] == own["owner"] or _has_ended(told):
            return
        seconds = max(0.0, age.total_seconds())
        who = f"process {told['process']} on {told['host']}, last heard of {seconds:.0f} s ago"
        raise _refusal(work, run, who)

    def beat() -> None:
        store.put(uri, json.dumps({**own, "beat": new_id()}).encode())

    check()
    is_held = False
    try:
        with beating(beat, lambda: None, _BEAT_SECONDS):
            # Of two drivers that saw nobody, the one whose name stays goes on.
            check()
            is_held = True
            yield
    finally:
        if is_held:
            try:
                store.delete(uri)
            except Exception as error:
                log.warning("%s could not be removed: %s", uri, error)


def _has_ended(told: dict[str, Any]) -> bool:
    """Whether the process that wrote this is one of this machine that is no more."""
    if told["host"] != socket.gethostname():
        return False
    if told["process"] == os.getpid():
        # One that had this number before: what this one holds is known.
        return True
    try:
        os.kill(told["process"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _refusal(work: WorkDirectory, run: str, who: str) -> ParamError:
    return ParamError(
        f"runId {run!r} in {work.uri} is being trained by {who}: wait until that fit has ended, interrupt "
        "it, or take another runId (a driver that was killed counts as ended after "
        f"{FRESH.total_seconds():.0f} s)"
    )
