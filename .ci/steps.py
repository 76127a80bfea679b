"""What the checks are made of: commands whose output is shown as it comes, and counts of tests."""

import os
import re
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "test"
EXPECTED_SKIPS = Path(__file__).resolve().parent / "expected-skips.txt"
# The longest that one step may take, in seconds, compiling included: on a machine that is slow for an hour, a
# run shall still tell what failed. A step that is stopped reports what it counted.
STEP_SECONDS = 3000
# What the end of a run tells of why a test failed; all of it stands with its step.
MESSAGE_CHARACTERS = 600
_PRINTING = threading.Lock()


@dataclass
class Tally:
    """What the tests of one step came to."""

    passed: int = 0
    failed: int = 0
    skips: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def no_tests(output: str) -> Tally:
    """The count of a step that is no test: it fails or it does not."""
    return Tally()


@dataclass(frozen=True)
class Step:
    """A command, and how what it counted is read from its output."""

    name: str
    command: Sequence[str]
    cwd: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    count: Callable[[str], Tally] = no_tests
    # Whether its tests ran before, under other conditions: its failures count, its passes are told apart.
    repeats: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a step."""

    step: Step
    tally: Tally
    seconds: float


def run(step: Step, mark: str = "") -> Outcome:
    """Run a step and show its output as it comes, each line behind `mark`.

    After `STEP_SECONDS` it is interrupted as by Ctrl-C, at which test runners write their reports, and killed
    a minute later. A step that ends badly without a failed test (it did not compile, it crashed) is one
    failure by itself.
    """
    _show(f"\n{mark}== {step.name}\n")
    started = time.monotonic()
    process = subprocess.Popen(
        ["timeout", "--signal=INT", "--kill-after=60", str(STEP_SECONDS), *step.command],
        cwd=step.cwd,
        env=step.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            _show(mark + line)
            lines.append(line)

    # A JVM that a test left behind may hold the pipe open for longer than the command itself lives.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    status = process.wait()
    reader.join(timeout=10)
    seconds = time.monotonic() - started
    tally = step.count("".join(lines))
    if status != 0 and tally.failed == 0:
        tally.failed = 1
        tally.failures.append(f"{step.name} ended with status {status}")
    _show(f"{mark}== {step.name}: {tally.passed} passed, {tally.failed} failed in {seconds:.0f} s\n")
    return Outcome(step, tally, seconds)


def side_by_side(lanes: Mapping[str, Sequence[Step]], until_failure: bool = False) -> list[Outcome]:
    """Run each lane's steps in order, the lanes at the same time; with `until_failure`, no step begins after
    one has failed. Lines begin with their lane's name.
    """
    outcomes: dict[str, list[Outcome]] = {name: [] for name in lanes}

    def follow(name: str) -> None:
        for step in lanes[name]:
            if until_failure and any(one.tally.failed for done in outcomes.values() for one in done):
                return
            outcomes[name].append(run(step, f"{name} | "))

    threads = [threading.Thread(target=follow, args=(name,)) for name in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcome for name in lanes for outcome in outcomes[name]]


def _show(text: str) -> None:
    with _PRINTING:
        sys.stdout.write(text)
        sys.stdout.flush()


def rust_tally(output: str) -> Tally:
    """Count from libtest's lines, one a test, so that a run that was stopped counts too.

    libtest knows no skip at run time: a test that lacks what it needs prints `SKIPPED: reason` and returns;
    it counts here as skipped. One that did a part of its work prints `SKIPPED on a GPU: reason`, and counts
    as passed and skipped.
    """
    tally = Tally()
    for name, result in re.findall(r"^test (.+?)(?: - .*)? \.\.\. (ok|FAILED|ignored)", output, re.MULTILINE):
        if result == "ok":
            tally.passed += 1
        elif result == "FAILED":
            tally.failed += 1
            tally.failures.append(name)
        else:
            tally.skips.append(f"{name}: an ignored Rust test")
    # With --show-output each test that printed has one section of its own.
    for name, section in re.findall(
        r"^---- (\S+) stdout ----\n(.*?)(?=^----|^successes:|^failures:|\Z)", output, re.MULTILINE | re.DOTALL
    ):
        for part, reason in re.findall(r"^SKIPPED( on [^:]*)?: (.*)$", section, re.MULTILINE):
            tally.passed -= not part
            tally.skips.append(f"{name}{part}: {reason.strip()}")
    return tally


def junit_tally(reports: Iterable[Path]) -> Tally:
    """Count from JUnit reports, as pytest and ScalaTest write them. A missing one counts nothing."""
    tally = Tally()
    written = (report for report in reports if report.exists())
    for case in (case for report in written for case in ElementTree.parse(report).iter("testcase")):
        name = f"{case.get('classname')}::{case.get('name')}"
        skipped = case.find("skipped")
        failure = next((found for kind in ("failure", "error") for found in case.iter(kind)), None)
        if failure is not None:
            tally.failed += 1
            tally.failures.append(f"{name}: {failure.get('message', '')[:MESSAGE_CHARACTERS]}")
        elif skipped is not None:
            tally.skips.append(f"{name}: {skipped.get('message', 'cancelled or ignored')}")
        else:
            tally.passed += 1
    return tally


def unexpected(skips: Iterable[str]) -> list[str]:
    """Those that no line of `expected-skips.txt`, a regular expression each, names."""
    lines = (line.strip() for line in EXPECTED_SKIPS.read_text().splitlines())
    patterns = [re.compile(line) for line in lines if line and not line.startswith("#")]
    return [skip for skip in skips if not any(pattern.search(skip) for pattern in patterns)]


def close(outcomes: Sequence[Outcome]) -> int:
    """Print what was skipped, what failed, the time of each step and the total; 0 only if nothing failed."""
    skips = [skip for outcome in outcomes for skip in outcome.tally.skips]
    failures = [failure for outcome in outcomes for failure in outcome.tally.failures]
    failures += [f"an unexpected skip: {skip}" for skip in unexpected(skips)]
    print()
    for skip in skips:
        print(f"SKIPPED {skip}")
    print(f"\n{'step':40} {'seconds':>7} {'passed':>7} {'failed':>7} {'skipped':>7}")
    for outcome in outcomes:
        tally = outcome.tally
        counts = f"{tally.passed:7} {tally.failed:7} {len(tally.skips):7}"
        print(f"{outcome.step.name:40} {outcome.seconds:7.0f} {counts}")
    repeated = sum(outcome.tally.passed for outcome in outcomes if outcome.step.repeats)
    if repeated:
        print(f"of which run another time: {repeated} tests")
    for failure in failures:
        print(f"FAILED {failure}")
    passed = sum(outcome.tally.passed for outcome in outcomes) - repeated
    closing = f"{passed} passed, {len(failures)} failed"
    print(closing + (f", {len(skips)} skipped" if skips else ""), flush=True)
    return 1 if failures else 0
