"""Searches over params: grids and Optuna's studies whose trials run side by side, and trials that are pruned.
The oracles are Optuna itself on curves of plain torch loops, what workers write down, and files.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from pyspark.ml.tuning import ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from test_callbacks import Epochs
from torch import Tensor, nn

from flambeau import Callback, ParamError, TorchRegressor
from flambeau._spark import site
from flambeau._spark.rows import shards
from flambeau.callbacks import Context
from flambeau.optuna import PruningCallback

RATES = [0.3, 0.02, 0.1, 0.005, 0.2, 0.05]
_SECONDS = 120


def data() -> tuple[np.ndarray, np.ndarray]:
    """64 rows; every fourth is for validation."""
    x = np.random.default_rng(3).standard_normal((64, 4))
    return x, x.sum(axis=1)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return frame(spark)


def frame(spark: SparkSession) -> DataFrame:
    x, y = data()
    table = [(xs.tolist(), float(ys)) for xs, ys in zip(x, y, strict=True)]
    df = spark.createDataFrame(table, "x array<float>, label float").coalesce(1)
    return df.withColumn("held_out", F.monotonically_increasing_id() % 4 == 0).cache()


def linear() -> nn.Module:
    """The same each time; trials that run side by side share torch's own generator."""
    module, generator = nn.Linear(4, 1), torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5, generator=generator)
    return module


def slow() -> nn.Module:
    """One whose steps take a while."""

    class Slow(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                time.sleep(0.02)
            return super().forward(x)

    return Slow(4, 1)


def regressor(**params: Any) -> TorchRegressor:
    """One worker, whose epoch is one step over all rows."""
    settings: dict[str, Any] = {
        "model": linear(),
        "optimizer": {"name": "sgd", "options": {"lr": 0.1}},
        "inputCols": ["x"],
        "validationIndicatorCol": "held_out",
        "numWorkers": 1,
        "numThreads": 1,
        "batchSize": 64,
        "epochs": 9,
        "verbose": 0,
    }
    return TorchRegressor(**(settings | params))


def left_in(directory: Path) -> set[str]:
    """The directories in which files lie."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).parts[0] for path in files} - {"leases"}


def curve(rate: float, epochs: int) -> list[float]:
    """The validation loss of each epoch, by a loop of torch's."""
    x, y = (torch.tensor(part, dtype=torch.float32) for part in data())
    held_out = torch.arange(64) % 4 == 0
    module, losses = linear(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x[~held_out]).squeeze(1), y[~held_out]).backward()
        optimizer.step()
        with torch.no_grad():
            losses.append(nn.functional.mse_loss(module(x[held_out]).squeeze(1), y[held_out]).item())
    return losses


@pytest.mark.parametrize(
    "pruner",
    [
        optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1),
        optuna.pruners.HyperbandPruner(min_resource=1, max_resource=9, reduction_factor=3),
    ],
    ids=["median", "hyperband"],
)
def test_pruners_decide_as_on_the_curves_of_plain_loops(rows: DataFrame, pruner: Any) -> None:
    def study_of(objective: Any) -> list[Any]:
        # Hyperband deals trials to its brackets by the study's name.
        study = optuna.create_study(study_name="plain", pruner=pruner)
        for rate in RATES:
            study.enqueue_trial({"rate": rate})
        study.optimize(objective, n_trials=len(RATES))
        return study.trials

    def plain(trial: optuna.Trial) -> float:
        losses = curve(trial.suggest_float("rate", 1e-3, 1.0), 9)
        for epoch, loss in enumerate(losses):
            trial.report(loss, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return losses[-1]

    def fits(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 1e-3, 1.0)
        estimator = regressor(learningRate=rate, callbacks=[PruningCallback(trial)])
        return float(estimator.fit(rows).history["val_loss"][-1])

    expected, found = study_of(plain), study_of(fits)
    states = [trial.state.name for trial in expected]
    assert {"PRUNED", "COMPLETE"} == set(states)
    assert [trial.state.name for trial in found] == states
    for one, other in zip(found, expected, strict=True):
        assert one.intermediate_values == pytest.approx(other.intermediate_values, rel=1e-4)


class Steps(Callback):
    """Writes down each step that was taken."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def on_step_end(self, context: Context) -> None:
        with open(self.path, "a") as file:
            print(context.step, file=file)


def test_a_pruned_trial_stops_and_leaves_nothing(
    any_spark_long: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work, steps, epochs, rows = tmp_path / "work", tmp_path / "steps", Epochs(), frame(any_spark_long)
    raised: list[BaseException] = []

    def objective(trial: optuna.Trial) -> float:
        # Its callback comes last, wherever it stands: others are told of the epoch that it ends the fit at.
        callbacks = [PruningCallback(trial, "loss"), epochs, Steps(steps)]
        estimator = regressor(model=slow(), epochs=100_000, numWorkers=2, checkpointSteps=1)
        try:
            estimator.setCallbacks(callbacks).setWorkDir(str(work)).fit(rows)
        except BaseException as error:
            raised.append(error)
            raise
        raise AssertionError

    pruner = optuna.pruners.ThresholdPruner(upper=0.0, n_warmup_steps=2)
    study = optuna.create_study(pruner=pruner)
    with caplog.at_level(logging.INFO, "flambeau"):
        study.optimize(objective, n_trials=1)
    [trial] = study.trials
    assert trial.state.name == "PRUNED"
    assert trial.last_step == 2 and epochs.told == [0, 1, 2]
    assert type(raised[0]) is optuna.TrialPruned
    assert str(raised[0]) == "Trial was pruned at epoch 2."
    assert "is kept in" not in caplog.text + "".join(raised[0].__notes__)
    assert left_in(work) == set()
    # The slots are free, and nobody trains on.
    assert any_spark_long.range(0, 2, 1, 2).count() == 2
    taken = len(steps.read_text().splitlines())
    time.sleep(1.0)
    assert len(steps.read_text().splitlines()) == taken
    assert left_in(work) == set()


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_training_that_is_over_before_it_is_told(
    rows: DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_seen: bool,
) -> None:
    """It is pruned as if it had been told in time where the work directory is seen, else it is not."""
    monkeypatch.setattr(site, "_is_visible", lambda *_: is_seen)

    def objective(trial: optuna.Trial) -> float:
        estimator = regressor(epochs=3, callbacks=[PruningCallback(trial)], workDir=str(tmp_path))
        return float(estimator.fit(rows).history["val_loss"][-1])

    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.0, n_warmup_steps=2))
    study.optimize(objective, n_trials=1 if is_seen else 2)
    for trial in study.trials:
        assert trial.state.name == ("PRUNED" if is_seen else "COMPLETE")
        assert list(trial.intermediate_values) == [0, 1, 2]
    assert left_in(tmp_path) == (set() if is_seen else {"models"})
    assert caplog.text.count("trials are not pruned") == (0 if is_seen else 1)


def test_what_is_reported_to_a_trial() -> None:
    """Of an epoch that is trained again, what it came to first; NaN for what is not finite."""
    study = optuna.create_study()
    callback = PruningCallback(trial := study.ask())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch, loss in ((0, 2.0), (1, None), (1, 3.0), (2, 1.0)):
            callback.on_epoch_end(Context(epoch=epoch, metrics={"val_loss": loss}))
    reported = study.trials[trial.number].intermediate_values
    assert list(reported) == [0, 1, 2] and (reported[0], reported[2]) == (2.0, 1.0)
    assert math.isnan(reported[1])


def test_what_cannot_be_pruned_is_refused(rows: DataFrame) -> None:
    study = optuna.create_study()
    with pytest.raises(ParamError, match="trial must be a trial of Optuna's, got Study"):
        PruningCallback(study)  # type: ignore[arg-type]
    several = optuna.create_study(directions=["minimize", "maximize"])
    with pytest.raises(ParamError, match="a study with 2 objectives"):
        PruningCallback(several.ask())
    unknown = regressor(callbacks=[PruningCallback(study.ask(), "val_los")])
    with pytest.raises(ParamError, match=r'monitor.*"val_los".*one of loss, val_loss'):
        unknown.fit(rows)
    callback = PruningCallback(study.ask())
    regressor(epochs=1, callbacks=[callback]).fit(rows)
    with pytest.raises(ParamError, match="has reported another fit to trial 1: give each fit one of its own"):
        regressor(epochs=1, callbacks=[callback]).fit(rows)
    # As one looks again at the best of a study.
    again = PruningCallback(study.trials[1])
    assert len(regressor(epochs=2, callbacks=[again]).fit(rows).history["loss"]) == 2


class Meets(Callback):
    """In the worker of rank 0, waits as the training begins until as many fits have begun. Notes which shards
    there are in a work directory then.
    """

    def __init__(self, directory: Path, num_fits: int, work: Path | None = None) -> None:
        self.directory, self.num_fits, self.work = str(directory), num_fits, work

    def on_train_begin(self, context: Context) -> None:
        with open(os.path.join(self.directory, str(time.monotonic_ns())), "w") as file:
            print(*(os.listdir(self.work / "shards") if self.work else []), file=file)
        deadline = time.monotonic() + 60
        while len(os.listdir(self.directory)) < self.num_fits:
            assert time.monotonic() < deadline, "the other fit has not begun beside this one"
            time.sleep(0.05)


def test_trials_run_side_by_side(rows: DataFrame, tmp_path: Path) -> None:
    """On two slots two fits of one worker each: each waits in its worker until the other has begun."""

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 1e-3, 1.0)
        callbacks = [Meets(tmp_path, 2), PruningCallback(trial)]
        return float(regressor(learningRate=rate, callbacks=callbacks).fit(rows).history["val_loss"][-1])

    study = optuna.create_study(pruner=optuna.pruners.NopPruner())
    for rate in (0.1, 0.02):
        study.enqueue_trial({"rate": rate})
    study.optimize(objective, n_trials=2, n_jobs=2)
    for trial in study.trials:
        expected = curve(trial.params["rate"], 9)
        assert list(trial.intermediate_values.values()) == pytest.approx(expected, rel=1e-4)


def test_trials_on_prepared_data_write_no_rows(
    rows: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Side by side."""
    work = tmp_path / "work"

    def files() -> dict[Path, tuple[int, int]]:
        found = [path for path in work.rglob("*") if path.is_file() and "prepared" in path.parts]
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in found}

    with regressor(workDir=str(work)).prepare(rows) as prepared:
        written = files()
        monkeypatch.delattr(shards, "save")
        (tmp_path / "met").mkdir()

        def objective(trial: optuna.Trial) -> float:
            rate = trial.suggest_float("rate", 1e-3, 1.0)
            callbacks = [Meets(tmp_path / "met", 2), PruningCallback(trial)]
            estimator = regressor(learningRate=rate, callbacks=callbacks, workDir=str(work))
            return float(estimator.fit(prepared).history["val_loss"][-1])

        study = optuna.create_study(pruner=optuna.pruners.NopPruner())
        for rate in RATES[1:3]:
            study.enqueue_trial({"rate": rate})
        study.optimize(objective, n_trials=2, n_jobs=2)
        for trial in study.trials:
            expected = curve(trial.params["rate"], 9)
            assert list(trial.intermediate_values.values()) == pytest.approx(expected, rel=1e-4)
        assert len(written) > 2 and files() == written
        assert left_in(work) == {"models", "prepared"}


class Spans(Callback):
    """Writes down when a rank begins and ends."""

    where = "ranks"

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def note(self, what: str, context: Context) -> None:
        with open(self.path, "a") as file:
            print(what, context.rank, file=file)

    def on_train_begin(self, context: Context) -> None:
        self.note("begin", context)

    def on_train_end(self, context: Context) -> None:
        self.note("end", context)


def test_fits_that_find_no_free_slots_wait_for_each_other(rows: DataFrame, tmp_path: Path) -> None:
    """On two slots fits of two workers each, two at a time."""
    estimator = regressor(numWorkers=2, epochs=3, callbacks=[Spans(tmp_path / "spans")])
    grid = ParamGridBuilder().addGrid(estimator.learningRate, [0.1, 0.01, 0.001]).build()
    iterator = estimator.fitMultiple(rows, grid)
    losses: dict[int, float] = {}

    def take() -> None:
        for index, model in iterator:
            losses[index] = model.history["val_loss"][-1]

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SECONDS)
    assert [losses[index] for index in range(3)] == pytest.approx(
        [curve(rate, 3)[-1] for rate in (0.1, 0.01, 0.001)], rel=1e-4
    )
    told = [line.split()[0] for line in (tmp_path / "spans").read_text().splitlines()]
    assert told == ["begin", "begin", "end", "end"] * 3


PROGRAM = """
import sys
from pathlib import Path

import local_session
import optuna
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from test_search import Meets, curve, data, regressor

from flambeau.optuna import PruningCallback

folder = Path(sys.argv[1])
spark = local_session.session(master="local[4]")
x, y = data()
table = [(xs.tolist(), float(ys), i % 4 == 0, i % 2) for i, (xs, ys) in enumerate(zip(x, y))]
types = "x array<float>, label float, held_out boolean, fold int"
df = spark.createDataFrame(table, types).coalesce(1).cache()
(folder / "grid").mkdir()
work = folder / "work"
estimator = regressor(numWorkers=2, workDir=str(work), callbacks=[Meets(folder / "grid", 2, work)])
grid = ParamGridBuilder().addGrid(estimator.learningRate, [0.1, 0.01]).build()
evaluator = RegressionEvaluator()
folds = {"numFolds": 2, "foldCol": "fold", "parallelism": 2}
CrossValidator(estimator=estimator, estimatorParamMaps=grid, evaluator=evaluator, **folds).fit(df)
seen = [file.read_text().split() for file in sorted((folder / "grid").iterdir())]
# One shard set for both fits of a fold, and one for the best.
assert [len(names) for names in seen] == [1] * 5 and len({*map(tuple, seen)}) == 3, seen

(folder / "study").mkdir()


def objective(trial):
    rate = trial.suggest_float("rate", 1e-3, 1.0)
    callbacks = [PruningCallback(trial), Meets(folder / "study", 2)]
    return regressor(numWorkers=2, learningRate=rate, callbacks=callbacks).fit(df).history["val_loss"][-1]


study = optuna.create_study()
# Of a rate near 0.45 what is left after 9 steps is float32's own error.
for rate in (0.1, 0.02):
    study.enqueue_trial({"rate": rate})
study.optimize(objective, n_trials=2, n_jobs=2)
for trial in study.trials:
    assert abs(trial.value / curve(trial.params["rate"], 9)[-1] - 1) < 1e-4
spark.stop()
"""


def test_fits_of_two_workers_run_side_by_side_on_four_slots(tmp_path: Path) -> None:
    """Those of a grid, whose rows are written once, and those of a study."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
