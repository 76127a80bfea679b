"""The log of a rank: what its process prints and logs, kept as a file of the attempt.

What is written goes on to where it went before, at once, so that nothing is missing there. What native code
writes to the process's descriptors itself is in the executor's log alone.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import UTC, datetime
from typing import Any, TextIO, cast

from flambeau._store import local_path, open_store
from flambeau.errors import FlambeauError

_MOST_BYTES = 256 << 10
_MOST_OF_LINE = 8 << 10
# On an object store each write is a request, of each rank.
_SECONDS, _STORE_SECONDS, _END_SECONDS = 1.0, 10.0, 10.0
_FORMAT = logging.Formatter("%(levelname)s %(name)s: %(message)s")


@contextmanager
def logged(job_json: str, rank: int) -> Iterator[None]:
    """Keeps what this process prints to `sys.stdout` and `sys.stderr` while the block runs, warnings among
    it, and what Python's logging lets through, as `attempts/<id>/logs/rank-<rank>.log` in the work directory:
    each line with the time and the rank, of logging also with the level. The file holds the last 256 KiB and
    is written about once a second where something has come, on an object store every ten seconds, and at the
    end. A store that cannot be written costs the file and nothing else. The end waits for the last write, for
    ten seconds at most.
    """
    lines, over = Lines(rank), threading.Event()
    writer = threading.Thread(
        target=_write, args=(lines, job_json, rank, over), name="flambeau-log", daemon=True
    )
    writer.start()
    with ExitStack() as undo:
        undo.callback(writer.join, _END_SECONDS)
        undo.callback(over.set)
        undo.enter_context(redirect_stdout(cast("TextIO", _Tee(sys.stdout, lines))))
        undo.enter_context(redirect_stderr(cast("TextIO", _Tee(sys.stderr, lines))))
        undo.enter_context(_handling(lines))
        yield


class Lines:
    """The last lines that came, from whatever thread."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        # What is collected as garbage meanwhile may print too.
        self._lock = threading.RLock()
        self._whole: deque[str] = deque()
        self._partial = ""
        self._num_bytes = 0
        self._num_dropped = 0
        self.is_new = False
        """Whether something has come since `text` was last asked for."""

    def add(self, text: str) -> None:
        """Takes what was written, whole lines or not."""
        with self._lock:
            # A progress bar ends its lines by going back to their beginning.
            *ended, partial = (self._partial + text).replace("\r", "\n").split("\n")
            self._partial = partial[:_MOST_OF_LINE]
            for line in filter(None, ended):
                self._keep(self._stamped(line[:_MOST_OF_LINE]))
            self.is_new = True

    def text(self) -> str:
        """The lines, the newest last."""
        with self._lock:
            self.is_new = False
            left_out = f"({self._num_dropped} earlier lines are left out)\n" if self._num_dropped else ""
            partial = self._stamped(self._partial) if self._partial else ""
            return left_out + "".join(self._whole) + partial

    def _stamped(self, line: str) -> str:
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return f"{time} rank {self._rank} {line}\n"

    def _keep(self, line: str) -> None:
        self._whole.append(line)
        self._num_bytes += len(line.encode(errors="replace"))
        while self._num_bytes > _MOST_BYTES:
            self._num_bytes -= len(self._whole.popleft().encode(errors="replace"))
            self._num_dropped += 1


class _Tee:
    """A stream whose text the lines get too."""

    def __init__(self, stream: TextIO, lines: Lines) -> None:
        self._stream, self._lines = stream, lines

    def write(self, text: str) -> int:
        """Writes on."""
        self._lines.add(text)
        return self._stream.write(text)

    def writelines(self, texts: Any) -> None:
        """Writes on."""
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Keeping(logging.Handler):
    """What gives records of logging to the lines alone."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a record."""
        try:
            self._lines.add(self.format(record) + "\n")
        except Exception:  # as of a message that does not go with its arguments
            self.handleError(record)


@contextmanager
def _handling(lines: Lines) -> Iterator[None]:
    """Has the lines get what is logged. Where nobody has set logging up, Python prints warnings and errors
    without their level: here they are printed with it, and whoever trains may set it up still.
    """
    root, last_resort = logging.getLogger(), logging.lastResort
    if not root.handlers:
        printing = logging.StreamHandler()
        printing.setFormatter(_FORMAT)
        printing.setLevel(logging.WARNING)
        logging.lastResort = printing
        try:
            yield
        finally:
            logging.lastResort = last_resort
        return
    keeping = _Keeping(lines)
    keeping.setFormatter(_FORMAT)
    root.addHandler(keeping)
    try:
        yield
    finally:
        root.removeHandler(keeping)


def _write(lines: Lines, job_json: str, rank: int, over: threading.Event) -> None:
    """Writes the lines where there are new ones, until it is over, and then once more."""
    # What is wrong with the job, its training tells.
    with suppress(ValueError, KeyError):
        job = json.loads(job_json)
        attempt = job["attempt"]
        uri = f"{attempt['workDir'].rstrip('/')}/attempts/{attempt['id']}/logs/rank-{rank}.log"
        path = local_path(uri)
        is_stored = path is None or path.is_relative_to("/Volumes") or path.is_relative_to("/dbfs")
        seconds = _STORE_SECONDS if is_stored else _SECONDS
        is_over, store, due = False, None, 0.0
        while not is_over:
            is_over = over.wait(_SECONDS)
            if lines.is_new and (is_over or time.monotonic() >= due):
                due = time.monotonic() + seconds
                try:
                    store = store or open_store(job.get("store") or {})
                    store.put(uri, lines.text().encode(errors="replace"))
                except (FlambeauError, OSError, ValueError):
                    lines.is_new = True  # to be written with what comes next, or at the end
