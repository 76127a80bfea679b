"""A model as a function of SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau._spark.transform.udf import scalar_udf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from flambeau._score.scoring import Scorer


def function_of(scorer: Scorer, returns: DataType, name: str | None, spark: SparkSession) -> Any:
    """The UDF of the columns of the scorer's inputs, in their order, of any type that was trained on or can
    be made it; with a name the session's SQL knows it by that.
    """
    num_columns = sum(len(tensor.columns) for tensor in scorer.inputs)
    made = scalar_udf(scorer, returns, num_columns, converts=True)
    return made if name is None else spark.udf.register(name, made)
