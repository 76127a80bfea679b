"""Flambeau's Scala classes, driven from Python through the session's gateway to the JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.ml.wrapper import JavaParams
from pyspark.sql import DataFrame, SparkSession

import flambeau
from flambeau.errors import FlambeauError


def jars() -> str:
    """`spark.jars` for the Spark line that is installed; the test is skipped where its jar is not built."""
    try:
        return flambeau.spark_config()["spark.jars"]
    except FlambeauError as error:
        pytest.skip(f"SKIPPED: {error}; `make jvm` builds that of Spark 4")


class Scala:
    """The Scala API over a session that has the jar."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        context: Any = spark.sparkContext
        self._gateway = context._gateway
        self.jvm = context._jvm
        self.flambeau = self.jvm.flambeau

    def estimator(self, name: str, **params: Any) -> Any:
        """An estimator of that class, each param given to its setter; `{"name", "options"}` as two
        arguments.
        """
        made = getattr(self.flambeau, name)()
        for param, value in params.items():
            setter = getattr(made, "set" + param[0].upper() + param[1:])
            if isinstance(value, dict):
                setter(value["name"], value["options"])
            else:
                setter(self._value(value))
        return made

    def pipeline(self, stages: Sequence[Any]) -> Any:
        """A Pipeline of the JVM's stages and of PySpark's, which are kept until it has them: with a stage of
        PySpark's goes what the gateway knows of the JVM's.
        """
        array = self._gateway.new_array(self.jvm.org.apache.spark.ml.PipelineStage, len(stages))
        for index, stage in enumerate(stages):
            array[index] = stage._to_java() if isinstance(stage, JavaParams) else stage
        return self.jvm.org.apache.spark.ml.Pipeline().setStages(array)

    def scored(self, model: Any, frame: DataFrame) -> DataFrame:
        """What a JVM model makes of a DataFrame."""
        return DataFrame(model.transform(frame._jdf), self._spark)

    def _value(self, value: Any) -> Any:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            array = self._gateway.new_array(self.jvm.java.lang.String, len(value))
            for index, item in enumerate(value):
                array[index] = item
            return array
        return value
