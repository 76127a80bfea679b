"""`precision="fp16"` scales the loss as torch's GradScaler does: the same scales, steps and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ddp
import numpy as np
import pytest
import torch
from harness import make_job, one_thread, run_ranks, tensor, train, write_shards
from test_precision import BATCH_SIZE, NUM_STEPS, batches, mlp, optimizer, rows
from torch import Tensor, nn

from flambeau import DivergedError
from flambeau._spark.fit.launch import exception_of

Loss = Callable[[Tensor, Tensor], Tensor]


@one_thread()
def plain(
    all_batches: Sequence[tuple[Tensor, Tensor]],
    loss: Loss,
    epochs: int,
    accumulated: int = 1,
    clip_norm: float | None = None,
) -> tuple[nn.Module, list[float], list[int]]:
    """A loop with torch's GradScaler: the module, and each epoch's scale and skipped steps."""
    module = mlp()
    stepper = optimizer(list(module.parameters()))
    scaler = torch.amp.GradScaler("cpu")
    scales, skipped = [], []
    for _ in range(epochs):
        skipped.append(0)
        for first in range(0, len(all_batches), accumulated):
            for x, y in all_batches[first : first + accumulated]:
                with torch.autocast("cpu", dtype=torch.float16):
                    value = loss(module(x), y) / accumulated
                scaler.scale(value).backward()
            before = scaler.get_scale()
            if clip_norm is not None:
                scaler.unscale_(stepper)
                nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
            scaler.step(stepper)
            scaler.update()
            stepper.zero_grad()
            skipped[-1] += scaler.get_scale() < before
        scales.append(scaler.get_scale())
    return module, scales, skipped


def job_of(directory: Path, columns: dict[str, np.ndarray], num_ranks: int, **params: Any) -> dict[str, Any]:
    shards = write_shards(directory / "data", columns, num_shards=2, rows_per_group=500)
    given: dict[str, Any] = {"precision": "fp16", "numWorkers": num_ranks, "batchSize": BATCH_SIZE}
    given |= {"shuffle": False, "numThreads": 1, "verifyReplicas": True, "checkpointInterval": -1, **params}
    return make_job(directory, shards, [tensor("x")], [tensor("y")], **given)


def ours(
    directory: Path, columns: dict[str, np.ndarray], num_ranks: int, loss: Any = "mse", **params: Any
) -> tuple[dict[str, Tensor], list[float], list[int]]:
    """The weights, and each epoch's scale and skipped steps."""
    program = {"model": mlp(), "loss": loss, "optimizer": optimizer}
    result, weights = train(
        job_of(directory, columns, num_ranks, **params), program, num_ranks, directory / "ranks"
    )
    epochs = result["history"]["epochs"]
    return weights, [e["lossScale"] for e in epochs], [e["skippedSteps"] for e in epochs]


def assert_same_bits(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, weight in expected.items():
        assert weight.dtype == torch.float32 and weights[name].equal(weight), name


def test_one_rank_is_a_loop_with_grad_scaler_to_the_bit(tmp_path: Path) -> None:
    """Over overflows at the start and the growth after 2,000 good steps."""
    columns, epochs = rows(1), 2000 // NUM_STEPS + 3
    module, scales, skipped = plain(batches(columns, 1)[0], nn.functional.mse_loss, epochs)
    assert skipped[0] >= 2 and scales[0] < 2**15 and max(scales) == 2 * scales[1]
    weights, our_scales, our_skipped = ours(tmp_path, columns, 1, epochs=epochs)
    assert (our_scales, our_skipped) == (scales, skipped)
    assert_same_bits(weights, module.state_dict())


def test_two_ranks_are_ddp_with_grad_scaler_to_the_bit(tmp_path: Path) -> None:
    columns = rows(2)
    # Rank 1 has the rows with large labels, and so the overflows.
    columns["y"][len(columns["y"]) // 2 :] *= 100
    program = {"model": mlp(), "loss": nn.MSELoss(), "optimizer": optimizer, "batches": batches(columns, 2)}
    theirs = ddp.train({**program, "half": torch.float16}, tmp_path)
    weights, scales, skipped = ours(tmp_path, columns, 2)
    assert scales == theirs[0]["scales"][-1:]
    assert 2.0 ** (16 - skipped[0]) == scales[0] < 2**10
    assert_same_bits(weights, theirs[0]["weights"])


def test_accumulated_gradients_are_unscaled_before_they_are_clipped(tmp_path: Path) -> None:
    columns = rows(1)
    batches_of_rank = batches(columns, 1)[0]
    module, scales, skipped = plain(batches_of_rank, nn.functional.mse_loss, 2, accumulated=2, clip_norm=0.5)
    params = {"epochs": 2, "gradientAccumulationSteps": 2, "gradientClipNorm": 0.5}
    weights, our_scales, our_skipped = ours(tmp_path, columns, 1, **params)
    assert (our_scales, our_skipped) == (scales, skipped) and skipped[0] > 0
    # torch sums the squares of the norm in float32, we in float64, and float16 makes more of the difference
    # on some processors than on others: 1e-6 to 2e-6 in a weight.
    for name, weight in module.state_dict().items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-5)


def half_loss(output: Tensor, label: Tensor) -> Tensor:
    """A loss that autocast leaves in float16."""
    return (output - label.half()).abs().mean()


def test_a_loss_in_float16_is_scaled_as_torch_scales_it(tmp_path: Path) -> None:
    columns = rows(1)
    module, scales, skipped = plain(batches(columns, 1)[0], half_loss, 1)
    weights, our_scales, our_skipped = ours(tmp_path, columns, 1, half_loss)
    # 2^16 is beyond float16: the first step overflows whatever the loss is.
    assert (our_scales, our_skipped) == (scales, skipped) and skipped[0] >= 1
    assert_same_bits(weights, module.state_dict())


def no_slope(output: Tensor, label: Tensor) -> Tensor:
    """A loss of 0, whose gradient is no number."""
    return (output * 0).float().square().sum().sqrt()


def overflow(output: Tensor, label: Tensor) -> Tensor:
    """A loss that is infinite in float16."""
    return (output.half() * 0 + 60000).sum()


@pytest.mark.parametrize(
    ("loss", "step", "said"),
    [(no_slope, 30, "even with the loss scaled by 0.00006"), (overflow, 0, "the loss is inf.*bf16")],
)
def test_what_no_scale_helps_ends_the_training(tmp_path: Path, loss: Loss, step: int, said: str) -> None:
    program = {"model": mlp(), "loss": loss, "optimizer": "sgd"}
    (outcome,) = run_ranks(job_of(tmp_path, rows(1), 1), program, 1, tmp_path / "ranks")
    assert (outcome.error_kind, outcome.step) == ("diverged", step)
    with pytest.raises(DivergedError, match=said):
        raise exception_of(outcome)


def test_weights_in_float16_are_refused(tmp_path: Path) -> None:
    program = {"model": mlp().half(), "loss": "mse", "optimizer": "sgd"}
    (outcome,) = run_ranks(job_of(tmp_path, rows(1), 1), program, 1, tmp_path / "ranks")
    assert outcome.error_kind == "job"
    assert outcome.message is not None and "weights are float16, such as 0.weight" in outcome.message
