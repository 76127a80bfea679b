"""Measures Flambeau beside what people use instead, and writes RESULTS.md and all pictures.

    python benchmarks/run.py [--only reading,fit] [--full] [--rounds N]
    python benchmarks/run.py --page         make the page anew from results/ and measure nothing

Each suite runs in a process of its own and leaves results/SUITE.json; the page is made from all of these.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import page
import pictures
from harness import ROOT, Result, Skipped, measure

SUITES = ("reading", "all_reduce", "training", "step_cost", "fit", "transform", "scaling")
SCRATCH = ROOT / "build" / "bench"
VERSIONS = ("torch", "pyspark", "pyarrow", "numpy")


def run_suite(name: str, full: bool, rounds: int | None) -> None:
    """Measures one suite here and writes its results."""
    suite = importlib.import_module(name)
    scratch = SCRATCH / name
    scratch.mkdir(parents=True, exist_ok=True)
    results = []
    for case in suite.cases(full, scratch):
        if isinstance(case, Skipped):
            result = Result(case.work, "", True, {}, {}, skipped=case.why)
        else:
            result = measure(case, rounds)
        print(page.lines_of(result), flush=True)
        results.append(result)
    found = {
        "title": (suite.__doc__ or name).splitlines()[0],
        "machine": machine(),
        "date": date.today().isoformat(),
        "full": full,
        "results": [result.to_json() for result in results],
    }
    page.RESULTS.mkdir(exist_ok=True)
    (page.RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


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
    failed = []
    for name in [] if options.page else options.only:
        print(f"\n{name}", flush=True)
        command = [sys.executable, __file__, "--inside", name]
        command += ["--full"] if options.full else []
        command += ["--rounds", str(options.rounds)] if options.rounds else []
        if subprocess.run(command).returncode:
            failed.append(name)
    page.write(SUITES)
    pictures.draw()
    if failed:
        sys.exit(f"not measured, since they failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
