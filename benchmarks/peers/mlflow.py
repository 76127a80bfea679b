"""MLflow's side of the suite `transform`: its UDF on Parquet rows, in a Spark session of its own."""

from __future__ import annotations

import shutil
import sys
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

# This program's directory would hide the package of the same name.
sys.path[0] = str(Path(__file__).resolve().parent.parent)
warnings.filterwarnings("ignore")

import mlflow.pyfunc  # noqa: E402
import mlflow.pytorch  # noqa: E402
import torch  # noqa: E402
from harness import serve, spark_session  # noqa: E402
from pyspark.sql import DataFrame  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402


@cache
def scored(module: str, files: tuple[str, ...]) -> DataFrame:
    """The rows with the predictions of a module, all of whose inputs are columns."""
    spark = spark_session("mlflow")
    folder = Path(module).with_suffix(".mlflow")
    shutil.rmtree(folder, ignore_errors=True)
    trained = torch.load(module, weights_only=False).eval()
    mlflow.pytorch.save_model(trained, str(folder), serialization_format="pickle")
    rows = spark.read.parquet(*files)
    predict = mlflow.pyfunc.spark_udf(spark, str(folder), result_type="double", env_manager="local")
    return rows.withColumn("prediction", predict(F.struct(*rows.columns)))


def score(module: str, files: list[str]) -> dict[str, Any]:
    """Scores all rows into the `noop` sink and says how many seconds it took."""
    rows = scored(module, tuple(files))
    begun = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return {"seconds": time.perf_counter() - begun}


if __name__ == "__main__":
    serve(score)
