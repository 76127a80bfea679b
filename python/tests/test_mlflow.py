"""Fits as runs of MLflow's, and models of its registry, against a real server. What is in a run is read with
MLflow's own client; the oracles are the model's history, transform, and the plain module.
"""

from __future__ import annotations

import json
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
import torch
from hadoop import hadoop_cluster, on_hdfs
from killed import killed_while_it_trains
from ports import held_port
from pyspark.errors import PySparkException
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scala import jars
from spark_program import SPARK_HOME, outcome_of
from torch import nn

import flambeau.mlflow
import flambeau.optuna
from flambeau import Callback, FlambeauError, ParamError, TorchClassifier, TorchModel, TorchRegressor
from flambeau._callbacks import of_every_fit
from flambeau._mlflow.fits import _params_of
from flambeau.callbacks import Context

mlflow = pytest.importorskip(
    "mlflow", reason="SKIPPED: MLflow has an environment of its own: make test-mlflow"
)

ROOT = Path(__file__).resolve().parents[2]
RETRAIN = ROOT / "examples" / "retrain"
_START_SECONDS = 300
COLUMNS = ["x1", "x2", "x3"]


class Server:
    """A tracking server of its own process, on a port of loopback."""

    def __init__(self, folder: Path, port: int) -> None:
        self.uri = f"http://127.0.0.1:{port}"
        self._log = folder / "server.log"
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--backend-store-uri", f"sqlite:///{folder}/runs.db", "--workers", "1"]
        command += ["--artifacts-destination", str(folder / "artifacts")]
        with self._log.open("wb") as file:
            # Its group: the server is a child of the command.
            self._process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, self._log.read_text()[-4000:]
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5):  # noqa: S310
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """Ends it at once."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=30)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with held_port() as port:
        server = Server(tmp_path_factory.mktemp("mlflow"), port)
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of the server, with an experiment of the test's own; afterwards nothing logs by itself."""
    mlflow.set_tracking_uri(server.uri)
    mlflow.set_experiment(request.node.name)
    yield mlflow.MlflowClient()
    flambeau.mlflow.autolog(disable=True)
    while mlflow.active_run() is not None:
        mlflow.end_run()


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """48 rows to train on, 16 to validate."""
    x = np.random.default_rng(3).standard_normal((64, 3))
    y = x @ [1.0, -2.0, 0.5]
    data = [
        (*map(float, xs), float(ys), int(ys > 0), n % 4 == 0)
        for n, (xs, ys) in enumerate(zip(x, y, strict=True))
    ]
    return spark.createDataFrame(data, [*COLUMNS, "y", "kind", "held_out"]).coalesce(1).cache()


def regressor(**params: Any) -> TorchRegressor:
    """One worker, three steps in an epoch, three epochs."""
    torch.manual_seed(1)
    settings: dict[str, Any] = {
        "model": nn.Linear(3, 1),
        "optimizer": {"name": "sgd", "options": {"lr": 0.1}},
        "metrics": ["mae"],
        "featuresCol": COLUMNS,
        "labelCol": "y",
        "validationIndicatorCol": "held_out",
        "batchSize": 16,
        "numWorkers": 1,
        "epochs": 3,
        "verbose": 0,
        "logGradientNorm": True,
    }
    return TorchRegressor(**settings | params)


def runs() -> list[Any]:
    """The runs of the test's experiment, oldest first."""
    found: list[Any] = mlflow.search_runs(output_format="list", order_by=["attributes.start_time ASC"])
    return found


def one_run() -> Any:
    [run] = runs()
    return run


def logged(client: Any, run: Any, name: str) -> list[tuple[int, float]]:
    """A metric's steps and values."""
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]


def predictions(model: TorchModel, rows: DataFrame) -> list[float]:
    return [row.prediction for row in model.transform(rows).select("prediction").collect()]


def git(folder: Path, *arguments: str) -> str:
    """What git says in that folder."""
    command = ["git", "-c", "user.name=one", "-c", "user.email=one@localhost", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_fit_is_a_run_with_params_metrics_tags_and_model(
    client: Any, rows: DataFrame, spark: SparkSession
) -> None:
    flambeau.mlflow.autolog(registered_model_name="linear")
    flambeau.mlflow.autolog(registered_model_name="linear")
    model = regressor(monitor="val_loss", earlyStoppingPatience=5).fit(rows)
    run = one_run()

    assert run.info.status == "FINISHED"
    params = run.data.params
    assert params["epochs"] == "3" and params["labelCol"] == "y" and params["monitor"] == "val_loss"
    assert params["model"] == "Linear with 4 parameters" and params["featuresCols"] == "['x1', 'x2', 'x3']"
    tags = run.data.tags
    assert tags["estimator_class"] == "flambeau.TorchRegressor" and tags["estimator_uid"] == model.uid
    assert tags["torch.version"] == torch.__version__ and tags["spark.version"] == spark.version
    assert {"mlflow.user", "mlflow.source.name", "flambeau.version", "python.version"} <= set(tags)

    history = model.history
    steps = list(np.cumsum([3, 3, 3]))
    assert history["steps"] == steps
    for name, column in [
        ("train/loss_epoch", "loss"),
        ("train/mae", "mae"),
        ("validation/loss", "val_loss"),
        ("validation/mae", "val_mae"),
        ("train/learning_rate", "learning_rate"),
        ("train/gradient_norm_epoch", "gradient_norm"),
        ("epoch", "epoch"),
    ]:
        assert logged(client, run, name) == list(zip(steps, history[column], strict=True)), name
    best = int(np.argmin(history["val_loss"]))
    assert run.data.metrics["best/epoch"] == best
    assert run.data.metrics["best/validation/loss"] == history["val_loss"][best]

    frame = rows.toPandas()
    expected = predictions(model, rows)
    loaded = mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/model")
    assert loaded.metadata.signature.inputs.input_names() == COLUMNS
    assert loaded.metadata.signature.outputs.input_names() == ["prediction"]
    assert loaded.input_example[COLUMNS].equals(frame[COLUMNS].head(5))
    np.testing.assert_allclose(loaded.predict(frame[COLUMNS])["prediction"], expected, rtol=2e-6, atol=1e-6)
    assert isinstance(loaded.get_raw_model(), TorchModel)

    score = mlflow.pyfunc.spark_udf(spark, f"runs:/{run.info.run_id}/model", env_manager="local")
    by_udf = rows.select(score(F.struct(*COLUMNS)).alias("made")).collect()
    made = [row.made if isinstance(row.made, float) else row.made.prediction for row in by_udf]
    np.testing.assert_allclose(made, expected, rtol=2e-6, atol=1e-6)

    client.set_registered_model_alias("linear", "champion", "1")
    again = flambeau.mlflow.load_model("models:/linear@champion")
    assert type(again) is type(model) and again.uid == model.uid and again.history == history
    assert predictions(again, rows) == expected
    files = {path.name for path in Path(again._weights.local()).parent.iterdir()}
    assert "program.pkl" not in files


def test_a_loss_is_logged_while_it_trains(client: Any, rows: DataFrame, tmp_path: Path) -> None:
    class Slow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.1)
            return super().forward(x)

    seen: list[list[tuple[int, float]]] = []

    class Look(Callback):
        where = "driver"

        def on_epoch_end(self, context: Context) -> None:
            time.sleep(1)  # what was told before is written by a thread of its own
            seen.append(logged(client, one_run(), "train/loss_step"))

    class Note(Callback):
        """Notes each step's loss, as the worker knows it."""

        def __init__(self, path: Path) -> None:
            self.path = path

        def on_step_end(self, context: Context) -> None:
            with self.path.open("a") as file:
                print(context.metrics["loss"], file=file)

    callbacks = [flambeau.mlflow.MLflow(log_models=False), Look(), Note(tmp_path / "losses")]
    regressor(model=Slow(3, 1), epochs=2, batchSize=2, callbacks=callbacks).fit(rows)
    losses = list(map(float, (tmp_path / "losses").read_text().split()))
    first = seen[0]
    assert all(loss == losses[step - 1] for step, loss in first)
    assert first and all(0 < step <= 24 and np.isfinite(loss) for step, loss in first)
    assert len(logged(client, one_run(), "train/loss_step")) > len(first)
    assert client.search_logged_models([one_run().info.experiment_id]) == []


def test_with_autolog_and_a_callback_a_fit_is_logged_once(client: Any, rows: DataFrame) -> None:
    flambeau.mlflow.autolog()
    model = regressor(callbacks=[flambeau.mlflow.MLflow(log_models=False)]).fit(rows)
    run = one_run()
    assert len(logged(client, run, "train/loss_epoch")) == len(model.history["loss"])
    # The estimator's own counts.
    assert client.search_logged_models([run.info.experiment_id]) == []
    flambeau.mlflow.autolog(disable=True)
    regressor().fit(rows)
    assert len(runs()) == 1 and of_every_fit == []


def test_beside_mlflows_own_autolog_a_fit_is_one_run(client: Any, rows: DataFrame, tmp_path: Path) -> None:
    """It begins the run, which ours is logged into."""
    import mlflow.pyspark.ml as theirs

    path = str(tmp_path / "rows")
    rows.write.parquet(path)
    df = rows.sparkSession.read.parquet(path)
    flambeau.mlflow.autolog()
    theirs.autolog()
    try:
        model = regressor().fit(df)
        RegressionEvaluator(labelCol="y").evaluate(model.transform(df))
    finally:
        theirs.autolog(disable=True)
    run = one_run()
    assert run.info.status == "FINISHED" and mlflow.active_run() is None
    assert [value for _, value in logged(client, run, "train/loss_epoch")] == model.history["loss"]
    assert run.data.params["epochs"] == "3" and run.data.tags["estimator_uid"] == model.uid
    assert any(name.startswith("rmse") for name in run.data.metrics)
    [logged_model] = client.search_logged_models([run.info.experiment_id])
    assert logged_model.source_run_id == run.info.run_id
    assert mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/model").get_raw_model().uid == model.uid


class Mine(flambeau.mlflow.MLflow):
    """Is in the place of autolog's."""


def test_a_callback_derived_from_ours_is_the_one_that_logs(client: Any, rows: DataFrame) -> None:
    flambeau.mlflow.autolog()
    model = regressor(callbacks=[Mine(log_models=False)]).fit(rows)
    run = one_run()
    assert run.info.status == "FINISHED"
    assert [value for _, value in logged(client, run, "train/loss_epoch")] == model.history["loss"]
    assert client.search_logged_models([run.info.experiment_id]) == []
    with pytest.raises(ParamError, match="has MLflow and Mine, of which a fit takes one"):
        regressor(callbacks=[flambeau.mlflow.MLflow(), Mine()])


def test_a_run_has_the_commit_of_its_program(
    client: Any, rows: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking.context.git_context import GitRunContext
    from mlflow.tracking.context.registry import _run_context_provider_registry

    program = tmp_path / "train.py"
    program.touch()
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        git(tmp_path, *arguments)
    monkeypatch.setattr(sys, "argv", [str(program)])
    for provider in _run_context_provider_registry:
        if isinstance(provider, GitRunContext):
            monkeypatch.setattr(provider, "_cache", {})  # which has the commit of the tests' own program
    regressor(epochs=1, callbacks=[flambeau.mlflow.MLflow(log_models=False)]).fit(rows)
    tags = one_run().data.tags
    assert tags["mlflow.source.git.commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert tags["mlflow.source.name"] == str(program)


def test_in_the_users_run_a_fit_is_logged_there_and_a_second_one_is_its_child(
    client: Any, rows: DataFrame
) -> None:
    flambeau.mlflow.autolog(log_models=False)
    with mlflow.start_run() as mine:
        mlflow.log_param("epochs", "my own")
        model = regressor().fit(rows)
        assert mlflow.active_run().info.run_id == mine.info.run_id
        assert client.get_run(mine.info.run_id).info.status == "RUNNING"
        regressor(epochs=1).fit(rows)
    first, second = runs()
    assert first.info.run_id == mine.info.run_id and first.info.status == "FINISHED"
    assert first.data.params["epochs"] == "my own" and first.data.params["batchSize"] == "16"
    assert [value for _, value in logged(client, first, "train/loss_epoch")] == model.history["loss"]
    assert second.data.tags["mlflow.parentRunId"] == mine.info.run_id
    assert second.data.params["epochs"] == "1" and second.info.status == "FINISHED"


@pytest.mark.parametrize("piped", [False, True], ids=["estimator", "pipeline"])
def test_fits_of_a_cross_validator_are_children_of_the_users_run(
    client: Any, rows: DataFrame, piped: bool
) -> None:
    flambeau.mlflow.autolog(log_models=False)
    estimator = regressor(epochs=1, metrics=None).setValidationIndicatorCol(None)
    grid = ParamGridBuilder().addGrid(estimator.getParam("batchSize"), [8, 16]).build()
    search = CrossValidator(
        estimator=Pipeline(stages=[estimator]) if piped else estimator,
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(labelCol="y"),
        numFolds=2,
        parallelism=2,
    )
    with mlflow.start_run() as mine:
        search.fit(rows)
    found = {run.info.run_id: run for run in runs()}
    parent = found.pop(mine.info.run_id)
    assert len(found) == 4
    assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {mine.info.run_id}
    assert sorted(run.data.params["batchSize"] for run in found.values()) == ["16", "16", "8", "8"]
    assert {run.info.status for run in found.values()} == {"FINISHED"}
    # The fit of the best params, in the user's own thread.
    assert parent.data.params["batchSize"] in ("8", "16") and "train/loss_epoch" in parent.data.metrics


class PrunesTheSecond(optuna.pruners.BasePruner):
    def prune(self, study: Any, trial: Any) -> bool:
        return bool(trial.number == 1)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_trials_are_children_of_the_run_around_their_study(client: Any, rows: DataFrame, n_jobs: int) -> None:
    flambeau.mlflow.autolog(log_models=False)

    def objective(trial: Any) -> float:
        rate = trial.suggest_float("rate", 0.01, 0.1)
        pruning = flambeau.optuna.PruningCallback(trial, "mae")
        return float(regressor(learningRate=rate, callbacks=[pruning]).fit(rows).history["mae"][-1])

    with mlflow.start_run() as mine:
        study = optuna.create_study(study_name="rates", pruner=PrunesTheSecond())
        study.optimize(objective, n_trials=3, n_jobs=n_jobs)
        # The best once more, in the user's own run.
        regressor(epochs=1).fit(rows)
    found = {run.info.run_id: run for run in runs()}
    assert found.pop(mine.info.run_id).data.params["epochs"] == "1"
    assert len(found) == 3
    for run in found.values():
        tags = run.data.tags
        trial = study.trials[int(tags["optuna.trial"])]
        assert tags["mlflow.parentRunId"] == mine.info.run_id
        assert tags["optuna.study"] == "rates"
        assert tags["optuna.param.rate"] == str(trial.params["rate"])
        assert tags.get("optuna.state") == ("PRUNED" if trial.number == 1 else None)
        assert trial.state.name == ("PRUNED" if trial.number == 1 else "COMPLETE")
        assert run.info.status == ("KILLED" if trial.number == 1 else "FINISHED")
        assert "flambeau.error" not in tags
        # That of the epoch at which it was pruned too.
        values = [value for _, value in logged(client, run, "train/mae")]
        assert values == list(trial.intermediate_values.values())


def test_a_run_of_the_trials_own_is_that_of_its_fit(client: Any, rows: DataFrame) -> None:
    flambeau.mlflow.autolog(log_models=False)

    def objective(trial: Any) -> float:
        with mlflow.start_run(nested=True):
            pruning = flambeau.optuna.PruningCallback(trial, "loss")
            return float(regressor(epochs=1, callbacks=[pruning]).fit(rows).history["loss"][-1])

    with mlflow.start_run():
        optuna.create_study().optimize(objective, n_trials=2)
    _, *found = runs()
    assert [run.data.tags["optuna.trial"] for run in found] == ["0", "1"]


def test_fits_in_threads_have_a_run_each(client: Any, rows: DataFrame) -> None:
    flambeau.mlflow.autolog(log_models=False)
    models: dict[int, TorchModel] = {}

    def fit(epochs: int) -> None:
        models[epochs] = regressor(epochs=epochs).fit(rows)

    threads = [threading.Thread(target=fit, args=(epochs,)) for epochs in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {int(run.data.params["epochs"]): run for run in runs()}
    assert sorted(found) == [1, 2]
    for epochs, run in found.items():
        assert "mlflow.parentRunId" not in run.data.tags
        losses = [value for _, value in logged(client, run, "train/loss_epoch")]
        assert losses == models[epochs].history["loss"]


class Broken(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise ValueError("no such luck\nand more of it")
        return super().forward(x)


class Interrupted(Callback):
    where = "driver"

    def on_epoch_end(self, context: Context) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("make", "error", "status", "line"),
    [
        (lambda: regressor(model=Broken(3, 1)), ValueError, "FAILED", "ValueError: no such luck"),
        (lambda: regressor(callbacks=[Interrupted()]), KeyboardInterrupt, "KILLED", "KeyboardInterrupt"),
    ],
    ids=["failed", "interrupted"],
)
def test_a_fit_that_fails_leaves_a_run_that_says_so(
    client: Any,
    rows: DataFrame,
    make: Callable[[], TorchRegressor],
    error: type[BaseException],
    status: str,
    line: str,
) -> None:
    flambeau.mlflow.autolog()
    with pytest.raises(error):
        make().fit(rows)
    run = one_run()
    assert run.info.status == status
    assert (
        run.data.tags["flambeau.error"].startswith(line) and "and more" not in run.data.tags["flambeau.error"]
    )


def test_a_server_that_goes_away_ends_no_fit(
    rows: DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    client: Any,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    before = mlflow.get_tracking_uri()
    with held_port() as port:
        server = Server(tmp_path, port)

        class Stop(Callback):
            where = "driver"

            def on_epoch_begin(self, context: Context) -> None:
                if context.epoch == 1:
                    server.stop()

        try:
            mlflow.set_tracking_uri(server.uri)
            mlflow.set_experiment("gone")
            flambeau.mlflow.autolog()
            with caplog.at_level(logging.WARNING, logger="flambeau"):
                model = regressor(callbacks=[Stop()]).fit(rows)
                assert len(model.history["loss"]) == 3
                told = [r.getMessage() for r in caplog.records if "MLflow" in r.getMessage()]
                assert len(told) == 1 and "the fit goes on" in told[0]
                # One that is gone from the beginning neither.
                caplog.clear()
                assert len(regressor().fit(rows).history["loss"]) == 3
                assert len([r for r in caplog.records if "MLflow" in r.getMessage()]) == 1
        finally:
            server.stop()
            mlflow.set_tracking_uri(before)


class Busy(Callback):
    """For two seconds of each epoch rank 1 computes and holds 400 MB, and rank 0 sleeps."""

    where = "ranks"

    def on_epoch_end(self, context: Context) -> None:
        held = np.ones(50_000_000 if context.rank == 1 else 1)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            held[0] += 1
            if context.rank == 0:
                time.sleep(0.1)


def test_system_metrics_of_the_workers_are_logged_by_mlflows_switch(
    client: Any, rows: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.5")
    flambeau.mlflow.autolog(log_models=False)
    busy = regressor(epochs=2, numWorkers=2, batchSize=8, callbacks=[Busy()])
    with mlflow.start_run(log_system_metrics=True) as mine:
        busy.fit(rows)
    with mlflow.start_run():
        regressor(epochs=1, callbacks=[Busy()]).fit(rows)
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    regressor(epochs=1, callbacks=[Busy()]).fit(rows)
    sampled, unsampled, of_its_own = runs()
    assert sampled.info.run_id == mine.info.run_id
    assert not [name for name in unsampled.data.metrics if name.startswith("system/")]
    assert logged(client, of_its_own, "system/rank_0/process_memory_usage_megabytes")

    def values(name: str) -> list[float]:
        found = logged(client, sampled, f"system/{name}")
        assert [step for step, _ in found] == list(range(len(found))) and len(found) >= 3, name
        return [value for _, value in found]

    # MLflow's own are those of the driver's machine, which is the workers' here, from before they began on.
    for name in ("system_memory_usage_megabytes", "system_memory_usage_percentage"):
        own = values(name)
        for rank in range(2):
            assert 0.9 * min(own) < np.median(values(f"rank_{rank}/{name}")) < 1.1 * max(own)
    for rank in range(2):
        assert 0 < max(values(f"rank_{rank}/cpu_utilization_percentage")) <= 100
    idle, held = (max(values(f"rank_{rank}/process_memory_usage_megabytes")) for rank in range(2))
    assert 300 < held - idle < 500
    shares = [values(f"rank_{rank}/process_cpu_utilization_percentage") for rank in range(2)]
    slept, computed = (sum(share < 40 for share in of_rank) for of_rank in shares)
    assert slept > computed, shares


def test_in_the_native_runtime_it_is_flambeau_worker_that_is_sampled(
    client: Any, rows: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.5")

    psutil = pytest.importorskip("psutil")
    resident: list[float] = []

    class StopAtASample(Callback):
        where = "driver"

        def on_step_end(self, context: Context) -> None:
            if "system/rank_0/process_memory_usage_megabytes" in one_run().data.metrics:
                found = psutil.Process().children(recursive=True)
                resident.extend(
                    one.memory_info().rss / 1e6 for one in found if one.name() == "flambeau-worker"
                )
                context.stop()

    logs = flambeau.mlflow.MLflow(log_models=False)
    regressor(runtime="native", epochs=100_000, callbacks=[logs, StopAtASample()]).fit(rows)
    sampled = logged(client, one_run(), "system/rank_0/process_memory_usage_megabytes")
    assert sampled[-1][1] == pytest.approx(resident[-1], rel=0.2)


@pytest.fixture(scope="module")
def scala_case(rows: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | str]:
    """What a program with Scala's fits is given: the jar, the rows, with a label that is null in some, and a
    module.
    """
    folder = tmp_path_factory.mktemp("scala")
    torch.manual_seed(1)
    torch.jit.script(nn.Linear(3, 1)).save(str(folder / "net.pt"))
    holed = rows.withColumn("hole", F.when(F.col("x1") > 0, F.col("y")))
    holed.write.parquet(str(folder / "rows.parquet"))
    return {"jars": jars(), "data": folder / "rows.parquet", "net": folder / "net.pt"}


def test_fits_in_scala_are_runs_as_those_in_python(
    client: Any,
    server: Server,
    rows: DataFrame,
    scala_case: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    from mlflow.pyfunc.scoring_server import infer_and_parse_data
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor

    mine = client.create_run(client.get_experiment_by_name(request.node.name).experiment_id, run_name="mine")
    flambeau.mlflow.autolog(registered_model_name="from_python")
    from_python = regressor(monitor="val_loss", earlyStoppingPatience=100_000).fit(rows)
    client.set_registered_model_alias("from_python", "champion", "1")
    python = next(run for run in runs() if "python.version" in run.data.tags)
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        git(tmp_path, *arguments)
    of_python = ["models:/from_python@champion", "models:/from_python/1"]
    of_scala = ["models:/from_scala@champion", "models:/from_scala@challenger"]
    wrong = ["models:/from_scala@nobody", f"runs:/{mine.info.run_id}/none"]
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.5")
    outcome = outcome_of(
        "mlflow_fit.py",
        tmp_path,
        uri=server.uri,
        experiment=request.node.name,
        behaviours="whole,given,failed,interrupted",
        run=mine.info.run_id,
        load=",".join([*of_python, *of_scala, *wrong]),
        **scala_case,
    )
    found = {run.info.run_name: run for run in runs() if run.info.run_id != python.info.run_id}
    assert set(found) == {"mine", "whole", "given", "failed", "interrupted"}
    whole, told = found["whole"], outcome["whole"]
    assert whole.info.status == "FINISHED"
    steps = told["history"]["steps"]
    assert steps == [3, 6, 9]
    for name, column in [
        ("train/loss_epoch", "loss"),
        ("train/mae", "mae"),
        ("validation/loss", "val_loss"),
        ("validation/mae", "val_mae"),
        ("train/learning_rate", "learning_rate"),
        ("train/gradient_norm_epoch", "gradient_norm"),
        ("epoch", "epoch"),
    ]:
        expected = list(zip(steps, told["history"][column], strict=True))
        assert logged(client, whole, name) == expected, name
    best = int(np.argmin(told["history"]["val_loss"]))
    assert whole.data.metrics["best/epoch"] == best
    assert whole.data.metrics["best/validation/loss"] == told["history"]["val_loss"][best]

    # The same fit in Python has the names.
    of_training = {name for name in whole.data.metrics if not name.startswith("system/")}
    assert of_training == set(python.data.metrics)
    assert set(whole.data.params) <= set(python.data.params)
    for name in ("labelCol", "epochs", "batchSize", "monitor", "seed", "earlyStoppingPatience"):
        assert whole.data.params[name] == python.data.params[name], name
    assert set(python.data.tags) - {"python.version"} <= set(whole.data.tags)
    assert whole.data.tags["mlflow.source.git.commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert whole.data.tags["estimator_class"] == "flambeau.TorchRegressor"
    assert whole.data.tags["estimator_uid"] == told["uid"]
    for name in ("flambeau.version", "mlflow.autologging", "mlflow.user"):
        assert whole.data.tags[name] == python.data.tags[name], name

    # MLflow's own are those of the driver's machine, which is the worker's here.
    monitor = CPUMonitor()
    monitor.collect_metrics()
    machine = monitor.aggregate_metrics()
    of_process = {"process_cpu_utilization_percentage", "process_memory_usage_megabytes"}
    sampled = found["interrupted"]
    system = {name for name in sampled.data.metrics if name.startswith("system/")}
    assert system == {f"system/rank_0/{name}" for name in machine.keys() | of_process}
    for name in ("system_memory_usage_megabytes", "system_memory_usage_percentage"):
        assert sampled.data.metrics[f"system/rank_0/{name}"] == pytest.approx(machine[name], rel=0.3), name
    for name in system:
        steps_of = [step for step, _ in logged(client, sampled, name)]
        assert steps_of == list(range(len(steps_of))), name

    uri = f"runs:/{whole.info.run_id}/model"
    frame = rows.toPandas()
    loaded = mlflow.pyfunc.load_model(uri)
    predicted = loaded.predict(frame[COLUMNS])["prediction"]
    np.testing.assert_allclose(predicted, told["predictions"], rtol=2e-6, atol=1e-6)
    example = frame[COLUMNS].head(5)
    assert loaded.input_example.equals(example)
    assert loaded.metadata.load_input_example(uri).equals(example)
    folder = mlflow.artifacts.download_artifacts(uri)
    served = json.loads(loaded.metadata.get_serving_input(folder))
    assert infer_and_parse_data(served, loaded.metadata.signature.inputs).equals(example)

    for alias in ("challenger", "champion"):
        version = client.get_model_version_by_alias("from_scala", alias)
        assert version.version == "1" and version.run_id == whole.info.run_id
    model = flambeau.mlflow.load_model("models:/from_scala@champion")
    assert model.uid == told["uid"] and model.history["loss"] == told["history"]["loss"]
    assert predictions(model, rows) == pytest.approx(told["predictions"], rel=2e-6, abs=1e-6)
    flambeau.mlflow.save_model(model, str(tmp_path / "again"))
    assert loaded.metadata.signature == mlflow.models.Model.load(str(tmp_path / "again")).signature

    for source, names in [(from_python, of_python), (model, of_scala)]:
        for name in names:
            assert outcome["loaded"][name]["uid"] == source.uid, name
            assert outcome["loaded"][name]["predictions"] == pytest.approx(
                predictions(source, rows), rel=2e-6, abs=1e-6
            ), name
    unknown, empty = (outcome["loaded"][name]["message"] for name in wrong)
    assert f"the tracking server {server.uri} " in unknown and "answers 4" in unknown and "nobody" in unknown
    assert "word" not in unknown
    assert f"{wrong[1]} holds no model of Flambeau's" in empty

    assert found["mine"].info.status == "RUNNING" and found["mine"].data.params["epochs"] == "3"
    assert len(logged(client, found["mine"], "train/loss_epoch")) == 3
    assert found["given"].info.status == "FINISHED"
    assert found["given"].data.tags["mlflow.parentRunId"] == mine.info.run_id
    # MLflow refuses the alias; both fits have registered their models.
    registered = client.search_model_versions("name = 'given'")
    assert {version.run_id for version in registered} == {mine.info.run_id, found["given"].info.run_id}
    assert client.get_registered_model("given").aliases == {} and "history" in outcome["given"]
    assert found["failed"].info.status == "FAILED"
    assert found["failed"].data.tags["flambeau.error"].startswith("DataException: ")
    assert "hole" in found["failed"].data.tags["flambeau.error"]
    assert found["interrupted"].info.status == "KILLED"
    assert "message" in outcome["failed"] and "message" in outcome["interrupted"]


@pytest.mark.parametrize(
    ("credentials", "answers"),
    [
        ({"MLFLOW_TRACKING_USERNAME": "ann", "MLFLOW_TRACKING_PASSWORD": "a word"}, True),
        ({"MLFLOW_TRACKING_TOKEN": "a token"}, False),
    ],
    ids=["password, refused", "token, no answer"],
)
def test_scala_shows_what_mlflows_client_shows_and_a_server_that_refuses_ends_no_fit(
    scala_case: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    credentials: dict[str, str],
    answers: bool,
) -> None:
    shown: list[str | None] = []

    class Refuses(BaseHTTPRequestHandler):
        def refuse(self) -> None:
            shown.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            if answers:
                self.send_response(403)
                self.send_header("Content-Length", "0")
                self.end_headers()

        do_GET = do_POST = refuse

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    for name, value in credentials.items():
        monkeypatch.setenv(name, value)
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{refusing.server_port}"
        with pytest.raises(mlflow.MlflowException):
            mlflow.MlflowClient(uri).get_run("none")
        expected = shown[-1]
        shown.clear()
        outcome = outcome_of(
            "mlflow_fit.py", tmp_path, uri=uri, experiment="none", behaviours="whole", **scala_case
        )
        refusing.shutdown()
    assert expected is not None and set(shown) == {expected}
    assert len(outcome["whole"]["history"]["loss"]) == 3


def test_a_classifier_is_scored_in_a_process_without_spark(
    client: Any, rows: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    torch.manual_seed(2)
    estimator = TorchClassifier(
        model=nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        inputCols=["v"],
        labelCol="kind",
        epochs=1,
        numWorkers=1,
        verbose=0,
    )
    packed = rows.withColumn("v", F.array(*COLUMNS))
    model = estimator.fit(packed)
    path = tmp_path / "saved"
    flambeau.mlflow.save_model(model, str(path))
    frame = packed.toPandas()
    frame[["v"]].to_pickle(tmp_path / "rows.pkl")
    program = f"""
import mlflow, pandas as pd
from pyspark import SparkContext
found = mlflow.pyfunc.load_model({str(path)!r}).predict(pd.read_pickle({str(tmp_path / "rows.pkl")!r}))
assert SparkContext._active_spark_context is None
found.to_pickle({str(tmp_path / "found.pkl")!r})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
    found = pd.read_pickle(tmp_path / "found.pkl")
    expected = model.transform(packed).select("rawPrediction", "probability", "prediction").toPandas()
    assert found["prediction"].tolist() == expected["prediction"].tolist()
    for name in ("rawPrediction", "probability"):
        ours = np.array([row.toArray() for row in expected[name]])
        np.testing.assert_allclose(np.array(found[name].tolist()), ours, rtol=2e-6, atol=1e-6)

    requirements = (path / "requirements.txt").read_text().split()
    assert f"torch=={torch.__version__.partition('+')[0]}" in requirements
    assert f"mlflow=={mlflow.__version__}" in requirements

    # What was loaded is logged again, as it is.
    info = flambeau.mlflow.log_model(flambeau.mlflow.load_model(str(path)), "again")
    assert predictions(flambeau.mlflow.load_model(info.model_uri), packed) == expected["prediction"].tolist()


class Opaque(nn.Module):
    """A module that can be neither scripted nor exported."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, *x: Any) -> Any:
        out = self.layer(x[0])
        return out * float(np.sign(float(out.sum()) ** 2 + 1.0))


def test_a_pickle_is_read_only_where_that_is_allowed(
    rows: DataFrame, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = regressor(model=Opaque(), epochs=1).fit(rows)
    path = str(tmp_path / "saved")
    flambeau.mlflow.save_model(model, path)
    assert (tmp_path / "saved/data/model/program.pkl").is_file()
    frame = rows.toPandas()[COLUMNS]
    expected = model.predict(frame)["prediction"]
    assert mlflow.pyfunc.load_model(path).predict(frame)["prediction"].tolist() == expected.tolist()
    spark.conf.set("spark.flambeau.allowPickle", "false")
    try:
        with pytest.raises(FlambeauError, match=r"spark\.flambeau\.allowPickle is false"):
            flambeau.mlflow.load_model(path)
    finally:
        spark.conf.unset("spark.flambeau.allowPickle")
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    with pytest.raises(FlambeauError, match="MLFLOW_ALLOW_PICKLE_DESERIALIZATION is false"):
        flambeau.mlflow.load_model(path)


def test_what_is_no_model_of_ours_and_wrong_arguments_are_refused(tmp_path: Path) -> None:
    def double(model_input: list[float]) -> list[float]:
        return [2 * value for value in model_input]

    mlflow.pyfunc.save_model(str(tmp_path / "other"), python_model=double, pip_requirements=["mlflow"])
    with pytest.raises(FlambeauError, match="no model of Flambeau's, but one of python_function"):
        flambeau.mlflow.load_model(str(tmp_path / "other"))
    with pytest.raises(ParamError, match="log_every_n_steps must be a whole number of at least 1, got 0"):
        flambeau.mlflow.autolog(log_every_n_steps=0)
    with pytest.raises(ParamError, match="registered_model_name is 'linear', but log_models is False"):
        flambeau.mlflow.autolog(log_models=False, registered_model_name="linear")


def test_secrets_of_uris_are_not_logged(client: Any, rows: DataFrame, tmp_path: Path) -> None:
    found = _params_of(regressor(workDir="abfss://user:word@account/dir?sig=abc", model=nn.Linear(3, 1)))
    assert found["workDir"] == "abfss://account/dir"
    assert "callbacks" not in found and max(map(len, found.values())) <= 6000


def retraining(
    server: Server, folder: Path, night: int, master: str = "local[2]", epochs: int = 4
) -> dict[str, Any]:
    """examples/retrain/retrain.py on a night's rows, as `subprocess` takes it. From the third night on the
    labels have the wrong sign.
    """
    for part, seed in (("train", night), ("holdout", 100)):
        numbers = np.random.default_rng(seed).standard_normal((600, 5))
        sign = -1 if part == "train" and night > 2 else 1
        columns = ["dep_delay", "distance", "scheduled_departure", "scheduled_minutes", "weekday"]
        frame = pd.DataFrame(numbers, columns=columns).assign(arr_delay=sign * numbers.sum(axis=1))
        (folder / f"{part}-{night}").mkdir(exist_ok=True)
        frame.to_parquet(folder / f"{part}-{night}" / "rows.parquet")
    command = [sys.executable, str(RETRAIN / "retrain.py"), "--name", "nightly"]
    command += ["--partition", str(folder / f"train-{night}"), "--holdout", str(folder / f"holdout-{night}")]
    command += ["--run-id", f"2013-{night:02}", "--work-dir", str(folder / "work")]
    command += ["--epochs", str(epochs)]
    submitted = {"PYSPARK_SUBMIT_ARGS": f"--master {master} pyspark-shell", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = {**os.environ, **submitted, "MLFLOW_TRACKING_URI": server.uri}
    return {"args": command, "env": environment, "cwd": folder}


def ran(program: dict[str, Any]) -> tuple[int, str, str]:
    """How the example ends, what it prints, and what it logs."""
    done = subprocess.run(**program, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 75), done.stdout + done.stderr[-6000:]
    return done.returncode, done.stdout.strip(), done.stderr


def retrained(server: Server, folder: Path, night: int) -> str:
    """The last line that the example prints of a night that goes well."""
    status, said, logged = ran(retraining(server, folder, night))
    assert status == 0, logged[-6000:]
    return said.splitlines()[-1]


@pytest.mark.timeout(3000)
def test_a_night_promotes_the_better_model_by_an_alias(server: Server, client: Any, tmp_path: Path) -> None:
    def champion() -> tuple[str, flambeau.TorchModel]:
        version = client.get_model_version_by_alias("nightly", "champion").version
        return version, flambeau.mlflow.load_model("models:/nightly@champion")

    assert retrained(server, tmp_path, 1) == "promoted version 1"
    first = champion()[1].lineage
    assert first.runId == "2013-01" and first.initialState is None
    # Killed in its training, and given again.
    night = retraining(server, tmp_path, 2, epochs=40)
    killed = killed_while_it_trains(tmp_path / "work", **night)
    assert champion()[0] == "1"
    status, said, logged = ran(night)
    assert status == 0 and said.endswith("\npromoted version 2")
    assert re.search(rf"going on from (file:)?{killed}/checkpoints/\d+$", logged, re.M), logged[-6000:]
    assert retrained(server, tmp_path, 2) == "this run's model is in use"
    version, model = champion()
    assert version == "2" and model.lineage.initialState == first.checkpoint is not None
    # As if it had been killed after its training.
    client.set_registered_model_alias("nightly", "champion", "1")
    assert retrained(server, tmp_path, 2) == "promoted version 2"
    assert len(client.search_model_versions("name = 'nightly'")) == 2
    assert retrained(server, tmp_path, 3) == "kept version 2"
    # A night before that of the model in use, which left nothing when it was killed.
    assert retrained(server, tmp_path, 0) == "kept version 2, which is a later night's"
    assert champion()[0] == "2" and len(client.search_model_versions("name = 'nightly'")) == 3
    status, _, logged = ran(retraining(server, tmp_path, 4, master="local[1]"))
    assert status == 75 and "try again later: numWorkers is 2 and the cluster has 1 task slots" in logged


def on_yarn(night: dict[str, Any], hadoop: dict[str, str], executors: int = 2) -> dict[str, Any]:
    """The same night as README submits it to YARN; what it logs is then among what it prints."""
    confs = {
        "spark.executor.memoryOverhead": "2000m",
        # A busy machine starts executors slowly, and a fit counts those that are there.
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.ui.enabled": "false",
        # Each node has them: they need not be sent.
        "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
    }
    command = [f"{SPARK_HOME}/bin/spark-submit", "--master", "yarn", "--executor-cores", "1"]
    command += ["--num-executors", str(executors), "--executor-memory", "600m"]
    command += ["--py-files", str(RETRAIN / "prepare.py")]
    command += [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
    environment = {
        **night["env"],
        "SPARK_HOME": str(SPARK_HOME),
        "HADOOP_CONF_DIR": hadoop["HADOOP_CONF_DIR"],
    }
    return {**night, "args": [*command, *night["args"][1:]], "env": environment}


@pytest.mark.timeout(3000)
def test_a_night_on_yarn_whose_driver_was_killed_goes_on(server: Server, client: Any, tmp_path: Path) -> None:
    """Its rows lie on HDFS. It comes to the bits of nights in one process that nothing stopped, and says the
    errors of the plain modules.
    """

    def given(night: int, name: str, rows: str) -> dict[str, Any]:
        program = retraining(server, tmp_path, night, epochs=40)
        program["args"] += ["--name", name, "--work-dir", f"file://{tmp_path}/{name}"]
        program["args"] += ["--partition", f"{rows}/train-{night}", "--holdout", f"{rows}/holdout-{night}"]
        return program

    for night in (1, 2):
        status, said, _ = ran(given(night, "undisturbed", f"file://{tmp_path}"))
        assert status == 0 and said.endswith(f"\npromoted version {night}")
    cluster = tmp_path / "hadoop"
    cluster.mkdir()
    with hadoop_cluster(cluster) as hadoop:
        on_hdfs(hadoop, "-put", *(str(path) for path in tmp_path.glob("*-[12]")), "/")
        first, second = (given(night, "on-yarn", "hdfs://") for night in (1, 2))
        assert ran(on_yarn(first, hadoop))[0] == 0
        status, said, _ = ran(on_yarn(second, hadoop, executors=1))
        assert status == 75 and "try again later: numWorkers is 2 and the cluster has 1 task slots" in said
        killed = killed_while_it_trains(tmp_path / "on-yarn", **on_yarn(second, hadoop))
        status, said, _ = ran(on_yarn(second, hadoop))
    assert status == 0 and re.search(rf"going on from \S*{killed}/checkpoints/\d+$", said, re.M), said
    told = re.search(r"^current (\S+), candidate (\S+)\npromoted version 2$", said, re.M)
    assert told, said

    rows = pd.read_parquet(tmp_path / "holdout-2")
    inputs = torch.tensor(rows.drop(columns="arr_delay").to_numpy(np.float32))
    for version, error in enumerate(told.groups(), 1):
        module, undisturbed = (
            flambeau.mlflow.load_model(f"models:/{name}/{version}").module()
            for name in ("on-yarn", "undisturbed")
        )
        expected = undisturbed.state_dict()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())
        with torch.no_grad():
            residuals = module(inputs).numpy() - rows["arr_delay"]
        assert float(error) == pytest.approx(np.sqrt(np.mean(residuals**2)), abs=1e-4)


def test_a_night_without_an_answer_may_have_one_later(server: Server, client: Any, tmp_path: Path) -> None:
    """Of a name node that the rows lie on, and of MLflow's server."""
    night = retraining(
        server, tmp_path, 1, master="local[2] --conf spark.hadoop.ipc.client.connect.max.retries=0"
    )
    with held_port() as port:  # bound, and nothing listens
        nowhere = [*night["args"], "--name", "unanswered", "--partition", f"hdfs://127.0.0.1:{port}/train"]
        status, _, logged = ran({**night, "args": nowhere})
        assert status == 75 and "java.net.ConnectException" in logged.partition("try again later: ")[2]
        alone = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
        status, _, logged = ran({**night, "env": night["env"] | alone})
        assert status == 75 and "try again later: API request to" in logged


def test_a_name_node_that_is_not_found_may_be_found_later(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(RETRAIN))
    is_transient = runpy.run_path(str(RETRAIN / "retrain.py"))["is_transient"]
    with pytest.raises(PySparkException, match="UnknownHost") as failure:
        spark.read.parquet("hdfs://no-such-host.invalid/train")
    assert is_transient(failure.value)
    assert not is_transient(ValueError("rows"))


def test_the_example_of_the_page_runs(client: Any, rows: DataFrame, spark: SparkSession) -> None:
    text = (ROOT / "docs/mlflow.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    torch.manual_seed(1)
    net = nn.Linear(3, 1)
    names: dict[str, Any] = {"spark": spark, "df": rows, "net": net, "pdf": rows.toPandas()}
    for block in blocks:
        exec(block, names)  # noqa: S102
    assert names["scored"].count() == 64
    np.testing.assert_allclose(
        names["found"]["prediction"], predictions(names["model"], rows), rtol=2e-6, atol=1e-6
    )
