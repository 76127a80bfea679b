"""An epoch's record tells where its seconds went, and a training what held it up: a sleep is found again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import make_job, tensor, train, write_shards
from torch import nn

STEPS, NAP = 6, 0.03


class SlowNet(nn.Module):
    """Sleeps in forward on rows that ask for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        time.sleep(NAP * x.max().item())
        return self.layer(x)


class SlowSGD(torch.optim.SGD):
    """Sleeps in each step."""

    def step(self, closure=None):
        time.sleep(NAP)
        return super().step(closure)


class FirstNumber(nn.Module):
    """Computes with one number of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        return self.layer(x[:, :1])


def result_of(
    directory: Path, x: np.ndarray, module: nn.Module, optimizer: Any = torch.optim.SGD, **params: Any
) -> dict[str, Any]:
    """Trains for one epoch of four rows a step and rank, in their order."""
    shards = write_shards(directory / "data", {"x": x, "y": x[:, 0]}, rows_per_group=4)
    params = {"numWorkers": 2} | params
    params |= {"batchSize": 4, "shuffle": False, "numThreads": 1, "checkpointInterval": -1}
    job = make_job(directory, shards, [tensor("x", shape=[x.shape[1]])], [tensor("y")], **params)
    program = {"model": module, "loss": "mse", "optimizer": lambda ps: optimizer(ps, lr=0.01)}
    result, _ = train(job, program, params["numWorkers"], directory / "ranks")
    return result


def slowness(first: int, second: int) -> np.ndarray:
    """The rows of rank 0 and those of rank 1, slow where they are 1."""
    return np.repeat(np.array([first, second], dtype=np.float32), STEPS * 4)[:, None]


def test_a_slow_rank_is_seen_in_reduce_and_a_slow_optimizer_in_its_own_part(tmp_path: Path) -> None:
    result = result_of(tmp_path, slowness(0, 1), SlowNet(), SlowSGD)
    (record,) = result["history"]["epochs"]
    names = ("dataSeconds", "modelSeconds", "reduceSeconds", "optimizerSeconds")
    data, model, reduce, optimizer = (record[name] for name in names)
    assert record["steps"] == STEPS
    assert reduce > 0.8 * STEPS * NAP and optimizer >= STEPS * NAP
    assert data + model + reduce + optimizer <= record["seconds"] + 1e-6
    assert model + data < record["seconds"] - 1.8 * STEPS * NAP


@pytest.mark.parametrize(
    ("part", "rank", "x", "module", "optimizer"),
    [
        ("model", None, slowness(1, 1), SlowNet(), torch.optim.SGD),
        ("optimizer", None, slowness(0, 0), SlowNet(), SlowSGD),
        ("slow_rank", 1, slowness(0, 1), SlowNet(), torch.optim.SGD),
        # 3 MB a step are decoded for four multiplications.
        ("data", None, np.zeros((STEPS * 8, 1), dtype=np.float32), FirstNumber(), torch.optim.SGD),
    ],
)
def test_what_holds_a_training_up_is_told(
    tmp_path: Path, part: str, rank: int | None, x: np.ndarray, module: nn.Module, optimizer: Any
) -> None:
    num_workers = 2
    if part == "data":
        # One rank: of two that decode on cores that others use too, the one that gets less of them is slow.
        num_workers, x = 1, np.random.default_rng(1).random((len(x), 200_000), dtype=np.float32)
    params = {"numWorkers": num_workers, "memoryBudget": 1 << 20}
    found = result_of(tmp_path, x, module, optimizer, **params)["bottleneck"]
    assert (found["part"], found["rank"]) == (part, rank), found
    assert 0.4 < found["share"] <= 1
    told = {
        "model": "forward and backward",
        "data": "rows",
        "slow_rank": "rank 1 is slow, in forward and backward",
    }
    assert told.get(part, part) in found["advice"]
