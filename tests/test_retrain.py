"""The retraining example, as its README runs it."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
import pytest
from killed import killed_while_it_trains
from ports import held_port

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


def program(
    directory: Path, partition: str, month: int, *more: str, name: str | None = None
) -> dict[str, Any]:
    """The example, as `subprocess` takes it: on a partition, judged on the hold-out of a month, which names
    the night where no name is given.
    """
    command = [
        str(EXAMPLE / "retrain.sh"),
        *("--models", str(directory / "models"), "--program", str(directory / "program.pt")),
        *("--work-dir", str(directory / "work"), "--run-id", name or f"2013-{month:02}"),
        *("--partition", str(directory / "train" / partition)),
        *("--holdout", str(directory / "holdout" / f"month={month}")),
        *more,
    ]
    spark = {"SPARK_HOME": os.path.dirname(pyspark.__file__), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {"args": command, "env": {**os.environ, **spark}, "cwd": directory}


def run(program: dict[str, Any]) -> tuple[str, str]:
    """What the example prints, and what Spark logs."""
    done = subprocess.run(**program, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return done.stdout, done.stderr


def outcome(printed: str) -> Outcome:
    """Of a run that compares two models."""
    told = re.search(
        r"^current (none|[\d.]+), candidate ([\d.]+)\n(promoted|kept) (\S+)$", printed, re.MULTILINE
    )
    assert told, printed
    return Outcome(None if told[1] == "none" else float(told[1]), float(told[2]), told[3], told[4])


def retrain(directory: Path, partition: str, month: int, *more: str) -> Outcome:
    """Run the example, which compares two models."""
    return outcome(run(program(directory, partition, month, *more))[0])


def lineage(model: Path) -> dict[str, Any]:
    """What a saved model says of where it comes from."""
    (part,) = (model / "metadata").glob("part-*")
    found: dict[str, Any] = json.loads(part.read_text())["flambeau"]["lineage"]
    return found


@pytest.fixture(scope="module")
def first(directory: Path) -> Outcome:
    """The first night's, whose model is promoted."""
    return retrain(directory, "month=1", month=1)


@pytest.fixture(scope="module")
def killed(directory: Path, first: Outcome) -> Iterator[tuple[Path, Future[tuple[str, str]]]]:
    """The attempt of the second night, whose driver was killed in its training, and what the same command
    then comes to. That watches for 70 s first whether the driver still writes: other tests run meanwhile.
    """
    night = program(directory, "month=2", 2, "--epochs", "20")
    attempt = killed_while_it_trains(directory / "work", **night)
    models = directory / "models"
    assert (models / "CURRENT").read_text() == first.name and not (models / "2013-02").exists()
    with ThreadPoolExecutor() as pool:
        yield attempt, pool.submit(run, night)


def test_a_first_model_is_promoted(directory: Path, first: Outcome) -> None:
    pointer = directory / "models" / "CURRENT"
    assert (first.current, first.verdict) == (None, "promoted")
    assert pointer.read_text() == first.name
    (checkpoint,) = (directory / "work").glob("attempts/*/checkpoints/*")
    found = lineage(pointer.parent / first.name)
    assert (found["runId"], found["checkpoint"]) == ("2013-01", str(checkpoint))
    assert found["initialWeights"] is None and found["initialState"] is None


@pytest.mark.usefixtures("killed")
@pytest.mark.parametrize("name", ["2013-9", "2013-02-9", "2013-02-281", "CURRENT", "../2013-02"])
def test_a_name_that_does_not_sort_as_nights_do_is_refused(directory: Path, name: str) -> None:
    with pytest.raises(AssertionError, match=r"--run-id is '.*': a night's name is its date"):
        run(program(directory, "month=1", 1, name=name))


@pytest.mark.usefixtures("killed")
def test_a_name_node_that_does_not_answer_may_do_so_later(directory: Path, tmp_path: Path) -> None:
    """By the exit status, though no fit has begun, which would say the same of its store."""
    once = "<configuration><property><name>ipc.client.connect.max.retries</name><value>0</value></property>"
    (tmp_path / "core-site.xml").write_text(once + "</configuration>")
    night = program(directory, "month=1", 1)
    with held_port() as port:  # bound, and nothing listens
        night["args"] += ["--models", f"hdfs://127.0.0.1:{port}/models"]
        night["env"]["HADOOP_CONF_DIR"] = str(tmp_path)
        done = subprocess.run(**night, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 75, done.stdout + done.stderr[-6000:]
    assert re.search(r"^try again later: java\.net\.ConnectException: ", done.stderr, re.M)


def test_a_night_whose_driver_was_killed_goes_on_when_it_is_given_again(
    killed: tuple[Path, Future[tuple[str, str]]],
) -> None:
    attempt, again = killed
    printed, logged = again.result()
    assert re.search(rf"going on from (file:)?{attempt}/checkpoints/\d+$", logged, re.M), logged[-6000:]
    assert outcome(printed).verdict == "promoted"


def test_the_better_model_is_promoted_and_the_worse_is_not(
    directory: Path, first: Outcome, killed: tuple[Path, Future[tuple[str, str]]]
) -> None:
    """A model trained further on the next month, and one that bad data spoiled."""
    pointer = directory / "models" / "CURRENT"
    second = outcome(killed[1].result()[0])
    assert second.verdict == "promoted"
    assert second.current is not None and second.candidate < second.current
    assert pointer.read_text() == second.name != first.name
    of_first, of_second = (lineage(pointer.parent / night.name) for night in (first, second))
    assert of_second["initialState"] == of_first["checkpoint"] != of_second["checkpoint"]
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
    told, _ = run(program(directory, "month=1", 1, name="2013-01b"))
    assert f"kept {second.name}, which is a later night's" in told
    assert pointer.read_text() == second.name

    # Another model came into use while this one was trained, of the same rows and from the same weights.
    pointer.write_text(first.name)
    with ThreadPoolExecutor() as pool:
        started = len(list((directory / "work" / "attempts").iterdir()))
        late = pool.submit(run, program(directory, "month=2", 2, name="2013-02b"))
        while len(list((directory / "work" / "attempts").iterdir())) == started and not late.done():
            time.sleep(0.1)
        pointer.write_text(second.name)
    told, _ = late.result()
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
