"""Whose a named run is: one fit at a time writes its checkpoints and goes on from them.

The driver that has a run writes `runs/<id>.owner` anew with each beat: a name of its own and a number.
Another one watches the file for a while, so that no clocks are compared.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from flambeau._fit import cluster
from flambeau._workdir import WorkDirectory
from flambeau.errors import FlambeauError, ParamError

log = logging.getLogger("flambeau")

_BEAT_SECONDS = 10.0
# A driver that is not heard of for so many beats has ended.
_FRESH_BEATS = 7
# Of two drivers that saw nobody, the one that wrote last is seen by both so many beats later.
_SETTLE_BEATS = 0.05
_lock = threading.Lock()
_held: set[str] = set()


@contextmanager
def claimed(work: WorkDirectory, visible: bool, run: str) -> Iterator[None]:
    """Holds the run of that name while the block runs.

    Where this process sees the work directory (`visible`), what another driver left there is watched for up
    to 70 s, longer than mounts of object stores show what was. Raises ParamError where another fit of this
    process has the run, or such a driver still writes; StoreError where this one can't.
    """
    uri = work.path("runs", f"{run}.owner")

    def refused(who: str) -> ParamError:
        return ParamError(
            f"runId {run!r} in {work.uri} is being trained by {who}: wait until that fit has ended, "
            "interrupt it, or take another runId"
        )

    with _lock:
        if uri in _held:
            raise refused("another fit of this process")
        _held.add(uri)
    try:
        with _beating(work, uri, refused("another driver")) if visible else nullcontext():
            yield
    finally:
        with _lock:
            _held.discard(uri)


@contextmanager
def _beating(work: WorkDirectory, uri: str, refusal: ParamError) -> Iterator[None]:
    from flambeau import _native

    store, own, ended = (
        _native.Store(dict(work.store_options)),
        secrets.token_hex(8).encode(),
        threading.Event(),
    )

    def read() -> bytes | None:
        """What the file holds: None where there is none, nothing where it can't be read."""
        try:
            return None if store.size(uri) is None else store.get(uri)
        except (FlambeauError, OSError):
            return b""

    def is_others() -> bool:
        return not (read() or own).startswith(own)

    def beat() -> None:
        number, is_told = 0, False
        while not ended.wait(_BEAT_SECONDS):
            if is_others():
                log.warning("%s; its checkpoints and this fit's may mix", refusal)
                return
            number += 1
            try:
                store.put(uri, own + b" %d" % number)
                is_told = False
            except Exception as error:
                if not is_told:
                    log.warning("%s could not be written: %s", uri, error)
                is_told = True
        # Here, so that no put comes after it.
        try:
            if (read() or b"").startswith(own):
                store.delete(uri)
        except Exception as error:
            log.warning("%s could not be removed: %s", uri, error)

    seen, start = read(), time.monotonic()
    if seen is not None:
        log.info("%s is there: waiting whether another driver still writes it", uri)
    while seen is not None and time.monotonic() < start + _FRESH_BEATS * _BEAT_SECONDS:
        cluster.pause(_BEAT_SECONDS / 10)
        now = read()
        if seen and now and now != seen:
            raise refusal
        if now and not seen:
            start = time.monotonic()
        seen = now if now is None else seen or now
    store.put(uri, own)
    thread = threading.Thread(target=beat, name="flambeau-claim", daemon=True)
    thread.start()
    try:
        cluster.pause(_SETTLE_BEATS * _BEAT_SECONDS)
        if is_others():
            raise refusal
        yield
    finally:
        ended.set()
        # A store may hang.
        thread.join(_BEAT_SECONDS)
