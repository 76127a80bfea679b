"""The retraining example on YARN with HDFS, as its README submits it: nights that go well, one whose driver
is killed, and one without room. The one in PySpark is in python/tests/test_mlflow.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
import torch
from hadoop import hadoop_cluster, on_hdfs, wait
from spark_program import SPARK_HOME

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "retrain"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of those that use the cluster."""
    if not pyspark.__version__.startswith("4."):
        pytest.skip("SKIPPED: the jar that make builds is for Spark 4")
    with hadoop_cluster(tmp_path_factory.mktemp("hadoop")) as environment:
        yield environment


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, hadoop: dict[str, str]) -> Path:
    """A directory that all nodes see, for the work of fits; program and rows lie on HDFS."""
    made = tmp_path_factory.mktemp("retrain")
    subprocess.run(["make", "--no-print-directory", "build/jvm/.examples"], cwd=ROOT, check=True, timeout=600)
    subprocess.run(
        [sys.executable, str(EXAMPLE / "prepare.py"), str(made / "given")], check=True, timeout=120
    )
    on_hdfs(hadoop, "-put", str(made / "given"), "/given")
    return made


@contextmanager
def night(
    hadoop: dict[str, str],
    directory: Path,
    models: str,
    month: int,
    run: str,
    epochs: int,
    executors: int = 2,
) -> Iterator[subprocess.Popen[str]]:
    """Submits the example for a month; whatever is left of it is killed at the end."""
    libs = ROOT / "build" / "jvm" / "libs"
    (flambeau,), (natives,) = (
        libs.glob("flambeau-spark4_2.13-*[0-9].jar"),
        libs.glob("flambeau-natives-*.jar"),
    )
    confs = {
        "spark.executor.memoryOverhead": "1500m",
        "spark.flambeau.libtorch": str(Path(torch.__file__).parent),
        "spark.ui.enabled": "false",
        # Each node has them: they need not be sent.
        "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
    }
    command = [
        str(SPARK_HOME / "bin" / "spark-submit"),
        "--master",
        "yarn",
        "--jars",
        f"{flambeau},{natives}",
    ]
    command += ["--num-executors", str(executors), "--executor-cores", "1", "--executor-memory", "600m"]
    command += [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "flambeau.examples.Retrain", str(libs / "flambeau-examples.jar")]
    command += [
        "--models",
        models,
        "--program",
        "/given/program.pt",
        "--work-dir",
        f"file://{directory}/work",
    ]
    command += ["--partition", f"/given/train/month={month}", "--holdout", f"/given/holdout/month={month}"]
    command += ["--run-id", run, "--epochs", str(epochs)]
    with subprocess.Popen(
        command,
        env={**hadoop, "SPARK_HOME": str(SPARK_HOME)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as submitted:
        try:
            yield submitted
        finally:
            if submitted.poll() is None:
                os.killpg(submitted.pid, signal.SIGKILL)


def outcome(submitted: subprocess.Popen[str]) -> tuple[str, str, str, str]:
    """What a night that went well printed, both errors and the verdict, and what Spark logged."""
    said, logged = submitted.communicate(timeout=400)
    assert submitted.returncode == 0, said + logged[-6000:]
    told = re.search(r"^current (\S+), candidate (\S+)\n(promoted \S+|kept \S+)$", said, re.MULTILINE)
    assert told, said
    return told[1], told[2], told[3], logged


def test_a_night_whose_driver_was_killed_goes_on_when_it_is_submitted_again(
    hadoop: dict[str, str], directory: Path
) -> None:
    with night(hadoop, directory, "/models", 1, "2013-01", 3) as first:
        current, _, verdict, _ = outcome(first)
    assert current == "none" and verdict == f"promoted {on_hdfs(hadoop, '-cat', '/models/CURRENT')}"
    on_hdfs(hadoop, "-cp", "/models", "/undisturbed")
    with night(hadoop, directory, "/undisturbed", 2, "2013-02", 60) as undisturbed:
        current, expected, _, _ = outcome(undisturbed)
    assert current != "none"

    known = set((directory / "work" / "attempts").iterdir())

    def checkpoints() -> list[Path]:
        return [
            p
            for p in (directory / "work").glob("attempts/*/checkpoints/*/COMMITTED")
            if not known & set(p.parents)
        ]

    with night(hadoop, directory, "/models", 2, "2013-02", 60) as killed:
        wait(checkpoints, 200)
        os.killpg(killed.pid, signal.SIGKILL)
    with night(hadoop, directory, "/models", 2, "2013-02", 60) as again:
        _, candidate, verdict, logged = outcome(again)
    assert "going on from file:" in logged or "going on from /" in logged, logged[-6000:]
    assert candidate == expected
    assert verdict.split()[1] == on_hdfs(hadoop, "-cat", "/models/CURRENT")


def test_a_night_without_room_says_by_its_exit_status_that_there_may_be_later(
    hadoop: dict[str, str], directory: Path
) -> None:
    with night(hadoop, directory, "/none", 1, "2013-01", 1, executors=1) as small:
        said, logged = small.communicate(timeout=300)
    assert small.returncode == 75, said + logged[-6000:]
    assert (
        "try again later: flambeau.ClusterException: numWorkers is 2 and the cluster has 1 task slots"
        in logged
    )
