"""The retraining example, as its README runs it."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
import pytest

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "retrain"


@dataclass
class Outcome:
    """What one run printed: the errors of both models, and which was promoted or kept."""

    current: float | None
    candidate: float
    verdict: str
    name: str


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program and the months, and a month 3 whose delays have the wrong sign."""
    if not pyspark.__version__.startswith("4."):
        pytest.skip("SKIPPED: the jar that make builds is for Spark 4")
    made = tmp_path_factory.mktemp("retrain")
    subprocess.run([sys.executable, str(EXAMPLE / "prepare.py"), str(made)], check=True, timeout=120)
    flights = pq.read_table(made / "train" / "month=3" / "flights.parquet")
    label = flights.column_names.index("arr_delay")
    spoiled = made / "train" / "spoiled"
    spoiled.mkdir()
    wrong = pc.negate(flights["arr_delay"])
    pq.write_table(flights.set_column(label, "arr_delay", wrong), spoiled / "flights.parquet")
    return made


def run(directory: Path, partition: str, month: int, *more: str, name: str | None = None) -> str:
    """What the example prints for a partition, judged on the hold-out of a month, which names the night
    where no name is given.
    """
    done = subprocess.run(
        [
            str(EXAMPLE / "retrain.sh"),
            *("--models", str(directory / "models"), "--program", str(directory / "program.pt")),
            *("--work-dir", str(directory / "work"), "--run-id", name or f"2013-{month:02}"),
            *("--partition", str(directory / "train" / partition)),
            *("--holdout", str(directory / "holdout" / f"month={month}")),
            *more,
        ],
        env={**os.environ, "SPARK_HOME": os.path.dirname(pyspark.__file__), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return done.stdout


def retrain(directory: Path, partition: str, month: int, *more: str) -> Outcome:
    """Run the example, which compares two models."""
    printed = run(directory, partition, month, *more)
    told = re.search(
        r"^current (none|[\d.]+), candidate ([\d.]+)\n(promoted|kept) (\S+)$", printed, re.MULTILINE
    )
    assert told, printed
    return Outcome(None if told[1] == "none" else float(told[1]), float(told[2]), told[3], told[4])


def lineage(model: Path) -> dict[str, Any]:
    """What a saved model says of where it comes from."""
    (part,) = (model / "metadata").glob("part-*")
    found: dict[str, Any] = json.loads(part.read_text())["flambeau"]["lineage"]
    return found


def test_the_better_model_is_promoted_and_the_worse_is_not(directory: Path) -> None:
    """A first model, one trained further on the next month, and one that bad data spoiled."""
    pointer = directory / "models" / "CURRENT"

    first = retrain(directory, "month=1", month=1)
    assert (first.current, first.verdict) == (None, "promoted")
    assert pointer.read_text() == first.name
    (checkpoint,) = (directory / "work").glob("attempts/*/checkpoints/*")
    of_first = lineage(pointer.parent / first.name)
    assert (of_first["runId"], of_first["checkpoint"]) == ("2013-01", str(checkpoint))
    assert of_first["initialWeights"] is None and of_first["initialState"] is None

    second = retrain(directory, "month=2", month=2)
    assert second.verdict == "promoted"
    assert second.current is not None and second.candidate < second.current
    assert pointer.read_text() == second.name != first.name
    of_second = lineage(pointer.parent / second.name)
    assert of_second["initialState"] == str(checkpoint) != of_second["checkpoint"]
    weights = (pointer.parent / first.name / "weights.safetensors").read_bytes()
    assert of_second["initialWeightsSha256"] == hashlib.sha256(weights).hexdigest()
    assert of_second["rowsSha256"] != of_first["rowsSha256"]

    # As if it had been killed after its training.
    pointer.write_text(first.name)
    saved = pointer.parent / second.name / "weights.safetensors"
    written = saved.stat().st_mtime_ns
    assert retrain(directory, "month=2", month=2) == second
    assert pointer.read_text() == second.name and saved.stat().st_mtime_ns == written

    # A night before that of the model in use trains nothing, though it would be at its best on its own month,
    # and left nothing when it was killed.
    assert f"kept {second.name}, which is a later night's" in run(directory, "month=1", 1, name="2013-01b")
    assert pointer.read_text() == second.name

    # Another model came into use while this one was trained, of the same rows and from the same weights.
    pointer.write_text(first.name)
    with ThreadPoolExecutor() as pool:
        started = len(list((directory / "work" / "attempts").iterdir()))
        late = pool.submit(run, directory, "month=2", 2, name="2013-02b")
        while len(list((directory / "work" / "attempts").iterdir())) == started and not late.done():
            time.sleep(0.1)
        pointer.write_text(second.name)
    told = late.result()
    assert f"another model came into use meanwhile\ncurrent {second.candidate}" in told
    assert f"kept {second.name}" in told and pointer.read_text() == second.name

    # No checkpoint is there to start the optimizer from.
    shutil.rmtree(directory / "work")
    worse = retrain(directory, "spoiled", 3, "--initial-state", "none")
    assert worse.verdict == "kept"
    assert worse.current is not None and worse.candidate > worse.current
    assert pointer.read_text() == worse.name == second.name
    # Nothing is left beside the models and the pointer: no spoiled model, no half-written pointer.
    assert {path.name for path in pointer.parent.iterdir()} == {"CURRENT", first.name, second.name}


@pytest.mark.parametrize("name", ["2013-9", "2013-02-9", "2013-02-281", "CURRENT", "../2013-02"])
def test_a_name_that_does_not_sort_as_nights_do_is_refused(directory: Path, name: str) -> None:
    with pytest.raises(AssertionError, match=r"--run-id is '.*': a night's name is its date"):
        run(directory, "month=1", 1, name=name)
