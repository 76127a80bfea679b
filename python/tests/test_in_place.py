"""Rows that are read where they lie. The oracles are Spark's own rows of the same DataFrame, pyarrow reading
the files that are named, and plain loops of torch's.
"""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from test_callbacks import Epochs
from torch import nn

from flambeau import Callback, DataError, ParamError, TorchEstimator, TorchRegressor
from flambeau._spark.rows.shards import DataFile, ShardSet
from flambeau._spark.rows.sources import FrameRows, ParquetRows, Reading, Rows
from flambeau._spark.site import Site
from flambeau._spark.work_directory import WorkDirectory
from flambeau.callbacks import Context

NUM_ROWS = 100_000
"""More than Spark's bitmaps have, in a file."""


def rows(spark: SparkSession, count: int = NUM_ROWS) -> DataFrame:
    return spark.range(0, count, 1, 2).select(
        F.col("id"),
        (F.col("id") % 97 / 10).cast("float").alias("x"),
        (F.col("id") % 89 / 3).cast("float").alias("label"),
        F.when(F.col("id") % 7 != 0, F.col("id").cast("double")).alias("gaps"),
        (F.col("id") % 5 == 0).alias("held"),
    )


@pytest.fixture(scope="module")
def path(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory of two files of so many rows, whose name a URI has to escape."""
    directory = str(tmp_path_factory.mktemp("in place") / "50%25 of all")
    rows(spark).write.parquet(directory)
    return directory


@contextmanager
def shards_of(rows: Rows, work: Path | WorkDirectory, **params: Any) -> Iterator[ShardSet]:
    """What a fit with these params reads."""
    estimator = TorchEstimator(**{"inputCols": ["id", "x"], "inPlace": "always"} | params)
    reading = Reading(estimator, "float32", False)
    work = work if isinstance(work, WorkDirectory) else WorkDirectory(str(work), ())
    site = Site(rows.spark, work, visible=True)
    with rows.shards(rows.columns(reading), reading, site, nullcontext) as shards:
        yield shards


def values(files: Sequence[DataFile], column: str = "id") -> list[Any]:
    """The values of a column, as the files have them, in the rows that are read."""
    found: list[Any] = []
    for file in files:
        uri = file if isinstance(file, str) else file["uri"]
        where = urlsplit(uri)
        table = pq.ParquetFile(unquote(where.path) if where.scheme else uri).read(columns=[column])
        here = np.ones(len(table), bool)
        if not isinstance(file, str) and isinstance(at := file["rows"], int):
            assert at <= len(table)
            here[at:] = False
        elif not isinstance(file, str):
            data = Path(at["uri"]).read_bytes()[at["offset"] : at["offset"] + at["length"]]
            bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
            assert not bits[len(table) :].any() and not bits.all()
            here = np.zeros(len(table), bool)
            here[: len(bits)] = bits[: len(table)]
        found += table.column(column).filter(here).to_pylist()
    return found


def of_spark(df: DataFrame) -> list[int]:
    return sorted(row.id for row in df.select("id").collect())


def test_all_rows_of_files_take_no_job(spark: SparkSession, path: str, tmp_path: Path) -> None:
    df = spark.read.parquet(path).select("label", "x", "id")
    with shards_of(FrameRows(df), tmp_path) as shards:
        assert shards.train and all(isinstance(file, str) for file in shards.train)
        assert (shards.num_rows, shards.num_validation_rows) == (NUM_ROWS, 0)
        assert sorted(values(shards.train)) == list(range(NUM_ROWS))
        assert [(one.name, one.shape) for one in shards.columns.inputs] == [("id", ()), ("x", ())]
        assert not tmp_path.exists() or not any(tmp_path.iterdir())


def test_files_of_which_all_rows_are_left_have_no_bitmap(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    """Nor have those of which the first ones are; each file has half of the rows."""
    df, half = spark.read.parquet(path), NUM_ROWS // 2
    for condition, numbers in [("id >= 0", [half, half]), (f"id < {half + 7}", [half, 7])]:
        with shards_of(FrameRows(df.where(condition)), tmp_path) as shards:
            assert [not isinstance(file, str) and file["rows"] for file in shards.train] == numbers
            assert shards.num_rows == sum(numbers)
            assert sorted(values(shards.train)) == of_spark(df.where(condition))
            assert not any(path.is_file() for path in tmp_path.rglob("*"))
    with shards_of(FrameRows(df.where(f"id < {half} or id % 2 = 0")), tmp_path) as shards:
        whole, other = shards.train
        assert not isinstance(whole, str) and whole["rows"] == half
        assert not isinstance(other, str) and other["rows"]["offset"] == 0


def test_a_filter_and_a_split_of_any_expression(spark: SparkSession, path: str, tmp_path: Path) -> None:
    df = spark.read.parquet(path).where("id % 3 != 0 and gaps is not null")
    df = df.withColumn("flag", F.hash("id") % 4 == 0).where(~F.col("held"))
    with shards_of(
        FrameRows(df), tmp_path, validationIndicatorCol="flag", inputCols=["gaps", "id"]
    ) as shards:
        train, validation = values(shards.train), values(shards.validation)
        assert sorted(train) == of_spark(df.where("not flag"))
        assert sorted(validation) == of_spark(df.where("flag"))
        assert (shards.num_rows, shards.num_validation_rows) == (len(train), len(validation))
        # As the files have them: two in their order, with rising ids in each.
        assert train == sorted(train)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [path.name for path in files] == ["bitmaps"]
        assert files[0].stat().st_size < NUM_ROWS // 8 * 2 + 100
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_fraction_is_drawn_anew_alike(spark: SparkSession, path: str, tmp_path: Path) -> None:
    df = spark.read.parquet(path).where("id > 500")
    drawn = []
    for seed in (1, 1, 2):
        with shards_of(FrameRows(df), tmp_path, validationFraction=0.25, seed=seed) as shards:
            train, validation = values(shards.train), values(shards.validation)
            assert sorted(train + validation) == list(range(501, NUM_ROWS))
            assert abs(len(validation) / (len(train) + len(validation)) - 0.25) < 0.01
            drawn.append(validation)
    assert drawn[0] == drawn[1] != drawn[2]


def test_parts_of_random_split(spark: SparkSession, path: str, tmp_path: Path) -> None:
    parts = spark.read.parquet(path).randomSplit([0.7, 0.3], seed=5)
    read = []
    for part in parts:
        with shards_of(FrameRows(part), tmp_path) as shards:
            read.append(values(shards.train))
            assert sorted(read[-1]) == of_spark(part)
    assert sorted(read[0] + read[1]) == list(range(NUM_ROWS))


def test_steps_that_choose_rows(spark: SparkSession, path: str, tmp_path: Path) -> None:
    df = spark.read.parquet(path)
    latest = F.row_number().over(Window.partitionBy("x").orderBy(F.desc("id")))
    for chosen in (df.sample(0.1, seed=3), df.repartition(3), df.withColumn("n", latest).where("n <= 2")):
        with shards_of(FrameRows(chosen), tmp_path) as shards:
            assert sorted(values(shards.train)) == of_spark(chosen)
    with shards_of(FrameRows(df.limit(321)), tmp_path) as shards:
        assert len({*values(shards.train)}) == shards.num_rows == 321


def test_vectors_and_nested_arrays(spark: SparkSession, tmp_path: Path) -> None:
    df = VectorAssembler(inputCols=["id", "x"], outputCol="v").transform(rows(spark, 100))
    df = df.withColumn("m", F.array(F.array("x", "x"), F.array("x", "x"), F.array("x", "x")))
    df.write.parquet(str(tmp_path / "vectors"))
    df = spark.read.parquet(str(tmp_path / "vectors")).where("id != 7")
    with shards_of(FrameRows(df), tmp_path / "work", inputCols=["v", "m"]) as shards:
        assert [one.shape for one in shards.columns.inputs] == [(2,), (3, 2)]
        assert shards.num_rows == 99


def refusals(spark: SparkSession, path: str) -> dict[str, tuple[DataFrame, dict[str, Any]]]:
    df = spark.read.parquet(path)
    df.createOrReplaceTempView("some_rows")
    computed = df.withColumn("x", F.col("x") * 2)
    other = spark.range(100).withColumnRenamed("id", "key")
    return {
        "column 'x' is computed": (computed, {}),
        "column 'y' is computed": (df.withColumnRenamed("x", "y"), {"inputCols": ["y"]}),
        "is made of several tables": (df.join(other, df.id == other.key), {}),
        "it is made of several tables": (df.union(df), {}),
        "more than once": (df.sample(withReplacement=True, fraction=2.0, seed=1), {}),
        r"rows of files as they are \(Generate\)": (df.withColumn("e", F.explode(F.array("x", "x"))), {}),
        r"shuffle is off, and its rows are not in the order of files \(Sort\)": (
            df.orderBy("label"),
            {"shuffle": False},
        ),
        "it is cached": (df.where("id > -7").cache(), {}),
        "is not read from Parquet files": (rows(spark, 10), {}),
        r"rows of files as they are \(Deduplicate": (df.distinct().select("id", "x", "label"), {}),
        r"rows of files as they are \(View": (spark.table("some_rows"), {}),
        "the query of where its rows lie failed": (
            df.where(F.udf(lambda x: bool(1 / 0), "boolean")("x")),
            {},
        ),
        "has a column '_metadata'": (df.withColumn("_metadata", F.lit(1)), {}),
        "more than once ": (spark.read.parquet(path, path), {}),
        "column 'x' is float, and read as bool": (df, {"inputTypes": ["auto", "bool"]}),
        "column 's.x' is not one of the files' own": (
            df.select("label", "id", F.struct("x").alias("s")),
            {"inputCols": ["s.x"]},
        ),
    }


def test_what_cannot_be_read_in_place(
    spark: SparkSession, path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused where it is asked for, and written as ever where it is not."""
    for reason, (df, params) in refusals(spark, path).items():
        with (
            pytest.raises(DataError, match=f"inPlace is always.*{reason.strip()}"),
            shards_of(FrameRows(df), tmp_path, **params),
        ):
            pass
    df = spark.read.parquet(path).withColumn("x", F.col("x") * 2)
    with (
        caplog.at_level(logging.INFO, "flambeau"),
        shards_of(FrameRows(df), tmp_path, inPlace="auto") as shards,
    ):
        assert "written as shards, and not read in place: column 'x' is computed" in caplog.text
        assert sorted(values(shards.train)) == list(range(NUM_ROWS))
        assert all(str(file).startswith("file:") and str(tmp_path) in str(file) for file in shards.train)
    caplog.clear()
    local, read = rows(spark, 10), spark.read.parquet(path).where("id < 10")
    for frame in (local, local.union(local), local.join(local.select("id"), "id")):
        with shards_of(FrameRows(frame), tmp_path, inPlace="auto"):
            assert not caplog.text
    for frame in (read.union(local), local.join(read.select("id"), "id")):
        with (
            caplog.at_level(logging.INFO, "flambeau"),
            shards_of(FrameRows(frame), tmp_path, inPlace="auto") as shards,
        ):
            [record] = caplog.records
            told = "the rows are written as shards, and not read in place: it is made of several tables"
            assert record.getMessage() == told
            assert sorted(values(shards.train)) == of_spark(frame)
        caplog.clear()
    with shards_of(FrameRows(spark.read.parquet(path)), tmp_path, inPlace="never") as shards:
        assert all(str(tmp_path) in str(file) for file in shards.train)


def test_files_that_workers_may_not_reach_are_written(
    spark: SparkSession, path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those in another kind of store than the work directory, unless options of stores are set: then they
    are tried, and the store's own reason is told.
    """
    conf, link = spark._jsc.hadoopConfiguration(), "fs.viewfs.mounttable.elsewhere.link./rows"
    conf.set(link, Path(path).parent.as_uri())
    told = "written as shards, and not read in place: "
    try:
        df = spark.read.parquet(f"viewfs://elsewhere/rows/{Path(path).name}")
        assert all(file.startswith("viewfs://elsewhere/rows/") for file in df.inputFiles())
        for options, reason in [
            ((), "its store is not that of workDir, and no spark.flambeau.store option is set"),
            ((("access_key_id", "any"),), "viewfs"),
        ]:
            work = WorkDirectory(str(tmp_path), options)
            with (
                caplog.at_level(logging.INFO, "flambeau"),
                shards_of(FrameRows(df), work, inPlace="auto") as shards,
            ):
                [record] = caplog.records
                before, _, found = record.getMessage().partition(told)
                assert before == "the rows are " and found.partition(" (")[0].find(reason) >= 0
                assert ("its store" in found) == (not options)
                assert sorted(values(shards.train)) == list(range(NUM_ROWS))
            caplog.clear()
    finally:
        conf.unset(link)


def test_few_rows_of_files_are_written(
    spark: SparkSession, path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless they are to be read in place; each file is a row group."""
    df = spark.read.parquet(path)
    few, half = df.where("id % 5 = 0"), NUM_ROWS // 2
    with (
        caplog.at_level(logging.INFO, "flambeau"),
        shards_of(FrameRows(few), tmp_path, inPlace="auto") as shards,
    ):
        assert "they are 20% of the rows of their row groups" in caplog.text
        assert not shards.in_place
        assert sorted(values(shards.train)) == of_spark(few)
    with shards_of(FrameRows(few), tmp_path) as shards:
        assert shards.in_place
        assert sorted(values(shards.train)) == of_spark(few)
    for some in (df.where("id % 3 = 0"), df.where(f"id < {half}")):
        with shards_of(FrameRows(some), tmp_path, inPlace="auto") as shards:
            assert shards.in_place
            assert sorted(values(shards.train)) == of_spark(some)


def test_files_that_a_training_would_refuse_are_written(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of two types, of which Spark makes one."""
    path = str(tmp_path / "mixed")
    rows(spark, 10).select("id", "x", "label").coalesce(1).write.parquet(path)
    other = rows(spark, 10).select("id", "x", F.col("label").cast("double").alias("label"))
    other.coalesce(1).write.mode("append").parquet(path)
    df = spark.read.schema("id long, x float, label double").parquet(path).where("id > 4")
    with (
        pytest.raises(DataError, match=r"column `label` has type"),
        shards_of(FrameRows(df), tmp_path / "w"),
    ):
        pass
    with (
        caplog.at_level(logging.INFO, "flambeau"),
        shards_of(FrameRows(df), tmp_path / "w", inPlace="auto") as shards,
    ):
        assert "column `label` has type" in caplog.text
        assert sorted(values(shards.train)) == sorted([5, 6, 7, 8, 9] * 2)
    assert not any(file.is_file() for file in (tmp_path / "w").rglob("*"))


def line() -> nn.Module:
    return nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Linear(1, 1))


def regressor(**params: Any) -> TorchRegressor:
    settings: dict[str, Any] = {
        "model": line(),
        "optimizer": {"name": "sgd", "options": {"lr": 0.01}},
        "inputCols": ["x"],
        "numWorkers": 2,
        "numThreads": 1,
        "batchSize": 100_000,
        "epochs": 4,
        "verbose": 0,
    }
    return TorchRegressor(**settings | params)


def test_a_partition_column_hides_one_of_the_files(spark: SparkSession, tmp_path: Path) -> None:
    """As it does in Spark."""
    path = str(tmp_path / "parted")
    rows(spark, 100).withColumn("part", F.lit(7.0)).write.parquet(f"{path}/part=1")
    df = spark.read.schema("id long, x float, label float, part int").parquet(path)
    assert df.select("part").distinct().collect() == [(1,)]
    module = nn.Linear(2, 1)
    model = regressor(model=module, inputCols=None, featuresCol=["part", "x"], inPlace="always").fit(df)
    assert model.history["loss"] == pytest.approx(loop(module, df, 4, ["part", "x"]), rel=1e-4)


def loop(module: nn.Module, df: DataFrame, epochs: int, features: str | list[str] = "x") -> list[float]:
    """The loss of each epoch of full batches, by torch."""
    table = df.toPandas()
    x, y = (torch.tensor(table[name].to_numpy(), dtype=torch.float64) for name in (features, "label"))
    module, losses = module.double(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x)[:, 0], y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_fit_on_rows_of_files(spark: SparkSession, path: str, tmp_path: Path) -> None:
    df = spark.read.parquet(path).where("gaps is not null and id % 2 = 1")
    module = line()
    model = regressor(model=module, inPlace="always", workDir=str(tmp_path / "work")).fit(df)
    assert model.history["loss"] == pytest.approx(loop(module, df, 4), rel=1e-4)
    left = {file.relative_to(tmp_path / "work").parts[0] for file in tmp_path.rglob("*") if file.is_file()}
    assert left == {"models"}


class Fails(Callback):
    def on_epoch_end(self, context: Context) -> None:
        if context.epoch == 1:
            raise ValueError("in the second epoch")


def test_a_grid_and_a_run_in_place(spark: SparkSession, path: str, tmp_path: Path) -> None:
    df = spark.read.parquet(path).where("id % 2 = 1")
    estimator = regressor(inPlace="always", validationFraction=0.2, workDir=str(tmp_path / "work"))
    models = dict(estimator.fitMultiple(df, [{estimator.epochs: 1}, {estimator.epochs: 2}]))
    assert [len(models[index].history["val_loss"]) for index in range(2)] == [1, 2]
    assert models[0].history["val_loss"][0] == models[1].history["val_loss"][0]
    # The same rows for all of them, whatever Spark would draw anew.
    drawn = df.where(F.udf(lambda _: random.random() < 0.5, "boolean")("id"))
    maps = [{estimator.epochs: 1}, {estimator.epochs: 2}]
    assert len({model.history["loss"][0] for _, model in estimator.fitMultiple(drawn, maps)}) == 1
    # A run that fails after its first epoch goes on from there, on the same rows alone.
    run = estimator.copy({estimator.runId: "one"})
    with pytest.raises(ValueError, match="in the second epoch"):
        run.copy().setCallbacks([Fails()]).fit(df)
    # Of the user's files no more than the ends is read.
    assert not json.loads((tmp_path / "work" / "runs" / "one.json").read_text())["readsAll"]
    for other in ("id % 2 = 0", "id % 2 = 1 and id != 1"):
        with pytest.raises(ParamError, match="its rows were others"):
            run.fit(spark.read.parquet(path).where(other))
    epochs = Epochs()
    assert len(run.copy().setCallbacks([epochs]).fit(df).history["loss"]) == 4
    assert epochs.told == [1, 2, 3]


def test_a_path_with_a_fraction_of_its_rows(any_spark: SparkSession, path: str, tmp_path: Path) -> None:
    """Which Spark Connect tells too, as there is no plan to read."""
    rows = ParquetRows(any_spark, path)
    with shards_of(rows, tmp_path, validationFraction=0.1) as shards:
        train, validation = values(shards.train), values(shards.validation)
        assert sorted(train + validation) == list(range(NUM_ROWS))
        assert 0.09 < len(validation) / NUM_ROWS < 0.11
    with shards_of(ParquetRows(any_spark, path), tmp_path, validationIndicatorCol="held") as shards:
        assert values(shards.validation) == list(range(0, NUM_ROWS, 5))


def test_connect_tells_no_files(
    connect: SparkSession, path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    df = connect.read.parquet(path)
    with pytest.raises(DataError, match="Spark Connect does not tell"), shards_of(FrameRows(df), tmp_path):
        pass
    with (
        caplog.at_level(logging.INFO, "flambeau"),
        shards_of(FrameRows(df), tmp_path, inPlace="auto") as shards,
    ):
        assert "written as shards, and not read in place: Spark Connect does not tell" in caplog.text
        assert sorted(values(shards.train)) == list(range(NUM_ROWS))


def test_no_rows_are_left(spark: SparkSession, path: str, tmp_path: Path) -> None:
    df = spark.read.parquet(path)
    with (
        pytest.raises(DataError, match="there are no rows"),
        shards_of(FrameRows(df.where("id < 0")), tmp_path),
    ):
        pass
    flagged = df.withColumn("all", F.col("id") >= 0)
    with (
        pytest.raises(DataError, match="all rows are for validation"),
        shards_of(FrameRows(flagged), tmp_path, validationIndicatorCol="all"),
    ):
        pass
    gaps = df.withColumn("flag", F.when(F.col("id") > 3, F.lit(True)))
    with (
        pytest.raises(DataError, match="'flag' holds a null"),
        shards_of(FrameRows(gaps), tmp_path, validationIndicatorCol="flag"),
    ):
        pass


def test_a_path_is_taken_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    rows(spark, 100).write.parquet(str(tmp_path / "my data"))
    relative = os.path.relpath(tmp_path / "my data")
    for path in (relative, f"file:{tmp_path}/my data", f"file://{tmp_path}/my data/"):
        with shards_of(ParquetRows(spark, path), tmp_path / "work") as shards:
            assert shards.num_rows == 100


def test_partition_columns_of_a_path(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    rows(spark, 1000).withColumn("part", F.col("id") % 2).write.partitionBy("held", "part").parquet(path)
    found = ParquetRows(spark, path)
    with shards_of(found, tmp_path / "work", validationIndicatorCol="held") as shards:
        assert (shards.num_rows, shards.num_validation_rows) == (800, 200)
        assert all(isinstance(file, str) and "held=true" in file for file in shards.validation)
        assert not list((tmp_path / "work").rglob("bitmaps"))
    refusal = pytest.raises(DataError, match=r"'part' is a partition column.*spark\.read\.parquet")
    with refusal, shards_of(found, tmp_path / "work", inputCols=["part"]):
        pass


def test_a_path_that_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    def refuses(path: Path, match: str, **params: Any) -> None:
        with (
            pytest.raises(DataError, match=match),
            shards_of(ParquetRows(spark, str(path)), tmp_path / "work", **params),
        ):
            pass

    rows(spark, 10).withColumn("s", F.struct("x")).write.parquet(str(tmp_path / "data"))
    refuses(tmp_path / "data", "'s.x' is a field of a struct", inputCols=["s.x"])
    (tmp_path / "data" / "_delta_log").mkdir()
    (tmp_path / "data" / "_delta_log" / "0.json").write_text("{}")
    refuses(tmp_path / "data", r"Delta table.*fit\(spark\.read\.format")
    rows(spark, 10).write.parquet(str(tmp_path / "iceberg"))
    (tmp_path / "iceberg" / "metadata").mkdir()
    (tmp_path / "iceberg" / "metadata" / "v1.metadata.json").write_text("{}")
    refuses(tmp_path / "iceberg", "Iceberg")
    refuses(tmp_path / "nowhere", "nowhere")


def test_columns_for_preprocess(spark: SparkSession, tmp_path: Path) -> None:
    """Texts and bytes are what files have; numbers come as Spark casts them."""
    df = rows(spark, 100).select("id", "label", F.concat(F.lit("row "), F.col("id")).alias("text"), "x")
    df.write.parquet(str(tmp_path / "texts"))
    df = spark.read.parquet(str(tmp_path / "texts")).where("id > 50")
    params: dict[str, Any] = {"preprocess": lambda batch: torch.zeros(len(batch)), "inPlace": "always"}
    with shards_of(FrameRows(df), tmp_path / "w", inputCols=["text"], **params) as shards:
        assert values(shards.train, "text") == [f"row {number}" for number in range(51, 100)]
    with (
        pytest.raises(DataError, match="column 'x' is float, for preprocess"),
        shards_of(FrameRows(df), tmp_path / "w", inputCols=["x"], **params),
    ):
        pass


def test_partition_columns_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Its values are the catalog's, which need not be those of the paths."""
    path = str(tmp_path / "parted")
    parted = rows(spark, 1000).withColumn("year", (F.col("id") % 3 + 2020).cast("int"))
    parted = parted.withColumn("rate", (F.col("id") % 3 / 7).cast("float")).withColumn(
        "odd", F.col("year") % 2 == 1
    )
    parted.write.partitionBy("year", "rate", "odd").parquet(path)
    own, place = (
        {"id": "long", "x": "float", "label": "float"},
        {"year": "int", "rate": "float", "odd": "boolean"},
    )
    schema = ", ".join(f"{name} {kind}" for name, kind in (own | place).items())
    df = spark.read.schema(schema).parquet(path).where("year > 2020 and id > 100")
    with shards_of(FrameRows(df), tmp_path / "work") as shards:
        assert sorted(values(shards.train)) == of_spark(df)
    asked = {
        "inputCols": ["rate", "odd", "id"],
        "inputTypes": ["float64", "auto", "auto"],
        "labelCol": "year",
    }
    with shards_of(FrameRows(df), tmp_path / "work", **asked) as shards:
        assert [(one.name, one.shape) for one in shards.columns.inputs] == [
            (n, ()) for n in asked["inputCols"]
        ]
        told = [file["values"] for file in shards.train if not isinstance(file, str)]
        found = {(int(one["year"]), float(one["rate"]), one["odd"] == "1") for one in told}
        assert found == {(row.year, row.rate, row.odd) for row in df.select("year", "rate", "odd").collect()}
    net = nn.Sequential(nn.Linear(2, 1))
    model = regressor(model=net, inputCols=None, featuresCol=["rate", "x"], inPlace="always").fit(df)
    assert model.history["loss"] == pytest.approx(loop(net, df, 4, ["rate", "x"]), rel=1e-4)
