"""Fits in Scala over two executor JVMs, and what happens when one dies; the oracle is a fit in one JVM that
nothing disturbed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scala import jars
from spark_program import outcome_of
from torch import nn


class Slow(nn.Module):
    """A number from four; a batch takes milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 256)
        self.second = nn.Linear(256, 256)
        self.last = nn.Linear(256, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        for _ in range(10):
            x = torch.tanh(self.second(x))
        return self.last(x).squeeze(1)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a program and its rows."""
    directory = tmp_path_factory.mktemp("case")
    torch.manual_seed(4)
    torch.jit.script(Slow()).save(str(directory / "net.pt"))
    x = np.random.default_rng(4).normal(size=(4000, 4)).astype("float32")
    features = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 4).cast(pa.list_(pa.float32()))
    pq.write_table(
        pa.table({"x": features, "y": x.sum(axis=1)}), directory / "rows.parquet", row_group_size=500
    )
    return directory


@pytest.fixture(scope="module")
def undisturbed(case: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of the same fit on threads of one JVM."""
    directory = tmp_path_factory.mktemp("undisturbed")
    assert fits("local[2]", case, directory, "train")["train"]["killed"] == 0
    return weights(directory / "train")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def on_cluster(case: Path, directory: Path) -> dict[str, Any]:
    """The outcomes of fits over two executor JVMs, by their behaviour; the one that kills one comes last. The
    GPUs' addresses are made up: a worker is told of one, and its job is to train on the CPU.
    """
    script = directory / "gpus.sh"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["7"]}'\n""")
    script.chmod(0o700)
    return fits("local-cluster[2,1,1024]", case, directory, "score,gpus,kill", gpu_script=script)


def fits(master: str, case: Path, directory: Path, behaviours: str, **options: object) -> dict[str, Any]:
    """Runs the program and returns its outcomes."""
    outcomes = outcome_of(
        "scala_cluster_fit.py",
        directory,
        master=master,
        jars=jars(),
        data=case / "rows.parquet",
        net=case / "net.pt",
        behaviours=behaviours,
        **options,
    )
    for outcome in outcomes.values():
        assert "message" not in outcome, outcome["message"]
        assert outcome["left"] == []
    return outcomes


def weights(directory: Path) -> bytes:
    """The weights of the model that was saved."""
    return (directory / "model" / "weights.safetensors").read_bytes()


def test_two_executor_jvms_train_what_one_does_and_score_what_hadoop_has(
    undisturbed: bytes, on_cluster: dict[str, Any], directory: Path
) -> None:
    outcome = on_cluster["score"]
    by_scala = np.array(outcome["scored"]["scala"])
    assert by_scala.shape == (100,)
    for way, predictions in outcome["scored"].items():
        np.testing.assert_allclose(predictions, by_scala, rtol=1e-5, atol=1e-6, err_msg=way)
    assert outcome["fetched"] == 2  # the program and the weights, once for the machine
    assert weights(directory / "score") == undisturbed
    assert list((directory / "score" / "work").glob("attempts/*/*")) == []


def test_a_lost_executor_ends_in_the_same_model(
    undisturbed: bytes, on_cluster: dict[str, Any], directory: Path
) -> None:
    assert on_cluster["kill"]["killed"] == 1
    assert weights(directory / "kill") == undisturbed


def test_spark_assigns_a_gpu_to_each_worker(
    undisturbed: bytes, on_cluster: dict[str, Any], directory: Path
) -> None:
    assert on_cluster["gpus"]["gpus"] == ["7", "7"]
    assert weights(directory / "gpus") == undisturbed
