"""Run every lint and every test, and add up what passed.

Each step runs whatever the earlier ones did, so that one run shows all that is wrong. The closing line counts
Rust's, Scala's and Python's tests together. A lint that fails, or a step that ends badly without naming a
failed test, counts as one failure.
"""

import argparse
import shutil
import sys
from pathlib import Path

import gpu
from steps import (
    PYTHON_SECONDS,
    REPORTS,
    ROOT,
    RUST_SECONDS,
    SCALA_SECONDS,
    Tally,
    close,
    junit_tally,
    run,
    rust_tally,
    settle,
    timed,
)

BIN = Path(sys.executable).parent
GRADLE = ["gradle", "--no-daemon", "--quiet", "--console=plain"]
LINTED = ["python", "tests", "examples", "benchmarks", "notebooks", ".ci"]


def lints() -> list[tuple[str, list[str], Path]]:
    """Name, command and directory of each lint."""
    linted = [f"../{name}" for name in LINTED if (ROOT / name).is_dir()]
    python = ROOT / "python"
    clippy = "cargo clippy --release --locked --workspace --all-targets -- -D warnings"
    return [
        ("cargo fmt", ["cargo", "fmt", "--check"], ROOT),
        ("cargo clippy", clippy.split(), ROOT),
        ("scalafmt", [*GRADLE, "checkFormat"], ROOT),
        ("ruff check", [str(BIN / "ruff"), "check", *linted], python),
        ("ruff format", [str(BIN / "ruff"), "format", "--check", *linted], python),
        ("mypy", [str(BIN / "mypy")], python),
        ("uv.lock", [str(BIN / "uv"), "lock", "--check", "--quiet"], python),
    ]


def main() -> int:
    """Run the steps and print the total; 0 only if nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lint", action="store_true", help="only the lints")
    options = parser.parse_args()
    REPORTS.mkdir(parents=True, exist_ok=True)

    tallies: list[Tally] = []
    for name, command, cwd in lints():
        status, _ = run(name, command, cwd)
        tallies.append(settle(Tally(), name, status))
    if not options.lint:
        cargo = "cargo test --release --locked --workspace --no-fail-fast -- --show-output"
        status, output = run("cargo test", [*timed(RUST_SECONDS), *cargo.split()], ROOT)
        tallies.append(settle(rust_tally(output), "cargo test", status))

        scala = REPORTS / "jvm"
        shutil.rmtree(scala, ignore_errors=True)
        status, _ = run("ScalaTest", [*timed(SCALA_SECONDS), *GRADLE, "test"], ROOT)
        tallies.append(settle(junit_tally(scala.rglob("*.xml")), "ScalaTest", status))

        python = REPORTS / "python.xml"
        python.unlink(missing_ok=True)
        pytest = [str(BIN / "python"), "-m", "pytest", "-ra", f"--junitxml={python}"]
        status, _ = run("pytest", [*timed(PYTHON_SECONDS), *pytest], ROOT / "python")
        # It writes its report at the end; there is none where it was stopped.
        tallies.append(settle(junit_tally([python] if python.exists() else []), "pytest", status))

        tallies += gpu.tallies(stand_in=True)

    return close(tallies)


if __name__ == "__main__":
    sys.exit(main())
