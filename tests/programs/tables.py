"""Delta and Iceberg tables that are read in place, with what their formats do to rows, by both languages;
prints an outcome.
"""

import argparse
import json
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow.parquet as pq
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scala import Scala

from flambeau import Callback, TorchRegressor
from flambeau._spark.rows.sources import FrameRows, Reading
from flambeau._spark.site import Site
from flambeau._spark.work_directory import WorkDirectory
from flambeau.callbacks import Context
from flambeau.errors import DataError

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--jars", required=True)
options = parser.parse_args()
here = Path.cwd()

settings = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": str(here / "warehouse"),
    "spark.jars": options.jars,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
    "spark.sql.catalog.ice.warehouse": str(here / "ice warehouse"),
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

ROWS = 70_000


def rows(first: int, last: int) -> DataFrame:
    return spark.range(first, last, 1, 2).select(
        "id",
        (F.col("id") % 97 / 10).cast("float").alias("x"),
        (F.col("id") % 89 / 3).cast("float").alias("label"),
        (F.col("id") % 3 + 2020).cast("int").alias("year"),
    )


def read(df: DataFrame, **params: Any) -> dict[str, Any]:
    """The ids that are read in place of their files, beside those of Spark's; or why none are."""
    estimator = TorchRegressor(**{"inputCols": ["id", "x"], "inPlace": "always"} | params)
    reading, found = Reading(estimator, "float32", False), FrameRows(df)
    site = Site(spark, WorkDirectory(str(here / "work"), ()), visible=True)
    ids: list[int] = []
    years: Counter[str] = Counter()
    whole, parts = 0, 0
    try:
        with found.shards(found.columns(reading), reading, site, nullcontext) as shards:
            for file in [*shards.train, *shards.validation]:
                assert not isinstance(file, str)
                where = unquote(urlsplit(file["uri"]).path)
                stored = pq.ParquetFile(where).read(columns=["id"])["id"].to_numpy()
                keep = np.zeros(len(stored), bool)
                if isinstance(at := file["rows"], int):
                    keep[:at] = True
                else:
                    data = Path(at["uri"]).read_bytes()[at["offset"] : at["offset"] + at["length"]]
                    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").astype(bool)
                    keep[: len(bits)] = bits[: len(keep)]
                if at == len(stored):
                    whole += 1
                elif not isinstance(at, int):
                    parts += 1
                ids += stored[keep].tolist()
                if "values" in file:
                    years[file["values"]["year"]] += int(keep.sum())
            num_rows = shards.num_rows + shards.num_validation_rows
    except DataError as error:
        return {"refusal": str(error)}
    of_spark = sorted(row.id for row in df.select("id").collect())
    outcome: dict[str, Any] = {
        "rows": num_rows,
        "same": sorted(ids) == of_spark,
        "count": len(of_spark),
        "whole files": whole,
        "bitmaps": parts,
    }
    if years:
        outcome["years"] = dict(years) == {
            str(row.year): row[1] for row in df.groupBy("year").count().collect()
        }
    return outcome


class Look(Callback):
    """Notes what a fit has put into the work directory for its rows."""

    where = "driver"

    def on_train_begin(self, context: Context) -> None:
        self.found = sorted(path.name for path in (here / "fits" / "shards").glob("*/*"))


def fitted(df: DataFrame) -> dict[str, Any]:
    """A fit in each language with the default of inPlace, beside a loop of torch's on Spark's rows."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Linear(1, 1))
    program = str(here / "net.pt")
    torch.jit.script(module).save(program)
    params: dict[str, Any] = {
        "optimizer": {"name": "sgd", "options": {"lr": 0.01}},
        "inputCols": ["x"],
        "numWorkers": 2,
        "numThreads": 1,
        "batchSize": ROWS,
        "epochs": 3,
        "verbose": 0,
        "workDir": str(here / "fits"),
    }
    look = Look()
    model = TorchRegressor(model=module, callbacks=[look], **params).fit(df)
    of_scala = Scala(spark).estimator("TorchRegressor", model=program, **params).fit(df._jdf)
    table = df.select("x", "label").toPandas()
    x, y = (torch.tensor(table[name].to_numpy(), dtype=torch.float32) for name in ("x", "label"))
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.01), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x)[:, 0], y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {
        "loss": model.history["loss"],
        "scala": list(of_scala.history().apply("loss")),
        "expected": losses,
        "written": look.found,
    }


def delta() -> dict[str, Any]:
    writer = rows(0, ROWS).write.format("delta").partitionBy("year")
    writer = writer.option("delta.enableDeletionVectors", "true").option("path", str(here / "a delta table"))
    writer.saveAsTable("t")
    spark.sql("DELETE FROM t WHERE id % 10 = 3")
    spark.sql("UPDATE t SET x = 0.5 WHERE id % 1000 = 7")
    rows(ROWS, ROWS + 500).write.format("delta").mode("append").saveAsTable("t")
    now = spark.table("t")
    [deleted] = spark.sql("DESCRIBE DETAIL t").select("tableFeatures").collect()
    first = spark.sql("SELECT * FROM t VERSION AS OF 0")
    outcome = {
        "has deletion vectors": "deletionVectors" in deleted.tableFeatures,
        "now": read(now),
        "first": read(first),
        "filtered": read(now.where("id % 2 = 0 and year = 2021"), validationFraction=0.3),
        "partition column": read(now, inputCols=["year", "x"]),
        "fit": fitted(now.where("id % 7 != 1")),
        "fit of the first": fitted(first),
    }
    mapped = str(here / "mapped")
    mapping = {
        "delta.columnMapping.mode": "name",
        "delta.minReaderVersion": "2",
        "delta.minWriterVersion": "5",
    }
    rows(0, 100).write.format("delta").options(**mapping).save(mapped)
    return outcome | {"mapped": read(spark.read.format("delta").load(mapped))}


def iceberg() -> dict[str, Any]:
    modes = ", ".join(f"'write.{one}.mode' = 'merge-on-read'" for one in ("delete", "update", "merge"))
    spark.sql(
        "CREATE TABLE ice.db.t (id long, x float, label float, year int) USING iceberg "
        f"PARTITIONED BY (year) TBLPROPERTIES ('format-version' = '2', {modes})"
    )
    rows(0, ROWS).writeTo("ice.db.t").append()
    [first] = spark.sql("SELECT snapshot_id FROM ice.db.t.snapshots").collect()
    spark.sql("DELETE FROM ice.db.t WHERE id % 10 = 3")
    spark.sql("UPDATE ice.db.t SET x = 0.5 WHERE id % 1000 = 7")
    now = spark.table("ice.db.t")
    [kinds] = spark.sql("SELECT count(*) AS n FROM ice.db.t.delete_files").collect()
    then = spark.read.option("versionAsOf", first.snapshot_id).table("ice.db.t")
    outcome = {
        "has delete files": kinds.n > 0,
        "now": read(now),
        "first": read(then),
        "filtered": read(now.where("id % 2 = 0 and year = 2021"), validationFraction=0.3),
        "pushed down": read(now.where("year = 2021")),
        "fit": fitted(now.where("id % 7 != 1")),
        "fit of the first": fitted(then),
    }
    spark.sql("ALTER TABLE ice.db.t ADD COLUMN w double")
    outcome["unrelated column"] = read(spark.table("ice.db.t"))
    spark.sql("ALTER TABLE ice.db.t RENAME COLUMN x TO z")
    outcome["renamed"] = read(spark.table("ice.db.t"), inputCols=["z"])
    spark.sql("ALTER TABLE ice.db.t RENAME COLUMN w TO x")
    outcome["name of another"] = read(spark.table("ice.db.t"), inputCols=["x"])
    # One that was dropped and is there again, and nobody knows of it any more.
    spark.sql("CREATE TABLE ice.db.u (id long, x float, label float) USING iceberg")
    rows(0, 1000).drop("year").writeTo("ice.db.u").append()
    spark.sql("ALTER TABLE ice.db.u DROP COLUMN x")
    spark.sql("ALTER TABLE ice.db.u ADD COLUMN x float")
    spark.sql(
        "CALL ice.system.expire_snapshots(table => 'db.u', older_than => TIMESTAMP '2999-01-01 00:00:00', "
        "clean_expired_metadata => true)"
    )
    outcome["forgotten"] = read(spark.table("ice.db.u"))
    outcome["metadata"] = read(spark.table("ice.db.u.files"), inputCols=["record_count"], labelCol="spec_id")
    return outcome


print("OUTCOME " + json.dumps({"delta": delta(), "iceberg": iceberg()}))
spark.stop()
