"""Run every lint, build everything, run every test, and add up what passed.

Lints come first, the builds behind those of their language, and what fails ends the run. After that each step
runs whatever the others did, so that one run shows all that is wrong. Tests wait more than they compute, so
those of several languages run at the same time. The closing line counts Rust's, Scala's and Python's tests
together.
"""

import argparse
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import gpu
from steps import REPORTS, ROOT, Step, close, junit_tally, run, rust_tally, side_by_side

BIN = Path(sys.executable).parent
PYTHON = ROOT / "python"
GRADLE = ["gradle", "--no-daemon", "--quiet", "--console=plain"]
LINTED = ["python", "tests", "examples", "benchmarks", "notebooks", "docs/conf.py", "deploy", ".ci"]
SHELL = [
    ".ci/run",
    ".ci/with-tools",
    "benchmarks/peers/horovod.sh",
    "deploy/databricks/src/libtorch.sh",
    "examples/retrain/retrain.sh",
]
# Processes for Python's tests. Three keep two cores busy: each waits for Spark, or for ranks, most of the
# time.
PYTEST_PROCESSES = 3
# JVMs that live for a minute compile with one compiler and collect with one thread: 31 s of CPU and not
# 54 s, for the two sessions of a case of python/tests/test_transform.py.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CLASSES = ROOT / "build" / "spark.jsa"
CARGO_DENY = ROOT / "build" / "cargo-deny" / "bin" / "cargo-deny"
IS_LONG = os.environ.get("FLAMBEAU_LONG") == "1"
CARGO_TEST = "cargo test --release --locked --workspace --no-fail-fast"


def quick_lints() -> list[Step]:
    """Those that take seconds."""
    linted = [f"../{name}" for name in LINTED if (ROOT / name).exists()]
    lints = [
        Step("cargo fmt", ["cargo", "fmt", "--check"]),
        Step("ruff check", [str(BIN / "ruff"), "check", *linted], PYTHON),
        Step("ruff format", [str(BIN / "ruff"), "format", "--check", *linted], PYTHON),
        Step("import-linter", [str(BIN / "lint-imports"), "--no-cache"], PYTHON),
        Step("uv.lock", [str(BIN / "uv"), "lock", "--check", "--quiet"], PYTHON),
        Step("params", [sys.executable, ".ci/params.py", "--check"]),
        Step("layers", [sys.executable, ".ci/layers.py"]),
        Step("shellcheck", [str(BIN / "shellcheck"), *SHELL]),
    ]
    if IS_LONG:
        # It takes minutes to install, which `make test-all` does.
        lints.append(Step("cargo deny", [str(CARGO_DENY), "check", "licenses", "bans", "sources"]))
    return lints


def slow_lints() -> dict[str, list[Step]]:
    """Those of each language that take longer, in lanes of their own: Clippy waits for a compiler of C++ that
    has one file.
    """
    return {
        "native": rust_lints(),
        "jvm": [Step("scalafmt", [*GRADLE, "checkFormat"])],
        "python": [
            Step("mypy", [str(BIN / "mypy")], PYTHON),
            # Apart: some of its files share their names with others.
            Step("mypy benchmarks", [str(BIN / "mypy"), "../benchmarks"], PYTHON),
        ],
    }


def rust_lints() -> list[Step]:
    """Those that type-check all crates and what they depend on, which the second finds done."""
    clippy = "cargo clippy --release --locked --workspace --all-targets -- -D warnings"
    steps = [Step("cargo clippy", clippy.split())]
    if IS_LONG:
        # With private items: who reads these pages works on the crates, and pages link to what is private.
        doc = "cargo doc --release --locked --workspace --no-deps --document-private-items"
        warnings = {**os.environ, "RUSTDOCFLAGS": "-D warnings"}
        steps.append(Step("cargo doc", doc.split(), environment=warnings))
    return steps


def builds() -> dict[str, list[Step]]:
    """What the tests run, each kind in a lane of its own."""
    make = ["make", "--no-print-directory"]
    return {
        "native": [
            Step("make natives", [*make, "natives"]),
            Step("make stand-in", [*make, "stand-in"]),
            Step("compile Rust's tests", [*CARGO_TEST.split(), "--no-run"]),
        ],
        "jvm": [
            Step("compile Scala", [*GRADLE, "compileAll", "-x", "natives"]),
            Step("jars for tests", [*GRADLE, "tables", *(["hadoop"] if IS_LONG else [])]),
            Step("archive classes", [sys.executable, ".ci/archive_classes.py", str(CLASSES)]),
        ],
    }


def tests() -> dict[str, list[Step]]:
    """The tests, in two lanes; what the stand-ins for CUDA and NCCL repeat goes into the shorter one."""
    scala = REPORTS / "jvm"
    shutil.rmtree(scala, ignore_errors=True)
    report = REPORTS / "python.xml"
    report.unlink(missing_ok=True)
    java = f"{os.environ['JDK_JAVA_OPTIONS']} -XX:SharedArchiveFile={CLASSES}"
    pytest = [str(BIN / "python"), "-m", "pytest", "-ra", "--durations=25", f"--junitxml={report}"]
    spread = ["-n", str(PYTEST_PROCESSES), "--dist", "loadfile", "--no-loadscope-reorder"]
    return {
        "rust, jvm": [
            Step("cargo test", [*CARGO_TEST.split(), "--", "--show-output"], count=rust_tally),
            Step(
                "ScalaTest",
                [*GRADLE, "test", "-x", "natives"],
                count=lambda _: junit_tally(scala.rglob("*.xml")),
            ),
            *(replace(step, repeats=True) for step in gpu.steps(stand_in=True)),
        ],
        "python": [
            Step(
                "pytest",
                [*pytest, *spread],
                PYTHON,
                environment={**os.environ, "JDK_JAVA_OPTIONS": java},
                count=lambda _: junit_tally([report]),
            )
        ],
    }


def main() -> int:
    """Run the steps and print the total; 0 only if nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lint", action="store_true", help="only the lints")
    options = parser.parse_args()
    REPORTS.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA)
    if IS_LONG:
        # Four times proptest's own number, for properties that do not say theirs; some start ranks each time.
        os.environ.setdefault("PROPTEST_CASES", "1024")

    outcomes = [run(step) for step in quick_lints()]
    if any(outcome.tally.failed for outcome in outcomes):
        return close(outcomes)
    lanes = slow_lints()
    if not options.lint:
        lanes = {name: steps + builds().get(name, []) for name, steps in lanes.items()}
    outcomes += side_by_side(lanes, until_failure=True)
    if options.lint or any(outcome.tally.failed for outcome in outcomes):
        return close(outcomes)
    outcomes.append(run(Step("make jvm", ["make", "--no-print-directory", "jvm"])))
    outcomes += side_by_side(tests())
    return close(outcomes)


if __name__ == "__main__":
    sys.exit(main())
