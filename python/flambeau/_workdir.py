"""The work directory: shards, attempts and models of trainings, as the driver sees it and as Spark does.

`shards/<id>` lives for one fit, and `attempts/<id>` too unless its checkpoints are kept, for a `runId` or as
models; `models/<id>` outlives it. Ids begin with the time they were made at, so that what a crash left behind
is known by its age. A fit that runs holds a lease, a file that it writes anew every hour: nothing that was
made since it began is removed.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from flambeau.errors import FlambeauError

log = logging.getLogger("flambeau")

SWEEP_AGE = timedelta(days=7)

_SWEPT = ("shards", "attempts", "probes", "runs")
_LEASES = "leases"
KEPT = "KEPT"
"""The file of an attempt that no sweep removes."""
LEASE_SECONDS = 3600.0
_LAST_BEAT_SECONDS = 10.0
_STAMP = "%Y%m%dT%H%M%SZ"
_lock = threading.Lock()
_temporary: tempfile.TemporaryDirectory[str] | None = None


def temporary_directory() -> str:
    """The work directory of this process's fits in local mode: made once, removed when the process ends."""
    global _temporary
    with _lock:
        if _temporary is None:
            _temporary = tempfile.TemporaryDirectory(prefix="flambeau-")
        return _temporary.name


def private_directory(name: str) -> Path:
    """A directory of this machine for this user alone, made where it is missing, which all of the user's
    processes know.

    Raises FlambeauError where another user has something of that name, or it is a link.
    """
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise FlambeauError(
            f"{folder} is no directory, or belongs to another user; set TMPDIR to a directory of your own"
        )
    return folder


def new_id(since: str | None = None) -> str:
    """A name for a shard set or an attempt: the time in UTC and a random part, so that no two are alike. The
    time is that of the id `since` where it is given.
    """
    stamp = datetime.now(UTC).strftime(_STAMP) if since is None else since.split("-")[0]
    return f"{stamp}-{secrets.token_hex(6)}"


def age_of(name: str) -> timedelta | None:
    """How long ago an id was made; None for a name that is not one."""
    match = re.match(r"(\d{8}T\d{6}Z)-[0-9a-f]{12}(\.json)?$", name)
    if match is None:
        return None
    return datetime.now(UTC) - datetime.strptime(match.group(1), _STAMP).replace(tzinfo=UTC)


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

    def path(self, *parts: str) -> str:
        """A path in the directory, for the native store."""
        return "/".join([self.uri.rstrip("/"), *parts])

    def sees(self, uri: str) -> bool:
        """Whether this process can read that file of the directory."""
        try:
            return self._store().size(uri) is not None
        except (OSError, FlambeauError, ValueError):
            return False

    def read(self, uri: str) -> bytes:
        """A file's bytes."""
        data: bytes = self._store().get(uri)
        return data

    def delete(self, *parts: str) -> None:
        """Deletes what lies under a path of the directory, as seen from this process."""
        self._store().delete_prefix(self.path(*parts))

    def lease(self, since: str) -> str:
        """The URI of a new lease, of a fit that began when the id `since` was made."""
        return self.path(_LEASES, new_id(since))

    def sweep(self) -> None:
        """Deletes what fits left behind that is older than `SWEEP_AGE` and than each fit that holds a lease.

        A lease counts until `SWEEP_AGE` after it was last written: as long do the checkpoints stay that a fit
        without success has kept. Those of `keepCheckpoints` stay.
        """
        # Ids have whole seconds, and the clocks of two drivers may part.
        oldest = max([SWEEP_AGE, *self._leases()]) + timedelta(minutes=1)
        for kind in _SWEPT:
            root = self.path(kind)
            uris = self._store().list(root)
            kept = {_first_below(root, uri) for uri in uris if uri.endswith(f"/{KEPT}")}
            for name in {_first_below(root, uri) for uri in uris} - kept:
                age = age_of(name)
                if age is not None and age > oldest:
                    log.info("removing %s/%s, left behind %s ago", root, name, age)
                    self.delete(kind, name)

    def _leases(self) -> list[timedelta]:
        """How long ago the fits began that hold leases. Deletes leases that no longer count."""
        began = []
        for uri in self._store().list(self.path(_LEASES)):
            age = age_of(uri.rsplit("/", 1)[-1])
            beat = age_of(self.read(uri).decode())
            if age is not None and beat is not None and beat <= SWEEP_AGE:
                began.append(age)
            else:
                self._store().delete(uri)
        return began

    def _store(self) -> Any:
        from flambeau import _native

        return _native.Store(dict(self.store_options))


@contextmanager
def beating(
    beat: Callable[[], None], end: Callable[[], None], seconds: float = LEASE_SECONDS
) -> Iterator[None]:
    """Calls `beat` at once and every so many seconds while the block runs, and `end` after a block that went
    well.

    A failure of either is told and no more. A beat that is under way at the end is waited for, up to 10 s.
    """
    ended = threading.Event()

    def tell(act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            log.warning("the lease of a fit could not be written: %s", error)

    def run() -> None:
        while not ended.wait(seconds):
            tell(beat)

    tell(beat)
    thread = threading.Thread(target=run, name="flambeau-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # One that goes through Spark waits for a slot, which may never come.
        thread.join(_LAST_BEAT_SECONDS)
    tell(end)


def _first_below(root: str, uri: str) -> str:
    """The name of the directory below `root` that a listed file lies in."""
    name = root.rstrip("/").rsplit("/", 1)[-1]
    return uri.split(f"/{name}/", 1)[-1].split("/", 1)[0] if f"/{name}/" in uri else ""
