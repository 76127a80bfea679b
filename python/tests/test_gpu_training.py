"""Training on a GPU, without Spark: one rank, whose gradients go through NCCL.

Held against DistributedDataParallel on NCCL, and against the same training on the CPU, which other tests hold
against torch to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ddp
import numpy as np
import pytest
import torch
from harness import make_job, run_ranks, tensor, train, write_shards
from torch import Tensor, nn

pytestmark = pytest.mark.gpu

NUM_STEPS, BATCH_SIZE = 60, 64


def columns() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    x = random.standard_normal((NUM_STEPS * BATCH_SIZE, 12)).astype(np.float32)
    return {"x": x, "y": (np.sin(x[:, 0]) + x[:, 1] * x[:, 2]).astype(np.float32)}


def network() -> nn.Module:
    """Two buckets, so that one is reduced while backward runs, and buffers."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 600), nn.BatchNorm1d(600), nn.Tanh(), nn.Linear(600, 600), nn.Linear(600, 1)
    )


def adam(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def on_the_gpu(output: Tensor, label: Tensor) -> Tensor:
    """Mean squared error, of what lies on a GPU."""
    assert output.is_cuda and label.is_cuda
    return nn.functional.mse_loss(output, label.reshape(output.shape))


def job_on(directory: Path, device: str, **params: Any) -> dict[str, Any]:
    directory.mkdir(parents=True, exist_ok=True)
    shards = write_shards(directory / "data", columns(), num_shards=2, rows_per_group=500)
    return make_job(
        directory,
        shards,
        [tensor("x")],
        [tensor("y")],
        validation=shards[:1],
        device=device,
        batchSize=BATCH_SIZE,
        shuffle=False,
        numThreads=1,
        **params,
    )


def test_one_rank_trains_what_ddp_does(tmp_path: Path) -> None:
    values = columns()
    x, y = torch.from_numpy(values["x"]), torch.from_numpy(values["y"])[:, None]
    theirs = ddp.train(
        {
            "model": network(),
            "loss": nn.MSELoss(),
            "optimizer": adam,
            "batches": [list(zip(x.split(BATCH_SIZE), y.split(BATCH_SIZE), strict=True))],
            "backend": "nccl",
        },
        tmp_path,
    )
    program = {"model": network(), "loss": on_the_gpu, "optimizer": adam}
    result, weights = train(job_on(tmp_path, "cuda"), program, 1, tmp_path / "ranks")
    assert result["numSteps"] == NUM_STEPS
    for name, weight in theirs[0]["weights"].items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=1e-5)
    mean = np.mean(theirs[0]["losses"])
    assert result["history"]["epochs"][0]["loss"] == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize(
    ("params", "tolerance"),
    [
        ({}, 1e-4),
        ({"gradientAccumulationSteps": 2}, 1e-4),
        ({"gradientClipNorm": 0.1}, 1e-4),
        ({"checkpointSteps": 20}, 1e-4),
        ({"gradientCompression": "bf16"}, 5e-2),
        ({"precision": "tf32"}, 1e-2),
        ({"precision": "bf16"}, 5e-2),
        ({"precision": "fp16"}, 5e-2),
    ],
    ids=lambda value: str(value),
)
def test_losses_are_those_of_the_cpu(tmp_path: Path, params: dict[str, Any], tolerance: float) -> None:
    program = {"model": network(), "loss": "mse", "optimizer": adam, "metrics": ["mae"]}
    histories = []
    for device in ("cpu", "cuda"):
        result, _ = train(
            job_on(tmp_path / device, device, epochs=3, **params), program, 1, tmp_path / device / "ranks"
        )
        histories.append(result["history"]["epochs"])
    for here, there in zip(*histories, strict=True):
        for name in ("loss", "validationLoss"):
            assert there[name] == pytest.approx(here[name], rel=tolerance, abs=tolerance), name
        assert dict(there["metrics"])["mae"] == pytest.approx(dict(here["metrics"])["mae"], rel=tolerance)


def test_more_ranks_than_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    program = {"model": network(), "loss": "mse", "optimizer": adam}
    num_ranks = torch.cuda.device_count() + 1
    job = job_on(tmp_path, "cuda", numWorkers=num_ranks)
    outcomes = run_ranks(job, program, num_ranks, tmp_path / "ranks")
    assert {outcome.ok for outcome in outcomes} == {False}
    assert all("numWorkers no more than there are GPUs" in (outcome.message or "") for outcome in outcomes)
