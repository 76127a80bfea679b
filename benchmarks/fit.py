"""The whole `fit(df)`, from a warm session to a fitted model.

The flights of 2013 in ten float32 columns and a label, in Parquet; an MLP 10-256-256-1, batch 512 on each
of two ranks, the same epochs for all. A first fit is the first work that its session gives to Python: the
session has read the rows once, in the JVM. The limit is the training alone, in two processes that do nothing
together. torchrun has no session: its ranks read the Parquet files where they lie.

All of a case have the same optimizer: torch's fused Adam, which Flambeau's default is, or plain Adam beside
Horovod, whose torch has no fused one on processors.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import flights
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import FIXED, Case, Child, Contender, Goal, Skipped, peer, spark_jars, spark_session
from training import LIMIT, Ranks, Work, torchrun

EPOCHS = 3
BATCH_SIZE = 512
PEERS = ("horovod",)
TORCHRUN = "torchrun, DDP, slices of a tensor"
HOROVOD = "Horovod TorchEstimator"
BY_HAND = "write.parquet, TorchDistributor, DDP, slices of a tensor"
NUMBERS = (
    "month",
    "day",
    "hour",
    "minute",
    "dep_delay",
    "air_time",
    "distance",
    "flight",
    "sched_dep_time",
    "sched_arr_time",
)
NUM_FILES = 4


@dataclass
class Fits:
    """One contender's fits: how it fits once, and what its fits came to, in the order of the rounds."""

    fit: Callable[[], dict[str, float]]
    fixed: list[float] = field(default_factory=list)
    """Seconds outside the loop."""

    def seconds(self) -> float:
        """Fits once; returns the seconds it took."""
        taken = self.fit()
        self.fixed.append(taken["seconds"] - taken.get("loop", 0.0))
        return taken["seconds"]

    def replay(self) -> Contender:
        """Gives the seconds outside the loop of the fits that were made, one at a time."""
        return iter(self.fixed).__next__


@dataclass
class FirstFit:
    """The first fit of a session, for each of which there is a new one."""

    session: Callable[[], Child]
    request: dict[str, object]
    is_first: bool = True

    def __call__(self) -> dict[str, float]:
        # The harness drops the first round, which warms a contender up. There is nothing here to warm.
        if self.is_first:
            self.is_first = False
            return {"seconds": 0.0, "loop": 0.0}
        with self.session() as child:
            return child.call(**self.request)


def write_flights(path: Path, times: int) -> Path:
    """The flights that arrived, `times` over, as a directory of Parquet files; numbers are standardized."""
    table = flights.read(NUMBERS).to_pandas().astype(float)
    numbers = (table - table.mean()) / table.std()
    columns = {name: numbers[name].to_numpy(np.float32) for name in numbers}
    rows = pa.concat_tables([pa.table(columns)] * times)
    path.mkdir(parents=True, exist_ok=True)
    for part in range(NUM_FILES):
        first, last = (rows.num_rows * end // NUM_FILES for end in (part, part + 1))
        pq.write_table(rows.slice(first, last - first), path / f"part-{part}.parquet")
    return path


def cases(full: bool, scratch: Path) -> Iterator[Case | Skipped]:
    spark = spark_session("fit limit")
    with Ranks.started() as ranks:
        rows = write_flights(scratch / "flights", 1)
        rounds = (5, 5) if full else (2, 1)
        yield from compared("flights", rows, ranks, scratch, (4.0, 3.2), rounds)
        if full:
            yield from other_runtimes(rows, scratch)
            rows = write_flights(scratch / "flights10", 10)
            yield from compared("10x flights", rows, ranks, scratch, (2.4, 2.2), (2, 2))
    spark.stop()


def compared(
    name: str,
    rows: Path,
    ranks: Ranks,
    scratch: Path,
    goals: tuple[float, float],
    rounds: tuple[int, int],
) -> Iterator[Case]:
    """Later fits and first fits beside what a user writes, whole and outside the loop, and beside Horovod.

    `goals` and `rounds` are those of later fits, then those of first fits.
    """
    millions = pq.ParquetDataset(rows).read(columns=[]).num_rows / 1e6
    text = f"{name} ({millions:.2f} M rows, {EPOCHS} epochs)"
    alone = Work("mlp", text, rows, BATCH_SIZE, EPOCHS).by_hand(ranks, "memory", "nothing", fused=True)
    sliced = Fits(lambda: fit_by_torchrun(rows, scratch))

    def limit() -> float:
        return millions * 1e6 * EPOCHS / alone()

    def session() -> Child:
        return start_session(rows, scratch)

    with session() as child:
        later = {
            "Flambeau": Fits(lambda: child.call(who="flambeau", epochs=EPOCHS)),
            BY_HAND: Fits(lambda: child.call(who="by hand", epochs=EPOCHS)),
        }
        yield whole(f"later fits, {text}", {**later, TORCHRUN: sliced}, limit, goals[0], rounds[0])
        with horovod_session(rows) as horovod:
            plain = Fits(lambda: child.call(who="plain", epochs=EPOCHS))
            theirs = Fits(lambda: horovod.call(**horovod_fit(rows, scratch)))
            yield beside_horovod(f"later fits, {text}", plain, theirs, rounds[0])
    yield fixed(f"later fits, {text}", later, 3.0 + 0.3 * millions, rounds[0])
    first = {
        "Flambeau": Fits(FirstFit(session, {"who": "flambeau", "epochs": EPOCHS})),
        BY_HAND: Fits(FirstFit(session, {"who": "by hand", "epochs": EPOCHS})),
    }
    yield whole(f"first fits, {text}", {**first, TORCHRUN: sliced}, limit, goals[1], rounds[1])
    yield fixed(f"first fits, {text}", first, 6.0 + 0.3 * millions, rounds[1])
    plain = Fits(FirstFit(session, {"who": "plain", "epochs": EPOCHS}))
    theirs = Fits(FirstFit(lambda: horovod_session(rows), horovod_fit(rows, scratch)))
    yield beside_horovod(f"first fits, {text}", plain, theirs, rounds[1])


def fit_by_torchrun(rows: Path, scratch: Path) -> dict[str, float]:
    """Trains where the files lie, without Spark."""
    weights, began = scratch / "torchrun.pt", time.perf_counter()
    program = Path(__file__).with_name("fit_by_hand.py")
    torchrun(str(program), str(rows), str(weights), str(EPOCHS), str(BATCH_SIZE))
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "loop": float(Path(f"{weights}.seconds").read_text())}


def horovod_session(rows: Path) -> Child:
    """Horovod's program with a session that has read the rows."""
    return Child([*peer("horovod"), rows])


def horovod_fit(rows: Path, scratch: Path) -> dict[str, object]:
    """The request for a fit; Horovod does not tell its seconds in the loop."""
    request = {"rows": str(rows), "scratch": str(scratch / "horovod"), "batch_size": BATCH_SIZE}
    return {"what": "fit", "epochs": EPOCHS, **request}


def beside_horovod(work: str, ours: Fits, theirs: Fits, rounds: int) -> Case:
    """Seconds from a DataFrame to a fitted model, with plain Adam."""
    contenders = {"Flambeau": ours.seconds, HOROVOD: theirs.seconds}
    return Case("fit", f"{work}, plain Adam", "s", contenders, higher_is_better=False, rounds=rounds)


def whole(work: str, fits: dict[str, Fits], limit: Contender, goal: float, rounds: int) -> Case:
    """Seconds from a DataFrame to a fitted model."""
    return Case(
        suite="fit",
        work=work,
        unit="s",
        contenders={**{name: one.seconds for name, one in fits.items()}, LIMIT: limit},
        goals=[Goal(BY_HAND, goal)],
        higher_is_better=False,
        rounds=rounds,
    )


def fixed(work: str, fits: dict[str, Fits], allowed: float, rounds: int) -> Case:
    """The seconds outside the loop of the same fits."""
    bound = f"{FIXED}{allowed:.1f} s"
    return Case(
        suite="fit",
        work=f"outside the loop: {work}",
        unit="s",
        contenders={
            **{name: one.replay() for name, one in fits.items()},
            bound: lambda: allowed,
        },
        goals=[Goal(bound, 1.0)],
        higher_is_better=False,
        rounds=rounds,
    )


def other_runtimes(rows: Path, scratch: Path) -> Iterator[Case | Skipped]:
    """Later fits of the same program in the other two ways."""
    jars = spark_jars()
    whos = {"Flambeau": "flambeau", 'Flambeau, `runtime="native"`': "native"}
    if jars is None:
        yield Skipped(
            "fit",
            "later fits from Scala",
            "there is no jar: `make jvm` builds it",
        )
    else:
        whos["Flambeau from Scala"] = "scala"
    with ExitStack() as stack:
        child = stack.enter_context(start_session(rows, scratch, *([jars] if jars else [])))
        fits = {name: Fits(partial(child.call, who=who, epochs=EPOCHS)) for name, who in whos.items()}
        seconds = {name: one.seconds for name, one in fits.items()}
        yield Case(
            "fit",
            "later fits, flights, by runtime",
            "s",
            seconds,
            higher_is_better=False,
            rounds=3,
        )
    outside = {name: one.replay() for name, one in fits.items()}
    work = "outside the loop: later fits, flights, by runtime"
    yield Case("fit", work, "s", outside, higher_is_better=False, rounds=3)


def start_session(rows: Path, scratch: Path, *jars: str) -> Child:
    """A process with a session of its own."""
    program = Path(__file__).parent / "fit_session.py"
    arguments: Sequence[str | Path] = (sys.executable, program, rows, scratch, *jars)
    return Child(arguments)
