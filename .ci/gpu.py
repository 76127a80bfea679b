"""Run the tests that need a GPU, in Rust and in Python, and say what passed and what was skipped, and why.

    python .ci/gpu.py
    python .ci/gpu.py --stand-in

Needs a Python with torch, numpy, pyarrow and pytest, and the native extension in this checkout or installed.
What needs Spark is skipped where there is none, and Rust's tests where there is no Cargo.

With --stand-in two threads of this machine are the GPUs, behind torch's own code for CUDA: the libraries of
build/cuda-stand-in. That shows that things happen in the right order and on the right device, not that a GPU
computes them.
"""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from steps import REPORTS, ROOT, Step, close, junit_tally, run, rust_tally

MARK = re.compile(r"mark\.gpu\b")
STAND_IN = ROOT / "build" / "cuda-stand-in"


def environment(stand_in: bool) -> dict[str, str]:
    """What the tests find their own modules by, and the stand-ins for CUDA and NCCL where they are wanted."""
    paths = [str(ROOT / "python"), str(ROOT / "python" / "tests"), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if not stand_in:
        # On a GPU all of them: it is seldom there.
        variables["FLAMBEAU_LONG"] = "1"
    else:
        variables |= {
            "LD_PRELOAD": str(STAND_IN / "libcuda.so.1"),
            "FLAMBEAU_NCCL": str(STAND_IN / "libnccl.so.2"),
            "FLAMBEAU_TEST_CUDA_DEVICES": "2",
            "FLAMBEAU_TEST_CUDA_LOG": str(REPORTS / "gpu-waits.log"),
        }
    return variables


# Modules of libtorch's tests, which run on every device that is there.
LIBTORCH_TESTS = "buckets:: losses:: metrics:: optimizers:: programs:: scoring:: training::"


def rust(name: str, variables: Mapping[str, str]) -> Step:
    """The tests that are named for CUDA or a GPU, and, in a long run, libtorch's. Of the whole workspace, as
    elsewhere: Cargo would compile a part of it anew.
    """
    names = f"cuda gpu {LIBTORCH_TESTS}" if variables.get("FLAMBEAU_LONG") == "1" else "cuda gpu"
    cargo = f"cargo test --release --locked --workspace --no-fail-fast -- {names} --show-output"
    return Step(name, cargo.split(), environment=variables, count=rust_tally)


def python(name: str, report: Path, variables: Mapping[str, str]) -> Step:
    """Those with the mark `gpu`. Other files are not opened: they may import what is not here."""
    report.unlink(missing_ok=True)
    tests = [*(ROOT / "python" / "tests").glob("test_*.py"), *(ROOT / "tests").glob("test_*.py")]
    marked = [str(path) for path in sorted(tests) if MARK.search(path.read_text())]
    options = ["-c", "python/pyproject.toml", "-m", "gpu", "-ra", "--durations=10", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", *options, *marked]
    return Step(name, command, environment=variables, count=lambda _: junit_tally([report]))


def steps(stand_in: bool) -> list[Step]:
    """Both; Rust's only where there is a Cargo."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    variables = environment(stand_in)
    suffix = ", with a stand-in for CUDA" if stand_in else " on a GPU"
    report = REPORTS / ("gpu-stand-in.xml" if stand_in else "gpu.xml")
    tests = [python(f"pytest{suffix}", report, variables)]
    if shutil.which("cargo") is None:
        print("SKIPPED the Rust tests: there is no Cargo")
        return tests
    return [rust(f"cargo test{suffix}", variables), *tests]


def main() -> int:
    """Run them and print the total; 0 only if nothing failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stand-in", action="store_true", help="with threads in the place of GPUs")
    return close([run(step) for step in steps(parser.parse_args().stand_in)])


if __name__ == "__main__":
    sys.exit(main())
