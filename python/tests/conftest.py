"""Spark sessions for the tests, classic and Connect, each started once when it is first asked for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from ports import held_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from flambeau._score.placement import visible

PACKAGE = Path(__file__).resolve().parents[1]
_START_SECONDS = 90


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is long, unless FLAMBEAU_LONG is set."""
    if not os.environ.get("FLAMBEAU_LONG"):
        long = [item for item in items if item.get_closest_marker("long") is not None]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs a GPU where there is none, and says why. Modules begin with the same weights each
    time, those of fixtures too.
    """
    if item.get_closest_marker("gpu") is not None and not visible().uuids:
        pytest.skip(f"SKIPPED: no GPU: {visible().reason}")
    torch.manual_seed(0)


def _environment() -> dict[str, str]:
    """What makes Spark's Python workers this interpreter, with this package and the tests' own modules."""
    paths = [str(PACKAGE), str(PACKAGE / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _settings(directory: Path) -> dict[str, str]:
    return {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A classic session on `local[2]`."""
    from pyspark.sql import SparkSession

    os.environ.update(_environment())
    builder = SparkSession.builder.appName("flambeau tests")
    for name, value in _settings(tmp_path_factory.mktemp("spark")).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    # What the tests provoke, Spark would print at length.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of a Spark Connect server on `local[2]`."""
    with connect_server(tmp_path_factory.mktemp("connect")) as session:
        yield session


@contextmanager
def connect_server(directory: Path, **more: str) -> Iterator[SparkSession]:
    """A session of a Spark Connect server of its own process, with further settings by their names."""
    pytest.importorskip("grpc")
    from pyspark import __version__ as version

    if int(version.split(".")[0]) < 4:
        pytest.skip("SKIPPED: Spark Connect has no pipelines before 4.0")
    from pyspark.find_spark_home import _find_spark_home
    from pyspark.sql.connect.session import SparkSession

    with held_port() as port:
        settings = _settings(directory) | {
            **more,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        }
        command = [f"{_find_spark_home()}/bin/spark-submit"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        with open(directory / "server.log", "wb") as log:
            server = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | _environment(), cwd=directory
            )
        try:
            _await_port(port, server, directory / "server.log")
            session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
            yield session  # type: ignore[misc]
            session.stop()
        finally:
            server.terminate()
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()


@pytest.fixture
def connect(connect_session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The Connect session, with pyspark's functions speaking Connect for the length of the test."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    return connect_session


def _session_of(request: pytest.FixtureRequest) -> SparkSession:
    session: SparkSession = request.getfixturevalue("spark" if request.param == "classic" else "connect")
    return session


@pytest.fixture(params=["classic", "connect"])
def any_spark(request: pytest.FixtureRequest) -> SparkSession:
    """A test that takes this runs on both kinds of session."""
    return _session_of(request)


@pytest.fixture(params=["classic", pytest.param("connect", marks=pytest.mark.long)])
def any_spark_long(request: pytest.FixtureRequest) -> SparkSession:
    """A test that takes this runs on a classic session, and in a long run on Connect too: other tests show
    that what it asks of a session is there on both.
    """
    return _session_of(request)


def _await_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until the server listens; fails with its log where it ends or does not come up."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the Spark Connect server did not start:\n{log.read_text(errors='replace')[-4000:]}")
