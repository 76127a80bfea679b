"""An epoch's record tells where its seconds went: a sleep is found again in the part that it was put in."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
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


def test_a_slow_rank_is_seen_in_reduce_and_a_slow_optimizer_in_its_own_part(tmp_path: Path) -> None:
    # The second half of the rows, which is rank 1's, is slow.
    x = np.repeat(np.array([0, 1], dtype=np.float32), STEPS * 4)[:, None]
    shards = write_shards(tmp_path / "data", {"x": x, "y": x[:, 0]})
    params: dict[str, Any] = {"numWorkers": 2, "batchSize": 4, "shuffle": False, "numThreads": 1}
    params["checkpointInterval"] = -1
    job = make_job(tmp_path, shards, [tensor("x", shape=[1])], [tensor("y")], **params)
    program = {"model": SlowNet(), "loss": "mse", "optimizer": lambda ps: SlowSGD(ps, lr=0.01)}
    result, _ = train(job, program, 2, tmp_path / "ranks")
    (record,) = result["history"]["epochs"]
    names = ("dataSeconds", "modelSeconds", "reduceSeconds", "optimizerSeconds")
    data, model, reduce, optimizer = (record[name] for name in names)
    assert record["steps"] == STEPS
    assert reduce > 0.8 * STEPS * NAP and optimizer >= STEPS * NAP
    assert data + model + reduce + optimizer <= record["seconds"] + 1e-6
    assert model + data < record["seconds"] - 1.8 * STEPS * NAP
