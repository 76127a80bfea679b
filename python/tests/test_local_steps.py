"""Local SGD: workers that step on their own and average what came of it now and then. The oracle is a plain
loop over replicas in one process, stepped by torch's optimizers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import make_job, one_thread, tensor, train, write_shards
from test_parity import lanes, regression, seeded
from torch import Tensor, nn

from flambeau import ParamError, TorchEstimator

NUM_RANKS, BATCH_SIZE, EPOCHS = 3, 8, 2
NUM_ROWS = NUM_RANKS * BATCH_SIZE * 10
DATA = regression(NUM_ROWS, np.float64)

Optimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0)).double()


class Gated(nn.Module):
    """One of whose parameters takes part in a batch only where its first number is above 1."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(12, 1, dtype=torch.float64)
        self.gate = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        out = self.line(x).squeeze(1)
        return out * self.gate if x[0, 0] > 1 else out


def averaged(tensors: Sequence[Tensor]) -> None:
    with torch.no_grad():
        mean = torch.stack(list(tensors)).mean(0)
        for one in tensors:
            one.copy_(mean)


def by_hand(module: nn.Module, optimizer: Optimizer, every: int) -> dict[str, Tensor]:
    """The weights after all epochs. What some replica used has a gradient on all."""
    replicas = [copy.deepcopy(module) for _ in range(NUM_RANKS)]
    optimizers = [optimizer(replica.parameters()) for replica in replicas]
    x, y = torch.from_numpy(DATA["x"]), torch.from_numpy(DATA["y"])
    parts = lanes(NUM_ROWS, NUM_RANKS)
    starts = range(0, len(parts[0]), BATCH_SIZE)
    num_steps = 0
    for _ in range(EPOCHS):
        for start in starts:
            for replica, lane in zip(replicas, parts, strict=True):
                rows = lane[start : start + BATCH_SIZE]
                replica.zero_grad()
                nn.functional.mse_loss(replica(x[rows]), y[rows]).backward()
            for same in zip(*(replica.parameters() for replica in replicas), strict=True):
                if any(one.grad is not None for one in same):
                    for one in same:
                        one.grad = torch.zeros_like(one) if one.grad is None else one.grad
            for stepped in optimizers:
                stepped.step()
            num_steps += 1
            if num_steps % every == 0 or start == starts[-1]:
                for same in zip(*(replica.parameters() for replica in replicas), strict=True):
                    averaged(same)
                    states = [one.state.get(p, {}) for one, p in zip(optimizers, same, strict=True)]
                    for kind, value in states[0].items():
                        if isinstance(value, Tensor):
                            averaged([state[kind] for state in states])
    return replicas[0].state_dict()


def job_of(directory: Path, **params: Any) -> dict[str, Any]:
    shards = write_shards(directory / "data", DATA, num_shards=2)
    settings = {"numWorkers": NUM_RANKS, "batchSize": BATCH_SIZE, "epochs": EPOCHS, "checkpointInterval": -1}
    tensors = [tensor("x", dtype="float64")], [tensor("y", dtype="float64")]
    common = {"shuffle": False, "numThreads": 1, "verifyReplicas": True}
    return make_job(directory, shards, *tensors, **(settings | common | params))


@pytest.mark.parametrize(
    ("make", "optimizer", "every"),
    [
        (net, lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True), 4),
        (net, lambda parameters: torch.optim.AdamW(parameters, lr=0.01), 3),
        (Gated, lambda parameters: torch.optim.Adam(parameters, lr=0.01), 1000),
    ],
)
@one_thread()
def test_workers_step_as_replicas_that_are_averaged(
    tmp_path: Path, make: Callable[[], nn.Module], optimizer: Optimizer, every: int
) -> None:
    expected = by_hand(seeded(make), optimizer, every)
    program = {"model": seeded(make), "loss": "mse", "optimizer": optimizer}
    result, weights = train(job_of(tmp_path, syncEvery=every), program, NUM_RANKS, tmp_path / "ranks")
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-10, atol=1e-12)
    apart = by_hand(seeded(make), optimizer, 1)
    assert not all(torch.allclose(weights[name], weight, rtol=1e-6) for name, weight in apart.items())
    assert result["numSteps"] == EPOCHS * 10


@one_thread()
def test_what_is_sent_is_the_averages(tmp_path: Path) -> None:
    """Plain SGD has no state: an agreement is as long as a step's gradients."""
    program = {"model": seeded(net), "loss": "mse", "optimizer": "sgd"}
    sent = {}
    for every in (1, 5):
        job = job_of(tmp_path, syncEvery=every, attempt=f"every-{every}")
        result, _ = train(job, program, NUM_RANKS, tmp_path / f"ranks-{every}")
        sent[every] = [epoch["sentBytes"] for epoch in result["history"]["epochs"]]
        assert all(epoch["uncompressedBytes"] == sent[1][0] for epoch in result["history"]["epochs"])
    # Ten steps an epoch.
    assert sent[5] == [bytes_sent / 5 for bytes_sent in sent[1]]


@one_thread()
def test_state_that_workers_do_not_share_is_refused(tmp_path: Path) -> None:
    def optimizer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return Keeper(parameters, lr=0.01)

    class Keeper(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            made = super().step(closure)
            for parameter in self.param_groups[0]["params"]:
                rows = int(parameter.grad.flatten()[0] > 0)
                self.state[parameter]["seen"] = torch.ones(1 + rows)
            return made

    program = {"model": seeded(net), "loss": "mse", "optimizer": optimizer}
    with pytest.raises(AssertionError, match=r"other state on one worker .* set syncEvery to 1"):
        train(job_of(tmp_path, syncEvery=2), program, NUM_RANKS, tmp_path / "ranks")


@pytest.mark.parametrize(
    ("params", "needed"),
    [
        ({"gradientCompression": "fp16"}, "gradientCompression none"),
        ({"emaDecay": 0.9}, "emaDecay left unset"),
        ({"precision": "fp16"}, "another precision than fp16"),
    ],
)
def test_what_is_for_averaged_gradients_is_refused(spark: Any, params: dict[str, Any], needed: str) -> None:
    df = spark.range(20).selectExpr("float(id) as x", "float(id) as label")
    estimator = TorchEstimator(model=nn.Linear(1, 1), loss="mse", inputCols=["x"], syncEvery=2, **params)
    with pytest.raises(ParamError, match=f"syncEvery.*{needed}"):
        estimator.fit(df)
