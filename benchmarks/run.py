"""Measures Flambeau beside what people use instead, and writes RESULTS.md and all pictures.

    python benchmarks/run.py [--full] [--rounds N]
    python benchmarks/run.py --only reading,fit     some suites; the page waits for the others
    python benchmarks/run.py --page                 the page anew from results/; measures nothing

Each suite runs in a process of its own and leaves results/SUITE.json. The page is made of results of one
commit and one kind (telling or full, rounds) only.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import page
import pictures
from harness import ROOT, Result, Skipped, measure, peer_versions

SUITES = {
    "fit": (7, 55),
    "training": (14, 45),
    "transform": (10, 30),
    "all_reduce": (8, 20),
    "reading": (4, 12),
    "step_cost": (2, 2),
    "scaling": (6, 15),
    "anatomy": (1, 1),
}
"""What users buy comes before what engines do. About how many minutes each takes on two cores, without and
with `--full`.
"""
SCRATCH = ROOT / "build" / "bench"
VERSIONS = ("torch", "pyspark", "pyarrow", "numpy")
MADE = ("results", "figures", "RESULTS.md", "../docs/performance")
"""What runs write, from here."""


def run_suite(name: str, full: bool, rounds: int | None) -> None:
    """Measures one suite here and writes its results."""
    suite = importlib.import_module(name)
    scratch = SCRATCH / name
    scratch.mkdir(parents=True, exist_ok=True)
    made_at, began = commit(), time.monotonic()
    found = {"microseconds": suite.measured(scratch)} if name == "anatomy" else measured(suite, full, rounds)
    stored = {
        "commit": made_at,
        "full": full,
        "rounds": rounds,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "machine": machine(),
        "peers": {peer: peer_versions(peer) for peer in getattr(suite, "PEERS", ())},
        **found,
    }
    page.RESULTS.mkdir(exist_ok=True)
    (page.RESULTS / f"{name}.json").write_text(json.dumps(stored, indent=1) + "\n")


def measured(suite: Any, full: bool, rounds: int | None) -> dict[str, Any]:
    """What a suite's cases came to."""
    results = []
    for case in suite.cases(full, SCRATCH / suite.__name__):
        if isinstance(case, Skipped):
            result = Result(case.work, "", True, {}, {}, skipped=case.why)
        else:
            result = measure(case, rounds)
        print(page.lines_of(result), flush=True)
        results.append(result)
    title = (suite.__doc__ or suite.__name__).splitlines()[0]
    return {"title": title, "results": [result.to_json() for result in results]}


def commit() -> dict[str, Any]:
    """The commit that is checked out, and whether the tree has more than that and what runs write."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=page.HERE, check=True, capture_output=True, text=True
        ).stdout.strip()

    others = [f":(exclude){path}" for path in MADE]
    return {
        "hash": git("rev-parse", "--short=10", "HEAD"),
        "dirty": bool(git("status", "--porcelain", "--", "..", *others)),
    }


def machine() -> dict[str, Any]:
    """The processor, the memory and the versions that the figures belong to."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    models = [line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": cpuinfo.count("processor\t"),
        "memory": f"{memory_kib / (1 << 20):.0f} GiB",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "versions": {"Python": platform.python_version(), **{name: version(name) for name in VERSIONS}},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(SUITES), metavar="SUITE,..."
    )
    parser.add_argument("--full", action="store_true", help="every size, not the telling few")
    parser.add_argument("--rounds", type=int, help="rounds of each case instead of its own number")
    parser.add_argument("--page", action="store_true", help="only make the page from the results there are")
    parser.add_argument("--inside", choices=SUITES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.only if name not in SUITES]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: the suites are {', '.join(SUITES)}")
    if options.inside:
        run_suite(options.inside, options.full, options.rounds)
        return
    names = [] if options.page else options.only
    minutes = {name: SUITES[name][options.full] for name in names}
    if minutes:
        each = ", ".join(f"{name} {about}" for name, about in minutes.items())
        print(f"About {sum(minutes.values())} minutes with each case's own rounds: {each}", flush=True)
    if minutes and commit()["dirty"]:
        print("The tree has changes that are in no commit: the page will say so.", flush=True)
    failed = []
    for name in names:
        print(f"\n{name}", flush=True)
        command = [sys.executable, __file__, "--inside", name]
        command += ["--full"] if options.full else []
        command += ["--rounds", str(options.rounds)] if options.rounds else []
        if subprocess.run(command).returncode:
            failed.append(name)
    try:
        suites = page.of_one_run({name: page.stored(name) for name in SUITES})
    except page.SeveralRuns as several:
        print(f"\n{several}", flush=True)
        if failed or len(names) in (0, len(SUITES)):
            sys.exit(f"not measured, since they failed: {', '.join(failed)}" if failed else 1)
        return
    page.write(suites)
    pictures.draw()
    if failed:
        sys.exit(f"not measured, since they failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
