"""Files: which this process reads by itself, the store for the others, and what a machine keeps of them."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from flambeau._version import check_extension
from flambeau.errors import DataError, FlambeauError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows has none, where clients alone run
    fcntl = None

STORE_SCHEMES = ("", "file", "dbfs", "s3", "s3a", "abfs", "abfss", "gs")

SWEEP_AGE = timedelta(days=7)
"""How long what nobody uses is kept, in work directories and on machines."""

ANOTHER_FILE = (
    "not the file that was saved: its SHA-256 is {actual}, expected {expected}; "
    "was another one saved over it?"
)

_LOCK_SECONDS = 600.0
_POLL_SECONDS = 0.02
# Often enough that a copy in use does not grow old, and seldom, since a file that was touched is read anew.
_TOUCH_SECONDS = 86_400.0

_hashes: dict[tuple[str, int, int], str] = {}
_lock = threading.Lock()


def open_store(options: Mapping[str, str]) -> Any:
    """The store layer over all URIs that Flambeau knows; `options` configure the object stores. Raises
    EnvironmentMismatchError where this machine has no extension.
    """
    check_extension()
    from flambeau import _native

    return _native.Store(dict(options))


def local_path(uri: str) -> Path | None:
    """The local path that a URI means: a plain path, file: or dbfs: (mounted at /dbfs); None for an object
    store."""
    parts = urlsplit(uri)
    if "://" not in uri and not uri.startswith(("file:", "dbfs:")):
        return Path(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if parts.scheme == "dbfs":
        path = unquote(parts.path)
        return Path(path) if path.startswith("/Volumes/") else Path("/dbfs" + path)
    return None


def private_directory(name: str) -> Path:
    """A directory of this machine for this user alone, made where it is missing, which all of the user's
    processes know.

    Raises FlambeauError where another user has something of that name, or it is a link.
    """
    user = os.getuid() if fcntl else 0  # Windows has a temporary directory for each user
    folder = Path(tempfile.gettempdir()) / f"{name}-{user}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user:
        raise FlambeauError(
            f"{folder} is no directory, or belongs to another user; set TMPDIR to a directory of your own"
        )
    return folder


def cache_directory() -> Path:
    """Where fetched files are kept on this machine, for this user alone; they are named by their hash."""
    return private_directory("flambeau-cache")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in lower-case hexadecimal. Reads each state of it once in a process."""
    status = path.stat()
    key = (str(path), status.st_size, status.st_mtime_ns)
    with _lock:
        if key not in _hashes:
            with path.open("rb") as file:
                _hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return _hashes[key]


def cached(uri: str, sha256: str, make: Callable[[Path], object]) -> Path:
    """This machine's copy of the file at a URI, which has that SHA-256: written by `make` where there is none
    yet, or another file in its place.

    One process makes it; others wait for that, ten minutes at most, and then make it too. Copies that nobody
    has asked for in `SWEEP_AGE` are removed. Raises DataError where `make` writes another file.
    """
    folder = cache_directory()
    path = folder / sha256
    # Before it is looked at: what was just asked for is not evicted.
    with suppress(FileNotFoundError):
        if time.time() - path.stat().st_mtime > _TOUCH_SECONDS:
            os.utime(path)
    if not _is_whole(path, sha256):
        with _alone(folder / f"{sha256}.lock"):
            # Another process may have made it meanwhile.
            if not _is_whole(path, sha256):
                _make(path, uri, sha256, make)
        _evict(folder)
    return path


def _is_whole(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_of(path) == sha256


def _make(path: Path, uri: str, sha256: str, make: Callable[[Path], object]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        make(part)
        # What lies under its name stays there as long as it is asked for.
        if (actual := sha256_of(part)) != sha256:
            raise DataError(f"{uri} is {ANOTHER_FILE.format(actual=actual, expected=sha256)}")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keeps this machine's other processes out of such a block, for `_LOCK_SECONDS` at most, where the system
    has such locks.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < deadline:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        path.unlink(missing_ok=True)
        # Also where a forked child has the file open still.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _evict(folder: Path) -> None:
    """Deletes what nobody has asked for in `SWEEP_AGE`; a process that has it mapped keeps what it has."""
    for path in folder.iterdir():
        # Another process was faster, or it is nothing of ours.
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > SWEEP_AGE.total_seconds():
                path.unlink()
