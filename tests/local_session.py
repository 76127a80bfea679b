"""A local Spark session for the programs that tests run as processes of their own."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession


def session(
    jars: str | None = None, master: str = "local[2]", confs: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on `master`, with `jars` on the class path where they are given, and with these confs."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        **(confs or {}),
    }
    if jars is not None:
        settings["spark.jars"] = jars
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
