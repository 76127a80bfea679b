"""A run that was killed and resumed ends as one that was never stopped, to the bit."""

from __future__ import annotations

import io
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import Ranks, layout, make_job, tensor, train, wait_for_checkpoints, write_shards
from torch import nn

from flambeau import ParamError
from flambeau._module.adapter import ModuleModel
from flambeau._spark.work_directory import WorkDirectory


class Remembered:
    """An object in an optimizer's state."""


def test_a_checkpoint_is_no_pickle_of_objects() -> None:
    module = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    made = {"model": module, "loss": "mse", "optimizer": optimizer}
    model, file = ModuleModel(made, layout()), io.BytesIO()
    model.save_state(file)
    model.load_state(file.getvalue())
    optimizer.state[module.weight]["kept"] = Remembered()
    file = io.BytesIO()
    model.save_state(file)
    with pytest.raises(ParamError, match="objects that are no tensors or numbers"):
        model.load_state(file.getvalue())


def program(pause: float = 0.0) -> dict:
    """Dropout, batch norm and AdamW: generators, buffers and optimizer state all matter. The loss is so large
    that its gradients overflow float16.
    """
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1))

    def loss(output, label):
        time.sleep(pause)
        return 100 * nn.functional.mse_loss(output + 0.01 * np.random.rand(), label)

    return {
        "model": module,
        "loss": loss,
        "optimizer": torch.optim.AdamW(module.parameters(), lr=1e-2),
        "metrics": ["mae"],
    }


def unmeasured(epochs: list[dict]) -> list[dict]:
    """A history without what was measured of times, processors and memory."""
    measured = re.compile("[sS]econd|cpuPercent|peakMemoryBytes")
    return [{key: value for key, value in epoch.items() if not measured.search(key)} for epoch in epochs]


@pytest.mark.parametrize(
    ("world_size", "params"),
    [
        (1, {}),
        (2, {}),
        (2, {"precision": "fp16"}),
        (2, {"gradientCompression": "topk", "topKRatio": 0.1}),
        (2, {"gradientCompression": "powersgd", "powerSgdStartStep": 5}),
        (2, {"syncEvery": 4}),
    ],
)
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, world_size: int, params: dict) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((600, 6)).astype(np.float32)
    shards = write_shards(tmp_path / "data", {"x": x, "y": x.sum(1)}, num_shards=3, rows_per_group=50)

    def job(attempt: str, resume: str | None = None) -> dict:
        return make_job(
            tmp_path,
            shards,
            [tensor("x")],
            [tensor("y")],
            validation=shards[:1],
            attempt=attempt,
            resume=resume,
            numWorkers=world_size,
            batchSize=10,
            epochs=3,
            seed=5,
            numThreads=1,
            checkpointSteps=7,
            verifyReplicas=True,
            **params,
        )

    whole, expected = train(job("whole"), program(), world_size, tmp_path / "whole")

    attempts: list[str] = []
    draw = random.Random(world_size)
    for number in range(3):
        attempts.append(f"killed-{number}")
        resume = WorkDirectory(str(tmp_path)).ask("newestCheckpoint", attempts=attempts)
        ranks = Ranks(job(attempts[-1], resume), program(0.02), world_size, tmp_path / attempts[-1])
        wait_for_checkpoints(tmp_path / "attempts" / attempts[-1], draw.randint(1, 3))
        time.sleep(draw.random() * 0.3)
        ranks.processes[draw.randrange(world_size)].kill()
        ranks.wait(30)
    resume = WorkDirectory(str(tmp_path)).ask("newestCheckpoint", attempts=attempts)
    assert resume is not None
    result, weights = train(job("last", resume), program(), world_size, tmp_path / "last")

    for name, weight in expected.items():
        assert weights[name].equal(weight), f"{name} differs from that of the run that was not stopped"
    histories = [unmeasured(one["history"]["epochs"]) for one in (whole, result)]
    assert histories[0] == histories[1]
    assert "precision" not in params or whole["history"]["epochs"][0]["skippedSteps"] > 0
    assert result["numSteps"] == whole["numSteps"]
