"""Fits over two executor JVMs, and what happens when one dies; the oracle is a fit that nothing disturbed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

CLUSTER = "local-cluster[2,1,1024]"
PROGRAM = Path(__file__).parent / "programs" / "cluster_fit.py"


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
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The outcome of the same fit on threads of one JVM."""
    return fit("local[2]", data, tmp_path_factory.mktemp("undisturbed"), "train")


def fit(master: str, data: Path, directory: Path, behaviour: str) -> dict[str, object]:
    """Runs the program and returns its outcome."""
    environment = {
        **os.environ,
        "SPARK_HOME": os.path.dirname(pyspark.__file__),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(PROGRAM.parent),
    }
    command = [
        *(sys.executable, str(PROGRAM), "--master", master, "--data", str(data)),
        *(
            "--marker",
            str(directory / "marker"),
            "--work-dir",
            str(directory / "work"),
            "--behaviour",
            behaviour,
        ),
    ]
    done = subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, timeout=400
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("OUTCOME ")]
    assert lines, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
    outcome: dict[str, object] = json.loads(lines[-1].removeprefix("OUTCOME "))
    return outcome


def test_two_executor_jvms_train_what_one_does(
    data: Path, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    outcome = fit(CLUSTER, data, tmp_path, "train")
    assert outcome["digest"] == undisturbed["digest"]
    assert list((tmp_path / "work" / "attempts").glob("*")) == []


def test_a_lost_executor_ends_in_the_same_model(
    data: Path, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    outcome = fit(CLUSTER, data, tmp_path, "kill")
    assert outcome["markers"] == 1, "no executor was killed"
    assert outcome["digest"] == undisturbed["digest"]


def test_a_users_exception_is_not_retried(data: Path, tmp_path: Path) -> None:
    outcome = fit(CLUSTER, data, tmp_path, "raise")
    assert outcome["error"] == "LookupError"
    assert "no such embedding: 'ZZ'" in str(outcome["message"])
    assert 1 <= int(str(outcome["markers"])) <= 2, "each of the two ranks ran at most once"
