"""Fits over two executor JVMs, and what happens when one dies; the oracle is a fit that nothing disturbed."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark_program import outcome_of

CLUSTER = "local-cluster[2,1,1024]"


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


def fits(master: str, data: Path, directory: Path, behaviours: str) -> dict[str, Any]:
    """Runs the program and returns its outcomes."""
    options = {"master": master, "data": data, "directory": directory, "behaviours": behaviours}
    return outcome_of("cluster_fit.py", directory, **options)


def test_two_executor_jvms_train_what_one_does(
    undisturbed: dict[str, Any], on_cluster: dict[str, Any], directory: Path
) -> None:
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
