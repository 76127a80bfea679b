"""`flambeau-worker` as its launchers start it: one process a rank, spoken with in JSON lines."""

import base64
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(os.environ.get("FLAMBEAU_WORKER") or ROOT / "python/flambeau/_bin/flambeau-worker")
LIBTORCH = Path(torch.__file__).parent
LARGE = 100.0
"""No number of the rows is as large, but for one that asks for trouble."""

SECRET = base64.b64encode(b"a secret of sixteen").decode()


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end, which must come within a minute."""
    command = [str(PROGRAM), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


def start_launch(job: Mapping[str, Any], *arguments: str) -> subprocess.Popen[str]:
    """Starts `launch` of a job, whose file is in its work directory."""
    path = Path(job["attempt"]["workDir"]) / f"{job['attempt']['id']}.json"
    path.write_text(json.dumps(job))
    command = [str(PROGRAM), "launch", "--job", str(path), "--libtorch", str(LIBTORCH), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def launch(job: Mapping[str, Any], *arguments: str, seconds: float = 60.0) -> list[dict[str, Any]]:
    """The lines of a `launch` of a job; the last one is the result or the error."""
    with start_launch(job, *arguments) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        finally:
            process.kill()
    lines: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    assert process.returncode == (0 if "result" in lines[-1] else 1), errors
    return lines


class Rank:
    """A running rank and what it said so far."""

    def __init__(
        self,
        job: Mapping[str, Any],
        rank: int = 0,
        world_size: int = 1,
        gpus: Sequence[str] = (),
        **popen: Any,
    ) -> None:
        self.rank = rank
        assigned = ["--gpus", ",".join(gpus)] if gpus else []
        self.process = subprocess.Popen(
            [str(PROGRAM), "train", "--launcher", "--libtorch", str(LIBTORCH), *assigned],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **popen,
        )
        self.lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.errors: list[str] = []
        threading.Thread(target=self._hear, daemon=True).start()
        self._listener = threading.Thread(target=self._keep_errors, daemon=True)
        self._listener.start()
        start = {"job": dict(job), "rank": rank, "worldSize": world_size, "bindAddress": "127.0.0.1"}
        self.tell({"start": {**start, "secret": SECRET, "transport": "auto", "reportSteps": True}})

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends one line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def wait_for(self, *kinds: str, seconds: float = 60.0) -> dict[str, Any]:
        """The next line of one of these kinds. Fails where the program ends, or is silent, before it."""
        deadline = time.monotonic() + seconds
        while True:
            line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line is not None, f"rank {self.rank} ended: {self.process.wait(5)} {self.errors}"
            if not set(line).isdisjoint(kinds):
                return line

    def outcome(self, seconds: float = 60.0) -> dict[str, Any]:
        """The result or the error; the program has ended after it."""
        line = self.wait_for("result", "error", seconds=seconds)
        status = self.process.wait(10)
        assert status == (0 if "result" in line else 1)
        return line

    def end(self) -> str:
        """Kills the program where it still runs; returns what it wrote to standard error."""
        self.process.kill()
        self.process.wait(10)
        self._listener.join(10)
        return "\n".join(self.errors)

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def _keep_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line.decode(errors="replace").rstrip())


class Ranks:
    """All ranks of a training. Leaving the context kills what still runs. One rank alone meets no one."""

    def __init__(self, job: Mapping[str, Any], world_size: int, **popen: Any) -> None:
        self.all = [Rank(job, rank, world_size, **popen) for rank in range(world_size)]

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.all:
            rank.end()

    def __getitem__(self, rank: int) -> Rank:
        return self.all[rank]

    def meet(self) -> "Ranks":
        """Gathers what the ranks tell each other, as a launcher does."""
        gathered = [rank.wait_for("gather")["gather"] for rank in self.all]
        for rank in self.all:
            rank.tell({"gathered": gathered})
        return self

    def outcomes(self, seconds: float = 60.0) -> list[dict[str, Any]]:
        """How each rank ended."""
        return [rank.outcome(seconds) for rank in self.all]


def write_rows(path: Path, num_rows: int = 600, large_row: int | None = None) -> Path:
    """A Parquet file with `x` (arrays of four normal numbers) and `y`, a noisy linear function of them.

    The numbers of `large_row` are larger than LARGE.
    """
    generator, num_features = np.random.default_rng(7), 4
    x = generator.standard_normal((num_rows, num_features)).astype(np.float32)
    if large_row is not None:
        x[large_row] = 2 * LARGE
    y = x @ np.arange(1, num_features + 1, dtype=np.float32) + generator.standard_normal(num_rows)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), num_features)
    table = pa.table({"x": flat.cast(pa.list_(pa.float32())), "y": y.astype(np.float32)})
    pq.write_table(table, path, row_group_size=max(1, num_rows // 3))
    return path


def save_script(module: torch.nn.Module, path: Path) -> Path:
    """Writes a module as a TorchScript archive."""
    torch.jit.script(module).save(str(path))
    return path


def job_of(
    directory: Path, program: Path, rows: Sequence[Path], attempt: str = "a1", **params: Any
) -> dict[str, Any]:
    """A job that trains the program on `x` and `y` with mean squared error."""
    tensor = {"dtype": "float32"}
    return {
        "format": 1,
        "params": {"numThreads": 1, **params},
        "data": {
            "train": [str(path) for path in rows],
            "spec": {
                "inputs": [{"name": "x", "columns": ["x"], **tensor}],
                "labels": [{"name": "y", "columns": ["y"], **tensor}],
            },
        },
        "attempt": {"id": attempt, "workDir": str(directory)},
        "program": {
            "form": "scripted",
            "eval": str(program),
            "loss": {"name": "mse"},
            "optimizer": {"name": "sgd", "options": {"lr": 0.01}},
        },
    }
