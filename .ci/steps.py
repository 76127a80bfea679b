"""What the checks are made of: commands whose output is shown as it comes, and counts of tests."""

import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "test"
# The longest that the tests of one language may take, in seconds, compiling them included.
RUST_SECONDS = 1500
SCALA_SECONDS = 1500
PYTHON_SECONDS = 3000


@dataclass
class Tally:
    """What the tests of one step came to."""

    passed: int = 0
    failed: int = 0
    skips: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def timed(seconds: int) -> list[str]:
    """What to put before a command so that it ends after so many seconds at the latest."""
    return ["timeout", "--kill-after=30", str(seconds)]


def run(
    name: str, command: list[str], cwd: Path, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command, showing its output as it comes; its exit status and the output as text."""
    print(f"\n== {name}", flush=True)
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines: list[str] = []

    def show() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)

    # A JVM that a test left behind may hold the pipe open for longer than the command itself lives.
    reader = threading.Thread(target=show, daemon=True)
    reader.start()
    status = process.wait()
    reader.join(timeout=10)
    return status, "".join(lines)


def rust_tally(output: str) -> Tally:
    """Count from cargo's `test result:` lines.

    libtest knows no skip at run time: a test that lacks what it needs prints `SKIPPED: reason` and returns;
    it counts here as skipped.
    """
    tally = Tally()
    for passed, failed, ignored in re.findall(
        r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", output, re.MULTILINE
    ):
        tally.passed += int(passed)
        tally.failed += int(failed)
        tally.skips += ["an ignored Rust test"] * int(ignored)
    # With --show-output each test that printed has one section of its own.
    for name, section in re.findall(
        r"^---- (\S+) stdout ----\n(.*?)(?=^----|^successes:|^failures:|\Z)", output, re.MULTILINE | re.DOTALL
    ):
        reason = re.search(r"^SKIPPED: (.*)$", section, re.MULTILINE)
        if reason:
            tally.passed -= 1
            tally.skips.append(f"{name}: {reason[1].strip()}")
    tally.failures = re.findall(r"^test (\S+) \.\.\. FAILED$", output, re.MULTILINE)
    return tally


def junit_tally(reports: Iterable[Path]) -> Tally:
    """Count from JUnit reports, as pytest and ScalaTest write them."""
    tally = Tally()
    for case in (case for report in reports for case in ElementTree.parse(report).iter("testcase")):
        name = f"{case.get('classname')}::{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            tally.failed += 1
            tally.failures.append(name)
        elif skipped is not None:
            tally.skips.append(f"{name}: {skipped.get('message', 'cancelled or ignored')}")
        else:
            tally.passed += 1
    return tally


def settle(tally: Tally, name: str, status: int) -> Tally:
    """A step that failed without a failed test (it did not compile, it crashed) is one failure by itself."""
    if status != 0 and tally.failed == 0:
        tally.failed += 1
        tally.failures.append(f"{name} ended with status {status}")
    return tally


def close(tallies: Iterable[Tally]) -> int:
    """Print what was skipped, what failed, and the total; 0 only if nothing failed."""
    tallies = list(tallies)
    passed, failed = sum(tally.passed for tally in tallies), sum(tally.failed for tally in tallies)
    skips = [skip for tally in tallies for skip in tally.skips]
    print()
    for skip in skips:
        print(f"SKIPPED {skip}")
    for tally in tallies:
        for failure in tally.failures:
            print(f"FAILED {failure}")
    closing = f"{passed} passed, {failed} failed"
    print(closing + (f", {len(skips)} skipped" if skips else ""), flush=True)
    return 1 if failed else 0
