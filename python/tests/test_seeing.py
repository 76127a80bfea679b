"""What one sees of a training: its timeline, workers that stall, their logs, and its jobs in Spark's UI."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from flambeau import Callback, ParamError, TorchModel, TorchRegressor
from flambeau._rank import log
from flambeau._rank.log import logged
from flambeau.callbacks import Context
from flambeau.errors import StoreError


def rows(spark: SparkSession) -> DataFrame:
    """96 rows with an input x and a label."""
    return spark.range(0, 96, 1, 2).select((F.col("id") / 96).alias("x"), (F.col("id") / 48).alias("label"))


def regressor(work: Path, **params: Any) -> TorchRegressor:
    """Six steps an epoch, of two workers."""
    defaults: dict[str, Any] = {"model": nn.Linear(1, 1), "epochs": 2, "numWorkers": 2, "batchSize": 8}
    shape: dict[str, Any] = {"inputCols": ["x"], "inputShapes": [[1]], "workDir": str(work), "verbose": 0}
    return TorchRegressor(**defaults | shape | params)


def jobs(spark: SparkSession) -> list[tuple[str | None, str | None]]:
    """The group and the description of each job, the oldest first, as Spark's own store has them, from which
    its UI is made.
    """
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    kept = context.statusStore().jobsList(None)

    def text(option: Any) -> str | None:
        return option.get() if option.isDefined() else None

    found = sorted((kept.apply(index) for index in range(kept.size())), key=lambda job: job.jobId())
    return [(text(job.jobGroup()), text(job.description())) for job in found]


@pytest.fixture(scope="module")
def fitted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> TorchModel:
    """A fit whose second epoch has a timeline, with one group of gradients that would else be two buckets."""
    work = tmp_path_factory.mktemp("work")
    grouped: dict[str, Any] = {"bucketSize": 1, "gradientGroups": [["bias", "weight"]]}
    return regressor(work, profile="steps 6-11", **grouped).fit(rows(spark))


def test_the_timeline_is_told_and_has_both_workers_and_their_steps(fitted: TorchModel) -> None:
    place = fitted.summary.timeline
    assert place is not None
    trace = json.loads(Path(place).read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    steps = {(span["pid"], span["args"]["step"]) for span in spans if span["cat"] == "step"}
    assert steps == {(rank, step) for rank in (0, 1) for step in range(6, 12)}
    names = {(span["pid"], span["name"]) for span in spans}
    for rank in (0, 1):
        assert {(rank, name) for name in ("data", "forward and backward", "optimizer")} <= names
        assert (rank, "all_reduce of bucket 0 and the sums") in names
        assert not any(name.startswith("all_reduce of bucket 1") for _, name in names)
    assert [list(peers.values()) for peers in trace["otherData"]["peers"]] == [["1"], ["0"]]
    # A rank's step is what its parts are.
    for rank in (0, 1):
        of = [span for span in spans if span["pid"] == rank]
        parts = {"data", "forward and backward", "gradient reduction", "optimizer"}
        whole = sum(span["dur"] for span in of if span["cat"] == "step")
        assert whole == pytest.approx(sum(span["dur"] for span in of if span["name"] in parts), rel=1e-6)


def test_the_timeline_has_the_form_of_torchs_profiler(fitted: TorchModel, tmp_path: Path) -> None:
    with torch.profiler.profile() as profiler:
        nn.Linear(1, 1)(torch.ones(3, 1))
    profiler.export_chrome_trace(str(tmp_path / "torch.json"))

    def forms(path: Path) -> dict[str, dict[str, set[type]]]:
        forms: dict[str, dict[str, set[type]]] = {}
        for event in json.loads(path.read_text())["traceEvents"]:
            for key, value in event.items():
                forms.setdefault(event["ph"], {}).setdefault(key, set()).add(type(value))
        return forms

    theirs, own = forms(tmp_path / "torch.json"), forms(Path(str(fitted.summary.timeline)))
    assert own["X"].keys() == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"} <= theirs["X"].keys()
    assert own["M"].keys() <= theirs["M"].keys()
    for kind in ("X", "M"):
        for key, types in own[kind].items():
            assert types <= theirs[kind][key], (kind, key)


def test_the_timeline_is_in_microseconds_from_its_first_event_on(fitted: TorchModel) -> None:
    trace = json.loads(Path(str(fitted.summary.timeline)).read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert min(span["ts"] for span in spans) == 0.0
    steps = [span for span in spans if span["cat"] == "step" and span["pid"] == 0]
    seconds = sum(span["dur"] for span in steps) / 1e6
    assert 0.05 < seconds / fitted.history["seconds"][1] <= 1.0


def test_sparks_ui_says_which_fit_and_which_part_of_it(spark: SparkSession, fitted: TorchModel) -> None:
    uid = fitted.uid
    own = [(group, told) for group, told in jobs(spark) if told and told.startswith(f"{uid}: ")]
    assert {group for group, _ in own} == {uid}
    assert {f"{uid}: find or write the rows", f"{uid}: train, attempt 1"} <= {told for _, told in own}
    tracked = spark.sparkContext.statusTracker().getJobIdsForGroup(uid)
    assert len(tracked) == len(own)


def test_a_group_and_a_description_of_the_callers_stay(spark: SparkSession, tmp_path: Path) -> None:
    context = spark.sparkContext
    context.setJobGroup("nightly", "the nightly job")
    try:
        model = regressor(tmp_path, epochs=1, runId="monday").fit(rows(spark))
        spark.range(3).count()
        assert context.getLocalProperty("spark.job.description") == "the nightly job"
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]
    own = f"the nightly job: {model.uid} (run monday): "
    told = [str(told).removeprefix(own) for group, told in jobs(spark) if group == "nightly"]
    assert set(told) == {"find or write the rows", "train, attempt 1", "the nightly job"}
    assert told[-1] == "the nightly job"


class RaisesOnce(Callback):
    """Fails in the second epoch."""

    def on_epoch_begin(self, context: Context) -> None:
        if context.epoch == 1:
            raise KeyError("once")


def test_sparks_ui_says_where_an_attempt_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    estimator = regressor(tmp_path, runId="nightly", callbacks=[RaisesOnce()])
    with pytest.raises(KeyError):
        estimator.fit(rows(spark))
    estimator.setCallbacks([]).fit(rows(spark))
    name = f"{estimator.uid} (run nightly)"
    trained = [told for _, told in jobs(spark) if told and told.startswith(f"{name}: train")]
    assert trained == [f"{name}: train, attempt 1", f"{name}: train from epoch 1, attempt 1"]


@pytest.mark.parametrize("profile", ["steps 5", "steps 7-3", "all"])
def test_steps_that_are_none_are_refused(spark: SparkSession, tmp_path: Path, profile: str) -> None:
    with pytest.raises(ParamError, match=r'profile.*"steps 100-120"'):
        regressor(tmp_path, profile=profile).fit(rows(spark))


class Sleeps(nn.Module):
    """Takes a while for one batch on the second worker; the first one fails there if it is to, and says so in
    several ways.
    """

    def __init__(self, seconds: float, fails: bool = False) -> None:
        super().__init__()
        self.linear, self.seconds, self.fails, self.num = nn.Linear(1, 1), seconds, fails, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The linear layer's."""
        if self.training:
            self.num += 1
        if self.num == 3 and self.training:
            from pyspark import BarrierTaskContext

            if BarrierTaskContext.get().partitionId() == 1:
                time.sleep(self.seconds)
            elif self.fails:
                print("printed by the module")
                warnings.warn("a warning of the module", stacklevel=1)
                logging.getLogger("module").error("logged by the module")
                raise KeyError("the module's own")
        return self.linear(x)


def test_a_worker_that_is_waited_for_is_told_of_while_it_is(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="flambeau"):
        regressor(tmp_path, model=Sleeps(4.0), collectiveTimeout=12.0, verbose=1).fit(rows(spark))
    # Another one may be told of where the machine is busy.
    said = r"have waited .* for rank 1 on .* \(in forward and backward for [1-4]\.\ds\)"
    assert any(re.search(said, message) for message in caplog.messages)


def test_a_failure_tells_what_the_worker_wrote_last_and_where_all_of_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(KeyError) as raised:
        regressor(tmp_path, model=Sleeps(0.0, fails=True)).fit(rows(spark))
    [note] = [note for note in raised.value.__notes__ if note.startswith("the end of the log of worker 0, ")]
    [place] = tmp_path.glob("attempts/*/logs/rank-0.log")
    assert str(place) in note
    kept = place.read_text().splitlines()
    assert note.splitlines()[1:] == kept[-20:]
    for text in (
        "printed by the module",
        "UserWarning: a warning of the module",
        "ERROR module: logged by the module",
    ):
        assert any(text in line and " rank 0 " in line and line[:4].isdigit() for line in kept), text
    # Nothing else of the attempt is left.
    assert [path.name for path in place.parent.parent.iterdir()] == ["logs"]


class Tells(nn.Module):
    """Says in each step that there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("a step of the module")
        return self.linear(x)


def test_what_workers_wrote_outlives_a_fit_and_not_a_trial(spark: SparkSession, tmp_path: Path) -> None:
    regressor(tmp_path, model=Tells()).fit(rows(spark))
    kept = sorted(tmp_path.glob("attempts/*/*/*"))
    assert [path.name for path in kept] == ["rank-0.log", "rank-1.log"]
    assert all(" rank 1 a step of the module" in line for line in kept[1].read_text().splitlines())
    regressor(tmp_path, model=Tells()).plan(rows(spark), numSteps=1)
    assert sorted(tmp_path.glob("attempts/*/*/*")) == kept


@pytest.mark.parametrize(
    ("work", "is_rare"),
    [
        ("/work", False),
        ("file:///work", False),
        ("s3://b/w", True),
        ("/Volumes/a/b/c", True),
        ("dbfs:/w", True),
    ],
)
def test_an_object_stores_log_is_written_rarely(
    monkeypatch: pytest.MonkeyPatch, work: str, is_rare: bool
) -> None:
    """There each write is a request of each rank's: the first line is written at once, what comes soon after
    it later, and at the latest at the end.
    """
    written: list[tuple[str, bytes]] = []

    def wait_for(num_writes: int) -> None:
        deadline = time.monotonic() + 20
        while len(written) < num_writes:
            assert time.monotonic() < deadline, f"{len(written)} writes of {num_writes}"
            time.sleep(0.01)

    store = SimpleNamespace(put=lambda uri, data: written.append((uri, data)))
    monkeypatch.setattr(log, "open_store", lambda _: store)
    monkeypatch.setattr(log, "_SECONDS", 0.02)
    monkeypatch.setattr(log, "_STORE_SECONDS", 60.0)
    with logged(json.dumps({"attempt": {"id": "a", "workDir": work}}), 0):
        print("line 1")
        wait_for(1)
        print("line 2")
        if is_rare:
            time.sleep(0.5)
            assert len(written) == 1
        else:
            wait_for(2)
    assert len(written) == 2
    uri, text = written[-1]
    assert uri == f"{work}/attempts/a/logs/rank-0.log" and text.endswith(b" rank 0 line 2\n")


def test_a_log_that_could_not_be_written_is_written_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bytes] = []

    def put(uri: str, data: bytes) -> None:
        tried.append(data)
        if len(tried) == 1:
            raise StoreError("503 Slow Down")

    monkeypatch.setattr(log, "open_store", lambda _: SimpleNamespace(put=put))
    monkeypatch.setattr(log, "_SECONDS", 0.02)
    with logged(json.dumps({"attempt": {"id": "a", "workDir": "s3://b/w"}}), 0):
        print("the only line")
        deadline = time.monotonic() + 20
        while not tried and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(tried) == 2 and tried[1].endswith(b" rank 0 the only line\n")


def test_a_log_is_bounded_and_gives_the_streams_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    streams, job = (sys.stdout, sys.stderr), {"attempt": {"id": "a", "workDir": str(tmp_path)}}
    with logged(json.dumps(job), 3):
        for number in range(20_000):
            print(f"line {number} of very many")
        print("bar 1\rbar 2", end="", file=sys.stderr)
    assert (sys.stdout, sys.stderr) == streams
    text = (tmp_path / "attempts/a/logs/rank-3.log").read_text()
    assert len(text) < (256 << 10) + 100
    first, *_, last_but_two, last_but_one, last = text.splitlines()
    assert "earlier lines are left out" in first
    assert last_but_two.endswith("Z rank 3 line 19999 of very many")
    assert last_but_one.endswith(" rank 3 bar 1") and last.endswith(" rank 3 bar 2")
    # And they got all of it.
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 20_000 and shown.err == "bar 1\rbar 2"
