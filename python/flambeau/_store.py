"""Files: which this process reads by itself, the store for the others, and what a machine keeps of them."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from flambeau import _native
from flambeau.errors import FlambeauError

STORE_SCHEMES = ("", "file", "dbfs", "s3", "s3a", "abfs", "abfss", "gs")

SWEEP_AGE = timedelta(days=7)
"""How long what nobody uses is kept, in work directories and on machines."""


def open_store(options: Mapping[str, str]) -> Any:
    """The store layer over all URIs that Flambeau knows; `options` configure the object stores."""
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
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise FlambeauError(
            f"{folder} is no directory, or belongs to another user; set TMPDIR to a directory of your own"
        )
    return folder


def cache_directory() -> Path:
    """Where fetched files are kept on this machine, for this user alone; they are named by their hash."""
    return private_directory("flambeau-cache")


def cached(name: str, make: Callable[[Path], object]) -> Path:
    """The file of that name among those that this machine keeps, written by `make` where it is not there yet.

    Those that nobody has asked for in `SWEEP_AGE` are removed.
    """
    folder = cache_directory()
    path = folder / name
    if not path.is_file():
        handle, part = tempfile.mkstemp(dir=folder, suffix=".part")
        os.close(handle)
        try:
            make(Path(part))
            os.replace(part, path)
        finally:
            Path(part).unlink(missing_ok=True)
        _evict(folder)
    os.utime(path)
    return path


def _evict(folder: Path) -> None:
    """Deletes what nobody has asked for in `SWEEP_AGE`; a process that has it mapped keeps what it has."""
    for path in folder.iterdir():
        # Another process was faster, or it is nothing of ours.
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > SWEEP_AGE.total_seconds():
                path.unlink()
