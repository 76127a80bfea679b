"""What every suite measures with: contenders that take turns, medians, and ratios taken pair by pair.

A machine's speed drifts, so two figures are comparable only where they were taken side by side: each round
runs every contender of a case once, in turn, and a ratio is the median of the rounds' own ratios.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "build" / "peers"

LIMIT, FIXED, ITSELF = "limit: ", "goal: ", "itself: "
"""How contenders are called that are no peer: the same work with nothing round it, a figure that was set, and
Flambeau at another size.
"""

ANSWER_SECONDS = 900
"""How long a `Child` may take over one request."""

Contender = Callable[[], float]
"""Does the work once and returns its figure, in the case's unit."""


@dataclass(frozen=True)
class Goal:
    """Flambeau is to be at least `at_least` times as fast as the contender `against`."""

    against: str
    at_least: float


@dataclass(frozen=True)
class Case:
    """One piece of work, done by several contenders, of which the first is Flambeau.

    Cases of one `curve` are drawn together, over their `x`.
    """

    suite: str
    work: str
    unit: str
    contenders: Mapping[str, Contender]
    goals: Sequence[Goal] = ()
    higher_is_better: bool = True
    rounds: int = 5
    curve: str | None = None
    x: float | None = None
    x_label: str = ""
    note: str = ""


@dataclass(frozen=True)
class Skipped:
    """A piece of work that this machine cannot do, and what it lacks."""

    suite: str
    work: str
    why: str


@dataclass
class Result:
    """What a case came to: each contender's figures, in the order of the rounds."""

    work: str
    unit: str
    higher_is_better: bool
    figures: dict[str, list[float]]
    goals: dict[str, float]
    curve: str | None = None
    x: float | None = None
    x_label: str = ""
    note: str = ""
    date: str = ""
    """When it was measured, as YYYY-MM-DD."""
    skipped: str = ""
    """Why nothing was measured, where that is so."""
    ours: str = field(init=False)

    def __post_init__(self) -> None:
        self.ours = next(iter(self.figures), "")

    def median(self, name: str) -> float:
        """The median of a contender's figures."""
        return statistics.median(self.figures[name])

    def ratios(self, name: str) -> list[float]:
        """How many times as fast Flambeau was as `name`, round by round."""
        pairs = zip(self.figures[self.ours], self.figures[name], strict=True)
        return [mine / theirs if self.higher_is_better else theirs / mine for mine, theirs in pairs]

    def ratio(self, name: str) -> float:
        """The median of `ratios`."""
        return statistics.median(self.ratios(name))

    def is_met(self, against: str) -> bool:
        """Whether the goal against that contender was reached."""
        return self.ratio(against) >= self.goals[against]

    def to_json(self) -> dict[str, Any]:
        """All but what follows from the rest."""
        return {name: value for name, value in vars(self).items() if name != "ours"}


def measure(case: Case, rounds: int | None = None) -> Result:
    """Lets the contenders take turns: one round that does not count, then `rounds`, or as many as the case
    says.
    """
    figures: dict[str, list[float]] = {name: [] for name in case.contenders}
    for turn in range((rounds or case.rounds) + 1):
        for name, run in case.contenders.items():
            figure = run()
            if turn:
                figures[name].append(figure)
    goals = {goal.against: goal.at_least for goal in case.goals}
    unknown = goals.keys() - figures.keys()
    if unknown:
        raise ValueError(f"{case.work}: goals against {sorted(unknown)}, who are no contenders")
    shared = (case.work, case.unit, case.higher_is_better)
    today = date.today().isoformat()
    return Result(*shared, figures, goals, case.curve, case.x, case.x_label, case.note, today)


class Child:
    """A contender in a process of its own: one JSON object a line to its standard input, one back.

    The program's main loop is `serve`. What it writes to standard error is shown as it comes.
    """

    def __init__(self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        self._argv = [str(part) for part in argv]
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def call(self, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer.

        Raises RuntimeError where the process ended instead, and TimeoutError after `ANSWER_SECONDS`, when it
        is ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0]:
                self._process.kill()
                raise TimeoutError(f"{' '.join(self._argv)} gave no answer in {ANSWER_SECONDS} s")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"{' '.join(self._argv)} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Closes the process's standard input, at which it ends, and waits for that."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def serve(handler: Callable[..., Mapping[str, Any]]) -> None:
    """Answers the requests of a `Child` with what `handler` returns for them, until standard input closes."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # What a library prints is no answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        answers.write(json.dumps(handler(**json.loads(line))) + "\n")
        answers.flush()


def peer(name: str) -> list[Path]:
    """The command of the peer program `peers/NAME.py` in its own environment."""
    python = PEERS / name / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} is missing: run `make bench`, which installs it")
    return [python, ROOT / "benchmarks" / "peers" / f"{name}.py"]


def peer_versions(name: str) -> dict[str, str]:
    """The packages that `peers/NAME.in` pins, in the versions that the peer's environment has."""
    lines = (ROOT / "benchmarks" / "peers" / f"{name}.in").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    site = [str(path) for path in (PEERS / name).glob("lib/python*/site-packages")]
    return {found.name: found.version for found in distributions(path=site) if found.name in pinned}


def spark_jars() -> str | None:
    """`spark.jars` for this Spark, None where its jar was not built."""
    import flambeau

    try:
        return flambeau.spark_config()["spark.jars"]
    except flambeau.FlambeauError:
        return None


def spark_session(name: str, **conf: str) -> SparkSession:
    """A quiet session on two threads with this interpreter as its workers' Python."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    quiet = {
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in {**quiet, **conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def free_address() -> str:
    """A port of loopback that was free a moment ago, for ranks to meet at; not one of those that the system
    gives out, which the ranks' own are: Linux's begin at 32,768.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            port = 20_000 + secrets.randbelow(12_000)
            probe.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"


def short(value: float) -> str:
    """A figure in three digits: 0.000812, 45.1, 3,740, 1.23 M."""
    if value >= 999.5e6:
        return f"{value / 1e9:.3g} G"
    if value >= 999_500:
        return f"{value / 1e6:.3g} M"
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"
