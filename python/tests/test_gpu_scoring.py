"""transform's worker side on a GPU; the oracle is the module itself, on the same GPU or on the CPU.

The order of batches and the memory that they lie in are tried on the CPU too, as a device with one stream.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from harness import GPU_IS_STAND_IN
from test_scoring import packed, scorer
from torch import Tensor, nn

from flambeau import FlambeauError
from flambeau._score.gpu_scoring import GpuScoring, explained
from flambeau._score.scoring import Scorer

SIZES = (1000, 1, 0, 777, 2048, 5)
WIDTH = 32


def on_gpu(module: nn.Module, folder: Path, batch_size: int) -> Scorer:
    return replace(scorer(module, [packed(WIDTH)], folder, batch_size), device="cuda")


def batches() -> tuple[list[np.ndarray[Any, Any]], list[tuple[pa.Array, ...]]]:
    """Rows in Arrow batches of several sizes, an empty one among them, as numpy and as columns."""
    random = np.random.default_rng(0)
    rows = [random.standard_normal((size, WIDTH)).astype(np.float32) for size in SIZES]
    return rows, [tuple(pa.array(column) for column in part.T) for part in rows]


class Doubling(nn.Module):
    """Writes to its input, and returns memory of its own, which the next batch is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor
        self.register_buffer("kept", torch.zeros(4096, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.kept[: len(x)].copy_(x.mul_(2))


def test_batches_come_back_whole_and_in_order(tmp_path: Path) -> None:
    rows, columns = batches()
    module = Doubling()
    here = scorer(module, [packed(WIDTH)], tmp_path, 100)
    scoring = GpuScoring("cpu", 100, lambda inputs, _: [module(*inputs)], here._results)
    for part, [result] in zip(rows, scoring.results(map(here._rows, columns)), strict=True):
        np.testing.assert_array_equal(result, 2 * part)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            torch.cuda.OutOfMemoryError("Tried to allocate"),
            "cuda:1 is too small .* inferenceBatchSize or inferenceBatchBytes",
        ),
        (RuntimeError("CUDA error: device-side assert triggered"), "cuda:1 failed .* device='cpu'"),
    ],
)
def test_failures_of_the_gpu_say_what_to_do(error: Exception, expected: str) -> None:
    with pytest.raises(FlambeauError, match=expected) as raised, explained("cuda:1", 100):
        raise error
    assert raised.value.__cause__ is error


def test_failures_of_the_module_stay_what_they_are() -> None:
    error = RuntimeError("shapes cannot be multiplied")
    with pytest.raises(RuntimeError) as raised, explained("cuda:1", 100):
        raise error
    assert raised.value is error


@pytest.mark.gpu
def test_scores_are_the_modules_on_that_gpu(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 3))
    rows, columns = batches()
    results = list(on_gpu(module, tmp_path, 128).score(iter(columns)))
    assert [len(result) for result in results] == list(SIZES)
    there = module.to("cuda").eval()
    for part, result in zip(rows, results, strict=True):
        expected = [
            there(torch.from_numpy(part[start : start + 128]).to("cuda")).detach().cpu().numpy()
            for start in range(0, len(part), 128)
        ]
        for row, wanted in zip(
            result.to_pylist(), np.concatenate([*expected, np.empty((0, 3))]), strict=True
        ):
            np.testing.assert_array_equal(np.float32(row), np.float32(wanted))


class Slow(Doubling):
    """Takes its time before it reads its input."""

    def __init__(self) -> None:
        super().__init__()
        # What stands in for a GPU is late by itself.
        size = 32 if GPU_IS_STAND_IN else 1024
        self.heavy: Tensor
        self.register_buffer("heavy", torch.randn(size, size))

    def forward(self, x: Tensor) -> Tensor:
        busy = self.heavy
        for _ in range(20):
            busy = busy @ self.heavy
            busy = busy / busy.abs().max()
        return super().forward(x.add_(busy.sum() * 0))


@pytest.mark.gpu
def test_no_copy_overtakes_what_still_computes(tmp_path: Path) -> None:
    rows, columns = batches()
    for _ in range(3):
        for part, result in zip(rows, on_gpu(Slow(), tmp_path, 100).score(iter(columns)), strict=True):
            np.testing.assert_array_equal(
                np.array(result.to_pylist(), np.float32).reshape(part.shape), 2 * part
            )


@pytest.mark.gpu
def test_the_host_runs_ahead(tmp_path: Path) -> None:
    """The results of a batch come while the next one is under way."""
    _, columns = batches()
    taken = []

    def watched() -> Any:
        for index, batch in enumerate(columns):
            taken.append(index)
            yield batch

    scored = on_gpu(nn.Linear(WIDTH, 1), tmp_path, 128).score(watched())
    next(scored)
    assert taken == [0, 1]


@pytest.mark.gpu
def test_a_batch_beyond_the_memory_says_what_to_do(tmp_path: Path) -> None:
    class Huge(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.is_cuda:
                torch.empty(1 << 50, dtype=torch.uint8, device=x.device)
            return x

    _, columns = batches()
    with pytest.raises(FlambeauError, match="lower inferenceBatchSize or inferenceBatchBytes"):
        list(on_gpu(Huge(), tmp_path, 128).score(iter(columns)))


@pytest.mark.gpu
def test_what_a_task_kept_for_further_batches_is_given_back(tmp_path: Path) -> None:
    _, columns = batches()
    module = nn.Sequential(nn.Linear(WIDTH, 4096), nn.ReLU(), nn.Linear(4096, 1))
    gc.collect()
    torch.cuda.empty_cache()
    kept = torch.cuda.memory_reserved()
    list(on_gpu(module, tmp_path, 2048).score(iter(columns)))
    assert torch.cuda.memory_reserved() == kept
    scored = on_gpu(module, tmp_path, 2048).score(iter(columns))
    next(scored)
    assert torch.cuda.memory_reserved() > kept
    # As Spark does where it has rows enough (LIMIT).
    scored.close()
    assert torch.cuda.memory_reserved() == kept


class Fragile(nn.Module):
    """Refuses the rows of an Arrow batch after the first one, and has a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)
        self.factor: Tensor
        self.register_buffer("factor", torch.full((1 << 20,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            raise RuntimeError("one row is too few")
        return self.linear(x) * self.factor[:1]


@pytest.mark.gpu
def test_a_module_leaves_the_gpu_with_a_task_that_fails_and_comes_back(tmp_path: Path) -> None:
    rows, columns = batches()
    module = Fragile()
    gc.collect()
    kept = torch.cuda.memory_allocated()
    fragile = on_gpu(module, tmp_path, 2048)
    with pytest.raises(RuntimeError, match="one row is too few"):
        list(fragile.score(iter(columns)))
    gc.collect()
    assert torch.cuda.memory_allocated() == kept
    [result] = fragile.score(iter(columns[:1]))
    expected = module(torch.from_numpy(rows[0])).detach().numpy()
    np.testing.assert_allclose(np.array(result.to_pylist()).reshape(-1, 1), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
def test_a_module_stays_while_another_scores_with_it(tmp_path: Path) -> None:
    rows, columns = batches()
    doubling = on_gpu(Doubling(), tmp_path, 100)
    first, second = doubling.score(iter(columns)), doubling.score(iter(columns))
    next(first)
    begun = next(second)
    first.close()
    for part, result in zip(rows, [begun, *second], strict=True):
        np.testing.assert_array_equal(np.array(result.to_pylist(), np.float32).reshape(part.shape), 2 * part)
