"""The progress bar, from event files as the training writes them."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from flambeau._spark.fit.progress import Progress, _told_that_unseen
from flambeau._spark.work_directory import WorkDirectory

START = {
    "kind": "start",
    "epoch": 0,
    "step": 0,
    "epochs": 2,
    "stepsPerEpoch": 10,
    "numRows": 640,
    "worldSize": 2,
}
PROGRESS = {
    "kind": "progress",
    "epoch": 0,
    "step": 4,
    "epochStep": 4,
    "stepsPerEpoch": 10,
    "rowsPerSecond": 12345.6,
    "loss": 0.5,
}
EPOCH = {
    "kind": "epoch",
    "epoch": 1,
    "steps": 20,
    "numRows": 640,
    "seconds": 1.0,
    "rowsPerSecond": 640.0,
    "loss": 0.25,
    "metrics": [],
    "validationLoss": 0.75,
    "validationMetrics": [["mae", 0.125], ["r2", None]],
}


def write(directory: Path, number: int, *events: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{number:08d}.json").write_text(json.dumps(events))


def test_the_bar_follows_the_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = tmp_path / "attempts" / "a" / "events"
    with Progress(WorkDirectory(str(tmp_path)), "a", True, 1) as progress:
        write(events, 1, START, PROGRESS)
        deadline = time.monotonic() + 20
        while (progress._bar is None or progress._bar.n < 4) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (progress._bar.n, progress._bar.total) == (4, 20)
        # The last events are shown although the attempt ends right after.
        write(events, 2, EPOCH, {"kind": "end"})
    assert progress._bar.n == 20
    shown = capsys.readouterr().err
    assert "epoch 1/2" in shown and "loss 0.5, 12,346 rows/s" in shown
    assert "epoch 2/2" in shown and "loss 0.25, validation loss 0.75, mae 0.125, 640 rows/s" in shown


def test_the_bar_of_a_training_that_stopped_early_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = tmp_path / "attempts" / "a" / "events"
    write(events, 1, START | {"epochs": 9}, EPOCH, {"kind": "end"})
    with Progress(WorkDirectory(str(tmp_path)), "a", True, 1) as progress:
        pass
    assert (progress._bar.n, progress._bar.total) == (20, 90)
    assert "stopped early after epoch 2/9: " in capsys.readouterr().err


def test_a_loss_that_is_not_a_number_is_shown_as_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "attempts" / "a" / "events", 1, START, PROGRESS | {"loss": None})
    with Progress(WorkDirectory(str(tmp_path)), "a", True, 1):
        pass
    assert "loss -, " in capsys.readouterr().err


def test_verbose_0_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "attempts" / "a" / "events", 1, START, PROGRESS)
    with Progress(WorkDirectory(str(tmp_path)), "a", True, 0):
        time.sleep(0.6)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_directory_that_is_not_seen_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _told_that_unseen.clear()
    with caplog.at_level(logging.WARNING, logger="flambeau"):
        for _ in range(2):
            with Progress(WorkDirectory(str(tmp_path)), "a", False, 1):
                pass
    assert caplog.text.count("no progress is shown") == 1
