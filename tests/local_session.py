"""A local Spark session for the programs that tests run as processes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession


def session(
    jar: Path | str | None = None, master: str = "local[2]", confs: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on `master`, with `jar` on the class path where it is given, and with these confs."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        **(confs or {}),
    }
    if jar is not None:
        settings["spark.jars"] = str(jar)
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
