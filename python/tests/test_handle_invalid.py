"""Rows whose features hold nulls or NaNs. The oracles are Spark's own VectorAssembler, which has the param
too, and fits on what it leaves.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, FloatType, LongType, StructField, StructType
from torch import nn

from flambeau import DataError, TorchModel, TorchRegressor
from flambeau._spark.columns import valid_rows
from flambeau._tensors import TensorColumns

INPUTS = ["x", "y", "vector"]
NUM_ROWS = 200


@pytest.fixture(scope="module")
def df(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Rows of two Parquet files, with nulls and NaNs in the inputs, of which `y` has no NaN."""

    def row(place: int) -> tuple[Any, ...]:
        last = math.nan if place % 7 == 3 else 1 / (place + 1)
        sparse = SparseVector(3, {0: 1.0, 2: last})
        vector = sparse if place % 2 else DenseVector([1.0, 0.5, last])
        return (
            place,
            None if place % 11 == 1 else math.nan if place % 11 == 2 else place / NUM_ROWS,
            None if place % 13 == 5 else place % 5,
            None if place % 17 == 9 else vector,
            [0.5, math.nan if place % 19 == 4 else None if place % 19 == 5 else 0.0],
            place / 7,
        )

    kinds = {
        "id": LongType(),
        "x": DoubleType(),
        "y": LongType(),
        "vector": VectorUDT(),
        "array": ArrayType(FloatType()),
        "label": DoubleType(),
    }
    schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
    directory = str(tmp_path_factory.mktemp("invalid") / "rows")
    df = spark.createDataFrame([row(place) for place in range(NUM_ROWS)], schema)
    df.repartition(2, "id").write.parquet(directory)
    return spark.read.parquet(directory)


@pytest.fixture(scope="module")
def valid(df: DataFrame) -> DataFrame:
    """What Spark's own stage leaves of them."""
    assembler = VectorAssembler(inputCols=INPUTS, outputCol="all", handleInvalid="skip")
    # It does not look into vectors.
    assembled = assembler.transform(df)
    keep = {row.id for row in assembled.collect() if not any(map(math.isnan, row.all))}
    assert 0 < len(keep) < NUM_ROWS
    return df.where(df.id.isin(*keep))


class Sum(nn.Module):
    """A line over the three inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        return self.line(torch.cat([x[:, None], y[:, None].float(), vector], dim=1))


class Mending(Sum):
    """The same, which holds NaN for 0."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.nan_to_num(x), y, torch.nan_to_num(vector))


def regressor(**params: Any) -> TorchRegressor:
    torch.manual_seed(0)
    given: dict[str, Any] = {
        "model": Sum(),
        "loss": "mse",
        "inputCols": INPUTS,
        "inputShapes": [[], [], [3]],
        # All rows, so that their order does not count.
        "batchSize": NUM_ROWS,
        "epochs": 2,
        "numWorkers": 2,
        "verbose": 0,
    }
    return TorchRegressor(**given | params)


@pytest.fixture(scope="module")
def expected(valid: DataFrame) -> TorchModel:
    """A fit on what is valid."""
    return regressor().fit(valid)


@pytest.mark.parametrize("how", ["always", "never"])
def test_skipped_rows_are_not_trained_on(how: str, df: DataFrame, expected: TorchModel) -> None:
    model = regressor(handleInvalid="skip", inPlace=how).fit(df)
    assert model.summary.numRows == expected.summary.numRows
    assert model.history["loss"] == pytest.approx(expected.history["loss"], rel=1e-5)


def test_all_ways_to_fit_skip_them(df: DataFrame, valid: DataFrame, tmp_path: Path) -> None:
    estimator, count = regressor(handleInvalid="skip"), valid.count()
    assert estimator.plan(df, numSteps=1).numRows == count
    with estimator.prepare(df, path=str(tmp_path / "prepared")) as prepared:
        assert prepared.numRows == count
    some = df.where("x is not null and y is not null and vector is not null")
    rule = estimator.getParam("handleInvalid")
    grid: list[Any] = [{rule: "skip"}, {rule: "keep"}, {rule: "skip"}]
    mending = estimator.copy().setModel(Mending()).setEpochs(1)
    found = [model.summary.numRows for model in mending.fit(some, grid)]
    assert found == [count, some.count(), count] and count < some.count()
    path = df.inputFiles()[0].rsplit("/", 1)[0]
    assert estimator.fitOnParquet(path).summary.numRows == count


@pytest.mark.parametrize("how", ["always", "never"])
@pytest.mark.parametrize("column", ["x", "vector", "array"])
def test_rows_are_refused_by_their_column(how: str, column: str, df: DataFrame) -> None:
    sizes = {"x": 1, "vector": 3, "array": 2}
    estimator = regressor(
        model=nn.Linear(sizes[column], 1), inputCols=[column], inputShapes=[[sizes[column]]], inPlace=how
    )
    with pytest.raises(
        DataError, match=f"column '{column}' holds a null or a NaN, and handleInvalid is 'error'"
    ):
        estimator.setHandleInvalid("error").fit(df)
    some = df.where("id = 0")
    assert estimator.setNumWorkers(1).fit(some).summary.numRows == 1


def test_transform_and_evaluate(df: DataFrame, valid: DataFrame, expected: TorchModel) -> None:
    ids = {row.id for row in valid.select("id").collect()}
    skipping = expected.copy().setHandleInvalid("skip")
    rows = skipping.transform(df).select("id", "prediction").collect()
    assert {row.id for row in rows} == ids
    assert {row.id: row.prediction for row in rows} == {
        row.id: row.prediction for row in expected.transform(valid).select("id", "prediction").collect()
    }
    assert skipping.evaluate(df) == pytest.approx(expected.evaluate(valid))
    with pytest.raises(Exception, match="column 'x' holds a null or a NaN"):
        expected.copy().setHandleInvalid("error").transform(df).collect()
    # What is kept is what the module makes of it.
    kept = expected.transform(df.where("x is not null and y is not null and vector is not null"))
    assert any(math.isnan(row.prediction) for row in kept.collect())


def test_it_is_saved(expected: TorchModel, df: DataFrame, valid: DataFrame, tmp_path: Path) -> None:
    expected.copy().setHandleInvalid("skip").save(str(tmp_path / "model"))
    again = TorchModel.load(str(tmp_path / "model"))
    assert again.transform(df).count() == valid.count()


def test_arrays_with_a_null_are_invalid(spark: SparkSession) -> None:
    rows = [
        (0, [1, 2], [[1.0], [2.0]]),
        (1, [1, None], [[1.0], [2.0]]),
        (2, [1, 2], [[1.0], None]),
        (3, [1, 2], [[1.0], [math.nan]]),
        (4, [1, 2], [[1.0], [None]]),
    ]
    df = spark.createDataFrame(rows, "id long, whole array<int>, nested array<array<float>>")
    for column, kept in {"whole": [0, 2, 3, 4], "nested": [0, 1]}.items():
        tensor = TensorColumns(column, (column,), "float32", None)
        found = valid_rows(df, [tensor], "skip").select("id").collect()
        assert [row.id for row in found] == kept


def test_a_thousand_columns_are_looked_at_by_one_filter(any_spark: SparkSession) -> None:
    names = [f"x{place}" for place in range(1000)]
    values = [F.when(F.col("id") != place, F.lit(1.0)).alias(name) for place, name in enumerate(names)]
    df = any_spark.range(1002).select("id", *values)
    tensor = TensorColumns("features", tuple(names), "float32", (1000,))
    assert [row.id for row in valid_rows(df, [tensor], "skip").select("id").collect()] == [1000, 1001]


def test_a_plan_refuses_as_a_fit_does(df: DataFrame) -> None:
    with pytest.raises(DataError, match="holds a null or a NaN"):
        regressor(handleInvalid="error").plan(df, numSteps=1)
