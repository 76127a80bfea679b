"""A progress bar for each fit, from the event files that rank 0 writes into the work directory."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

from flambeau._spark.work_directory import WorkDirectory
from flambeau.errors import FlambeauError

log = logging.getLogger("flambeau")

_POLL_SECONDS = 0.5
_told_that_unseen = threading.Event()


class Progress:
    """Shows one attempt's progress while the `with` block waits for it; silent where `verbose` is 0.

    A thread polls the event files. Where this process does not see the work directory there is no bar, which
    is said once in a process.
    """

    def __init__(self, work: WorkDirectory, attempt: str, visible: bool, verbose: int) -> None:
        self._work = work
        self._directory = work.path("attempts", attempt, "events")
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._bar: Any = None
        self._next_file = 1
        self._validation = ""
        if not verbose:
            return
        if visible:
            self._thread = threading.Thread(target=self._poll, name="flambeau-progress", daemon=True)
        elif not _told_that_unseen.is_set():
            _told_that_unseen.set()
            log.warning("no progress is shown, since %s is not seen from here", work.uri)

    def __enter__(self) -> Progress:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._ended.set()
        if self._thread is not None:
            # One poll at most is under way, which the store's own deadlines bound.
            self._thread.join(timeout=30)
        if self._bar is not None:
            self._bar.close()

    def _poll(self) -> None:
        ended = False
        while not ended:
            # What came in before the end is shown before the bar is closed.
            ended = self._ended.wait(_POLL_SECONDS)
            try:
                self._read_new()
            except (OSError, FlambeauError, ValueError) as error:
                log.debug("progress could not be read: %s", error)

    def _read_new(self) -> None:
        while (data := self._read(f"{self._directory}/{self._next_file:08d}.json")) is not None:
            self._next_file += 1
            for event in json.loads(data):
                self._show(event)

    def _read(self, uri: str) -> bytes | None:
        """A file's bytes; None where it is not there yet."""
        return self._work.read(uri) if self._work.sees(uri) else None

    def _show(self, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        if kind == "start":
            self._open(event)
        elif self._bar is None:
            return
        elif kind == "progress":
            self._move(event["step"], event["epoch"])
            self._describe(event["loss"], event["rowsPerSecond"])
        elif kind == "epoch":
            self._validation = self._validated(event)
            self._move(event["steps"], event["epoch"])
            self._describe(event["loss"], event["rowsPerSecond"])
        elif kind == "end" and self._bar.n < self._bar.total:
            self._bar.set_description(f"stopped early after {self._bar.desc.removesuffix(': ')}")

    def _open(self, event: Mapping[str, Any]) -> None:
        from tqdm.auto import tqdm

        if self._bar is None:
            self._epochs = event["epochs"]
            self._bar = tqdm(
                total=event["epochs"] * event["stepsPerEpoch"],
                initial=event["step"],
                unit="step",
                dynamic_ncols=True,
            )
            self._move(event["step"], event["epoch"])

    def _move(self, step: int, epoch: int) -> None:
        self._bar.set_description(f"epoch {epoch + 1}/{self._epochs}", refresh=False)
        self._bar.update(step - self._bar.n)

    def _describe(self, loss: float | None, rows_per_second: float) -> None:
        shown = "-" if loss is None else f"{loss:.4g}"
        self._bar.set_postfix_str(f"loss {shown}{self._validation}, {rows_per_second:,.0f} rows/s")

    @staticmethod
    def _validated(event: Mapping[str, Any]) -> str:
        """The validation loss and metrics of a finished epoch, as the bar's end tells them."""
        values = [("validation loss", event.get("validationLoss")), *event.get("validationMetrics", [])]
        return "".join(f", {name} {value:.4g}" for name, value in values if value is not None)
