"""Cost as work grows, one axis at a time: rows, columns, parameters, files, and ranks that train or meet.

Hundreds of ranks and tables of many files are measured as far as one machine shows them.

Each size is held against the next smaller one of its axis, in proportion, in the same round: a ratio of 1 is
linear, and more than 1 is better than that.

Ranks that meet are threads of a few processes, whose hosts are but names, with eight ranks on each: all of
them share this machine's cores, where on a cluster each has its own. They are timed from the rendezvous to
the end of a first barrier (native/collective/examples/meeting_speed). Files to plan are links to one file, of
which each is opened and read as any other.
"""

from __future__ import annotations

import base64
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from harness import FIXED, ITSELF, ROOT, Case, Child, Contender, Goal, free_address
from torch import nn

LINEAR = 1 / 1.1
"""Linear within 10 %."""
BATCH = 512
ROW_GROUP_ROWS = 1 << 18
SMALL = {"memoryBudget": 8 << 20, "shuffleWindow": 1 << 16, "batchSize": 1 << 13}
"""The cases about memory: a budget in bytes and a window in rows that are less than what the rows take."""

MEETING_SPEED = ROOT / "target" / "release" / "examples" / "meeting_speed"
RANKS_PER_HOST, RANKS_PER_PROCESS = 8, 16
"""A process may have some thousands of connections."""
FILE_ROWS = 100_000

Measured = dict[str, Any]


class Ranks:
    """Processes that train together, started once and kept, so that imports are no part of a figure."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._children: list[Child] = []

    def train(
        self, shards: list[str], columns: list[str], program: dict[str, Any], num_workers: int, **params: Any
    ) -> Measured:
        """Trains once on `num_workers` ranks with one thread each: their seconds of processor in all, the
        most MiB that one of them added, and the epochs of rank 0's history.
        """
        while len(self._children) < num_workers:
            self._children.append(Child([sys.executable, ROOT / "benchmarks" / "rank.py"]))
        work = self._scratch / f"work-{secrets.token_hex(4)}"
        request = {
            "job": job(work, shards, columns, numWorkers=num_workers, numThreads=1, **params),
            "program": base64.b64encode(cloudpickle.dumps(program)).decode(),
            "world_size": num_workers,
            "address": free_address(),
        }
        ranks = range(num_workers)
        try:
            with ThreadPoolExecutor(num_workers) as pool:
                answers = list(pool.map(lambda rank: self._children[rank].call(rank=rank, **request), ranks))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return {
            "processor_seconds": sum(answer["processor_seconds"] for answer in answers),
            "memory": max(answer["memory"] for answer in answers),
            "epochs": answers[0]["epochs"],
        }

    def close(self) -> None:
        """Ends the processes."""
        for child in self._children:
            child.close()


def job(work: Path, shards: list[str], columns: list[str], **params: Any) -> dict[str, Any]:
    """A training job over those columns of the shards, in batches of `BATCH` rows unless `params` say
    otherwise.
    """
    inputs = [{"name": "features", "columns": columns, "dtype": "float32", "shape": None}]
    labels = [{"name": "label", "columns": ["label"], "dtype": "float32", "shape": None}]
    return {
        "format": 1,
        "params": {"batchSize": BATCH, "checkpointInterval": -1, **params},
        "data": {"train": shards, "validation": [], "spec": {"inputs": inputs, "labels": labels}},
        "attempt": {"id": "a", "workDir": str(work)},
    }


def write(scratch: Path, num_rows: int, num_columns: int) -> tuple[list[str], list[str]]:
    """Random rows in one shard, made once; returns its path and the columns of its features."""
    path = scratch / f"rows-{num_rows}-columns-{num_columns}.parquet"
    names = [f"x{index}" for index in range(num_columns)]
    if not path.exists():
        generator = np.random.default_rng(0)
        part = path.with_suffix(".part")
        rows_at_once = min(ROW_GROUP_ROWS, (64 << 20) // (4 * num_columns))
        schema = pa.schema([(name, pa.float32()) for name in [*names, "label"]])
        with pq.ParquetWriter(part, schema, compression="zstd", use_dictionary=False) as writer:
            for start in range(0, num_rows, rows_at_once):
                count = min(rows_at_once, num_rows - start)
                arrays = [generator.random(count, dtype=np.float32) for _ in schema]
                writer.write_table(pa.table(arrays, schema=schema))
        part.rename(path)
    return [str(path)], names


def program(*widths: int) -> dict[str, Any]:
    """A network of these widths with ReLU between, under plain SGD."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return {"model": nn.Sequential(*layers[:-1]), "loss": "mse", "optimizer": "sgd", "metrics": None}


def cases(full: bool, scratch: Path) -> Iterator[Case]:
    """All axes; `full` takes them further."""
    yield from _planning(scratch, [10**3, 10**4, 10**5])
    yield from _meeting([16, 64, 256])
    yield from _memory(scratch, [10**6, 4 * 10**6, 10**7] if full else [10**6, 4 * 10**6])
    with closing(Ranks(scratch)) as ranks:
        yield from _rows(ranks, scratch, [10**5, 10**6, 10**7] if full else [10**5, 10**6])
        yield from _columns(ranks, scratch, [10, 100, 1000])
        yield from _ranks(ranks, scratch, [1, 2, 4, 8] if full else [1, 2, 4])
        yield from _parameters(
            ranks, scratch, [10**4, 10**6, 10**7, 10**8] if full else [10**4, 10**6, 10**7]
        )


def _rows(ranks: Ranks, scratch: Path, sizes: list[int]) -> Iterator[Case]:
    def run(size: int) -> float:
        shards, columns = write(scratch, size, 10)
        return ranks.train(shards, columns, program(10, 64, 1), 1)["processor_seconds"]

    yield from _axis("rows", "rows of 10 columns, one rank", "s of processor", sizes, run)


def _memory(scratch: Path, sizes: list[int]) -> Iterator[Case]:
    def run(size: int) -> float:
        shards, columns = write(scratch, size, 10)
        # A process of its own: one that has trained before keeps memory that it would not ask for again.
        with closing(Ranks(scratch)) as ranks:
            return ranks.train(shards, columns, program(10, 16, 1), 1, **SMALL)["memory"]

    yield from _axis("rows, memory", "rows within a memoryBudget of 8 MiB", "MiB", sizes, run, constant=True)


def _columns(ranks: Ranks, scratch: Path, sizes: list[int]) -> Iterator[Case]:
    def run(size: int) -> float:
        shards, columns = write(scratch, 10**5, size)
        return ranks.train(shards, columns, program(size, 1), 1, epochs=2)["processor_seconds"]

    yield from _axis("columns", "columns, 100,000 rows twice, a linear model", "s of processor", sizes, run)


def _ranks(ranks: Ranks, scratch: Path, sizes: list[int]) -> Iterator[Case]:
    shards, columns = write(scratch, 10**6, 10)

    def run(size: int) -> float:
        return ranks.train(shards, columns, program(10, 256, 256, 1), size)["processor_seconds"]

    yield from _axis("ranks", "ranks share 1,000,000 rows", "s of processor", sizes, run, constant=True)


def _parameters(ranks: Ranks, scratch: Path, sizes: list[int]) -> Iterator[Case]:
    shards, columns = write(scratch, 20 * 2 * 32, 10)

    def run(size: int) -> float:
        # 10 w + w^2 + w weights and w + w + 1 biases.
        width = round((-13 + (13**2 + 4 * size) ** 0.5) / 2)
        figures = ranks.train(shards, columns, program(10, width, width, 1), 2, batchSize=32)
        return figures["processor_seconds"]

    yield from _axis("parameters", "parameters, 20 steps of 2 ranks", "s of processor", sizes, run)


def _meeting(sizes: list[int]) -> Iterator[Case]:
    build = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "flambeau-collective"]
    subprocess.run([ROOT / ".ci/with-tools", *build, "--example", MEETING_SPEED.name], cwd=ROOT, check=True)
    with ExitStack() as stack:
        num_processes = -(-max(sizes) // RANKS_PER_PROCESS)
        processes = [stack.enter_context(Child([MEETING_SPEED])) for _ in range(num_processes)]

        def meet(size: int) -> list[Measured]:
            asked = {"worldSize": size, "perHost": RANKS_PER_HOST, "address": free_address()}
            firsts = range(0, size, RANKS_PER_PROCESS)
            with ThreadPoolExecutor(len(firsts)) as pool:
                return list(
                    pool.map(
                        lambda child, first: child.call(
                            first=first, count=min(RANKS_PER_PROCESS, size - first), **asked
                        ),
                        processes,
                        firsts,
                    )
                )

        def worst(size: int, figure: str) -> float:
            return float(max(one[figure] for one in meet(size)))

        for size in sizes:
            for figure, unit, limit in [("seconds", "s", 10.0), ("connections", "connections", 2.0 * size)]:
                work = f"{size} ranks meet, {figure}"
                yield _limited(
                    work, unit, limit, partial(worst, size, figure), f"meeting, {figure}", size, "ranks"
                )


def _planning(scratch: Path, sizes: list[int]) -> Iterator[Case]:
    def run(size: int, figure: str) -> float:
        planned = job(scratch / "work", linked(scratch, size), ["x"], numWorkers=256)
        # A process of its own, for its memory.
        with Child([sys.executable, ROOT / "benchmarks" / "planning.py"]) as child:
            return float(child.call(job=planned)[figure])

    for size in sizes:
        for figure, unit, limit in [("seconds", "s", 30.0), ("memory", "MiB", 1024.0)]:
            work = f"{size:,} files of {FILE_ROWS:,} rows planned, {figure}"
            yield _limited(
                work, unit, limit, partial(run, size, figure), f"planning, {figure}", size, "files"
            )


def linked(scratch: Path, num_files: int) -> list[str]:
    """The paths of so many links to one file, made once."""
    first = scratch / "linked" / "file.parquet"
    if not first.exists():
        first.parent.mkdir()
        zeros = np.zeros(FILE_ROWS, np.float32)
        pq.write_table(pa.table({"x": zeros, "label": zeros}), first)
    links = [first.with_name(f"{index:06}.parquet") for index in range(num_files)]
    for link in links:
        if not link.is_symlink():
            link.symlink_to(first)
    return [str(link) for link in links]


def _limited(work: str, unit: str, limit: float, run: Contender, curve: str, size: int, x_label: str) -> Case:
    """A case of what is to stay below a limit. One round: it is far from its limit, and takes long."""
    goal = f"{FIXED}at most {limit:g} {unit}"
    return Case(
        suite="scaling",
        work=work,
        unit=unit,
        contenders={"Flambeau": run, goal: lambda: limit},
        goals=[Goal(goal, 1.0)],
        higher_is_better=False,
        rounds=1,
        curve=curve,
        x=size,
        x_label=x_label,
    )


def _axis(
    curve: str,
    work: str,
    unit: str,
    sizes: list[int],
    run: Callable[[int], float],
    constant: bool = False,
) -> Iterator[Case]:
    """A case for each size; `constant` is for a cost that is not to grow at all."""
    for before, size in zip([None, *sizes], sizes, strict=False):
        contenders: dict[str, Contender] = {"Flambeau": partial(run, size)}
        goals = []
        if before is not None:
            factor = 1.0 if constant else size / before
            smaller = f"{ITSELF}{before:,} {'alike' if constant else 'in proportion'}"
            contenders[smaller] = partial(lambda before, factor: factor * run(before), before, factor)
            goals = [Goal(smaller, LINEAR)]
        yield Case(
            suite="scaling",
            work=f"{size:,} {work}",
            unit=unit,
            contenders=contenders,
            goals=goals,
            higher_is_better=False,
            curve=f"cost over {curve}",
            x=size,
            x_label=curve,
        )
