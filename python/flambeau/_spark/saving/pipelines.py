"""Pipelines with stages of Flambeau's, as Spark's own readers of both languages take them.

Scala's reader goes by the class that a pipeline's metadata name, and PySpark's by a param `language`. Each
language writes its own, so a stage of ours that is saved in a pipeline gives it both.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from flambeau._spark.directory import Directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PIPELINE = re.compile(r"(?:pyspark\.ml\.pipeline|org\.apache\.spark\.ml)\.(Pipeline|PipelineModel)")


def share_pipelines(spark: SparkSession, path: str) -> None:
    """Lets both languages read the pipeline that the stage at `path` was saved in, and those around that."""
    found = re.fullmatch(r"(.+)/stages/\d+_[^/]+", path.rstrip("/"))
    if found is None or not Directory(spark, found[1]).holds("metadata"):
        return
    place = f"{found[1]}/metadata"
    row = spark.read.text(place).first()
    metadata = json.loads(row[0]) if row is not None else {}
    pipeline = _PIPELINE.fullmatch(metadata.get("class", ""))
    if pipeline is None:
        return
    shared = {
        **metadata,
        "class": f"org.apache.spark.ml.{pipeline[1]}",
        "paramMap": {**metadata["paramMap"], "language": "Python"},
    }
    if shared != metadata:
        text = json.dumps(shared, separators=(",", ":"))
        spark.createDataFrame([(text,)], "value string").coalesce(1).write.mode("overwrite").text(place)
    share_pipelines(spark, found[1])
