"""What a step costs beyond forward, backward and optimizer.

Microseconds a step of a model with 100 parameters on batches of one row, and of a bare Python loop over the
same module, loss and optimizer with its batches ready in a list.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import rank
import torch
from harness import FIXED, Case, Child, Goal, free_address, serve
from torch import nn

NUM_STEPS = 4_000
"""Steps of an epoch, of which the first is left out."""
FEATURES = [f"x{column}" for column in range(9)]
LABEL = "y"
OURS = "Flambeau"
BARE = "limit: a bare Python loop"
ALLOWED = f"{FIXED}60 µs"


def module() -> nn.Module:
    """One hundred parameters in four tensors."""
    return nn.Sequential(nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 1))


def optimizer(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """Stochastic gradient descent."""
    return torch.optim.SGD(parameters, lr=1e-3)


def bare(shard: str) -> float:
    """Microseconds a step of the loop that anyone would write."""
    torch.set_num_threads(1)
    table = pq.read_table(shard)
    x = torch.from_numpy(np.stack([table[name].to_numpy() for name in FEATURES], axis=1))
    y = torch.from_numpy(table[LABEL].to_numpy().copy())[:, None]
    batches = list(zip(x.split(1), y.split(1), strict=True))[:NUM_STEPS]
    model, loss = module(), nn.MSELoss()
    stepper = optimizer(list(model.parameters()))
    for _ in range(2):
        began = time.perf_counter()
        for inputs, label in batches:
            loss(model(inputs), label).backward()
            stepper.step()
            stepper.zero_grad()
        seconds = time.perf_counter() - began
    return seconds / len(batches) * 1e6


def ours(job: dict[str, Any], place: int, world_size: int, address: str) -> float:
    """Microseconds a step of a training without Spark, in the epochs after the first."""
    program = {"model": module(), "loss": nn.MSELoss(), "optimizer": optimizer, "metrics": None}
    epochs = rank.train(job, program, place, world_size, address)["history"]["epochs"]
    return float(sum(epoch["seconds"] for epoch in epochs[1:]) / (len(epochs) - 1) / NUM_STEPS * 1e6)


def answer(loop: str, **arguments: Any) -> dict[str, float]:
    """What a child does: one of the two loops."""
    loops: dict[str, Callable[..., float]] = {"bare": bare, "ours": ours}
    return {"microseconds": loops[loop](**arguments)}


class Ranks:
    """Processes that each run a rank of a training, or bare loops side by side."""

    def __init__(self, shard: Path, children: Sequence[Child]) -> None:
        self._shard = shard
        self._children = children
        self._threads = ThreadPoolExecutor(len(children))

    def bare(self) -> float:
        """The mean of the processes' bare loops."""
        return self._call([{"loop": "bare", "shard": str(self._shard)} for _ in self._children])

    def ours(self) -> float:
        """The mean over the ranks."""
        world_size, address = len(self._children), free_address()
        shared = {"loop": "ours", "job": self._job(), "world_size": world_size, "address": address}
        return self._call([{**shared, "place": place} for place in range(world_size)])

    def beyond(self) -> float:
        """What Flambeau's step took more than the bare loop's right after it."""
        return self.ours() - self.bare()

    def _call(self, requests: Sequence[dict[str, Any]]) -> float:
        def call(child: Child, request: dict[str, Any]) -> float:
            return float(child.call(**request)["microseconds"])

        return float(np.mean(list(self._threads.map(call, self._children, requests))))

    def _job(self) -> dict[str, Any]:
        spec = {
            "inputs": [{"name": "x", "columns": FEATURES, "dtype": "float32"}],
            "labels": [{"name": LABEL, "columns": [LABEL], "dtype": "float32"}],
        }
        params = {"numWorkers": len(self._children), "numThreads": 1, "batchSize": 1, "epochs": 3}
        return {
            "format": 1,
            "params": {**params, "checkpointInterval": -1},
            "data": {"train": [str(self._shard)], "spec": spec},
            "attempt": {"id": "steps", "workDir": str(self._shard.parent)},
        }


def write_rows(path: Path, num_rows: int) -> Path:
    """Random numbers."""
    random = np.random.default_rng(0)
    names = [*FEATURES, LABEL]
    pq.write_table(pa.table({name: random.standard_normal(num_rows, np.float32) for name in names}), path)
    return path


def cases(full: bool, scratch: Path) -> Iterator[Case]:
    for world_size in (1, 2):
        shard = write_rows(scratch / f"rows-{world_size}.parquet", NUM_STEPS * world_size)
        with ExitStack() as stack:
            command = [sys.executable, __file__]
            ranks = Ranks(shard, [stack.enter_context(Child(command)) for _ in range(world_size)])
            work = f"100 parameters, batch 1, {world_size} {'rank' if world_size == 1 else 'ranks'}"
            yield case(work, {OURS: ranks.ours, BARE: ranks.bare}, [])
            beyond: dict[str, Callable[[], float]] = {OURS: ranks.beyond, ALLOWED: lambda: 60.0}
            yield case(f"{work}: beyond the bare loop", beyond, [Goal(ALLOWED, 1.0)])


def case(work: str, contenders: dict[str, Callable[[], float]], goals: Sequence[Goal]) -> Case:
    """Times of a step."""
    return Case("step_cost", work, "µs/step", contenders, goals, higher_is_better=False)


if __name__ == "__main__":
    serve(answer)
