"""Runs ranks without Spark: one Python process each, which find each other over loopback."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from ports import held_port

from flambeau._module.layout import Layout
from flambeau._rank.worker import RankOutcome, WorkerRequest, run_rank
from flambeau._tensors import TensorColumns

HERE = Path(__file__).parent
GPU_IS_STAND_IN = "cuda-stand-in" in os.environ.get("LD_PRELOAD", "")
"""Whether threads stand in for GPUs (`make test-gpu-stand-in`)."""


def write_shards(
    directory: Path, columns: Mapping[str, np.ndarray], num_shards: int = 1, rows_per_group: int | None = None
) -> list[str]:
    """Writes columns (one- or two-dimensional arrays) as Parquet shards; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for name, values in columns.items():
        if values.ndim == 1:
            arrays[name] = pa.array(values)
        else:
            flat = pa.array(values.reshape(-1))
            arrays[name] = pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:]))).cast(
                pa.list_(flat.type)
            )
    table = pa.table(arrays)
    bounds = np.linspace(0, table.num_rows, num_shards + 1).astype(int)
    paths = []
    for shard in range(num_shards):
        path = directory / f"part-{shard:05d}.parquet"
        part = table.slice(bounds[shard], bounds[shard + 1] - bounds[shard])
        pq.write_table(part, path, row_group_size=rows_per_group or max(1, part.num_rows))
        paths.append(str(path))
    return paths


def tensor(
    name: str, *columns: str, dtype: str = "float32", shape: Sequence[int] | None = None
) -> dict[str, Any]:
    """A tensor of a dataset spec; `name` is its only column where none is given."""
    spec: dict[str, Any] = {"name": name, "columns": list(columns) or [name], "dtype": dtype}
    if shape is not None:
        spec["shape"] = list(shape)
    return spec


def make_job(
    work_dir: Path,
    train: list[str],
    inputs: list[dict[str, Any]],
    labels: list[dict[str, Any]],
    *,
    weight: dict[str, Any] | None = None,
    validation: Sequence[str] = (),
    attempt: str = "a1",
    resume: str | None = None,
    **params: Any,
) -> dict[str, Any]:
    """A training job over shards."""
    if len(inputs) > 1:
        params.setdefault("inputCols", [spec["name"] for spec in inputs])
    return {
        "format": 1,
        "params": params,
        "data": {
            "train": train,
            "validation": list(validation),
            "spec": {"inputs": inputs, "labels": labels, "weight": weight},
        },
        "attempt": {"id": attempt, "workDir": str(work_dir), "resume": resume},
    }


def layout(*inputs: tuple[str, Sequence[str]]) -> Layout:
    """That of batches of these inputs, of floats in these columns; of one input, x, where none are given."""
    given = inputs or (("x", ["x"]),)
    return Layout([TensorColumns(name, tuple(columns), "float32", None) for name, columns in given])


@contextmanager
def one_thread() -> Iterator[None]:
    """Computes as a rank does that has one thread; the setting is the process's, which has other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# Ranks are forked from a server that has imported torch once (and what its optimizers import).
FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(
    ["torch._dynamo", "torch.nn.parallel", "flambeau._module.adapter", "flambeau._native", "harness"]
)


class Ranks:
    """The processes of one attempt, with these environment variables beside what they inherit."""

    def __init__(
        self,
        job: Mapping[str, Any],
        program: Mapping[str, Any] | bytes,
        world_size: int,
        directory: Path,
        environment: Mapping[str, str] | None = None,
        **request: Any,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.outcomes = [directory / f"outcome-{rank}.pkl" for rank in range(world_size)]
        message = WorkerRequest(
            job_json=json.dumps(job),
            secret=secrets.token_bytes(16),
            program=program if isinstance(program, bytes) else cloudpickle.dumps(dict(program)),
            sys_path=(str(HERE),),
            **request,
        )
        self._holder = ExitStack()
        address = f"127.0.0.1:{self._holder.enter_context(held_port())}"
        self.processes = [
            FORK_SERVER.Process(
                target=_run, args=(message, rank, world_size, address, outcome, environment or {})
            )
            for rank, outcome in enumerate(self.outcomes)
        ]
        for process in self.processes:
            process.start()

    def wait(self, timeout: float = 120.0) -> list[RankOutcome | None]:
        """How each rank ended; None for one that was killed. Kills what is left after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.1, deadline - time.monotonic()))
        self.kill()
        return [pickle.loads(path.read_bytes()) if path.exists() else None for path in self.outcomes]

    def kill(self) -> None:
        """Kills what still runs."""
        for process in self.processes:
            process.kill()
            process.join()
        self._holder.close()


def _run(
    request: WorkerRequest,
    rank: int,
    world_size: int,
    address: str,
    outcome_path: Path,
    environment: Mapping[str, str],
) -> None:
    """One rank, in its own process; leaves its outcome in a file."""
    os.environ.update(environment)
    from flambeau._native import TcpRendezvous

    def all_gather(payload: bytes) -> list[bytes]:
        return TcpRendezvous(address, rank, world_size, request.secret, 60.0).all_gather(payload)

    outcome = run_rank(request, rank, world_size, all_gather, "127.0.0.1")
    part = outcome_path.with_suffix(".part")
    part.write_bytes(pickle.dumps(outcome))
    part.rename(outcome_path)


def run_ranks(
    job: Mapping[str, Any],
    program: Mapping[str, Any] | bytes,
    world_size: int,
    directory: Path,
    timeout: float = 120.0,
    **request: Any,
) -> list[RankOutcome]:
    """Runs all ranks to their end."""
    outcomes = Ranks(job, program, world_size, directory, **request).wait(timeout)
    assert all(outcome is not None for outcome in outcomes), "a rank died"
    return [outcome for outcome in outcomes if outcome is not None]


def train(
    job: Mapping[str, Any],
    program: Mapping[str, Any],
    world_size: int,
    directory: Path,
    timeout: float = 120.0,
    **request: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trains to the end; returns rank 0's result and the weights by name. Fails with the first cause's
    traceback.
    """
    from safetensors.torch import load_file

    outcomes = run_ranks(job, program, world_size, directory, timeout, **request)
    for outcome in sorted(outcomes, key=lambda outcome: not outcome.is_cause):
        assert outcome.ok, outcome.traceback
    result = json.loads(outcomes[0].result_json or "")
    return result, load_file(result["weights"]["uri"].removeprefix("file://"))


def wait_for_checkpoints(attempt: Path, num: int) -> None:
    """Waits until an attempt has written so many checkpoints."""
    deadline = time.monotonic() + 60
    while len(list(attempt.glob("checkpoints/*/COMMITTED"))) < num:
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.01)
