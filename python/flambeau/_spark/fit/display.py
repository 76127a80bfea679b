"""How a fit shows its progress: a bar where somebody looks at it, with a curve in a notebook, else lines in
the log; or lines on standard output.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from flambeau._shown import curves

log = logging.getLogger("flambeau")

_LINE_SECONDS = 30.0
_CURVE_SECONDS = 1.0


class Display(Protocol):
    """What shows the events of a fit, those of all its attempts."""

    def show(self, event: Mapping[str, Any]) -> None:
        """Shows an event."""

    def advise(self, text: str) -> None:
        """Shows what to change about the training, at its end."""

    def close(self) -> None:
        """Ends, with what was shown last."""


def display_of(verbose: int) -> Display | None:
    """A bar in a terminal, in a notebook with a curve below it, else lines of the log; where `verbose` is 2
    printed lines, and where it is 0 None.
    """
    if not verbose:
        return None
    if verbose == 2:
        return PrintedLines()
    if _in_notebook():
        return NotebookBar()
    return Bar() if sys.stderr.isatty() else Lines()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


class Bar:
    """A bar of tqdm's over the steps of all epochs."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._epochs = 0
        self._validation = ""

    def show(self, event: Mapping[str, Any]) -> None:
        """Shows an event."""
        kind = event["kind"]
        if kind == "start":
            self._open(event)
        elif kind == "progress":
            self._move(event["step"], event["epoch"])
            self._bar.set_postfix_str(f"{_loss(event)}{self._validation}, {_speed(event)}")
        elif kind == "epoch":
            self._validation = _validation(event)
            self._move(event["steps"], event["epoch"])
            self._bar.set_postfix_str(f"{_loss(event)}{self._validation}, {_speed(event)}")
        elif kind == "end" and self._bar.n < self._bar.total:
            self._bar.set_description(f"stopped early after {self._bar.desc.removesuffix(': ')}")

    def advise(self, text: str) -> None:
        """Writes it below the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.close()

    def _open(self, event: Mapping[str, Any]) -> None:
        from tqdm.auto import tqdm

        self._epochs = event["epochs"]
        if self._bar is None:
            total = event["epochs"] * event["stepsPerEpoch"]
            self._bar = tqdm(total=total, initial=event["step"], unit="step", dynamic_ncols=True)
        self._move(event["step"], event["epoch"])

    def _move(self, step: int, epoch: int) -> None:
        self._bar.set_description(_place(epoch, self._epochs), refresh=False)
        # Back too, where a training is started again.
        self._bar.update(step - self._bar.n)


class NotebookBar(Bar):
    """The bar, and below it the losses of the epochs that have ended, as a curve that grows in its place,
    once a second at most.
    """

    def __init__(self) -> None:
        super().__init__()
        self._losses: dict[int, tuple[float | None, float | None]] = {}
        """The loss and the validation loss of each epoch."""
        self._handle: Any = None
        self._drawn = -math.inf
        """When it was drawn last."""
        self._is_whole = True
        """Whether all of the losses are drawn."""

    def show(self, event: Mapping[str, Any]) -> None:
        """Shows an event."""
        super().show(event)
        if event["kind"] == "start":
            # Those that are trained again are drawn again.
            first = event["epoch"]
            self._losses = {epoch: losses for epoch, losses in self._losses.items() if epoch < first}
        elif event["kind"] == "epoch":
            self._losses[event["epoch"]] = (event["loss"], event.get("validationLoss"))
            self._is_whole = False
            if time.monotonic() - self._drawn >= _CURVE_SECONDS:
                self._draw()

    def close(self) -> None:
        """Leaves the bar as it is, and the curve with all epochs."""
        super().close()
        if self._losses and not self._is_whole:
            try:
                self._draw()
            except Exception as error:  # the fit has ended all the same
                log.debug("the curve could not be drawn: %s", error)

    def _draw(self) -> None:
        # Its functions have no types.
        shown: Any = import_module("IPython.display")
        self._drawn, self._is_whole = time.monotonic(), True
        rows = [self._losses.get(epoch, (None, None)) for epoch in range(max(self._losses) + 1)]
        series = {"loss": [loss for loss, _ in rows], "val_loss": [loss for _, loss in rows]}
        if all(loss is None for loss in series["val_loss"]):
            del series["val_loss"]
        picture = shown.HTML(curves(series))
        if self._handle is None:
            self._handle = shown.display(picture, display_id=True)
        else:
            self._handle.update(picture)


class Lines:
    """Lines of the log, at INFO: one for each epoch, and one at most every 30 s in between."""

    def __init__(self) -> None:
        self._epochs = 0
        self._num_ended = 0
        self._last = time.monotonic()

    def show(self, event: Mapping[str, Any]) -> None:
        """Shows an event."""
        kind = event["kind"]
        if kind == "start":
            self._epochs = event["epochs"]
        elif kind == "progress" and time.monotonic() - self._last >= _LINE_SECONDS:
            step = f"step {event['epochStep']} of {event['stepsPerEpoch']}"
            self._write(event, f"{step}, {_loss(event)}, {_speed(event)}")
        elif kind == "epoch":
            self._num_ended = event["epoch"] + 1
            self._write(event, f"{_loss(event)}{_validation(event)}, {_speed(event)}")
        elif kind == "end" and self._num_ended < self._epochs:
            self.advise(f"stopped early after epoch {self._num_ended}/{self._epochs}")

    def advise(self, text: str) -> None:
        """Writes it."""
        log.info("%s", text)

    def close(self) -> None:
        """Nothing is left to write."""

    def _write(self, event: Mapping[str, Any], text: str) -> None:
        self.advise(f"{_place(event['epoch'], self._epochs)}: {text}")
        self._last = time.monotonic()


class PrintedLines(Lines):
    """Lines on standard output, one for each epoch."""

    def show(self, event: Mapping[str, Any]) -> None:
        """Shows an event."""
        if event["kind"] != "progress":
            super().show(event)

    def advise(self, text: str) -> None:
        """Prints it."""
        print(text, flush=True)


def _place(epoch: int, epochs: int) -> str:
    return f"epoch {epoch + 1}/{epochs}"


def _loss(event: Mapping[str, Any]) -> str:
    return "loss -" if event["loss"] is None else f"loss {event['loss']:.4g}"


def _speed(event: Mapping[str, Any]) -> str:
    return f"{event['rowsPerSecond']:,.0f} rows/s"


def _validation(event: Mapping[str, Any]) -> str:
    """The validation loss and metrics of a finished epoch."""
    values = [("validation loss", event.get("validationLoss")), *event.get("validationMetrics", [])]
    return "".join(f", {name} {value:.4g}" for name, value in values if value is not None)
