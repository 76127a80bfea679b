"""`initialModel`: training that starts where another ended, against plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fitted
import numpy as np
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from flambeau import FlambeauError, ParamError, TorchModel, TorchRegressor
from flambeau._saved.weights import WeightsRef
from flambeau._spark import files

ROWS, BATCH = 48, 8


def rows(spark: SparkSession) -> DataFrame:
    """Rows of two numbers and a label, in one partition, so that their order is known."""
    x = [F.sin(F.col("id") * step).alias(f"x{step}") for step in (1, 2)]
    return spark.range(0, ROWS, 1, 1).select(*x).withColumn("label", 3 * F.col("x1") - F.col("x2") + 1)


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def regressor(**params: Any) -> TorchRegressor:
    settings: dict[str, Any] = {
        "model": net(),
        "optimizer": momentum,
        "featuresCol": ["x1", "x2"],
        "inputTypes": ["float64"],
        "batchSize": BATCH,
        "shuffle": False,
        "verbose": 0,
    }
    return TorchRegressor(**(settings | params))


def in_plain_torch(spark: SparkSession, epochs_of_fits: list[int]) -> nn.Module:
    """The same fits one after the other, each with an optimizer of its own."""
    table = np.array([tuple(row) for row in rows(spark).collect()])
    x, y = torch.from_numpy(table[:, :2]), torch.from_numpy(table[:, 2:])
    module = net()
    for epochs in epochs_of_fits:
        optimizer = momentum(module.parameters())
        for _ in range(epochs):
            for start in range(0, ROWS, BATCH):
                optimizer.zero_grad()
                nn.functional.mse_loss(module(x[start : start + BATCH]), y[start : start + BATCH]).backward()
                optimizer.step()
    return module


def assert_close(actual: nn.Module, expected: nn.Module) -> None:
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(actual.state_dict()[name], value, rtol=1e-10, atol=1e-12)


def test_a_fit_goes_on_where_another_ended(any_spark_long: SparkSession, tmp_path: Path) -> None:
    df, path = rows(any_spark_long), str(tmp_path / "first")
    first = regressor(epochs=3).fit(df)
    first.save(path)
    expected = in_plain_torch(any_spark_long, [3, 2])
    module = net()
    assert_close(regressor(model=module, initialModel=path, epochs=2).fit(df).module(), expected)
    assert_close(regressor(initialModel=first, epochs=2).fit(df).module(), expected)
    assert_close(regressor(initialModel=TorchModel.load(path), epochs=2).fit(df).module(), expected)
    # The user's module keeps its own weights, and the saved model its own.
    assert_close(module, net())
    assert_close(TorchModel.load(path).module(), in_plain_torch(any_spark_long, [3]))


def test_an_optimizer_instance_keeps_its_parameters(spark: SparkSession, tmp_path: Path) -> None:
    df, module = rows(spark), net()
    first = regressor(epochs=1).fit(df)
    again = regressor(model=module, optimizer=momentum(module.parameters()), initialModel=first, epochs=1)
    assert_close(again.fit(df).module(), in_plain_torch(spark, [1, 1]))


def test_weights_that_only_workers_see(
    any_spark_long: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    df, path = rows(any_spark_long), str(tmp_path / "first")
    regressor(epochs=1).fit(df).save(path)
    with monkeypatch.context() as patch:
        patch.setattr(WeightsRef, "visible", lambda self: False)
        patch.setattr(files, "chunk_size", lambda spark: 100)
        again = regressor(initialModel=path, epochs=1).fit(df)
    assert_close(again.module(), in_plain_torch(any_spark_long, [1, 1]))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(2, 1).double(), r"initialModel .*first: the module is not the one .* lack bias, weight"),
        (nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double(), r"initialModel .*0\.weight is"),
        (net().float(), r"initialModel .*0\.weight is .*float32.*float64"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    spark: SparkSession, tmp_path: Path, model: nn.Module, said: str
) -> None:
    path = str(tmp_path / "first")
    fitted.fitted(TorchRegressor(model=net()), net(), [fitted.features(2, "float64")], tmp_path / "fit").save(
        path
    )
    with pytest.raises(ParamError, match=said):
        regressor(model=model, initialModel=path, workDir=str(tmp_path / "work")).fit(rows(spark))
    assert not (tmp_path / "work").exists()


def test_what_is_no_saved_model_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    regressor().save(str(tmp_path / "estimator"))
    with pytest.raises(FlambeauError, match=r"holds a flambeau\.TorchRegressor, not a TorchModel"):
        regressor(initialModel=str(tmp_path / "estimator")).fit(rows(spark))
    with pytest.raises(Exception, match="nothing"):
        regressor(initialModel=str(tmp_path / "nothing")).fit(rows(spark))
    with pytest.raises(ParamError, match="initialModel must be the directory of a saved model, or a fitted"):
        regressor(initialModel=net())
    with pytest.raises(ParamError, match="holds no trained module"):
        regressor(initialModel=TorchModel()).fit(rows(spark))


def test_an_estimator_is_saved_with_a_path_only(spark: SparkSession, tmp_path: Path) -> None:
    regressor(initialModel="/models/yesterday").save(str(tmp_path / "estimator"))
    assert TorchRegressor.load(str(tmp_path / "estimator")).getInitialModel() == "/models/yesterday"
    model = fitted.regressor(tmp_path / "fit")
    with pytest.raises(FlambeauError, match="initialModel is a fitted model"):
        regressor(initialModel=model).save(str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()
