"""Prepared data: its files held against the DataFrame, its fits against fits of the DataFrame, and cross-
validation on it against Spark ML's own.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pyspark.ml import Pipeline, tuning
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.ml.tuning import CrossValidatorModel, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import Tensor, nn

from flambeau import (
    CrossValidator,
    DataError,
    ParamError,
    PreparedData,
    StoreError,
    TorchEstimator,
    TorchRegressor,
)
from flambeau._spark import session
from flambeau._spark.fit import cluster, prepare
from flambeau._spark.rows import shards
from flambeau._spark.rows.shards import DataFile
from flambeau._spark.work_directory import PROBES, WorkDirectory


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    """240 rows in four partitions."""
    return spark.range(0, 240, 1, 4).select(
        "id",
        (F.col("id") * 7 % 97 / 97).alias("a"),
        (F.col("id") * 31 % 89 / 89).alias("b"),
        F.array(F.array(F.col("id"), F.lit(1)), F.array(F.lit(2), F.lit(3))).alias("image"),
        F.struct((F.col("id") / 3).alias("z")).alias("s"),
        (F.col("id") % 5 == 0).alias("held"),
        (F.col("id") % 3).cast("int").alias("fold"),
        (F.sin(F.col("id")) + F.col("id") / 100).alias("label"),
    )


def regressor(**params: Any) -> TorchRegressor:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "model": nn.Linear(2, 1),
        "optimizer": "adam",
        "learningRate": 0.05,
        "featuresCol": ["a", "b"],
        "batchSize": 30,
        "epochs": 3,
        "numWorkers": 2,
        "checkpointInterval": -1,
        "verbose": 0,
    }
    return TorchRegressor(**(settings | params))


def weights(model: Any) -> list[float]:
    return [float(one) for tensor in model.module().parameters() for one in tensor.detach().flatten()]


class Everything(nn.Module):
    """Takes every kind of column."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, v: Tensor, image: Tensor, z: Tensor, kind: Tensor) -> Tensor:
        return self.scale * (v.sum(1) + image.flatten(1).sum(1) + z + kind)


def everything(df: DataFrame) -> tuple[DataFrame, TorchEstimator]:
    """Rows and an estimator with each kind of column, a weight, and validation rows by an indicator."""
    vectors = VectorAssembler(inputCols=["a", "b"], outputCol="v").transform(df)
    rows = StringIndexer(inputCol="fold", outputCol="kind").fit(vectors).transform(vectors)
    inputs = ["v", "image", "s.z", "kind"]
    estimator = TorchEstimator(
        model=Everything(),
        loss="mse",
        inputCols=inputs,
        weightCol="a",
        validationIndicatorCol="held",
        verbose=0,
    )
    return rows, estimator


def test_the_files_hold_what_the_dataframe_does(df: DataFrame, tmp_path: Path) -> None:
    rows, estimator = everything(df)
    prepared = estimator.prepare(rows, str(tmp_path / "there"))
    files = sorted((tmp_path / "there" / "data").rglob("*.parquet"))
    found = {row["s.z"]: (row, "=true/" in str(path)) for path in files for row in table(path)}
    expected = rows.select("*", F.col("s.z").alias("z")).collect()
    assert len(found) == len(expected) == 240
    for row in expected:
        got, is_held = found[np.float32(row.z)]
        assert is_held == row.held
        assert got["v"] == [np.float32(one) for one in row.v.toArray()]
        assert got["image"] == [one for inner in row.image for one in inner]
        assert (got["kind"], got["label"], got["a"]) == (
            int(row.kind),
            np.float32(row.label),
            np.float32(row.a),
        )
    assert (prepared.numRows, prepared.numValidationRows) == (192, 48)
    assert prepared.numBytes == sum(path.stat().st_size for path in files)
    shown = repr(prepared)
    for part in (
        "192 rows and 48 for validation",
        f"{prepared.numBytes / 1e6:.1f} MB",
        str(tmp_path / "there"),
    ):
        assert part in shown
    sums = [frame.agg(F.sum("label")).collect()[0][0] for frame in (prepared._frame(), rows)]
    assert sums[0] == pytest.approx(sums[1])
    again = PreparedData.open(str(tmp_path / "there"), df.sparkSession)
    assert repr(again) == shown
    assert [field.name for field in again.schema] == ["v", "image", "s.z", "kind", "label", "a", "held"]
    again.delete()
    assert not (tmp_path / "there").exists()


def table(path: Path) -> list[dict[str, Any]]:
    return pq.ParquetFile(path).read().to_pylist()


@pytest.fixture(scope="module")
def prepared(df: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedData]:
    """The rows of `regressor`, a quarter of them for validation."""
    work = str(tmp_path_factory.mktemp("work"))
    with regressor(validationFraction=0.25, seed=3, workDir=work).prepare(df) as prepared:
        assert Path(prepared.path).parent == Path(work, "prepared")
        yield prepared
    assert not Path(prepared.path).exists()


def test_a_fit_is_that_of_the_dataframe(
    df: DataFrame, prepared: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit; also of another estimator, and by a grid, which write nothing more."""
    estimator = regressor(validationFraction=0.25, seed=3)
    model = estimator.fit(df)
    monkeypatch.delattr(shards, "save")
    again = PreparedData.open(prepared.path, df.sparkSession)
    fitted = estimator.fit(again)
    assert weights(fitted) == weights(model)
    assert fitted.history["val_loss"] == model.history["val_loss"]
    assert (fitted.summary.numRows, prepared.numRows) == (model.summary.numRows, model.summary.numRows)
    # One column for a feature, another order, another seed.
    other = regressor(
        model=nn.Linear(1, 1), featuresCol=["b"], inputShapes=[[1]], validationFraction=0.25, seed=5
    )
    grid = ParamGridBuilder().addGrid(other.epochs, [1, 2]).build()
    one, two = other.fit(again, grid)
    assert (len(one.history["loss"]), len(two.history["loss"])) == (1, 2)
    assert two.inputs[0].columns == ("b",)


def test_what_was_not_prepared_is_refused(df: DataFrame, prepared: PreparedData) -> None:
    split: dict[str, Any] = {"validationFraction": 0.25}
    for params, told in [
        ({"featuresCol": ["a", "id"], **split}, r"no column 'id' for the input.*was prepared of"),
        ({"model": nn.Linear(2, 1).double(), **split}, r'column "label" was prepared as label in float32'),
        (
            {"inputTypes": ["float64"], "model": nn.Linear(2, 1).double(), **split},
            "prepared as input in float32",
        ),
        ({"labelCol": "a", **split}, 'column "a" was prepared as input in float32.*read as label'),
        ({}, "prepared by validationFraction 0.25, and are asked for without validation rows"),
        ({"validationFraction": 0.1}, "asked for by validationFraction 0.1"),
        (
            {"handleInvalid": "skip", **split},
            'prepared by handleInvalid "keep", and are asked for by handleInvalid "skip"',
        ),
    ]:
        with pytest.raises((DataError, ParamError), match=told):
            regressor(**params).fit(prepared)


def test_files_that_are_not_those_that_were_written_are_refused(df: DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "there"
    with pytest.raises(DataError, match="there is nothing to train on: there are no rows"):
        regressor().prepare(df.limit(0), str(path))
    with pytest.raises(DataError, match="column 'label' holds a null"):
        regressor().prepare(df.withColumn("label", F.lit(None).cast("double")), str(path))
    assert not path.exists(), "nothing is left of what failed"
    with pytest.raises(DataError, match="holds no prepared data"):
        PreparedData.open(str(path))
    prepared = regressor().prepare(df, str(path))
    with pytest.raises(ParamError, match="is there already"):
        regressor().prepare(df, str(path))
    one, other = sorted(path.rglob("*.parquet"))[:2]
    shutil.copy(other, one)
    with pytest.raises(DataError, match=f"{one.name} is another file than the one that was written"):
        regressor().fit(prepared)
    one.unlink()
    with pytest.raises(DataError, match=f"{one.name} is gone"):
        regressor().fit(prepared)
    (path / "manifest.json").unlink()
    with pytest.raises(DataError, match="not written to its end"):
        PreparedData.open(str(path))


def test_two_that_write_at_once_leave_each_others_files(
    df: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower one, as it looked before the other began."""
    prepared = regressor().prepare(df, str(tmp_path / "there"))
    monkeypatch.setattr(prepare, "exists", lambda *_: False)
    with pytest.raises(ParamError, match="was prepared by another meanwhile"):
        regressor().prepare(df, str(tmp_path / "there"))
    with pytest.raises(DataError, match="column 'label' holds a null"):
        regressor().prepare(df.withColumn("label", F.lit(None).cast("double")), str(tmp_path / "there"))
    prepared._check()
    assert {path.stem for path in (tmp_path / "there" / "data").rglob("*.parquet")} == {
        Path(file["name"]).stem for file in prepared._manifest["files"]
    }
    assert prepared._frame().count() == 240


def test_a_directory_that_workers_do_not_reach_is_refused_first(
    df: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster, whose probe runs here in a barrier stage of local mode."""
    monkeypatch.setattr(session, "is_local", lambda _: False)
    monkeypatch.delattr(shards, "save")
    (tmp_path / "file").write_text("")
    estimator = regressor(workDir=str(tmp_path / "work"))
    with pytest.raises(StoreError, match="is not a directory that all workers reach"):
        estimator.prepare(df, str(tmp_path / "file" / "there"))

    # The same call may go well when the store answers.
    def busy(spark: SparkSession, work: WorkDirectory, *_: object) -> None:
        Path(work.path(PROBES)).mkdir(parents=True)
        raise StoreError("503 Slow Down", is_transient=True)

    monkeypatch.setattr(cluster, "probe", busy)
    with pytest.raises(StoreError, match="503 Slow Down"):
        estimator.prepare(df, str(tmp_path / "there"))
    assert not (tmp_path / "there").exists()


def test_a_strangers_directory_runs_no_code(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stranger.py").write_text("class Kind: pass")
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = {"type": "udt", "pyClass": "stranger.Kind", "class": None, "sqlType": "double"}
    field: dict[str, Any] = {"name": "a", "nullable": True, "metadata": {}}
    array = {"type": "array", "elementType": kind, "containsNull": True}
    for schema, told in [
        ({"type": "struct", "fields": [{**field, "type": array}]}, "of the class 'stranger.Kind'"),
        ({"type": "struct", "fields": [{**field, "type": "nonsense"}]}, "manifest.json is damaged"),
        ({"type": "struct"}, "manifest.json is damaged"),
        (None, "manifest.json is damaged"),
    ]:
        manifest = {**prepared._manifest, "schema": schema}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(DataError, match=told):
            PreparedData.open(str(tmp_path))
    assert "stranger" not in sys.modules


def test_a_worker_answers_with_the_error_itself(prepared: PreparedData) -> None:
    """Where the driver does not see the directory."""
    site = replace(prepared._site, visible=False)
    name = prepared._manifest["files"][0]["name"]
    column = {"name": "z", "source": "z", "role": "input", "dtype": "int64", "depth": 0, "shape": None}
    draft: dict[str, Any] = {"schema": {}, "columns": [column], "split": None, "handleInvalid": "keep"}
    draft["seconds"] = 0.0
    with pytest.raises(DataError, match="z"):
        site.ask("sealPrepared", draft={**draft, "files": [name]})
    with pytest.raises(StoreError, match=r"gone\.parquet"):
        site.ask("sealPrepared", draft={**draft, "files": ["gone.parquet"]})
    tensor = {"name": "x", "columns": ["x"], "dtype": "float32", "shape": []}
    spec = {"inputs": [tensor], "labels": [], "weight": None}
    asked = {"spec": spec, "split": prepared._manifest["split"], "handleInvalid": "keep", "withoutFold": None}
    with pytest.raises(ParamError, match='column "x" was not prepared'):
        site.ask("preparedData", prepared=prepared._manifest, asked=asked)


def validators(**settings: Any) -> tuple[tuning.CrossValidator, CrossValidator]:
    """Spark's and ours for a linear model in float64 that each step trains on all rows."""
    estimator = regressor(
        model=nn.Linear(2, 1).double(), inputTypes=["float64"], batchSize=1000, numWorkers=1, epochs=5
    )
    grid = ParamGridBuilder().addGrid(estimator.learningRate, [0.01, 0.3]).build()
    settings = {
        "estimator": estimator,
        "estimatorParamMaps": grid,
        "evaluator": RegressionEvaluator(),
        **settings,
    }
    return tuning.CrossValidator(**settings), CrossValidator(**settings)


def assert_same(df: DataFrame, theirs: CrossValidatorModel, ours: CrossValidatorModel) -> None:
    assert type(ours) is CrossValidatorModel
    assert ours.avgMetrics == pytest.approx(theirs.avgMetrics, rel=1e-6)
    assert ours.stdMetrics == pytest.approx(theirs.stdMetrics, rel=1e-4)
    assert weights(ours.bestModel) == pytest.approx(weights(theirs.bestModel), rel=1e-6)


def test_cross_validation_is_sparks_on_one_copy(
    df: DataFrame, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the folds of a column."""
    theirs, ours = validators(numFolds=3, foldCol="fold", collectSubModels=True)
    expected = theirs.fit(df)
    writes, save = [], shards.save

    def counted(rows: DataFrame, selection: Any, partitions: Any, directory: str) -> DataFrame:
        writes.append(directory)
        return save(rows, selection, partitions, directory)

    monkeypatch.setattr(shards, "save", counted)
    found = ours.setParallelism(2).fit(df)
    assert_same(df, expected, found)
    assert len(writes) == 1
    assert not Path(writes[0]).exists()
    assert found.subModels is not None
    assert [len(models) for models in found.subModels] == [2, 2, 2]
    first: list[Any] = list(found.subModels[0])
    assert [model.summary.numRows for model in first] == [160, 160]


def test_a_cross_validator_is_read_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    _, ours = validators(numFolds=3, seed=11)
    ours.save(str(tmp_path / "validator"))
    Pipeline(stages=[ours]).save(str(tmp_path / "pipeline"))
    for found in (
        CrossValidator.load(str(tmp_path / "validator")),
        Pipeline.load(str(tmp_path / "pipeline")).getStages()[0],
    ):
        assert type(found) is CrossValidator and found.uid == ours.uid
        assert (found.getNumFolds(), found.getSeed()) == (3, 11)
        assert type(found.getEvaluator()) is type(ours.getEvaluator())
        estimator: Any = found.getEstimator()
        assert type(estimator) is type(ours.getEstimator()) and estimator.uid == ours.getEstimator().uid
        named = [
            [{param.name: value for param, value in params.items()} for params in one.getEstimatorParamMaps()]
            for one in (found, ours)
        ]
        assert named[0] == named[1] and all(named[0])
        assert {param.parent for params in found.getEstimatorParamMaps() for param in params} == {
            estimator.uid
        }


@pytest.mark.long
def test_random_folds_are_sparks(df: DataFrame, tmp_path: Path) -> None:
    theirs, ours = validators(numFolds=2, seed=11)
    expected = theirs.fit(df)
    ours.save(str(tmp_path / "validator"))
    assert_same(df, expected, CrossValidator.load(str(tmp_path / "validator")).fit(df))


def test_a_cross_validator_takes_estimators_of_flambeau(df: DataFrame) -> None:
    _, ours = validators(numFolds=2)
    with pytest.raises(ParamError, match="estimator is a LinearRegression"):
        ours.copy().setEstimator(LinearRegression()).fit(df)
    estimator: Any = ours.getEstimator()
    maps: list[Any] = [{estimator.validationFraction: value} for value in (0.1, 0.2)]
    with pytest.raises(ParamError, match="validationFraction and validationIndicatorCol are the same"):
        ours.copy().setEstimatorParamMaps(maps).fit(df)
    maps = [{}, {estimator.handleInvalid: "skip"}]
    with pytest.raises(ParamError, match=r"handleInvalid is the same .* asked for .keep. and .skip.: set"):
        ours.copy().setEstimatorParamMaps(maps).fit(df)


def test_a_row_is_scored_by_models_that_never_saw_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a DataFrame whose rows lie otherwise where columns are left out; with one seed for the folds and for
    the validation rows, of which each fold has its share.
    """
    ids = spark.range(0, 600, 1, 4)
    wide = ids.select("id", F.repeat(F.md5(F.col("id").cast("string")), 20).alias("wide"))
    labels = ids.select("id", (F.col("id") % 7 / 7).alias("a"), F.rand(1).alias("label"))
    rows = labels.join(wide, "id").repartition(4)
    estimator = regressor(featuresCol=["id", "a"], validationFraction=0.3, seed=7, epochs=1)
    read: dict[int | None, list[set[int]]] = {}
    scored: list[set[int]] = []
    files_of, evaluate = PreparedData._shards, RegressionEvaluator.evaluate

    def recorded(self: PreparedData, columns: Any) -> Any:
        files = files_of(self, columns)
        read[self._without_fold] = [in_files(files.train), in_files(files.validation)]
        return files

    def noted(self: RegressionEvaluator, frame: DataFrame) -> float:
        scored.append({row.id for row in frame.select("id", "wide").collect()})
        return evaluate(self, frame)

    monkeypatch.setattr(PreparedData, "_shards", recorded)
    monkeypatch.setattr(RegressionEvaluator, "evaluate", noted)
    CrossValidator(
        estimator=estimator, estimatorParamMaps=[{}], evaluator=RegressionEvaluator(), numFolds=3, seed=7
    ).fit(rows)
    everything, held = set(range(600)), read[None][1]
    assert [len(scored), set.union(*scored), sum(map(len, scored))] == [3, everything, 600]
    for fold, out in enumerate(scored):
        train, validation = read[fold]
        assert train | validation == everything - out
        assert 0.2 < len(validation) / len(train | validation) < 0.4
        assert 0.2 < len(held & out) / len(out) < 0.4


def in_files(files: Sequence[DataFile]) -> set[int]:
    """The ids in prepared files."""
    return {int(row["id"]) for file in files for row in table(Path(str(file)))}


def test_folds_that_cannot_be_are_refused_before_a_fit(
    df: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchRegressor, "fitMultiple", None)
    allowed = r"foldCol names a column of whole numbers from 0 to 2 \(numFolds is 3\)"
    column, id = F.col("fold"), F.col("id")
    for fold, told in [
        (F.when(id == 9, 3).otherwise(column), f"column 'fold' holds 3: {allowed}"),
        (F.when(id == 9, None).otherwise(column), f"column 'fold' holds a null: {allowed}"),
        (column.cast("string"), f"column 'fold' is string; {allowed}: cast it"),
        (column % 2, "fold 2 has no rows: give it some, or lower numFolds"),
    ]:
        _, ours = validators(numFolds=3, foldCol="fold")
        with pytest.raises(DataError, match=told):
            ours.fit(df.withColumn("fold", fold))
    _, ours = validators(numFolds=3, foldCol="fold")
    estimator: Any = ours.getEstimator()
    estimator.setValidationIndicatorCol("held")
    with pytest.raises(DataError, match="fold 1 has all of the validation rows"):
        ours.fit(df.withColumn("held", column == 1))


def failing(output: Tensor, label: Tensor) -> Tensor:
    if label.shape[0] > 2:
        raise ArithmeticError("no loss today")
    return (output - label).square().mean()


def test_a_failing_fit_ends_those_beside_it(df: DataFrame) -> None:
    estimator = regressor(numWorkers=1, epochs=1_000_000)
    maps: list[Any] = [{estimator.loss: failing}, {}]
    ours = CrossValidator(
        estimator=estimator,
        estimatorParamMaps=maps,
        evaluator=RegressionEvaluator(),
        numFolds=2,
        parallelism=2,
    )
    with pytest.raises(ArithmeticError, match="no loss today"):
        ours.fit(df)
    assert "flambeau-fit" not in [thread.name for thread in threading.enumerate()]
