"""`precision` is torch's autocast: to the bit in one process and on two ranks against DDP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ddp
import numpy as np
import pytest
import torch
from harness import make_job, one_thread, tensor, train, write_shards
from torch import Tensor, nn

from flambeau._module.losses import build as build_loss
from flambeau._module.metrics import build as build_metrics
from flambeau._module.precision import tensor_float32

NUM_STEPS, BATCH_SIZE = 40, 24


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))


def rows(num_ranks: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal((NUM_STEPS * BATCH_SIZE * num_ranks, 12)).astype(np.float32)
    # Labels that bfloat16 would round.
    y = 100 + np.sin(x[:, 0]) + x[:, 1] * x[:, 2]
    return {"x": x, "y": y.astype(np.float32)}


def batches(columns: dict[str, np.ndarray], num_ranks: int) -> list[list[tuple[Tensor, Tensor]]]:
    """Each rank's batches, where rows are not shuffled."""
    x, y = torch.from_numpy(columns["x"]), torch.from_numpy(columns["y"])[:, None]
    half = len(x) // num_ranks
    lanes = [slice(rank * half, (rank + 1) * half) for rank in range(num_ranks)]
    pairs = [zip(x[lane].split(BATCH_SIZE), y[lane].split(BATCH_SIZE), strict=True) for lane in lanes]
    return [list(pair) for pair in pairs]


def ours(directory: Path, columns: dict[str, np.ndarray], num_ranks: int, **params: object) -> tuple:
    shards = write_shards(directory / "data", columns, num_shards=2, rows_per_group=500)
    given: dict[str, Any] = {"precision": "bf16", "numWorkers": num_ranks, "batchSize": BATCH_SIZE}
    given |= {"shuffle": False, "numThreads": 1, "verifyReplicas": True, "checkpointInterval": -1, **params}
    job = make_job(directory, shards, [tensor("x")], [tensor("y")], validation=shards, **given)
    program = {"model": mlp(), "loss": "mse", "optimizer": optimizer, "metrics": ["mse"]}
    return train(job, program, num_ranks, directory / "ranks")


@one_thread()
def test_one_rank_is_plain_autocast_to_the_bit(tmp_path: Path) -> None:
    columns = rows(1)
    module = mlp()
    stepper = optimizer(list(module.parameters()))
    losses = []
    for x, y in batches(columns, 1)[0]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(module(x), y)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        evaluated = [nn.functional.mse_loss(module(x), y).item() for x, y in batches(columns, 1)[0]]

    result, weights = ours(tmp_path, columns, 1)
    for name, weight in module.state_dict().items():
        assert weight.dtype == torch.float32 and weights[name].equal(weight), name
    (record,) = result["history"]["epochs"]
    assert record["loss"] == pytest.approx(np.mean(losses), rel=1e-12)
    assert record["validationLoss"] == pytest.approx(np.mean(evaluated), rel=1e-12)
    # The loss sums in float32, the metric in float64.
    assert dict(record["validationMetrics"])["mse"] == pytest.approx(record["validationLoss"], rel=1e-6)


def test_two_ranks_are_ddp_with_autocast_to_the_bit(tmp_path: Path) -> None:
    columns = rows(2)
    program = {"model": mlp(), "loss": nn.MSELoss(), "optimizer": optimizer, "batches": batches(columns, 2)}
    theirs = ddp.train({**program, "half": torch.bfloat16}, tmp_path)
    _, weights = ours(tmp_path, columns, 2)
    for name, weight in theirs[0]["weights"].items():
        assert weights[name].equal(weight), f"{name} differs from DDP's"


def test_it_learns_what_float32_learns(tmp_path: Path) -> None:
    losses = {}
    for precision in ("float32", "tf32", "bf16", "fp16"):
        columns = rows(1)
        columns["y"] -= 100
        result, _ = ours(tmp_path / precision, columns, 1, epochs=20, precision=precision, shuffle=True)
        losses[precision] = result["history"]["epochs"][-1]["validationLoss"]
    # A CPU has no TensorFloat-32.
    assert losses["tf32"] == losses["float32"]
    for precision in ("bf16", "fp16"):
        assert losses[precision] != losses["float32"]
        assert losses[precision] == pytest.approx(losses["float32"], rel=0.25, abs=0.02)
        assert losses[precision] < 0.2


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("labels", [1, 2])
def test_labels_are_not_rounded_to_a_half_type(labels: int, half: torch.dtype) -> None:
    output = torch.full((3, labels), 4096.0, dtype=half)
    columns = [torch.full((3,), 4097.0) for _ in range(labels)]
    loss, (metric,) = build_loss("mse"), build_metrics(["mae"])[0]
    with torch.autocast("cpu", dtype=half):
        value, _ = loss(output, columns, None, 3)
        sums = metric.update(output, columns, None, 3)
    assert value.dtype == torch.float32 and value.item() == 1.0
    assert metric.finish(sums.tolist()) == 1.0


def test_tf32_is_set_for_gpus_alone_and_set_back() -> None:
    def flags() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    before = flags()
    assert before[0] is False
    for precision in ("float32", "bf16", "fp16"):
        with tensor_float32(precision):
            assert flags() == before
    with pytest.raises(ZeroDivisionError), tensor_float32("tf32"):  # noqa: PT012 - an error from within
        assert flags() == (True, True)
        raise ZeroDivisionError
    assert flags() == before
