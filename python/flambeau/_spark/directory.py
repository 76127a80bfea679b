"""The directory of a saved model, as Spark sees it.

A path means what it means to Spark: without a scheme it lies on Spark's default file system (`qualified`),
and without a session on this machine. On classic Spark this process writes the files itself, through the
store layer, or through Hadoop's file system where only that knows the scheme. On Spark Connect the client may
see nothing of the cluster's files, so a worker writes and reads them.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flambeau._saved.weights import WeightsRef, read_range
from flambeau._spark.files import (
    download,
    fetched,
    hadoop_copy,
    hadoop_file_system,
    hadoop_path,
    read_through_spark,
)
from flambeau._spark.session import bytes_on_worker, is_connect, store_options
from flambeau._store import STORE_SCHEMES, local_path, open_store
from flambeau.errors import FlambeauError, ParamError, StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PIECE = 16 << 20


_OBJECT_STORES = ("s3", "s3a", "abfs", "abfss", "gs")
"""The schemes that need nothing of Hadoop's."""


def qualified(spark: SparkSession | None, path: str) -> str:
    """The URI of a path. One without a scheme lies on Spark's default file system, as Spark ML has it. Spark
    Connect does not tell which that is, and where there is no session there is none: the path stays as it is.

    Raises ParamError where neither the store nor Spark has a file system of that scheme.
    """
    if spark is None or is_connect(spark) or urlsplit(path).scheme in _OBJECT_STORES:
        return path
    from py4j.protocol import Py4JJavaError

    hadoop = hadoop_path(spark, path)
    try:
        return str(hadoop_file_system(spark, hadoop).makeQualified(hadoop).toUri().toString())
    except Py4JJavaError as error:
        raise ParamError(f"Spark cannot reach {path}: {error.java_exception.getMessage()}") from error


class Directory:
    """A directory with a few files, to be written once or read.

    Raises FlambeauError for a path that workers cannot reach, naming its scheme.
    """

    def __init__(self, spark: SparkSession | None, path: str) -> None:
        self.path = path.rstrip("/") or "/"
        self._given = spark
        self._connect = spark is not None and is_connect(spark)
        self._options = {} if spark is None else store_options(spark)
        self.uri = qualified(spark, self.path)
        self._hadoop = urlsplit(self.uri).scheme not in STORE_SCHEMES
        if self._hadoop and (self._connect or spark is None):
            raise FlambeauError(
                f"{path}: {'on Spark Connect' if self._connect else 'without a Spark session'} a path has no "
                f"scheme, or one that workers can read: {', '.join(STORE_SCHEMES[1:])}"
            )

    @property
    def _spark(self) -> SparkSession:
        assert self._given is not None, "what asks for a session is asked for with one"
        return self._given

    @property
    def is_here(self) -> bool:
        """Whether it is a directory of this machine, which is written and read without a session."""
        return self._given is None

    def file(self, name: str) -> str:
        """The URI of a file in the directory. Raises FlambeauError for a name that is a path: names come from
        what was saved.
        """
        if name in ("", ".", "..") or any(mark in name for mark in "/\\\0"):
            raise FlambeauError(
                f"{self.path} names a file {name!r}, which is not a plain name: it is not read"
            )
        return f"{self.uri.rstrip('/')}/{name}"

    def exists(self) -> bool:
        """Whether there is anything at the path."""
        if self._hadoop:
            return bool(self._file_system().exists(hadoop_path(self._spark, self.uri)))
        return self._by_whom_sees(_exists, self.uri) == b"1"

    @property
    def can_move(self) -> bool:
        """Whether the directory can be renamed: not on Connect in an object store."""
        return not self._connect or local_path(self.uri) is not None

    def sibling(self, kind: str) -> Directory:
        """A directory beside this one, with a name that is new."""
        return Directory(self._spark, f"{self.path}.{kind}-{secrets.token_hex(6)}")

    def replace_by(self, other: Directory) -> None:
        """Gives `other` this directory's place, and removes what was there.

        Raises StoreError where a rename fails; what was there is then there again, or beside, as it says.
        """
        old = self.sibling("old")
        self._rename(old)
        try:
            other._rename(self)
        except BaseException as error:
            try:
                old._rename(self)
            except Exception:
                raise StoreError(
                    f"{other.path} could not be renamed to {self.path}; what was there is at {old.path} now"
                ) from error
            other.remove()
            raise
        old.remove()

    def _rename(self, target: Directory) -> None:
        try:
            if self._connect:
                self._on_worker(_move, self.uri, target.uri)
            elif not self._file_system().rename(
                hadoop_path(self._spark, self.uri), hadoop_path(self._spark, target.uri)
            ):
                raise OSError("the file system refused it")
        except Exception as error:
            raise StoreError(f"{self.path} could not be renamed to {target.path}: {error}") from error

    def remove(self) -> None:
        """Removes the directory and all in it, through Spark, as its own writers do."""
        from pyspark.ml.util import MLWriter

        if self._connect:
            from pyspark.ml.connect.readwrite import RemoteMLWriter

            RemoteMLWriter.handleOverwrite(self.path, True)
        else:
            MLWriter().session(self._spark)._handleOverwrite(self.path)

    def write(self, name: str, data: bytes) -> None:
        """Writes a file; it is whole or not there."""
        if self._hadoop:
            with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
                local = Path(folder) / name
                local.write_bytes(data)
                self._upload(local, name)
        elif not self._connect:
            _put(self.file(name), data, self._options)
        elif len(data) <= _PIECE:
            self._on_worker(_put, self.file(name), data, self._options)
        else:
            starts = range(0, len(data), _PIECE)
            for number, start in enumerate(starts):
                part = f"{self.file(name)}.part-{number}"
                self._on_worker(_put, part, data[start : start + _PIECE], self._options)
            self._on_worker(_join, self.file(name), len(starts), self._options)

    def put(self, name: str, data: bytes) -> dict[str, Any]:
        """Writes a file and returns its entry in the metadata's `files`: size and SHA-256."""
        self.write(name, data)
        return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def copy(self, name: str, source: WeightsRef) -> None:
        """Copies a weights file into the directory, by whoever sees it: this process, or a worker."""
        sees = self.is_here or self._hadoop or source.is_hadoops or source.visible()
        if self._connect or not sees:
            self._on_worker(_copy, source, self.file(name), self._options)
            return
        with fetched(source, self._given) as local:
            self.put_file(name, local)

    def put_file(self, name: str, local: Path) -> None:
        """Writes a file from one of this machine, in parts where it is large."""
        if self._connect:
            self.write(name, local.read_bytes())
        elif self._hadoop:
            self._upload(local, name)
        else:
            _put_file(self.file(name), local, self._options)

    def read(self, name: str, size: int, sha256: str) -> bytes:
        """A file's bytes, checked against their hash."""
        if self._hadoop:
            data = hadoop_copy(self._spark, self.file(name), sha256).read_bytes()
        else:
            data = self._read(name, size)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StoreError(
                f"{self.file(name)} is not the file that was saved: its SHA-256 differs from the metadata's"
            )
        return data

    def read_unknown(self, name: str) -> bytes:
        """A file's bytes where nothing tells their size and hash. Raises StoreError where there is none."""
        if self._hadoop:
            with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
                download(self._spark, self.file(name), Path(folder) / "file")
                return (Path(folder) / "file").read_bytes()
        size = self._size(name)
        if size < 0:
            raise StoreError(f"there is no file {self.file(name)}")
        return self._read(name, size)

    def is_file(self, name: str) -> bool:
        """Whether the directory has a file of that name."""
        if self._hadoop:
            path = hadoop_path(self._spark, self.file(name))
            return bool(self._file_system().exists(path)) and bool(
                self._file_system().getFileStatus(path).isFile()
            )
        return self._size(name) >= 0

    def holds(self, name: str) -> bool:
        """Whether the directory has that file, or a directory of that name."""
        if self._hadoop:
            return bool(self._file_system().exists(hadoop_path(self._spark, self.file(name))))
        return self._by_whom_sees(_exists, self.file(name)) == b"1"

    def reference(self, name: str, size: int, sha256: str) -> WeightsRef:
        """A reference to a file."""
        return WeightsRef(self.file(name), size, sha256, self._options)

    def check_reached(self) -> None:
        """Raises FlambeauError where what Spark wrote is not what the files were written beside."""
        if self._hadoop or not self._connect:
            return
        if self._on_worker(_exists, self.file("metadata"), self._options) != b"1":
            raise FlambeauError(
                f"{self.path} is on another file system for Spark than for its Python workers: "
                "give a full URI, such as file:///... or dbfs:/..."
            )

    def _file_system(self) -> Any:
        return hadoop_file_system(self._spark, hadoop_path(self._spark, self.uri))

    def _upload(self, local: Path, name: str) -> None:
        source = hadoop_path(self._spark, f"file://{local}")
        self._file_system().copyFromLocalFile(False, True, source, hadoop_path(self._spark, self.file(name)))

    def _read(self, name: str, size: int) -> bytes:
        """A file's bytes from the store, as this process or the workers see it."""
        ref = WeightsRef(self.file(name), size, "", self._options)
        if self._connect:
            with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
                read_through_spark(self._spark, ref, Path(folder) / "file")
                return (Path(folder) / "file").read_bytes()
        return read_range(ref, 0, size)

    def _size(self, name: str) -> int:
        """The size of a file in the store; -1 where there is none."""
        return int(self._by_whom_sees(_size, self.file(name)))

    def _by_whom_sees(self, action: Callable[[str, dict[str, str]], bytes], uri: str) -> bytes:
        """What `action` returns here, or in a worker on Connect."""
        if self._connect:
            return self._on_worker(action, uri, self._options)
        return action(uri, self._options)

    def _on_worker(self, action: Callable[..., bytes], *arguments: Any) -> bytes:
        """What `action` returns in a Python worker."""
        return bytes_on_worker(self._spark, partial(action, *arguments))


def _exists(uri: str, options: dict[str, str]) -> bytes:
    path = local_path(uri)
    found = path.exists() if path is not None else bool(open_store(options).list(uri))
    return b"1" if found else b"0"


def _move(source: str, target: str) -> bytes:
    os.rename(str(local_path(source)), str(local_path(target)))
    return b""


def _size(uri: str, options: dict[str, str]) -> bytes:
    """The size of a file in digits, -1 where there is none."""
    path = local_path(uri)
    if path is not None:
        return str(path.stat().st_size if path.is_file() else -1).encode()
    size = open_store(options).size(uri)
    return str(-1 if size is None else size).encode()


def _put(uri: str, data: bytes, options: dict[str, str]) -> bytes:
    path = local_path(uri)
    if path is None:
        open_store(options).put(uri, data)
    else:
        with _replacing(path) as part:
            part.write_bytes(data)
    return b""


def _put_file(uri: str, local: Path, options: dict[str, str]) -> bytes:
    path = local_path(uri)
    if path is None:
        open_store(options).put_file(uri, str(local))
    else:
        with _replacing(path) as part:
            shutil.copyfile(local, part)
    return b""


def _copy(source: WeightsRef, uri: str, options: dict[str, str]) -> bytes:
    return _put_file(uri, source.local(), options)


def _join(uri: str, count: int, options: dict[str, str]) -> bytes:
    """Makes one file of the parts written by several queries."""
    names = [f"{uri}.part-{number}" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
        whole = Path(folder) / "whole"
        with whole.open("wb") as file:
            for name in names:
                path = local_path(name)
                file.write(path.read_bytes() if path is not None else open_store(options).get(name))
        _put_file(uri, whole, options)
    for name in names:
        path = local_path(name)
        if path is not None:
            path.unlink()
        else:
            open_store(options).delete(name)
    return b""


class _replacing:
    """A temporary file beside `path` that takes its name when the block ends well."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")

    def __enter__(self) -> Path:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return self._part

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            os.replace(self._part, self._path)
        else:
            self._part.unlink(missing_ok=True)


def load_metadata(spark: SparkSession | None, path: str) -> dict[str, Any]:
    """Spark ML's metadata of a saved stage. Raises FlambeauError where there is none."""
    if spark is None:
        parts = sorted(Path(str(local_path(path)), "metadata").glob("part-*"))
        lines = [line for part in parts for line in part.read_text().splitlines()]
    else:
        row = spark.read.text(f"{path.rstrip('/')}/metadata").first()
        lines = [] if row is None else [row[0]]
    if not lines:
        raise FlambeauError(f"{path} has no metadata; it is not a saved stage, or was not written to its end")
    metadata: dict[str, Any] = json.loads(lines[0])
    return metadata
