"""The rows that golden models are made of and predict for, and their predictions as JSON."""

from __future__ import annotations

import math
from typing import Any

from pyspark.ml.feature import StringIndexer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

CATEGORIES = ("AA", "B6", "DL")
_COLUMNS = ("prediction", "rawPrediction", "probability")


def rows(spark: SparkSession) -> DataFrame:
    """Twelve rows: an id, two numbers, a category, and labels. These stay as they are."""
    made = []
    for number in range(12):
        a, b = math.sin(number), math.cos(2.0 * number)
        made.append((number, a, b, CATEGORIES[number * number % 3], a - 2 * b + number % 3, number % 3))
    return spark.createDataFrame(
        made, "id int, a double, b double, carrier string, label double, class int"
    ).coalesce(1)


def with_numbers(frame: DataFrame, name: str = "") -> DataFrame:
    """The rows with the array that the models that stand alone read; a pipeline makes its own columns.

    The estimator's are those that it had in the pipeline.
    """
    if name == "pipeline":
        return frame
    if name == "estimator":
        frame = StringIndexer(inputCol="carrier", outputCol="category").fit(frame).transform(frame)
    return frame.withColumn("numbers", F.array(F.col("a").cast("float"), F.col("b").cast("float")))


def predictions(scored: DataFrame) -> list[Any]:
    """What a model added to each row, in the order of the ids: numbers and lists of them."""
    columns = [name for name in _COLUMNS if name in scored.columns]
    return [[_plain(row[name]) for name in columns] for row in scored.orderBy("id").collect()]


def _plain(value: Any) -> Any:
    if hasattr(value, "toArray"):
        return value.toArray().tolist()
    return list(value) if isinstance(value, (tuple, list)) else value
