"""Which device a task scores on, and what `transform` says of devices where there is no GPU.

Choosing is a function of what Spark and torch say, so it is tried without a GPU. `test_gpu_scoring.py` has
the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fitted
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from test_scoring import FLOATS, packed, scorer
from torch import nn

from flambeau import ParamError
from flambeau._score.placement import Visible, choose, visible

TWO = Visible(("6a7ab8ef-0d2a-4d0f-8f3e-000000000000", "6a7ab8ef-0d2a-4d0f-8f3e-000000000001"))
NONE = Visible(reason="torch 2.13.0 was built without CUDA")


@pytest.mark.parametrize(
    ("addresses", "number", "expected"),
    [
        ([], 0, 0),
        ([], 1, 1),
        ([], 5, 1),
        (["1"], 0, 1),
        (["0", "1"], 7, 0),
        (["GPU-6a7ab8ef-0d2a-4d0f-8f3e-000000000001"], 0, 1),
        (["6A7AB8EF-0D2A-4D0F-8F3E-000000000000"], 1, 0),
    ],
)
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_which_gpu_a_task_has(device: str, addresses: list[str], number: int, expected: int) -> None:
    assert choose(device, addresses, number, TWO) == expected


@pytest.mark.parametrize("address", ["2", "GPU-00000000-0d2a-4d0f-8f3e-000000000001"])
def test_an_assigned_gpu_must_be_there(address: str) -> None:
    with pytest.raises(ParamError, match=f"Spark assigned the GPU {address} .* whose process sees"):
        choose("auto", [address], 0, TWO)


def test_without_a_gpu_auto_takes_the_cpu_and_cuda_says_why() -> None:
    assert choose("auto", [], 3, NONE) is None
    assert choose("auto", ["0"], 3, NONE) is None
    with pytest.raises(ParamError, match=r"device is 'cuda'.*was built without CUDA.*device='cpu'"):
        choose("cuda", [], 3, NONE)


def test_what_torch_sees_is_what_it_says() -> None:
    found = visible()
    assert len(found.uuids) == torch.cuda.device_count()
    assert bool(found.reason) == (not found.uuids)


def test_the_cpu_never_asks_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any) -> None:
        raise AssertionError("CUDA was asked")

    for name in ("is_available", "device_count", "init"):
        monkeypatch.setattr(torch.cuda, name, asked)
    module = nn.Linear(6, 2)
    on_cpu = replace(scorer(module, [packed(6)], tmp_path, 8), device="cpu")
    [result] = on_cpu.score(iter([tuple(pa.array(column) for column in FLOATS.T)]))
    with torch.inference_mode():
        expected = module(torch.from_numpy(FLOATS))
    np.testing.assert_allclose(np.stack(result.to_numpy(zero_copy_only=False)), expected, atol=1e-6)


def test_the_python_workers_of_a_task_know_its_name(spark: SparkSession) -> None:
    """Two iterator UDFs with an expression of Spark's between are two processes of each task, as two models
    of a query are.
    """

    def named(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        from pyspark import TaskContext

        from flambeau._score.placement import name_of

        for batch in batches:
            yield batch + f"{os.getpid()},{name_of(TaskContext.get())};"

    rows = spark.range(0, 2, 1, 2).selectExpr("'' as told")
    for _ in range(2):
        told = F.pandas_udf(named, "string")("told")  # type: ignore[attr-defined]
        rows = rows.select(F.concat(told, F.lit("")).alias("told"))
    tasks = [[told.split(",") for told in row["told"].split(";")[:-1]] for row in rows.collect()]
    assert len({process for task in tasks for process, _ in task}) == 4
    first, second = [{name for _, name in task} for task in tasks]
    assert len(first) == len(second) == 1 and first != second


@pytest.mark.skipif(bool(visible().uuids), reason="SKIPPED: this machine has a GPU")
def test_transform_without_a_gpu(any_spark_long: SparkSession, tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path)
    rows = any_spark_long.createDataFrame(
        [(i, [float(i), 1.0, -1.0, 0.5]) for i in range(9)], "id int, features array<float>"
    )

    def scores(device: str) -> list[float]:
        scored = model.copy().setDevice(device).transform(rows)
        return [row[0] for row in scored.orderBy("id").select("prediction").collect()]

    assert scores("auto") == scores("cpu")
    with pytest.raises(
        PySparkException, match=r"(?s)device is 'cuda', and torch can use no GPU.*device='cpu'"
    ):
        scores("cuda")
