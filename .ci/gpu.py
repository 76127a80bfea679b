"""Run the tests that need a GPU, in Rust and in Python, and say what passed and what was skipped, and why.

    python .ci/gpu.py

Needs a Python with torch, numpy, pyarrow and pytest, and the native extension in this checkout or installed.
What needs Spark is skipped where there is none, and Rust's tests where there is no Cargo.
"""

import os
import re
import shutil
import sys

from check import (
    PYTHON_SECONDS,
    REPORTS,
    ROOT,
    RUST_SECONDS,
    Tally,
    junit_tally,
    run,
    rust_tally,
    settle,
    timed,
)

MARK = re.compile(r"mark\.gpu\b")


def rust() -> Tally:
    """The tests that are named for CUDA or a GPU."""
    if shutil.which("cargo") is None:
        return Tally(skips=["the Rust tests: there is no Cargo"])
    crates = "-p flambeau-collective -p flambeau-train -p flambeau-torch"
    cargo = f"cargo test --release --locked {crates} -- cuda gpu --show-output"
    status, output = run("cargo test", [*timed(RUST_SECONDS), *cargo.split()], ROOT)
    return settle(rust_tally(output), "cargo test", status)


def python() -> Tally:
    """Those with the mark `gpu`. Other files are not opened: they may import what is not here."""
    report = REPORTS / "gpu.xml"
    report.unlink(missing_ok=True)
    tests = [*(ROOT / "python" / "tests").glob("test_*.py"), *(ROOT / "tests").glob("test_*.py")]
    marked = [str(path) for path in sorted(tests) if MARK.search(path.read_text())]
    options = ["-c", "python/pyproject.toml", "-m", "gpu", "-ra", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", *options, *marked]
    status, _ = run("pytest", [*timed(PYTHON_SECONDS), *command], ROOT)
    return settle(junit_tally([report] if report.exists() else []), "pytest", status)


def main() -> int:
    """Run both and print the total; 0 only if nothing failed."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT / "python"), str(ROOT / "python" / "tests"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    tallies = [rust(), python()]
    print()
    for skip in (skip for tally in tallies for skip in tally.skips):
        print(f"SKIPPED {skip}")
    for failure in (failure for tally in tallies for failure in tally.failures):
        print(f"FAILED {failure}")
    passed, failed, skipped = (
        sum(count) for count in zip(*((t.passed, t.failed, len(t.skips)) for t in tallies), strict=True)
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
