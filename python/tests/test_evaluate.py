"""evaluate: what validation of a fit gives on the same rows. Oracles: the history of that fit, and
scikit-learn on the plain module's outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fitted
import numpy as np
import pytest
import sklearn.metrics
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import Tensor, nn

from flambeau import DataError, ParamError, TorchClassifier, TorchEstimator, TorchModel, TorchRegressor
from flambeau._tensors import TensorColumns

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(300, 4)).astype(np.float32)
LABELS = (ROWS @ np.array([1.0, -2.0, 0.5, 0.0]) + RANDOM.normal(size=300)).astype(np.float32)
WEIGHTS = RANDOM.uniform(0, 2, size=300).astype(np.float32)


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    return of(spark)


def of(spark: SparkSession) -> DataFrame:
    """Rows of which the last hundred are for validation, in three partitions, one of them empty for those."""
    data = [
        (i, row.tolist(), float(y), float(w), int(y > 0), int(y > 0) + int(y > 1), i >= 200)
        for i, (row, y, w) in enumerate(zip(ROWS, LABELS, WEIGHTS, strict=True))
    ]
    schema = "id long, features array<float>, y double, w double, c int, k int, held boolean"
    return spark.createDataFrame(data, schema).repartition(3, "held", "c")


def fit(estimator: TorchEstimator, rows: DataFrame, **more: Any) -> TorchModel:
    settings = {"epochs": 2, "numWorkers": 1, "batchSize": 32, "validationIndicatorCol": "held", **more}
    return estimator.copy({estimator.getParam(name): v for name, v in settings.items()}).fit(rows)


def validation(model: TorchModel) -> dict[str, Any]:
    """The last epoch's figures of validation rows, by the names that they have without the prefix."""
    history = model.history
    return {name.removeprefix("val_"): v[-1] for name, v in history.items() if name.startswith("val_")}


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("weightCol", [None, "w"])
def test_a_regressor_is_evaluated_as_in_its_validation(rows: DataFrame, weightCol: str | None) -> None:
    def doubled(output: Tensor, label: Tensor) -> Tensor:
        return 2 * (output - label).abs()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
    metrics = {"mae": "mae", "r2": "r2", "rmse": "rmse", "doubled": doubled, "huber": nn.HuberLoss()}
    estimator = TorchRegressor(model=net, labelCol="y", weightCol=weightCol, metrics=metrics)
    model = fit(estimator, rows)
    same(model.evaluate(rows.filter("held")), validation(model))
    module = model.module()
    with torch.no_grad():
        output = module(torch.from_numpy(ROWS)).squeeze(1).numpy()
    weights = None if weightCol is None else WEIGHTS
    everything = model.evaluate(rows)
    mse = sklearn.metrics.mean_squared_error(LABELS, output, sample_weight=weights)
    r2 = sklearn.metrics.r2_score(LABELS, output, sample_weight=weights)
    assert everything["loss"] == pytest.approx(mse, rel=1e-5)
    # r2 is one less a ratio, so what rounding moves by a part of itself is the ratio: r2 may lie near 0.
    found = everything["r2"]
    assert found is not None and 1 - found == pytest.approx(1 - r2, rel=1e-5)


@pytest.mark.parametrize("weightCol", [None, "w"])
def test_a_classifier_is_evaluated_as_in_its_validation(rows: DataFrame, weightCol: str | None) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    metrics = ["accuracy", "top2_accuracy", "class1_f1", "macro_f1"]
    estimator = TorchClassifier(
        model=nn.Linear(4, 3), labelCol="k", weightCol=weightCol, metrics=metrics, loss=loss
    )
    model = fit(estimator, rows)
    same(model.evaluate(rows.filter("held")), validation(model))


@pytest.mark.parametrize("weightCol", [None, "w"])
def test_gathered_metrics_are_those_of_all_rows(rows: DataFrame, weightCol: str | None) -> None:
    estimator = TorchClassifier(
        model=nn.Linear(4, 1),
        labelCol="c",
        weightCol=weightCol,
        loss="bce_with_logits",
        metrics=["auc", "average_precision", "f1"],
    )
    model = fit(estimator, rows)
    same(model.evaluate(rows.filter("held")), validation(model))
    with torch.no_grad():
        logits = model.module()(torch.from_numpy(ROWS)).squeeze(1).numpy()
    weights = None if weightCol is None else WEIGHTS
    auc = sklearn.metrics.roc_auc_score(LABELS > 0, logits, sample_weight=weights)
    assert model.evaluate(rows)["auc"] == pytest.approx(auc, abs=1e-6)


def test_metrics_of_torchmetrics(rows: DataFrame) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    metrics = {
        "mine": torchmetrics.MeanSquaredError(),
        "order": torchmetrics.SpearmanCorrCoef(),
        "ours": "mse",
    }
    estimator = TorchRegressor(model=nn.Linear(4, 1), labelCol="y", metrics=metrics)
    model = fit(estimator, rows)
    found = model.evaluate(rows.filter("held"))
    same(found, validation(model))
    assert found["mine"] == pytest.approx(found["ours"], rel=1e-6)
    weighted = model.copy({model.weightCol: "w"})
    with pytest.raises(ParamError, match="mine is a metric of torchmetrics, which takes no weights"):
        weighted.evaluate(rows)


def test_a_loss_that_does_not_tell_leaves_it_to_the_modules_end(rows: DataFrame) -> None:
    def brier(output: Tensor, label: Tensor) -> Tensor:
        return (output - label) ** 2

    net = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    model = fit(TorchEstimator(model=net, loss=brier, labelCol="c", metrics=["accuracy"]), rows)
    found = model.evaluate(rows.filter("held"))
    same(found, validation(model))
    with torch.no_grad():
        predicted = model.module()(torch.from_numpy(ROWS[200:])).squeeze(1).numpy() > 0.5
    assert found["accuracy"] == pytest.approx(np.mean(predicted == (LABELS[200:] > 0)))


def test_several_outputs_and_labels(rows: DataFrame) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(features).squeeze(1), self.b(features).squeeze(1)

    def both(output: tuple[Tensor, Tensor], label: tuple[Tensor, Tensor]) -> Tensor:
        return (output[0] - label[0]) ** 2 + (output[1] - label[1]).abs()

    model = fit(TorchEstimator(model=Two(), loss=both, labelCols=["y", "w"]), rows)
    same(model.evaluate(rows.filter("held")), validation(model))


def test_arrays_as_labels_and_a_module_in_float64(rows: DataFrame) -> None:
    net = nn.Linear(4, 4).double()
    estimator = TorchEstimator(
        model=net, loss="mse", inputCols=["features"], inputTypes=["float64"], labelCol="features"
    )
    model = fit(estimator, rows)
    same(model.evaluate(rows.filter("held")), validation(model))


def test_a_loaded_model_knows_what_has_a_name(rows: DataFrame, tmp_path: Path) -> None:
    estimator = TorchRegressor(model=nn.Linear(4, 1), labelCol="y", metrics=["mae"])
    model = fit(estimator, rows)
    model.save(str(tmp_path / "named"))
    wanted = model.evaluate(rows)
    same(TorchModel.load(str(tmp_path / "named")).evaluate(rows), wanted)
    other = fit(estimator.copy().setLoss(lambda output, label: (output - label) ** 2).setMetrics(None), rows)
    other.save(str(tmp_path / "other"))
    loaded = TorchModel.load(str(tmp_path / "other"))
    with pytest.raises(ParamError, match=r"give it as evaluate\(df, loss=\.\.\.\)"):
        loaded.evaluate(rows)
    found = loaded.evaluate(rows, loss="mse", metrics=["mae"])
    assert list(found) == ["loss", "mae"]
    same({"loss": found["loss"]}, {"loss": other.evaluate(rows)["loss"]})


class Hungry(nn.Module):
    """Asks for more memory than there is addresses for, where it gets more than five rows at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        torch.empty((1 << 48) if len(x) > 5 else 1, dtype=torch.uint8)
        return self.layer(x)


def test_batches_are_halved_where_memory_runs_out(rows: DataFrame, tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path, Hungry(), labelCol="y", inferenceBatchSize=64)
    with torch.no_grad():
        output = model.module().layer(torch.from_numpy(ROWS)).squeeze(1).numpy()
    found = model.evaluate(rows, metrics=["mae", "r2"])
    mse = sklearn.metrics.mean_squared_error(LABELS, output)
    mae = sklearn.metrics.mean_absolute_error(LABELS, output)
    r2 = sklearn.metrics.r2_score(LABELS, output)
    assert found == pytest.approx({"loss": mse, "mae": mae, "r2": r2}, rel=1e-5)


def test_on_either_kind_of_session(any_spark: SparkSession, tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path, nn.Linear(4, 1), labelCol="y", metrics=["mae", "auc"])
    with torch.no_grad():
        output = model.module()(torch.from_numpy(ROWS)).squeeze(1).numpy()
    found = model.evaluate(of(any_spark), metrics=["mae"])
    mse = sklearn.metrics.mean_squared_error(LABELS, output)
    mae = sklearn.metrics.mean_absolute_error(LABELS, output)
    assert found == pytest.approx({"loss": mse, "mae": mae}, rel=1e-5)


def test_what_is_refused(rows: DataFrame, tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path, nn.Linear(4, 1), labelCol="y")
    with pytest.raises(DataError, match="column 'y' is the label and holds a NaN"):
        model.evaluate(rows.withColumn("y", F.lit(float("nan"))))
    with pytest.raises(DataError, match="column 'features' holds a null"):
        model.evaluate(rows.withColumn("features", F.lit(None).cast("array<float>")))
    with pytest.raises(DataError, match=r"no column 'y' for the label.*did you mean 'yy'"):
        model.evaluate(rows.withColumnRenamed("y", "yy"))
    with pytest.raises(DataError, match="no rows to evaluate on"):
        model.evaluate(rows.filter("id < 0"))
    with pytest.raises(ParamError, match="loss: unknown name 'mee'"):
        model.evaluate(rows, loss="mee")
    with pytest.raises(DataError, match="metric class9_f1: the output has 2 classes"):
        model.evaluate(rows, metrics=["class9_f1"])
    with pytest.raises(ParamError, match="get one from TorchEstimator"):
        TorchModel().evaluate(rows)


def test_what_is_not_finite_is_none(rows: DataFrame, tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path, nn.Linear(4, 1), labelCol="c")
    found = model.evaluate(rows.filter("c = 1"), loss="bce_with_logits", metrics=["auc", "mse"])
    assert found["auc"] is None and found["mse"] is not None


def test_inputs_of_packed_columns_share_a_column_with_the_label(spark: SparkSession, tmp_path: Path) -> None:
    net = nn.Linear(2, 1)
    inputs = [TensorColumns("features", ("a", "b"), "float32", (2,))]
    estimator = TorchRegressor(model=net, featuresCols=["a", "b"], labelCol="a")
    model = fitted.fitted(estimator, net, inputs, tmp_path)
    frame = spark.createDataFrame([(float(i), float(i * i)) for i in range(20)], "a double, b double")
    values = np.array([[i, i * i] for i in range(20)], np.float32)
    with torch.no_grad():
        wanted = np.mean((net(torch.from_numpy(values)).squeeze(1).numpy() - values[:, 0]) ** 2)
    assert model.evaluate(frame)["loss"] == pytest.approx(wanted, rel=1e-5)
