"""Shards: what is written, held against pyarrow reading the files and Spark reading the DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from flambeau import DataError, TorchEstimator
from flambeau._spark.rows.shards import DataFile, ShardSet, resolve, write
from flambeau._spark.site import Site
from flambeau._spark.work_directory import WorkDirectory


def rows(spark: SparkSession, count: int = 1000) -> DataFrame:
    return spark.range(0, count, 1, 4).select(
        F.col("id"),
        (F.col("id") / 10).alias("x"),
        F.array(F.col("id").cast("double"), F.lit(0.5), F.lit(-1.0)).alias("a"),
        F.concat(F.lit("s"), F.col("id") % 3).alias("s"),
        F.col("id").cast("decimal(10,2)").alias("d"),
        (F.col("id") % 5 == 0).alias("held"),
        (F.col("id") / 3).alias("label"),
    )


def written(df: DataFrame, path: Path, label: str | None = "float32", **params: Any) -> ShardSet:
    estimator = TorchEstimator(**params)
    columns = resolve(df.schema, estimator, label, False)
    site = Site(df.sparkSession, WorkDirectory(str(path)), visible=True)
    return write(df, columns, site, str(path / "shards"))


def table(files: Sequence[DataFile]) -> pa.Table:
    return pa.concat_tables(pq.ParquetFile(unquote(urlsplit(str(file)).path)).read() for file in files)


def shapes(shards: ShardSet) -> list[tuple[str, str, tuple[int, ...] | None]]:
    return [(tensor.name, tensor.dtype, tensor.shape) for tensor in shards.columns.inputs]


def test_vectors_arrays_and_numbers(spark: SparkSession, tmp_path: Path) -> None:
    df = VectorAssembler(inputCols=["id", "x"], outputCol="v").transform(rows(spark))
    df = StringIndexer(inputCol="s", outputCol="si").fit(df).transform(df)
    shards = written(df, tmp_path, inputCols=["v", "a", "d", "id", "si", "held"])
    assert shapes(shards) == [
        ("v", "float32", (2,)),
        ("a", "float32", (3,)),
        ("d", "float32", ()),
        ("id", "int64", ()),
        ("si", "int64", ()),
        ("held", "bool", ()),
    ]
    assert shards.num_rows == 1000
    data = table(shards.train)
    assert data.column_names == ["v", "a", "d", "id", "si", "held", "label"]
    ids = np.array(data["id"])
    assert sorted(ids) == list(range(1000))
    expected = np.stack([ids.astype(np.float32), (ids / 10).astype(np.float32)], 1)
    np.testing.assert_array_equal(np.array(data["v"].to_pylist(), np.float32), expected)
    np.testing.assert_array_equal(np.array(data["label"]), (ids / 3).astype(np.float32))
    assert data.schema.field("v").type == pa.list_(pa.field("element", pa.float32()))
    assert data.schema.field("si").type == pa.int64()


def test_nested_arrays_have_the_shape_of_their_first_row(spark: SparkSession, tmp_path: Path) -> None:
    numbers = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    schema = "id int, m array<array<float>>, label array<array<float>>"
    df = spark.createDataFrame([(i, m.tolist(), m.T.tolist()) for i, m in enumerate(numbers)], schema)
    shards = written(df, tmp_path, inputCols=["m"])
    assert shapes(shards) == [("m", "float32", (3, 2))]
    assert [label.shape for label in shards.columns.labels] == [(2, 3)]
    np.testing.assert_array_equal(
        sorted(table(shards.train)["m"].to_pylist()), numbers.reshape(4, 6), strict=False
    )
    # As many numbers, in another shape; lists of several lengths; a list that is not there.
    others = [numbers[0].T.tolist(), [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]], [[1.0, 2.0], None, [3.0, 4.0]]]
    for number, other in enumerate(others):
        uneven = df.union(spark.createDataFrame([(9, other, numbers[0].T.tolist())], schema)).coalesce(1)
        with pytest.raises(DataError, match=r"column 'm' holds an array that is not of shape \[3, 2\]"):
            written(uneven, tmp_path / f"uneven-{number}", inputCols=["m"])


def test_sparse_vectors_are_written_dense(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    df = spark.createDataFrame(
        [(Vectors.sparse(3, {1: 2.0}), 1.0), (Vectors.dense([4, 5, 6]), 2.0)], ["features", "label"]
    )
    shards = written(df, tmp_path)
    assert sorted(table(shards.train)["features"].to_pylist()) == [[0, 2, 0], [4, 5, 6]]
    assert shapes(shards) == [("features", "float32", (3,))]


def test_a_list_of_columns_is_one_tensor(spark: SparkSession, tmp_path: Path) -> None:
    shards = written(rows(spark), tmp_path, featuresCol=["id", "x", "d"])
    assert shapes(shards) == [("features", "float32", (3,))]
    assert shards.columns.spec_json()["inputs"][0]["columns"] == ["id", "x", "d"]


def test_input_types_and_shapes_override(spark: SparkSession, tmp_path: Path) -> None:
    df = rows(spark).withColumn("m", F.array(F.array("x", "x"), F.array("x", "x"), F.array("x", "x")))
    shards = written(
        df,
        tmp_path,
        inputCols=["x", "a", "m"],
        inputTypes=["float64", "auto", "auto"],
        inputShapes=[[1], [3, 1], [3, 2]],
    )
    assert shapes(shards) == [("x", "float64", (1,)), ("a", "float32", (3, 1)), ("m", "float32", (3, 2))]
    assert len(table(shards.train)["m"][0]) == 6
    assert table(shards.train).schema.field("x").type == pa.float64()


def test_a_column_used_as_two_types_is_written_twice(spark: SparkSession, tmp_path: Path) -> None:
    df = rows(spark).withColumn("label", F.col("id"))
    shards = written(
        df, tmp_path, label="int64", inputCols=["label", "id"], inputTypes=["float32", "auto"], weightCol="id"
    )
    spec = shards.columns.spec_json()
    names = [spec["inputs"][0]["columns"], spec["labels"][0]["columns"], spec["weight"]["columns"]]
    assert len({name for columns in names for name in columns}) == 3
    assert table(shards.train).num_rows == 1000


@pytest.mark.parametrize("name", ["dotted.name", "sp ace", "`tick`", "comma,=;"])
def test_names_that_sql_would_misread(spark: SparkSession, tmp_path: Path, name: str) -> None:
    df = rows(spark).withColumnRenamed("x", name)
    shards = written(df, tmp_path, inputCols=[name])
    assert table(shards.train).column_names[0] == name


def test_a_validation_column_splits_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    shards = written(rows(spark), tmp_path, inputCols=["id"], validationIndicatorCol="held")
    assert (shards.num_rows, shards.num_validation_rows) == (800, 200)
    assert sorted(np.array(table(shards.validation)["id"])) == list(range(0, 1000, 5))
    assert set(np.array(table(shards.train)["id"])).isdisjoint(range(0, 1000, 5))


def test_a_validation_fraction_is_seeded(spark: SparkSession, tmp_path: Path) -> None:
    def held_out(name: str, seed: int) -> list[int]:
        path = tmp_path / name
        shards = written(rows(spark), path, inputCols=["id"], validationFraction=0.2, seed=seed)
        assert shards.num_rows + shards.num_validation_rows == 1000
        return sorted(np.array(table(shards.validation)["id"]))

    first = held_out("first", 3)
    assert 120 < len(first) < 280
    assert held_out("again", 3) == first
    assert held_out("other", 4) != first


def test_the_dataframe_is_computed_once(spark: SparkSession, tmp_path: Path) -> None:
    counter = spark.sparkContext.accumulator(0)

    def count(value: int) -> int:
        counter.add(1)
        return value

    df = rows(spark).withColumn("id", F.udf(count, "long")("id"))
    written(df, tmp_path, inputCols=["id"], validationFraction=0.5)
    assert counter.value == 1000


def test_rows_keep_their_order(spark: SparkSession, tmp_path: Path) -> None:
    shards = written(rows(spark), tmp_path, inputCols=["id"])
    assert list(np.array(table(shards.train)["id"])) == list(range(1000))
