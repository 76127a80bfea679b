"""Training on GPUs, without Spark: gradients go through NCCL.

Held against DistributedDataParallel on NCCL, and against the same training on the CPU, which other tests hold
against torch to the bit. A stand-in for GPUs tells more than GPUs do, such as what the host has waited for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ddp
import numpy as np
import pytest
import torch
from harness import (
    GPU_IS_STAND_IN,
    Ranks,
    make_job,
    run_ranks,
    tensor,
    train,
    wait_for_checkpoints,
    write_shards,
)
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
            # torch's own NCCL needs a GPU.
            "backend": "gloo" if GPU_IS_STAND_IN else "nccl",
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


PLAIN = {"model": network(), "loss": "mse", "optimizer": adam, "metrics": ["mae"]}


class OnASideStream(nn.Module):
    """A part that computes beside what comes before it, on a stream of its own."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return self.part(x)
        side, present = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(present)
        with torch.cuda.stream(side):
            output = self.part(x)
        present.wait_stream(side)
        x.record_stream(side)
        output.record_stream(present)
        return output


def histories(
    tmp_path: Path,
    program: dict[str, Any],
    num_ranks: int,
    environment: dict[str, str] | None = None,
    **params: Any,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The epochs of a training on the CPU, and of the same on GPUs."""
    here, there = (
        train(
            job_on(tmp_path / device, device, numWorkers=num_ranks, **params),
            program,
            num_ranks,
            tmp_path / device / "ranks",
            environment=environment,
        )[0]["history"]["epochs"]
        for device in ("cpu", "cuda")
    )
    return here, there


def assert_alike(histories: tuple[list[dict[str, Any]], list[dict[str, Any]]], tolerance: float) -> None:
    for here, there in zip(*histories, strict=True):
        for name in ("loss", "validationLoss"):
            assert there[name] == pytest.approx(here[name], rel=tolerance, abs=tolerance), name
        assert dict(there["metrics"])["mae"] == pytest.approx(dict(here["metrics"])["mae"], rel=tolerance)


@pytest.mark.parametrize(
    ("params", "tolerance"),
    [
        ({}, 1e-4),
        pytest.param({"gradientAccumulationSteps": 2}, 1e-4, marks=pytest.mark.long),
        ({"gradientClipNorm": 0.1}, 1e-4),
        pytest.param({"checkpointSteps": 20}, 1e-4, marks=pytest.mark.long),
        pytest.param({"gradientCompression": "bf16"}, 1e-2, marks=pytest.mark.long),
        pytest.param({"precision": "tf32"}, 1e-2, marks=pytest.mark.long),
        pytest.param({"precision": "bf16"}, 5e-2, marks=pytest.mark.long),
        # Two ranks show it too.
        pytest.param({"precision": "fp16"}, 5e-2, marks=pytest.mark.long),
    ],
    ids=lambda value: str(value),
)
def test_losses_are_those_of_the_cpu(tmp_path: Path, params: dict[str, Any], tolerance: float) -> None:
    assert_alike(histories(tmp_path, PLAIN, 1, epochs=2, **params), tolerance)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")
@pytest.mark.parametrize("params", [{}, {"precision": "fp16"}], ids=str)
def test_two_ranks_train_what_two_on_the_cpu_do(tmp_path: Path, params: dict[str, Any]) -> None:
    assert_alike(histories(tmp_path, PLAIN, 2, epochs=2, **params), 5e-2 if "precision" in params else 1e-4)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")
@pytest.mark.parametrize(
    "params",
    [
        {"gradientCompression": "fp16"},
        pytest.param({"gradientCompression": "bf16"}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_two_ranks_compress_what_two_on_the_cpu_do(tmp_path: Path, params: dict[str, Any]) -> None:
    here, there = histories(tmp_path, PLAIN, 2, epochs=2, verifyReplicas=True, **params)
    # NCCL adds up 16-bit floats as such, and the stand-in as the CPU does.
    assert_alike((here, there), 1e-4 if GPU_IS_STAND_IN else 2e-2)
    for before, after in zip(here, there, strict=True):
        assert after["sentBytes"] == before["sentBytes"] < before["uncompressedBytes"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")
def test_a_module_with_a_stream_of_its_own_is_trained_right(tmp_path: Path) -> None:
    layers = [nn.Linear(12, 600), OnASideStream(nn.Linear(600, 600)), nn.Tanh(), nn.Linear(600, 1)]
    program = {**PLAIN, "model": nn.Sequential(*layers)}
    # So late a gradient would not be there yet when NCCL takes it.
    environment = {"FLAMBEAU_TEST_CUDA_LATE": "5000"}
    assert_alike(histories(tmp_path, program, 2, environment, epochs=1), 1e-4)


def test_more_ranks_than_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    program = {"model": network(), "loss": "mse", "optimizer": adam}
    num_ranks = torch.cuda.device_count() + 1
    job = job_on(tmp_path, "cuda", numWorkers=num_ranks)
    outcomes = run_ranks(job, program, num_ranks, tmp_path / "ranks")
    assert {outcome.ok for outcome in outcomes} == {False}
    assert all("numWorkers no more than there are GPUs" in (outcome.message or "") for outcome in outcomes)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")
def test_a_rank_that_is_killed_ends_the_other(tmp_path: Path) -> None:
    job = job_on(tmp_path, "cuda", numWorkers=2, epochs=1000, checkpointSteps=20)
    ranks = Ranks(job, PLAIN, 2, tmp_path / "ranks")
    wait_for_checkpoints(tmp_path / "attempts" / "a1", 1)
    ranks.processes[1].kill()
    survivor, dead = ranks.wait(60)
    assert dead is None and survivor is not None and not survivor.ok
    assert "lost rank 1" in (survivor.message or "")


@pytest.mark.skipif(not GPU_IS_STAND_IN, reason="a GPU has the memory that it has")
def test_too_little_memory_is_torchs_error_on_all_ranks(tmp_path: Path) -> None:
    job = job_on(tmp_path, "cuda", numWorkers=2)
    environment = {"FLAMBEAU_TEST_CUDA_MEMORY": str(3 << 20)}
    outcomes = run_ranks(job, PLAIN, 2, tmp_path / "ranks", environment=environment)
    assert not any(outcome.ok for outcome in outcomes)
    causes = [outcome for outcome in outcomes if outcome.is_cause]
    assert causes and all(outcome.error_type == "torch.OutOfMemoryError" for outcome in causes), outcomes
    assert all("CUDA out of memory" in (outcome.message or "") for outcome in outcomes)


@pytest.mark.skipif(not GPU_IS_STAND_IN, reason="a GPU does not tell what the host has waited for")
@pytest.mark.parametrize(
    ("params", "metric", "waits"),
    [
        ({}, "mae", 1),
        # One number a batch.
        ({}, nn.functional.l1_loss, 1),
        pytest.param({"gradientClipNorm": 0.1}, "mae", 1, marks=pytest.mark.long),
        pytest.param({"gradientAccumulationSteps": 2}, "mae", 2, marks=pytest.mark.long),
        ({"precision": "fp16"}, "mae", 2),
        pytest.param({"gradientCompression": "fp16"}, "mae", 1, marks=pytest.mark.long),
        pytest.param({"gradientCompression": "bf16"}, "mae", 1, marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_host_waits_for_the_loss_alone(
    tmp_path: Path, params: dict[str, Any], metric: Any, waits: int
) -> None:
    """And with fp16 once more in a step, for whether the gradients have overflowed."""

    def waits_of(name: str, num_steps: int) -> int:
        directory = tmp_path / name
        rows = num_steps * BATCH_SIZE * params.get("gradientAccumulationSteps", 1)
        values = {name: column[:rows] for name, column in columns().items()}
        shards = write_shards(directory / "data", values)
        settings = {"device": "cuda", "batchSize": BATCH_SIZE, "numThreads": 1, **params}
        job = make_job(directory, shards, [tensor("x")], [tensor("y")], **settings)
        log = Path(os.environ["FLAMBEAU_TEST_CUDA_LOG"])
        log.unlink(missing_ok=True)
        result, _ = train(job, {**PLAIN, "metrics": [metric]}, 1, directory / "ranks")
        assert result["numSteps"] == num_steps
        return len(log.read_text().splitlines())

    assert waits_of("long", 20) - waits_of("short", 10) == 10 * waits
