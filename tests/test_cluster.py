"""Fits over two executor JVMs, and what happens when one dies; the oracle is a fit that nothing disturbed.

On one host, and on two as different as one machine can make them: each in a network of its own, on a
standalone cluster of Spark's.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from networks import two_networks, within
from spark_program import SPARK_HOME, environment_on, outcome_of

CLUSTER = "local-cluster[2,1,1024]"
HOSTS = ("10.84.0.1", "10.84.0.2")
MASTER = f"spark://{HOSTS[0]}:7077"
_SECONDS = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 rows of three features and a label, in two files with two row groups each."""
    directory = tmp_path_factory.mktemp("rows")
    generator = np.random.default_rng(3)
    for part in range(2):
        features = generator.normal(size=(300, 3)).astype("float32")
        label = features @ np.array([1.0, -2.0, 0.5], dtype="float32") + 0.1
        rows = pa.table(
            {
                "features": pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), 3).cast(
                    pa.list_(pa.float32())
                ),
                "label": label,
            }
        )
        pq.write_table(rows, directory / f"part-{part}.parquet", row_group_size=150)
    return directory


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of the same fit on threads of one JVM."""
    return fits("local[2]", data, tmp_path_factory.mktemp("undisturbed"), "train")["train"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def on_cluster(data: Path, directory: Path) -> dict[str, Any]:
    """The outcomes of fits over two executor JVMs, by their behaviour; the one that kills one comes last."""
    return fits(CLUSTER, data, directory, "train,raise,kill")


def fits(
    master: str, data: Path, directory: Path, behaviours: str, host: str = "127.0.0.1", *within: str
) -> dict[str, Any]:
    """Runs the program, on a host, and returns its outcomes."""
    return outcome_of(
        "cluster_fit.py",
        directory,
        host,
        within,
        master=master,
        data=data,
        directory=directory,
        behaviours=behaviours,
    )


def test_two_executor_jvms_train_what_one_does(
    undisturbed: dict[str, Any], on_cluster: dict[str, Any], directory: Path
) -> None:
    assert on_cluster["train"]["networks"] == 1
    assert on_cluster["train"]["digest"] == undisturbed["digest"]
    assert list((directory / "train" / "attempts").glob("*")) == []


def test_a_lost_executor_ends_in_the_same_model(
    undisturbed: dict[str, Any], on_cluster: dict[str, Any]
) -> None:
    assert on_cluster["kill"]["markers"] == 1, "no executor was killed"
    assert on_cluster["kill"]["digest"] == undisturbed["digest"]


def test_a_users_exception_is_not_retried(on_cluster: dict[str, Any]) -> None:
    outcome = on_cluster["raise"]
    assert outcome["error"] == "LookupError"
    assert "no such embedding: 'ZZ'" in outcome["message"]
    assert 1 <= outcome["markers"] <= 2, "each of the two ranks ran at most once"


@pytest.fixture(scope="module")
def networks() -> Iterator[list[str]]:
    with two_networks(HOSTS) as names:
        yield names


@pytest.fixture(scope="module")
def cluster(networks: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A standalone cluster with a worker on each host, and its master on the first."""
    directory = tmp_path_factory.mktemp("spark")
    master = ["master.Master", "--host", HOSTS[0], "--port", "7077"]
    of_all = f"--cores 1 --memory 1g --work-dir {directory} {MASTER}".split()
    workers = [["worker.Worker", "--host", host, *of_all] for host in HOSTS]
    with ExitStack() as stack:
        for number, (program, *arguments) in enumerate([master, *workers]):
            host = max(0, number - 1)
            command = [*within(networks[host]), str(SPARK_HOME / "bin" / "spark-class")]
            command += [f"org.apache.spark.deploy.{program}", "--webui-port", "0", *arguments]
            log = stack.enter_context(open(directory / f"log-{number}", "w"))
            process = subprocess.Popen(
                command, env=environment_on(HOSTS[host]), cwd=directory, stdout=log, stderr=subprocess.STDOUT
            )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            said = "I have been elected leader" if number == 0 else "Successfully registered with master"
            await_line(directory / f"log-{number}", said)
        yield


def await_line(log: Path, said: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while said not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.1)


@pytest.fixture(scope="module")
def on_two_hosts(
    networks: list[str], cluster: None, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The outcomes of two fits; in the second, an executor is killed."""
    directory = tmp_path_factory.mktemp("two-hosts")
    return fits(MASTER, data, directory, "train,kill", HOSTS[0], *within(networks[0]))


@pytest.mark.long
def test_two_hosts_train_what_one_does(undisturbed: dict[str, Any], on_two_hosts: dict[str, Any]) -> None:
    assert on_two_hosts["train"]["networks"] == 2
    assert on_two_hosts["train"]["digest"] == undisturbed["digest"]


@pytest.mark.long
def test_a_lost_host_ends_in_the_same_model(
    undisturbed: dict[str, Any], on_two_hosts: dict[str, Any]
) -> None:
    assert on_two_hosts["kill"]["markers"] == 1, "no executor was killed"
    assert on_two_hosts["kill"]["digest"] == undisturbed["digest"]
