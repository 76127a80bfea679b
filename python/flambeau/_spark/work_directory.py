"""The work directory of fits as the driver sees it and as Spark does. What lies where, and how long,
`native/supervisor` says.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flambeau._spark.extension import with_extension
from flambeau._store import open_store
from flambeau.errors import FlambeauError

log = logging.getLogger("flambeau")


PROBES = "probes"
"""The directory below it in which a fit tries who sees what."""

LEASE_SECONDS = 3600.0
_LAST_BEAT_SECONDS = 60.0
_lock = threading.Lock()
_temporary: tempfile.TemporaryDirectory[str] | None = None


def temporary_directory() -> str:
    """The work directory of this process's fits in local mode: made once, removed when the process ends."""
    global _temporary
    with _lock:
        if _temporary is None:
            _temporary = tempfile.TemporaryDirectory(prefix="flambeau-")
        return _temporary.name


def new_id(since: str | None = None) -> str:
    """A name for what a fit makes in its work directory: the time in UTC and a random part, so that no two
    are alike. The time is that of the id `since` where it is given.
    """
    made: str = WorkDirectory("").ask("newId", since=since)
    return made


def spark_path(path: str) -> str:
    """The path as Spark's readers and writers take it.

    A path without a scheme means a file that the workers' processes see, whatever Spark's default file system
    is.
    """
    if path.startswith("/dbfs/"):
        return "dbfs:" + path[len("/dbfs") :]
    if path.startswith("/Volumes/") or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", path):
        return path
    return "file://" + path


@dataclass(frozen=True)
class WorkDirectory:
    """A work directory and what it takes to reach it: `store_options` are those of the native store."""

    uri: str
    store_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    is_temporary: bool = False
    """Whether it is this process's own, and goes with it."""

    def path(self, *parts: str) -> str:
        """A path in the directory, for the native store."""
        return "/".join([self.uri.rstrip("/"), *parts])

    def sees(self, uri: str) -> bool:
        """Whether this process can read that file of the directory."""
        try:
            return self.store().size(uri) is not None
        except (OSError, FlambeauError, ValueError):
            return False

    def read(self, uri: str) -> bytes:
        """A file's bytes."""
        data: bytes = self.store().get(uri)
        return data

    def ask(self, ask: str, **fields: Any) -> Any:
        """The answer of the supervisor (`native/supervisor`) to a question about this directory, as seen from
        this process, or from a worker where this machine has no extension. Raises StoreError, and ParamError
        for what the user asked for that does not go with what is there.
        """
        question = json.dumps({"ask": ask, **fields})
        return with_extension(partial(_supervised, self.uri, question, dict(self.store_options)))

    def store(self) -> Any:
        """The store as this process has it."""
        return open_store(dict(self.store_options))


def _supervised(uri: str, question: str, store_options: dict[str, str]) -> Any:
    from flambeau import _native

    return json.loads(_native.supervise(uri, question, store_options))


@contextmanager
def beating(
    name: str,
    beat: Callable[[], None],
    end: Callable[[], None],
    seconds: float,
    *,
    begins: bool = False,
    ends_always: bool = False,
) -> Iterator[None]:
    """Calls `beat` every so many seconds while the block runs, with `begins` at once too, and `end` after a
    block that went well, or with `ends_always` after any.

    A failure of either is told once, with what `name` says of it, and no more. The end waits up to 60 s for a
    beat that is under way and for `end`: one that goes through Spark waits for a slot, which may never come.
    """
    ended, is_well, is_told = threading.Event(), False, False

    def tell(act: Callable[[], None]) -> None:
        nonlocal is_told
        try:
            act()
            is_told = False
        except Exception as error:
            if not is_told:
                log.warning("%s could not be written: %s", name, error)
            is_told = True

    def run() -> None:
        while not ended.wait(seconds):
            tell(beat)
        # Here, so that no beat comes after it.
        if is_well or ends_always:
            tell(end)

    if begins:
        tell(beat)
    thread = threading.Thread(target=run, name="flambeau-beat", daemon=True)
    thread.start()
    try:
        yield
        is_well = True
    finally:
        ended.set()
        thread.join(_LAST_BEAT_SECONDS)
