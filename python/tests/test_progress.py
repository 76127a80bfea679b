"""Progress from event files as the training writes them: a bar, or lines of the log."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from torch import nn

from flambeau import ParamError, TorchRegressor
from flambeau._spark.fit import display, listener_bus
from flambeau._spark.fit.display import Bar, Display, Lines, PrintedLines, display_of
from flambeau._spark.fit.events import EventFiles, UsageFiles, newest
from flambeau._spark.fit.listener_bus import ListenerBus, _told_that_unseen
from flambeau._spark.site import Site
from flambeau._spark.work_directory import WorkDirectory
from flambeau.callbacks import Callback, Context

START = {
    "kind": "start",
    "epoch": 0,
    "step": 0,
    "epochs": 2,
    "stepsPerEpoch": 10,
    "numRows": 640,
    "numValidationRows": 160,
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
    "stepLoss": 0.25,
    "learningRate": 0.1,
    "gradientNorm": None,
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


def bus(shown: Display | None) -> ListenerBus:
    return ListenerBus([], Context(), shown)


def test_the_bar_follows_the_events(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events, bar = tmp_path / "attempts" / "a" / "events", Bar()
    with bus(bar).attempt(Site(spark, WorkDirectory(str(tmp_path)), True), "a"):
        write(events, 1, START, PROGRESS)
        deadline = time.monotonic() + 20
        while (bar._bar is None or bar._bar.n < 4) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (bar._bar.n, bar._bar.total) == (4, 20)
        # The last events are shown although the attempt ends right after.
        write(events, 2, EPOCH, {"kind": "end"})
    assert bar._bar.n == 20
    bar.close()
    shown = capsys.readouterr().err
    assert "epoch 1/2" in shown and "loss 0.5, 12,346 rows/s" in shown
    assert "epoch 2/2" in shown and "loss 0.25, validation loss 0.75, mae 0.125, 640 rows/s" in shown


def show(display: Display, *events: dict[str, Any]) -> None:
    for event in events:
        display.show(event)
    display.close()


def test_the_bar_of_a_training_that_stopped_early_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar()
    show(bar, START | {"epochs": 9}, EPOCH, {"kind": "end"})
    assert (bar._bar.n, bar._bar.total) == (20, 90)
    assert "stopped early after epoch 2/9: " in capsys.readouterr().err


def test_the_bar_goes_back_with_a_training_that_is_started_again(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar()
    show(bar, START, PROGRESS, START | {"step": 2}, PROGRESS | {"step": 3})
    assert bar._bar.n == 3
    assert "3/20" in capsys.readouterr().err


def test_a_loss_that_is_not_a_number_is_shown_as_none(capsys: pytest.CaptureFixture[str]) -> None:
    show(Bar(), START, PROGRESS | {"loss": None})
    assert "loss -, " in capsys.readouterr().err


def test_lines_are_one_an_epoch_and_few_in_between(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: now))
    lines = Lines()
    caplog.set_level(logging.INFO, logger="flambeau")
    lines.show(START)
    for now in (29, 31, 32, 60, 62):
        lines.show(PROGRESS | {"epochStep": now})
    show(lines, EPOCH | {"epoch": 0}, EPOCH | {"validationLoss": None, "loss": None}, {"kind": "end"})
    assert caplog.messages == [
        "epoch 1/2: step 31 of 10, loss 0.5, 12,346 rows/s",
        "epoch 1/2: step 62 of 10, loss 0.5, 12,346 rows/s",
        "epoch 1/2: loss 0.25, validation loss 0.75, mae 0.125, 640 rows/s",
        "epoch 2/2: loss -, mae 0.125, 640 rows/s",
    ]
    caplog.clear()
    show(Lines(), START | {"epochs": 9}, EPOCH, {"kind": "end"})
    assert caplog.messages[-1] == "stopped early after epoch 2/9"


def test_a_printed_line_is_for_an_epoch(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: now))
    caplog.set_level(logging.INFO, logger="flambeau")
    lines = PrintedLines()
    lines.show(START | {"epochs": 3})
    for now in (31, 62):
        lines.show(PROGRESS | {"epochStep": now})
    show(lines, EPOCH | {"epoch": 0}, EPOCH, {"kind": "end"})
    lines.advise("the data holds it up")
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1/3: loss 0.25, validation loss 0.75, mae 0.125, 640 rows/s",
        "epoch 2/3: loss 0.25, validation loss 0.75, mae 0.125, 640 rows/s",
        "stopped early after epoch 2/3",
        "the data holds it up",
    ]
    assert not caplog.messages


def ipython(config: dict[str, Any]) -> Any:
    """IPython's module in a process whose shell has that configuration."""
    return SimpleNamespace(get_ipython=lambda: SimpleNamespace(config=config))


def test_a_bar_is_for_terminals_and_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(display_of(1), Lines)
    with monkeypatch.context() as patch:
        patch.setattr(sys.stderr, "isatty", lambda: True)
        assert isinstance(display_of(1), Bar)
        assert display_of(0) is None
        assert type(display_of(2)) is PrintedLines
    for config, expected in (({"TerminalInteractiveShell": {}}, Lines), ({"IPKernelApp": {}}, Bar)):
        monkeypatch.setitem(sys.modules, "IPython", ipython(config))
        assert isinstance(display_of(1), expected)
        assert type(display_of(2)) is PrintedLines


def test_a_file_that_cannot_be_read_yet_is_read_later(tmp_path: Path) -> None:
    events = tmp_path / "attempts" / "a" / "events"
    files = EventFiles(WorkDirectory(str(tmp_path)), "a")
    assert files.read() == []
    write(events, 2, EPOCH)
    # Its name is there before its bytes are.
    for half in ("", '[{"kind": "sta'):
        (events / "00000001.json").write_text(half)
        with pytest.raises(ValueError, match="line 1"):
            files.read()
    write(events, 1, START, PROGRESS)
    assert files.read() == [START, PROGRESS]
    assert files.read() == [EPOCH]
    assert files.read() == []


def test_one_file_that_cannot_be_read_loses_no_other(tmp_path: Path) -> None:
    events = tmp_path / "attempts" / "a" / "events"
    files = EventFiles(WorkDirectory(str(tmp_path)), "a")
    assert files.read_all() == ([], None)
    write(events, 1, START, PROGRESS)
    (events / "00000002.json").write_text('[{"kind": "pro')
    for number in range(3, 50):
        write(events, number, PROGRESS | {"step": number})
    write(events, 50, EPOCH, {"kind": "end"})
    told, reason = files.read_all()
    assert told == [START, PROGRESS | {"step": 49}, EPOCH, {"kind": "end"}]
    assert reason is not None and "line 1" in reason


def test_a_sample_that_cannot_be_read_loses_no_other(tmp_path: Path) -> None:
    directory = tmp_path / "attempts" / "a" / "usage"
    directory.mkdir(parents=True)
    files = UsageFiles(WorkDirectory(str(tmp_path)), "a", 0)
    assert files.read() == []
    (directory / "0.json").write_text('{"kind": "us')
    with pytest.raises(ValueError, match="line 1"):
        files.read()
    sample = {"kind": "usage", "rank": 1, "number": 0, "values": {}}
    (directory / "1.json").write_text(json.dumps(sample))
    assert files.read() == [sample]
    assert files.read() == []


def test_progress_that_another_follows_on_is_not_told() -> None:
    later = PROGRESS | {"step": 5}
    assert newest([]) == []
    assert newest([START, PROGRESS, later, EPOCH, PROGRESS, later]) == [START, later, EPOCH, later]


class Slow(Callback):
    """Is told of a step, and of the end, and takes its time."""

    where = "driver"

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_step_end(self, context: Context) -> None:
        self.told.append(context.step)
        time.sleep(0.5)

    def on_train_end(self, context: Context) -> None:
        self.told.append("end")


def test_a_slow_callback_does_not_fall_behind(spark: SparkSession, tmp_path: Path) -> None:
    events, slow = tmp_path / "attempts" / "a" / "events", Slow()
    with ListenerBus([slow], Context(), None).attempt(Site(spark, WorkDirectory(str(tmp_path)), True), "a"):
        write(events, 1, START, PROGRESS)
        for number in range(2, 100):
            write(events, number, PROGRESS | {"step": number})
    assert len(slow.told) < 10 and slow.told[-1] == 99


@pytest.mark.parametrize("comes", [True, False])
def test_the_end_of_a_training_that_ended_well_is_awaited(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    comes: bool,
) -> None:
    """As where NFS shows the last files late."""
    monkeypatch.setattr(listener_bus, "_END_SECONDS", 30.0 if comes else 1.0)
    events, slow = tmp_path / "attempts" / "a" / "events", Slow()
    late = threading.Timer(2.0, lambda: write(events, 2, {"kind": "end"}))
    with ListenerBus([slow], Context(), None).attempt(
        Site(spark, WorkDirectory(str(tmp_path)), True), "a"
    ) as ended_well:
        write(events, 1, START)
        if comes:
            late.start()
        ended_well.set()
    assert slow.told == (["end"] if comes else [])
    assert caplog.text.count("not told of all of the training") == (0 if comes else 1)


def test_a_run_has_a_directory_of_tensorboards_files(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(40).selectExpr("array(float(id % 7)) AS features", "float(id % 5) AS label")
    estimator = TorchRegressor(model=nn.Linear(1, 1), tensorBoardDir=f"{tmp_path}/board/", verbose=0)
    for run in ("nightly", None, None):
        estimator.setRunId(run).setWorkDir(f"{tmp_path}/work").fit(df)
    directories = list((tmp_path / "board").iterdir())
    assert len(directories) == 3 and "nightly" in {one.name for one in directories}
    assert all(list(one.glob("events.out.tfevents.*")) for one in directories)
    with pytest.raises(ParamError, match=r"tensorBoardDir: the scheme `ftp` of ftp://host/board is not supp"):
        estimator.setTensorBoardDir("ftp://host/board").fit(df)


def test_verbose_0_is_silent(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "attempts" / "a" / "events", 1, START, PROGRESS)
    with bus(display_of(0)).attempt(Site(spark, WorkDirectory(str(tmp_path)), True), "a"):
        time.sleep(0.6)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_directory_that_is_not_seen_is_told_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _told_that_unseen.clear()
    with caplog.at_level(logging.WARNING, logger="flambeau"):
        for _ in range(2):
            with bus(Lines()).attempt(Site(spark, WorkDirectory(str(tmp_path)), False), "a"):
                pass
    assert caplog.text.count("no progress is shown") == 1
