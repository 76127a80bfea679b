"""When a training ends early, and whose weights its model has; the oracle is a training of so many epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import make_job, tensor, train, write_shards
from pyspark.sql import SparkSession
from test_estimator import linear_rows, regressor
from torch import Tensor, nn

from flambeau import ParamError, TorchModel


def columns(num_rows: int, seed: int) -> dict[str, np.ndarray]:
    """Few rows and much noise, which a large module learns by heart."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((num_rows, 6)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] + 2 * random.standard_normal(num_rows)).astype(np.float32)}


def overfitted(directory: Path, **params: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A training whose validation loss falls, and then rises."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.BatchNorm1d(64), nn.Linear(64, 1))
    shards = write_shards(directory / "train", columns(80, 0), num_shards=2)
    validation = write_shards(directory / "validation", columns(200, 1))
    given = {"numWorkers": 2, "batchSize": 8, "epochs": 30, "numThreads": 1, "validationFraction": 0.5}
    job = make_job(directory, shards, [tensor("x")], [tensor("y")], validation=validation, **(given | params))
    optimizer = {"name": "adam", "options": {"lr": 0.005}}
    program = {"model": module, "loss": "mse", "optimizer": optimizer, "metrics": ["r2"]}
    return train(job, program, 2, directory / "ranks")


@pytest.mark.parametrize("monitor", ["val_loss", "val_r2"])
def test_it_ends_when_the_patience_is_used_up_with_the_best_weights(tmp_path: Path, monitor: str) -> None:
    result, weights = overfitted(
        tmp_path / "stopped", earlyStoppingPatience=3, restoreBestWeights=True, monitor=monitor
    )
    history = result["history"]
    losses = [record["validationLoss"] for record in history["epochs"]]
    best = int(np.argmin(losses))
    assert best > 0 and len(losses) == best + 4 < 30
    assert history["bestEpoch"] == best
    _, expected = overfitted(tmp_path / "short", epochs=best + 1)
    long, last = overfitted(tmp_path / "long", epochs=best + 4)
    assert [record["validationLoss"] for record in long["history"]["epochs"]] == losses
    assert all(weights[name].equal(weight) for name, weight in expected.items())
    assert not all(weights[name].equal(weight) for name, weight in last.items())


def test_without_restoring_the_weights_are_the_last(tmp_path: Path) -> None:
    result, weights = overfitted(tmp_path / "stopped", earlyStoppingPatience=2)
    num_epochs = len(result["history"]["epochs"])
    assert num_epochs == result["history"]["bestEpoch"] + 3
    _, expected = overfitted(tmp_path / "short", epochs=num_epochs)
    assert all(weights[name].equal(weight) for name, weight in expected.items())


def test_a_model_tells_its_best_epoch(spark: SparkSession, tmp_path: Path) -> None:
    estimator = regressor(
        epochs=40,
        learningRate=0.5,
        lrSchedule="step",
        lrDecayEpochs=5,
        validationFraction=0.2,
        metrics={"error": lambda output, label: (output - label).abs()},
        monitor="val_error",
        monitorMode="min",
        minDelta=1e-3,
        earlyStoppingPatience=4,
        restoreBestWeights=True,
    )
    model = estimator.fit(linear_rows(spark))
    errors = model.history["val_error"]
    assert model.summary.bestEpoch is not None
    assert len(errors) == model.summary.bestEpoch + 5 == model.summary.totalIterations < 40
    assert model.history["learning_rate"][:6] == pytest.approx([0.5] * 5 + [0.05])
    model.write().save(str(tmp_path / "model"))
    assert TorchModel.load(str(tmp_path / "model")).summary.bestEpoch == model.summary.bestEpoch


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"monitor": "val_mae"}, "one of loss, mae; those of validation rows need validationFraction"),
        ({"monitor": "rmse"}, 'monitor is "rmse", but must be one of loss, mae'),
        ({"warmupEpochs": 9}, "warmupEpochs is 9, but must be at most epochs (8)"),
    ],
)
@pytest.mark.parametrize("runtime", ["python", "native"])
def test_what_cannot_be_monitored_is_refused(
    spark: SparkSession, params: dict[str, Any], said: str, runtime: str
) -> None:
    estimator = regressor(metrics=["mae"], optimizer="sgd", loss="mse", runtime=runtime, **params)
    with pytest.raises(ParamError) as refusal:
        estimator.fit(linear_rows(spark))
    assert said in str(refusal.value)
