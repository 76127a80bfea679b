"""The ranks that `gpu.py` measures: a process each, on the GPUs of one machine and without Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ROOT, Child, free_address

LOOPS = Path(__file__).with_name("gpu_loops.py")


@dataclass(frozen=True)
class Work:
    """A model on rows that were made for it."""

    model: str
    """As `gpu_loops.MODELS` has it."""
    text: str
    num_rows: int
    batch_size: int
    epochs: int
    dtype: str = "float32"
    """Of a row's inputs."""
    width: int = 64
    """How many inputs a row has."""
    label: str = "float32"
    """The dtype of the label."""


class Ranks:
    """As many processes as there are ranks, which run one loop after another."""

    def __init__(self, children: list[Child], scratch: Path) -> None:
        self.num_ranks = len(children)
        self._children = children
        self._threads = ThreadPoolExecutor(len(children))
        self._scratch = scratch
        self._address = free_address()
        self._runs = 0

    @classmethod
    @contextmanager
    def started(
        cls, num_ranks: int, scratch: Path, deterministic: bool = False, **env: str
    ) -> Iterator[Ranks]:
        """Ranks that wait for requests; additions in one order where `deterministic`."""
        with ExitStack() as stack:
            env = {"PYTHONPATH": str(ROOT / "python"), "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **env}
            command: list[str | Path] = [sys.executable, LOOPS]
            children = [stack.enter_context(Child(command, env)) for _ in range(num_ranks)]
            ranks = cls(children, scratch)
            ranks._ask(loop="prepare", deterministic=deterministic)
            yield ranks

    def flambeau(
        self, work: Work, optimizer: str = "adam", loop: Mapping[str, Any] | None = None, **params: Any
    ) -> list[dict[str, Any]]:
        """Trains with Flambeau, and returns the ranks' answers. `loop` is what `gpu_loops.flambeau` takes
        besides.
        """
        self._runs += 1
        directory = self._scratch / f"{work.model}-{id(self)}-{self._runs}"
        directory.mkdir()
        return self._ask(
            loop="flambeau",
            job=self._job(work, directory, params),
            model=work.model,
            optimizer=optimizer,
            world_size=self.num_ranks,
            address=free_address(),
            **(loop or {}),
        )

    def ddp(
        self,
        work: Work,
        feed: str,
        optimizer: str = "adam",
        devices: Sequence[int] | None = None,
        **loop: Any,
    ) -> list[dict[str, Any]]:
        """Trains with DistributedDataParallel, on `devices`, or else rank r on the GPU r. `loop` is what
        `gpu_loops.ddp` takes besides.
        """
        return self._ask(
            each=[{"device": device} for device in devices or range(self.num_ranks)],
            loop="ddp",
            shard=str(self.shard(work)),
            model=work.model,
            optimizer=optimizer,
            feed=feed,
            batch_size=work.batch_size,
            epochs=work.epochs,
            world_size=self.num_ranks,
            address=self._address,
            **loop,
        )

    def shard(self, work: Work) -> Path:
        """The rows of a work, the same for all who train on them."""
        path = self._scratch / f"{work.model}-{work.num_rows}.parquet"
        if not path.exists():
            from gpu_loops import write_rows

            write_rows(path, work.model, work.num_rows)
        return path

    def _job(self, work: Work, directory: Path, params: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "format": 1,
            "params": {
                "numWorkers": self.num_ranks,
                "device": "cuda",
                "batchSize": work.batch_size,
                "epochs": work.epochs,
                "numThreads": 4,
                "memoryBudget": 4 << 30,
                "collectiveTimeout": 60.0,
                "checkpointInterval": -1,
                **params,
            },
            "data": {
                "train": [str(self.shard(work))],
                "spec": {
                    "inputs": [{"name": "x", "columns": ["x"], "dtype": work.dtype, "shape": [work.width]}],
                    "labels": [{"name": "y", "columns": ["y"], "dtype": work.label}],
                },
            },
            "attempt": {"id": "bench", "workDir": str(directory)},
        }

    def _ask(self, each: list[dict[str, Any]] | None = None, **request: Any) -> list[dict[str, Any]]:
        """Sends all ranks a request; `each` has what differs. `ended` says how a rank ended instead."""
        own = each or [{} for _ in self._children]
        if request["loop"] != "prepare":
            own = [{**mine, "rank": rank} for rank, mine in enumerate(own)]

        def ask(child: Child, mine: dict[str, Any]) -> dict[str, Any]:
            try:
                return child.call(**request, **mine)
            except RuntimeError as error:
                return {"ended": str(error)}

        return list(self._threads.map(ask, self._children, own))


def whole(answers: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The answers of ranks that all trained to the end. Raises RuntimeError, with an error, otherwise."""
    for answer in answers:
        if "error" in answer or "ended" in answer:
            raise RuntimeError(answer.get("error") or answer["ended"])
    return answers


def rows_per_second(answers: Sequence[dict[str, Any]]) -> float:
    """Of all ranks together."""
    done = whole(answers)
    return float(done[0]["rows"] / max(answer["seconds"] for answer in done))
