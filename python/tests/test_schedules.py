"""The learning rate over a training is that of torch's schedulers, stepped once a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_job, one_thread, run_ranks, tensor, train, write_shards
from test_precision import BATCH_SIZE, NUM_STEPS, batches, mlp, rows
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
    StepLR,
)

EPOCHS = 4
LAST = EPOCHS * NUM_STEPS
WARMUP = 60


def optimizer(parameters: list[nn.Parameter]) -> Optimizer:
    """Two groups of parameters, each with a rate of its own."""
    groups = [{"params": parameters[:2], "lr": 0.01}, {"params": parameters[2:], "lr": 0.002}]
    return torch.optim.SGD(groups, momentum=0.9)


def warmed(rest: Callable[[Optimizer], LRScheduler]) -> Callable[[Optimizer], LRScheduler]:
    """A linear warm-up, whose first step has as much of the rate as each further one adds, then the rest."""

    def schedule(stepped: Optimizer) -> LRScheduler:
        warmup = LinearLR(stepped, start_factor=1 / (WARMUP + 1), total_iters=WARMUP)
        return SequentialLR(stepped, [warmup, rest(stepped)], milestones=[WARMUP])

    return schedule


CASES: dict[str, tuple[dict[str, Any], Callable[[Optimizer], LRScheduler]]] = {
    "linear": (
        {"lrSchedule": "linear", "lrEndFactor": 0.25},
        lambda stepped: LinearLR(stepped, start_factor=1.0, end_factor=0.25, total_iters=LAST),
    ),
    "cosine": ({"lrSchedule": "cosine"}, lambda stepped: CosineAnnealingLR(stepped, T_max=LAST)),
    "step": (
        {"lrSchedule": "step", "lrDecayEpochs": 2, "lrDecayRate": 0.3},
        lambda stepped: StepLR(stepped, step_size=2 * NUM_STEPS, gamma=0.3),
    ),
    "exponential": (
        {"lrSchedule": "exponential", "lrDecayEpochs": 2, "lrDecayRate": 0.3},
        lambda stepped: ExponentialLR(stepped, gamma=0.3 ** (1 / (2 * NUM_STEPS))),
    ),
    "warm-up": ({"warmupEpochs": 1.5}, warmed(lambda stepped: LambdaLR(stepped, lambda _: 1.0))),
    "warm-up and cosine": (
        {"warmupEpochs": 1.5, "lrSchedule": "cosine"},
        warmed(lambda stepped: CosineAnnealingLR(stepped, T_max=LAST - WARMUP)),
    ),
}


def job_of(directory: Path, num_ranks: int, **params: Any) -> dict[str, Any]:
    columns = rows(num_ranks)
    columns["y"] -= 100
    shards = write_shards(directory / "data", columns, num_shards=2, rows_per_group=500)
    given: dict[str, Any] = {"numWorkers": num_ranks, "batchSize": BATCH_SIZE, "shuffle": False}
    given |= {"epochs": EPOCHS, "numThreads": 1, "checkpointInterval": -1, **params}
    return make_job(directory, shards, [tensor("x")], [tensor("y")], **given)


@pytest.mark.parametrize("case", CASES)
@one_thread()
def test_it_is_a_loop_with_torchs_scheduler(tmp_path: Path, case: str) -> None:
    params, schedule = CASES[case]
    columns = rows(1)
    columns["y"] -= 100
    module = mlp()
    stepped = optimizer(list(module.parameters()))
    scheduler = schedule(stepped)
    last_rates = []
    for _ in range(EPOCHS):
        for x, y in batches(columns, 1)[0]:
            stepped.zero_grad()
            nn.functional.mse_loss(module(x), y).backward()
            rate = stepped.param_groups[0]["lr"]
            stepped.step()
            scheduler.step()
        last_rates.append(rate)

    program = {"model": mlp(), "loss": "mse", "optimizer": optimizer}
    result, weights = train(job_of(tmp_path, 1, **params), program, 1, tmp_path / "ranks")
    rates = [record["learningRate"] for record in result["history"]["epochs"]]
    assert rates == pytest.approx(last_rates, rel=1e-9)
    for name, weight in module.state_dict().items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-5)


def test_two_workers_have_twice_the_rate_after_the_warm_up(tmp_path: Path) -> None:
    params = {"scaleLearningRate": True, "warmupEpochs": 1.0, "learningRate": 0.003}
    program = {"model": mlp(), "loss": "mse", "optimizer": "sgd"}
    result, _ = train(job_of(tmp_path, 2, **params), program, 2, tmp_path / "ranks")
    rates = [record["learningRate"] for record in result["history"]["epochs"]]
    # The first epoch ends a step before the warm-up is over.
    warmup = 0.003 * (1 + (NUM_STEPS - 1) / NUM_STEPS)
    assert rates == pytest.approx([warmup, 0.006, 0.006, 0.006], rel=1e-12)


class Rateless(torch.optim.Optimizer):
    """An optimizer that decides by itself how far it steps."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data -= 1e-4 * parameter.grad.sign()


def test_an_optimizer_without_a_rate_trains_and_has_no_schedule(tmp_path: Path) -> None:
    program = {"model": mlp(), "loss": "mse", "optimizer": Rateless}
    result, _ = train(job_of(tmp_path, 1), program, 1, tmp_path / "ranks")
    assert [record["learningRate"] for record in result["history"]["epochs"]] == [None] * EPOCHS
    (outcome,) = run_ranks(job_of(tmp_path, 1, lrSchedule="cosine"), program, 1, tmp_path / "refused")
    assert "ParamError" in (outcome.error_type or "")
    assert "Rateless has no learning rate" in (outcome.message or "")
