"""The estimators on a real Spark session: fits, params, tuning, pipelines, saving; oracles are NumPy and
plain torch.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Estimator, Pipeline, PipelineModel, Transformer
from pyspark.ml.evaluation import MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.param import Param
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from safetensors.torch import load_file
from torch import Tensor, nn

from flambeau import (
    ParamError,
    TorchClassifier,
    TorchEstimator,
    TorchModel,
    TorchRegressionModel,
    TorchRegressor,
)
from flambeau._spark.rows import shards

WEIGHTS = np.array([1.5, -2.0, 0.5])


class Embedded(nn.Module):
    """An embedding beside numbers: two inputs, one of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 2)
        self.linear = nn.Linear(5, 1)

    def forward(self, index: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        assert index.dtype == torch.int64
        return self.linear(torch.cat([self.embedding(index), numbers], 1))


def linear_rows(spark: SparkSession, count: int = 600) -> DataFrame:
    """Rows of y = x . WEIGHTS + 3 + 2 * group, without noise."""
    x = [(((F.col("id") * step) % 97) / 48.5 - 1).alias(f"x{i}") for i, step in enumerate((7, 31, 53))]
    df = spark.range(0, count, 1, 2).select("id", *x, (F.col("id") % 4).alias("group"))
    y = sum((F.col(f"x{i}") * float(w) for i, w in enumerate(WEIGHTS)), F.lit(3.0))
    return df.withColumn("label", y).withColumn("name", F.concat(F.lit("g"), F.col("group")))


def regressor(**params: Any) -> TorchRegressor:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "model": nn.Linear(3, 1),
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
        "featuresCol": ["x0", "x1", "x2"],
        "batchSize": 32,
        "epochs": 8,
        "numWorkers": 2,
        "verbose": 0,
    }
    return TorchRegressor(**(settings | params))


def rmse(model: Any, df: DataFrame) -> float:
    return float(RegressionEvaluator().evaluate(model.transform(df)))


@pytest.mark.matrix
def test_a_fit_recovers_the_weights(any_spark: SparkSession) -> None:
    df = linear_rows(any_spark)
    estimator = regressor(metrics=["mae"], validationFraction=0.2, epochs=25)
    before = {name: value.clone() for name, value in estimator.getModel().state_dict().items()}
    model = estimator.fit(df)
    module: Any = model.module()
    np.testing.assert_allclose(module.weight.detach().numpy()[0], WEIGHTS, atol=0.05)
    np.testing.assert_allclose(module.bias.detach().numpy(), [3.0], atol=0.05)
    assert rmse(model, df) < 0.1
    assert len(model.history["loss"]) == 25
    assert model.history["val_mae"][-1] < 0.1
    summary = model.summary
    assert summary.totalIterations == 25
    assert summary.numValidationRows > 0
    assert summary.numRows + summary.numValidationRows == df.count()
    # The user's module is as it was.
    for name, value in estimator.getModel().state_dict().items():
        assert torch.equal(value, before[name])
    assert model.uid == estimator.uid


class Images(nn.Module):
    """A number from images of one channel, three by two."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.out = nn.Conv2d(1, 2, 2), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.convolution(x.unsqueeze(1)).flatten(1)).squeeze(1)


def test_nested_arrays_are_images_without_more_words(spark: SparkSession) -> None:
    flat = F.transform(F.sequence(F.lit(0), F.lit(5)), lambda i: F.sin(F.col("id") * (i + 1)).cast("float"))
    df = spark.range(0, 64, 1, 1).select("id", flat.alias("flat"), F.sin("id").alias("label"))
    rows = F.transform(F.array(*map(F.lit, (1, 3, 5))), lambda i: F.slice("flat", i, 2))
    df = df.withColumn("nested", rows)
    torch.manual_seed(0)
    common: dict[str, Any] = {"model": Images(), "epochs": 2, "batchSize": 8, "verbose": 0}
    nested = TorchRegressor(inputCols=["nested"], **common).fit(df)
    given = TorchRegressor(inputCols=["flat"], inputShapes=[[3, 2]], **common).fit(df)
    assert nested.history["loss"] == given.history["loss"]
    predictions = [
        [row[0] for row in model.transform(df).select("prediction").collect()] for model in (nested, given)
    ]
    assert predictions[0] == predictions[1]
    turned = df.withColumn("nested", F.array(F.slice("flat", 1, 3), F.slice("flat", 4, 3)))
    with pytest.raises(Exception, match=r"column 'nested' holds an array that is not of shape \[3, 2\]"):
        nested.transform(turned).collect()


def test_a_pipeline_with_integers(spark: SparkSession) -> None:
    df = linear_rows(spark).withColumn("label", F.col("label") + 2 * F.col("group"))
    estimator = TorchRegressor(
        model=Embedded(),
        inputCols=["index", "features"],
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.05),
        numWorkers=2,
        epochs=20,
        verbose=0,
    )
    stages: list[Estimator[Any] | Transformer] = [
        StringIndexer(inputCol="name", outputCol="index"),
        VectorAssembler(inputCols=["x0", "x1", "x2"], outputCol="features"),
        estimator,
    ]
    model = Pipeline(stages=stages).fit(df)
    assert isinstance(model, PipelineModel)
    assert rmse(model, df) < 0.5


def test_inputs_go_to_the_arguments_of_their_names(spark: SparkSession, tmp_path: Path) -> None:
    df = linear_rows(spark, 200).select(
        F.col("group").alias("number"), F.array("x0", "x1", "x2").alias("array"), "label"
    )
    torch.manual_seed(0)
    common: dict[str, Any] = {"model": Embedded(), "epochs": 2, "verbose": 0}
    placed = TorchRegressor(inputCols=["number", "array"], **common).fit(df)
    named = TorchRegressor(inputCols={"numbers": "array", "index": "number"}, **common).fit(df)
    assert named.history["loss"] == placed.history["loss"]
    named.save(str(tmp_path / "model"))
    loaded = TorchRegressionModel.load(str(tmp_path / "model"))
    assert loaded.getInputNames() == ["numbers", "index"]
    expected = placed.transform(df).select("prediction").collect()
    assert loaded.transform(df).select("prediction").collect() == expected
    renamed = df.withColumnRenamed("number", "n")
    moved = loaded.copy({loaded.inputCols: {"index": "n", "numbers": "array"}})
    assert moved.transform(renamed).select("prediction").collect() == expected
    for names in ({"numbers": "array", "indices": "number"}, {"numbers": "array"}):
        with pytest.raises(ParamError, match=r"must name the first of forward's arguments.*index, numbers"):
            TorchRegressor(inputCols=names, **common).fit(df)
    with pytest.raises(ParamError, match="inputNames is a list of 1"):
        TorchRegressor(inputCols=["number", "array"], inputNames=["index"], **common).fit(df)
    both = TorchRegressor(featuresCol="array", featuresCols=["number"], **common)
    with pytest.raises(ParamError, match=r"featuresCol \('array'\) and featuresCols .* are both set"):
        both.fit(df)


def test_a_classifier(any_spark_long: SparkSession) -> None:
    df = linear_rows(any_spark_long).withColumn(
        "label", (F.col("label") > 3).cast("double") + (F.col("label") > 4.5).cast("double")
    )
    estimator = TorchClassifier(
        model=nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3)),
        featuresCol=["x0", "x1", "x2"],
        learningRate=0.02,
        epochs=20,
        numWorkers=2,
        metrics=["accuracy"],
        verbose=0,
    )
    model = estimator.fit(df)
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(model.transform(df))
    assert accuracy > 0.9
    assert model.history["accuracy"][-1] > 0.9


def test_weights_are_those_of_one_process(spark: SparkSession) -> None:
    """Two workers with weightCol take the steps that one process takes on the whole batch, in float64."""
    df = linear_rows(spark, 64).withColumn("w", F.col("id") % 3 + 0.5)
    torch.manual_seed(0)
    module = nn.Linear(3, 1, dtype=torch.float64)
    estimator = regressor(
        model=module,
        inputTypes=["float64"],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        weightCol="w",
        batchSize=32,
        epochs=5,
        shuffle=False,
    )
    fitted = estimator.fit(df).module()
    rows = df.orderBy("id").toPandas()
    x = torch.tensor(rows[["x0", "x1", "x2"]].to_numpy())
    y, w = torch.tensor(rows["label"].to_numpy())[:, None], torch.tensor(rows["w"].to_numpy())[:, None]
    oracle = nn.Linear(3, 1, dtype=torch.float64)
    oracle.load_state_dict(module.state_dict())
    optimizer = torch.optim.SGD(oracle.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (((oracle(x) - y) ** 2 * w).sum() / w.sum()).backward()
        optimizer.step()
    torch.testing.assert_close(fitted.weight, oracle.weight, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(fitted.bias, oracle.bias, rtol=1e-10, atol=1e-10)


def test_fit_with_params_and_lists_of_params(spark: SparkSession) -> None:
    df, estimator = linear_rows(spark, 200), regressor(epochs=1)
    assert len(estimator.fit(df, {estimator.epochs: 2}).history["loss"]) == 2
    models = estimator.fit(df, [{estimator.epochs: 1}, {estimator.epochs: 3}])
    assert [len(model.history["loss"]) for model in models] == [1, 3]
    assert estimator.getEpochs() == 1


def test_fit_multiple_is_thread_safe_and_writes_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[str] = []
    save = shards.save

    def counted(df: DataFrame, selection: Any, partitions: Any, directory: str) -> Any:
        writes.append(directory)
        return save(df, selection, partitions, directory)

    monkeypatch.setattr(shards, "save", counted)
    df, estimator = linear_rows(spark, 200), regressor(epochs=1)
    maps: list[dict[Param[Any], Any]] = [{estimator.epochs: 1}, {estimator.epochs: 2}]
    maps += [{estimator.featuresCol: ["x2", "x1", "x0"]}, {estimator.labelCol: "x0"}]
    iterator = estimator.fitMultiple(df, maps)
    models: dict[int, TorchModel] = {}

    def take() -> None:
        for index, model in iterator:
            models[index] = model

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert sorted(models) == [0, 1, 2, 3]
    assert [len(models[i].history["loss"]) for i in range(4)] == [1, 2, 1, 1]
    assert len(writes) == 2
    assert not any(Path(directory).exists() for directory in writes)


def validator(estimator: TorchRegressor, grid: list[Any]) -> CrossValidator:
    """Two folds and two fits at a time."""
    return CrossValidator(
        estimator=estimator,
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(),
        numFolds=2,
        parallelism=2,
    )


def test_cross_validator_in_parallel(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    df, estimator = linear_rows(spark, 300), regressor(epochs=3, numWorkers=1)
    grid = (
        ParamGridBuilder()
        .addGrid(estimator.learningRate, [0.1, 1e-4])
        .addGrid(
            estimator.model, [nn.Linear(3, 1), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))]
        )
        .build()
    )
    with caplog.at_level(logging.WARNING, logger="flambeau"):
        fitted = validator(estimator, grid).fit(df)
    assert "cannot be saved" in caplog.text
    # The rate of 1e-4 learns next to nothing in three epochs.
    assert max(fitted.avgMetrics[:2]) < min(fitted.avgMetrics[2:])
    # The best is fitted anew, from the map that won.
    best = grid[fitted.avgMetrics.index(min(fitted.avgMetrics))]
    assert isinstance(fitted.bestModel, TorchModel)
    assert type(fitted.bestModel.module()) is type(best[estimator.model])
    assert rmse(fitted.bestModel, df) < min(fitted.avgMetrics[2:])


def test_an_interrupt_ends_the_fits_of_a_pool(spark: SparkSession, tmp_path: Path) -> None:
    """The main thread, which a cross validation keeps waiting, gets the interrupt; the pool's threads fit."""
    estimator = regressor(
        epochs=1_000_000, batchSize=4, numWorkers=1, checkpointInterval=-1, workDir=str(tmp_path)
    )
    grid = ParamGridBuilder().addGrid(estimator.learningRate, [0.1, 0.2, 0.3]).build()

    def interrupt() -> None:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("attempts/*/events/*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        validator(estimator, grid).fit(linear_rows(spark, 100))
    deadline = time.monotonic() + 60
    while spark.sparkContext.statusTracker().getActiveJobsIds() or left_in(tmp_path):
        assert time.monotonic() < deadline, left_in(tmp_path)
        time.sleep(0.1)


def left_in(directory: Path) -> set[str]:
    """The directories in which files lie; some may go while this looks."""
    folders = [Path(folder).relative_to(directory) for folder, _, files in os.walk(directory) if files]
    return {folder.parts[0] for folder in folders} - {"leases"}


def test_a_fit_multiple_that_is_given_up_leaves_no_shards(spark: SparkSession, tmp_path: Path) -> None:
    estimator = regressor(epochs=1, numWorkers=1, workDir=str(tmp_path))
    maps = [{estimator.seed: 1}, {estimator.seed: 2}]
    iterator = estimator.fitMultiple(linear_rows(spark, 50), maps)
    next(iterator)
    assert left_in(tmp_path) == {"models", "shards"}
    del iterator
    gc.collect()
    assert left_in(tmp_path) == {"models"}


def test_an_autoencoder_learns_its_inputs(spark: SparkSession) -> None:
    features = VectorAssembler(inputCols=["x0", "x1", "x2"], outputCol="features")
    df = features.transform(linear_rows(spark, 200)).select("features")
    estimator = regressor(model=nn.Linear(3, 3), featuresCol="features", labelCol="features", loss="mse")
    model = estimator.fit(df)
    assert model.history["loss"][-1] < model.history["loss"][0] / 2


def test_train_validation_split_over_a_pipeline(spark: SparkSession) -> None:
    df, estimator = linear_rows(spark, 300), regressor(epochs=3, featuresCol="features")
    pipeline = Pipeline(
        stages=[VectorAssembler(inputCols=["x0", "x1", "x2"], outputCol="features"), estimator]
    )
    grid = ParamGridBuilder().addGrid(estimator.learningRate, [0.1, 1e-4]).build()
    split = TrainValidationSplit(
        estimator=pipeline, estimatorParamMaps=grid, evaluator=RegressionEvaluator(), parallelism=2, seed=1
    )
    fitted = split.fit(df)
    assert fitted.validationMetrics[0] < fitted.validationMetrics[1]
    assert isinstance(fitted.bestModel, PipelineModel)


def test_an_optimizer_bound_to_the_model(spark: SparkSession) -> None:
    module = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(
        [{"params": [module.weight], "lr": 0.0}, {"params": [module.bias], "lr": 0.1}]
    )
    fitted: Any = regressor(model=module, optimizer=optimizer).fit(linear_rows(spark, 200)).module()
    assert torch.equal(fitted.weight, module.weight)
    assert not torch.equal(fitted.bias, module.bias)
    assert optimizer.state_dict()["state"] == {}


def test_fit_on_parquet(any_spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    df = linear_rows(any_spark).withColumn("held", F.col("id") % 5 == 0)
    df.write.partitionBy("held").parquet(path)
    model = regressor(validationIndicatorCol="held", epochs=20).fitOnParquet(path)
    assert rmse(model, df) < 0.2
    assert model.history["val_loss"][-1] < 0.1


def test_nothing_but_the_weights_is_left_behind(spark: SparkSession, tmp_path: Path) -> None:
    model = regressor(workDir=str(tmp_path / "work"), epochs=2, validationFraction=0.1).fit(
        linear_rows(spark, 200)
    )
    left = {path.relative_to(tmp_path / "work").parts[0] for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"models"}
    (weights,) = (tmp_path / "work").rglob("*.safetensors")
    kept = load_file(weights)
    scored = model.transform(linear_rows(spark, 50)).toPandas()
    x = torch.tensor(scored[["x0", "x1", "x2"]].to_numpy(), dtype=torch.float32)
    expected = nn.functional.linear(x, kept["weight"], kept["bias"])[:, 0]
    np.testing.assert_allclose(scored["prediction"], expected, rtol=1e-5, atol=1e-5)


def test_the_same_seed_gives_the_same_bits(spark: SparkSession) -> None:
    df, estimator = linear_rows(spark, 200), regressor(epochs=2, seed=5)
    first: Any = estimator.fit(df).module()
    again: Any = estimator.fit(df).module()
    assert torch.equal(first.weight, again.weight)
    other: Any = estimator.fit(df, {estimator.seed: 6}).module()
    assert not torch.equal(first.weight, other.weight)


def test_an_estimator_is_saved_with_its_objects(spark: SparkSession, tmp_path: Path) -> None:
    estimator = regressor(epochs=2, weightCol="x0", metrics=["mae"], gradientGroups=[["bias", "weight"]])
    path = str(tmp_path / "estimator")
    estimator.save(path)
    estimator.write().overwrite().save(path)
    loaded = TorchRegressor.load(path)
    assert type(loaded) is TorchRegressor and loaded.uid == estimator.uid
    for param in estimator.params:
        if estimator.isSet(param) and param.name not in ("model", "optimizer"):
            assert loaded.getOrDefault(param.name) == estimator.getOrDefault(param), param.name
    assert torch.equal(loaded.getModel().weight, estimator.getModel().weight)
    loaded.clear(loaded.weightCol)
    model = loaded.fit(linear_rows(spark, 100))
    assert len(model.history["loss"]) == 2


def test_a_pipeline_of_estimators_is_saved(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "pipeline")
    pipeline = Pipeline(
        stages=[
            VectorAssembler(inputCols=["x0", "x1", "x2"], outputCol="features"),
            regressor(featuresCol="features"),
        ]
    )
    pipeline.save(path)
    loaded = Pipeline.load(path)
    stage = loaded.getStages()[1]
    assert isinstance(stage, TorchRegressor) and stage.getBatchSize() == 32


def test_several_labels_go_to_a_callable_loss(spark: SparkSession) -> None:
    df = linear_rows(spark, 300).withColumn("other", F.col("x0") * 2)

    def loss(output: torch.Tensor, labels: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return ((output - torch.stack(labels, 1)) ** 2).mean()

    estimator = TorchEstimator(
        model=nn.Linear(3, 2),
        loss=loss,
        featuresCol=["x0", "x1", "x2"],
        labelCols=["label", "other"],
        learningRate=0.05,
        epochs=15,
        numWorkers=2,
        verbose=0,
    )
    history = estimator.fit(df).history["loss"]
    assert history[-1] < history[0] / 10
