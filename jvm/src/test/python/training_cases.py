"""Writes programs to train, rows to train them on, and what others make of the same training.

training_cases.py DIRECTORY

`doubles`  a network in float64; `oracle.json` has the losses and predictions of a plain loop in eager torch,
           and the losses of one with a growing rate
`flights`  embeddings, numbers and dropout; `python.json` has the losses of PySpark with runtime="python"
`classes`  logits of three classes; `broken.parquet` has a label outside of them
`slow`     a network that takes its time, to be disturbed
`endless`  a network whose forward does not end
`hungry`   a network that asks for more memory than any machine has, where it gets more than two rows
`guide`    what docs/scala.md trains
"""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyspark.sql import SparkSession
from torch import Tensor, nn

from flambeau import TorchRegressor


class Doubles(nn.Module):
    """A number from three, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Widened(nn.Module):
    """A number from three, computed in float32 and given in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).double()


class Mixed(nn.Module):
    """A number from three, by parameters of float64 beside a buffer of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1, dtype=torch.float64)
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.double()) + self.shift


class Delay(nn.Module):
    """Minutes of delay from six numbers and three categories."""

    def __init__(self) -> None:
        super().__init__()
        self.carrier = nn.Embedding(16, 8)
        self.dest = nn.Embedding(100, 8)
        self.origin = nn.Embedding(3, 2)
        self.layers = nn.Sequential(
            nn.Linear(24, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, numbers: Tensor, carrier: Tensor, dest: Tensor, origin: Tensor) -> Tensor:
        embedded = [self.carrier(carrier), self.dest(dest), self.origin(origin)]
        return self.layers(torch.cat([numbers, embedded[0], embedded[1], embedded[2]], dim=1)).squeeze(1)


class Slow(nn.Module):
    """A number from four; a batch takes milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 256)
        self.second = nn.Linear(256, 256)
        self.last = nn.Linear(256, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for _ in range(20):
            x = torch.tanh(self.second(x))
        return self.last(x).squeeze(1)


class Hungry(nn.Module):
    """A number from four, for two rows at most."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.size(0) > 2:
            x = x + torch.ones(1 << 50).sum()
        return self.linear(x).squeeze(1)


class Endless(nn.Module):
    """A program that does not end."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        while bool(x.size(0) > 0):
            x = torch.tanh(x)
        return self.linear(x).squeeze(1)


def arrays(values: np.ndarray) -> pa.Array:
    """The rows of a matrix as a column of arrays."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1]).cast(
        pa.list_(pa.from_numpy_dtype(values.dtype))
    )


def save(directory: Path, module: nn.Module, **columns: Any) -> None:
    """Writes the program, and the rows in one file with several row groups."""
    directory.mkdir(parents=True)
    torch.jit.script(module).save(str(directory / "net.pt"))
    pq.write_table(pa.table(columns), directory / "rows.parquet", row_group_size=500)


def write_doubles(directory: Path) -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(200, 3))
    y = np.sin(x).sum(axis=1) + 0.1 * generator.normal(size=200)
    torch.manual_seed(1)
    module = Doubles()
    save(directory, module, x=arrays(x), y=y)
    tested = range_losses(deepcopy(module), torch.from_numpy(x), torch.from_numpy(y))
    torch.jit.script(Widened()).save(str(directory / "widened.pt"))
    torch.jit.script(Mixed()).save(str(directory / "mixed.pt"))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(5):
        total = 0.0
        for start in range(0, 200, 32):
            rows = slice(start, start + 32)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(
                module(torch.from_numpy(x[rows])).squeeze(1), torch.from_numpy(y[rows])
            )
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y[rows])
        losses.append(total / 200)
    predictions = module(torch.from_numpy(x)).squeeze(1).tolist()
    oracle = {"losses": losses, "predictions": predictions, "rangeLosses": tested}
    (directory / "oracle.json").write_text(json.dumps(oracle))


def range_losses(module: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """Those of 25 steps with all rows, from a rate of 1e-4 to one of 1."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 1e4 ** (1 / 24))
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def write_flights(directory: Path) -> None:
    generator = np.random.default_rng(2)
    numbers = generator.normal(size=(2560, 6)).astype("float32")
    carrier, dest, origin = (generator.integers(0, count, 2560) for count in (16, 100, 3))
    delay = (
        10 * numbers[:, 0]
        + 5 * np.maximum(numbers[:, 1], 0)
        + carrier
        - 0.1 * dest
        + generator.normal(size=2560)
    )
    torch.manual_seed(2)
    save(directory, Delay(), numbers=arrays(numbers), carrier=carrier, dest=dest, origin=origin, delay=delay)
    losses = {}
    for name, epochs, batch_size in (("steps", 100, 1280), ("epochs", 5, 64)):
        torch.manual_seed(2)
        estimator = TorchRegressor(
            model=Delay(),
            loss="huber",
            optimizer="adam",
            inputCols=["numbers", "carrier", "dest", "origin"],
            labelCol="delay",
            learningRate=0.002,
            batchSize=batch_size,
            epochs=epochs,
            numWorkers=2,
            dataLanes=4,
            seed=11,
            checkpointInterval=-1,
            verbose=0,
        )
        losses[name] = estimator.fitOnParquet(str(directory / "rows.parquet")).history["loss"]
    (directory / "python.json").write_text(json.dumps(losses))


def write_classes(directory: Path) -> None:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(600, 2)).astype("float32")
    label = (np.arctan2(x[:, 1], x[:, 0]) // (2 * np.pi / 3) + 2).astype("int64") % 3
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
    save(directory, net, a=x[:, 0], b=x[:, 1], label=label)
    label[300] = 7
    pq.write_table(pa.table({"a": x[:, 0], "b": x[:, 1], "label": label}), directory / "broken.parquet")


def write_slow(directory: Path) -> None:
    generator = np.random.default_rng(4)
    x = generator.normal(size=(4000, 4)).astype("float32")
    torch.manual_seed(4)
    save(directory, Slow(), x=arrays(x), y=x.sum(axis=1))
    hungry = directory.parent / "hungry"
    hungry.mkdir()
    torch.jit.script(Hungry()).save(str(hungry / "net.pt"))
    endless = directory.parent / "endless"
    endless.mkdir()
    torch.jit.script(Endless()).save(str(endless / "net.pt"))


def write_guide(directory: Path) -> None:
    generator = np.random.default_rng(5)
    delay, distance = generator.exponential(20.0, 1000), generator.uniform(100, 2500, 1000)
    torch.manual_seed(5)
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
    save(
        directory, net, dep_delay=delay, distance=distance, arr_delay=delay - 10 + generator.normal(size=1000)
    )


def main(directory: Path) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    write_doubles(directory / "doubles")
    write_flights(directory / "flights")
    write_classes(directory / "classes")
    write_slow(directory / "slow")
    write_guide(directory / "guide")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
