"""Training on GPUs, without Spark: Flambeau beside DistributedDataParallel on NCCL, and what must hold there.

    python benchmarks/gpu.py [--rounds N] [--page PATH]

One process a rank. Where there is a GPU it measures and writes GPU.md; elsewhere it says what it skipped. A
check that fails makes it end with status 1.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import page
from gpu_ranks import Ranks, Work, rows_per_second, whole
from harness import ROOT, Case, Contender, Goal, Result, measure

sys.path.insert(0, str(ROOT / "python"))

OURS = "Flambeau"
LOADER = "DDP on NCCL, DataLoader"
SLICES = "DDP on NCCL, slices of pinned memory"
LIMIT = "limit: DDP on NCCL, batches on the GPU already"
FEEDS = {LOADER: "loader", SLICES: "slices", LIMIT: "device"}
PARTS = ("rows a second", "the share of the time that the GPU waits", "the host's time for a step", "parity")
SEVERAL = "the same over several GPUs"
TWO_ON_ONE = "two ranks on one GPU: parity with gloo, and a killed rank"
PARITY = 1e-5
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
SHARED_SINCE = (2, 30)
DEATH_SECONDS = 10.0
INTRODUCTION = """# Results on GPUs

Made by `make bench-gpu`; [README.md](README.md) says what it does. In each round every contender does the
work once, in turn. A figure is the median of the rounds, with the least and the most in brackets; *times* is
how many times as fast Flambeau was, the median of the rounds' own ratios.
"""


WORKS = [
    Work("mlp", "MLP 64-1024-1024-1, batch 4096", 524_288, 4096, 5),
    Work("cnn", "CNN on 32 x 32 images, batch 512", 20_480, 512, 3, "uint8", 3072, "int64"),
    Work("transformer", "4-layer transformer on 128 tokens, batch 128", 8_192, 128, 3, "int64", 128, "int64"),
]
TINY = Work("tiny", "MLP 64-8-8-1, batch 64", 128_000, 64, 3)


@dataclass(frozen=True)
class Check:
    """What was found, beside what must hold; `is_met` is None for what is only told."""

    what: str
    found: str
    is_met: bool | None = None


@dataclass
class Report:
    """All that a run came to."""

    results: list[Result] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)

    def case(self, case: Case, rounds: int) -> None:
        """Measures it and shows what came out."""
        self.results.append(measure(case, rounds))
        print(page.lines_of(self.results[-1]), flush=True)

    def check(self, check: Check) -> None:
        """Shows and keeps it."""
        self.checks.append(check)
        print(f"  {check.what}: {check.found} {_verdict(check)}", flush=True)

    def skip(self, what: str, why: str) -> None:
        """Says what is left out."""
        self.skips.append(f"{what}: {why}")
        print(f"  SKIPPED {what}: {why}", flush=True)


# What is measured.


def throughput(ours: Ranks, theirs: Ranks, rounds: int, report: Report) -> None:
    """Rows a second inside the loop, in the epochs after the first."""

    def speed(run: Callable[[], Sequence[dict[str, Any]]]) -> float:
        return rows_per_second(run())

    for work in WORKS:
        contenders: dict[str, Contender] = {OURS: partial(speed, partial(ours.flambeau, work))}
        for name, feed in FEEDS.items():
            contenders[name] = partial(speed, partial(theirs.ddp, work, feed))
        text = f"{work.text}, {_count(ours.num_ranks, 'GPU')}"
        goals = [Goal(SLICES, 1.0), Goal(LIMIT, 0.98)]
        report.case(Case("gpu", text, "rows/s", contenders, goals), rounds)


def waiting(ours: Ranks, theirs: Ranks, report: Report) -> None:
    """The share of the time between an optimizer's step and the next forward, where the GPU does nothing."""
    for work in WORKS:
        answers = {
            OURS: ours.flambeau(work, loop={"watched": True}),
            SLICES: theirs.ddp(work, "slices", watched=True),
            LIMIT: theirs.ddp(work, "device", watched=True),
        }
        shares = [f"{name}: {whole(answer)[0]['waits']:.2%}" for name, answer in answers.items()]
        what = f"time that the GPU waits for batches or the host, {work.text}, {_of(ours)}"
        report.check(Check(what, "; ".join(shares)))


def host(ours: Ranks, theirs: Ranks, rounds: int, report: Report) -> None:
    """What a step takes where the GPU has next to nothing to do."""

    def microseconds(run: Callable[[], Sequence[dict[str, Any]]]) -> Contender:
        return lambda: 1e6 * TINY.batch_size * ours.num_ranks / rows_per_second(run())

    contenders = {
        OURS: microseconds(lambda: ours.flambeau(TINY)),
        SLICES: microseconds(lambda: theirs.ddp(TINY, "slices")),
        LIMIT: microseconds(lambda: theirs.ddp(TINY, "device")),
    }
    text = f"the host's time for a step, {TINY.text}, {_of(ours)}"
    goals = [Goal(SLICES, 1.0)]
    report.case(Case("gpu", text, "µs/step", contenders, goals, higher_is_better=False), rounds)


def parity(ours: Ranks, theirs: Ranks, scratch: Path, report: Report, **ddp: Any) -> None:
    """The weights after up to 40 steps of gradient descent with momentum, on the same batches in float32."""
    import torch
    from safetensors.torch import load_file

    backend = ddp.get("backend", "nccl")
    for work in WORKS:
        num_rows = min(40 * work.batch_size * ours.num_ranks, work.num_rows)
        short = replace(work, num_rows=num_rows, epochs=1)
        path = scratch / f"{work.model}-{backend}-{ours.num_ranks}.pt"
        whole(theirs.ddp(short, "device", "momentum", weights=str(path), **ddp))
        uri = whole(ours.flambeau(short, "momentum", shuffle=False))[0]["weights"]
        weights, expected = load_file(uri.removeprefix("file://")), torch.load(path, map_location="cpu")
        most = max(float((weights[name] - value).abs().max()) for name, value in expected.items())
        what = f"largest difference of a weight from DDP's on {backend}, {work.text}, {_of(ours)}"
        report.check(Check(what, f"{most:.2g}", most <= PARITY))


def death(scratch: Path, report: Report) -> None:
    """How soon a rank learns that the other was killed."""
    died = scratch / "died"
    with Ranks.started(2, scratch, False, **SHARED) as ranks:
        loop = {"dies_at": 500, "died": str(died)}
        survivor, dead = ranks.flambeau(replace(TINY, epochs=50), loop=loop)
    what = "a killed rank is noticed by the other, two ranks on one GPU"
    if "ended" not in dead or "error" not in survivor:
        report.check(Check(what, f"no: {survivor} {dead}", False))
        return
    seconds = survivor["at"] - float(died.read_text())
    is_met = survivor["kind"] == "collective" and seconds < DEATH_SECONDS
    report.check(Check(what, f"after {seconds:.1f} s: {survivor['error'].splitlines()[0]}", is_met))


def why_not_shared() -> str:
    """What keeps two ranks from sharing a GPU; empty where nothing does."""
    from flambeau import _native

    if not os.environ.get("FLAMBEAU_NCCL"):
        return "FLAMBEAU_NCCL names no NCCL of 2.30 or newer"
    version, _ = _native.nccl_meeting([], 0, 1, lambda payload: [payload], b"bench", "127.0.0.1")
    if tuple(int(part) for part in version.split(".")[:2]) < SHARED_SINCE:
        return f"FLAMBEAU_NCCL is NCCL {version}, and ranks share a GPU since 2.30"
    return ""


def on_each_its_gpu(num_ranks: int, rounds: int, scratch: Path, report: Report) -> None:
    """All that a rank on each GPU shows."""
    print(f"\n{_count(num_ranks, 'rank')}, a GPU each", flush=True)
    with Ranks.started(num_ranks, scratch) as ours, Ranks.started(num_ranks, scratch) as theirs:
        throughput(ours, theirs, rounds, report)
        waiting(ours, theirs, report)
        host(ours, theirs, rounds, report)
    with (
        Ranks.started(num_ranks, scratch, deterministic=True) as ours,
        Ranks.started(num_ranks, scratch, deterministic=True) as theirs,
    ):
        parity(ours, theirs, scratch, report)


def on_one_gpu(scratch: Path, report: Report) -> None:
    """What two ranks on one GPU show."""
    print("\ntwo ranks on one GPU", flush=True)
    with (
        Ranks.started(2, scratch, deterministic=True, **SHARED) as ours,
        Ranks.started(2, scratch, deterministic=True) as theirs,
    ):
        parity(ours, theirs, scratch, report, backend="gloo", devices=[0, 0])
    death(scratch, report)


def run(num_gpus: int, rounds: int, report: Report) -> None:
    """All that the machine allows."""
    with tempfile.TemporaryDirectory(prefix="flambeau-bench-") as folder:
        scratch = Path(folder)
        on_each_its_gpu(1, rounds, scratch, report)
        if num_gpus > 1:
            on_each_its_gpu(num_gpus, rounds, scratch, report)
        else:
            report.skip(SEVERAL, "there is one GPU")
        why = why_not_shared()
        if why:
            report.skip(TWO_ON_ONE, why)
        else:
            on_one_gpu(scratch, report)


# The page.


def about() -> str:
    """The machine and the versions that the figures belong to."""
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    told = subprocess.run(query, capture_output=True, text=True).stdout if shutil.which(query[0]) else ""
    driver = told.strip().partition("\n")[0] or "unknown"
    num_gpus, nccl = torch.cuda.device_count(), ".".join(map(str, torch.cuda.nccl.version()))
    return ", ".join(
        [
            f"{date.today().isoformat()}: {num_gpus} x {torch.cuda.get_device_name(0)}",
            f"driver {driver}",
            f"torch {torch.__version__} for CUDA {torch.version.cuda} with NCCL {nccl}",
            f"FLAMBEAU_NCCL {os.environ.get('FLAMBEAU_NCCL', 'not set')}",
            f"Python {platform.python_version()}",
            f"{os.cpu_count()} cores",
            f"{platform.system()} {platform.release()}.",
        ]
    )


def write_page(path: Path, report: Report) -> None:
    """Writes what the run came to."""
    lines = [
        INTRODUCTION,
        about(),
        "",
        *page.table(report.results),
        "",
        "| what | found | |",
        "|---|---|---|",
        *(f"| {check.what} | {check.found} | {_verdict(check)} |" for check in report.checks),
        "",
        *(f"- Skipped: {skip}." for skip in report.skips),
    ]
    path.write_text("\n".join(lines).rstrip() + "\n")


def _verdict(check: Check) -> str:
    return {None: "", True: "met", False: "**missed**"}[check.is_met]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _of(ranks: Ranks) -> str:
    return _count(ranks.num_ranks, "rank")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each case")
    parser.add_argument(
        "--page", type=Path, default=Path(__file__).with_name("GPU.md"), help="where to write"
    )
    options = parser.parse_args()
    from flambeau._score.placement import visible

    found, report = visible(), Report()
    if found.uuids:
        run(len(found.uuids), options.rounds, report)
        write_page(options.page, report)
    else:
        for what in (*PARTS, SEVERAL, TWO_ON_ONE):
            report.skip(what, found.reason)
    num_failed = sum(check.is_met is False for check in report.checks)
    num_measured = len(report.results) + len(report.checks)
    print(f"\n{num_measured} measured, {num_failed} failed, {len(report.skips)} skipped", flush=True)
    if num_failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
