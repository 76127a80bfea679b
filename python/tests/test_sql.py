"""A model as a function of SQL. The oracle is transform."""

from __future__ import annotations

from pathlib import Path

import fitted
import numpy as np
import pytest
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from flambeau import ParamError, TorchEstimator, TorchModel, TorchRegressor
from flambeau._tensors import TensorColumns

ROWS = np.random.default_rng(0).normal(size=(40, 4))


def rows(spark: SparkSession) -> DataFrame:
    data = [(i, *map(float, row[:3]), i % 3, row.tolist()) for i, row in enumerate(ROWS)]
    return spark.createDataFrame(
        data,
        "id long, x1 double, x2 float, x3 double, n int, a array<double>",
    )


def packed(folder: Path) -> TorchModel:
    names = ["x1", "x2", "x3", "n"]
    inputs = [TensorColumns("features", tuple(names), "float32", (4,))]
    module = fitted.Scalar()
    model: TorchModel = fitted.fitted(
        TorchRegressor(model=module, featuresCols=names), module, inputs, folder
    )
    return model


def by_sql(spark: SparkSession, frame: DataFrame, expression: str) -> list[object]:
    frame.createOrReplaceTempView("t")
    found = spark.sql(f"SELECT id, {expression} AS s FROM t").collect()  # noqa: S608  the test's own
    return [row["s"] for row in sorted(found, key=lambda row: row["id"])]


def transformed(model: TorchModel, frame: DataFrame, name: str = "prediction") -> list[object]:
    found = model.transform(frame).select("id", F.col(name).alias("s")).collect()
    return [row["s"] for row in sorted(found, key=lambda row: row["id"])]


def test_columns_of_any_number(any_spark: SparkSession, tmp_path: Path) -> None:
    model, frame = packed(tmp_path), rows(any_spark)
    model.udf("score")
    expected = transformed(model, frame)
    assert by_sql(any_spark, frame, "score(x1, x2, x3, n)") == pytest.approx(expected, rel=1e-6)
    decimal = "score(x1, x2, cast(x3 AS decimal(30, 15)), n)"
    assert by_sql(any_spark, frame, decimal) == pytest.approx(expected, rel=1e-5)
    frame.createOrReplaceTempView("t")
    [row] = any_spark.sql("SELECT count(*) AS c FROM t WHERE score(x1, x2, x3, n) > 0").collect()
    assert row["c"] == sum(value > 0 for value in expected)  # type: ignore[operator]


def test_without_a_name_it_is_a_function_of_columns(spark: SparkSession, tmp_path: Path) -> None:
    model, frame = packed(tmp_path), rows(spark)
    score = model.udf()
    found = frame.select("id", score("x1", "x2", "x3", "n").alias("s")).orderBy("id").collect()
    assert [row["s"] for row in found] == pytest.approx(transformed(model, frame), rel=1e-6)


@pytest.mark.matrix
def test_arrays_and_vectors(spark: SparkSession, tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path)
    frame = rows(spark).withColumnRenamed("a", "features")
    model.udf("score_array")
    expected = transformed(model, frame)
    assert by_sql(spark, frame, "score_array(features)") == pytest.approx(expected, rel=1e-6)
    names = ["x1", "x2", "x3", "n"]
    vectors = VectorAssembler(inputCols=names, outputCol="v").transform(rows(spark))
    zeros = (
        vectors.withColumn("x1", F.lit(0.0))
        .withColumn("x2", F.lit(0.0))
        .withColumn("x3", F.lit(0.0))
        .drop("v")
    )
    vectors = vectors.unionByName(
        VectorAssembler(inputCols=names, outputCol="v").transform(zeros.withColumn("id", F.col("id") + 40))
    )
    assert {type(row["v"]).__name__ for row in vectors.collect()} == {"DenseVector", "SparseVector"}
    model.setFeaturesCol("v")
    assert by_sql(spark, vectors, "score_array(v)") == pytest.approx(transformed(model, vectors), rel=1e-6)


def test_a_classifier_gives_a_struct(spark: SparkSession, tmp_path: Path) -> None:
    model = fitted.classifier(tmp_path)
    frame = rows(spark).withColumnRenamed("a", "features")
    model.udf("classes")
    assert by_sql(spark, frame, "classes(features).prediction") == transformed(model, frame)
    expected = [vector[1] for vector in transformed(model, frame, "probability")]  # type: ignore[index]
    assert by_sql(spark, frame, "classes(features).probability[1]") == pytest.approx(expected, rel=1e-6)


def test_several_outputs_are_fields(spark: SparkSession, tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x):
            return {"total": x.sum(1), "twice": 2 * x}

    model = fitted.fitted(TorchEstimator(model=Two(), loss="mse"), Two(), [fitted.features(4)], tmp_path)
    frame = rows(spark).withColumnRenamed("a", "features")
    model.udf("both")
    for field in ("total", "twice[3]"):
        expected = transformed(model, frame.select("id", "features"), "prediction")
        name, _, place = field.partition("[")
        values = [row[name] if not place else row[name][3] for row in expected]  # type: ignore[index]
        assert by_sql(spark, frame, f"both(features).{field}") == pytest.approx(values, rel=1e-6)
    model.setOutputCols(["", "doubled"]).udf("own")
    assert by_sql(spark, frame, "own(features).doubled[3]") == pytest.approx(values, rel=1e-6)


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    model, frame = packed(tmp_path), rows(spark)
    model.udf("score")
    for expression, text in (
        ("score(x1, x2)", r"the model takes 4 columns \(x1, x2, x3, n\), and got 2"),
        ("score(x1, x2, x3, null)", "column 'n' holds a null"),
        ("score(x1, x2, x3, 'a')", "column 'n' is .*string, which cannot be an input"),
        ("score(x1, x2, x3, a)", "column 'n' is list.*single numbers"),
    ):
        with pytest.raises(Exception, match=text):
            by_sql(spark, frame, expression)
    with pytest.raises(ParamError, match="get one from TorchEstimator"):
        TorchModel().udf("score")
