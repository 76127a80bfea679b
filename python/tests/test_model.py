"""Fitted models as objects: history, summary, module, params, copies."""

from __future__ import annotations

from pathlib import Path

import fitted
import pytest
import torch
from torch import nn

import flambeau
from flambeau import FlambeauError, ParamError, TorchClassifier, TorchEstimator, TorchModel, TorchRegressor


def test_history_is_a_table(tmp_path: Path) -> None:
    import pandas as pd

    history = fitted.regressor(tmp_path).history
    assert history["loss"] == [2.0, 1.0] and history["val_loss"] == [3.0, 2.0]
    assert history["mae"] == [1.0, 0.5] and history["val_mae"] == [1.5, 1.0]
    assert history["epoch"] == [0, 1] and history["rows_per_second"] == [200.0, 200.0]
    assert len(pd.DataFrame(history)) == 2


def test_summary_has_sparks_names(tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path)
    assert model.hasSummary
    summary = model.summary
    assert summary.objectiveHistory == [2.0, 1.0] and summary.totalIterations == 2
    assert (summary.numRows, summary.numSteps, summary.numValidationRows) == (100, 20, 10)


def test_params_and_uid_come_from_the_estimator(tmp_path: Path) -> None:
    estimator = TorchClassifier(model=fitted.Mlp(), featuresCol="x", predictionCol="p", inferenceBatchSize=7)
    model = fitted.fitted(estimator, fitted.Mlp(), [fitted.features(4, name="x")], tmp_path)
    assert model.uid == estimator.uid
    assert (model.getFeaturesCol(), model.getPredictionCol(), model.getInferenceBatchSize()) == ("x", "p", 7)
    assert type(model).__module__ == "flambeau" and type(model) is flambeau.TorchClassificationModel
    assert model.numClasses == 3 and model.numFeatures == 4


def test_module_is_the_users_own_with_the_trained_weights(tmp_path: Path) -> None:
    module = fitted.trained(fitted.Mlp())
    got = fitted.fitted(TorchRegressor(model=module), module, [fitted.features(4)], tmp_path).module()
    assert type(got) is fitted.Mlp and not got.training and module.training
    assert all(torch.equal(value, got.state_dict()[name]) for name, value in module.state_dict().items())
    with torch.no_grad():
        got.output.weight.zero_()
    assert module.output.weight.abs().sum() > 0


def test_two_modules_share_nothing(tmp_path: Path) -> None:
    model = fitted.classifier(tmp_path)
    first, second = model.module(), model.module()
    with torch.no_grad():
        first.output.weight.zero_()
    assert second.output.weight.abs().sum() > 0


def test_copies_keep_the_weights(tmp_path: Path) -> None:
    model = fitted.classifier(tmp_path)
    other = model.copy({model.predictionCol: "p"})
    assert (model.getPredictionCol(), other.getPredictionCol()) == ("prediction", "p")
    assert torch.equal(other.module().output.weight, model.module().output.weight)


def test_outputs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    class Square(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 2, 2)

    for estimator, module in ((TorchRegressor, Two()), (TorchClassifier, Two()), (TorchClassifier, Square())):
        with pytest.raises(ParamError, match="one tensor"):
            fitted.fitted(estimator(model=module), module, [fitted.features(4)], tmp_path)
    fitted.fitted(TorchEstimator(model=Two(), loss="mse"), Two(), [fitted.features(4)], tmp_path)


def test_a_model_that_was_not_fitted_says_so(tmp_path: Path, spark: object) -> None:
    with pytest.raises(FlambeauError, match="get one from TorchEstimator"):
        TorchModel().transform(spark.range(1))  # type: ignore[attr-defined]


def test_weights_that_are_gone_are_named(tmp_path: Path, spark: object) -> None:
    model = fitted.regressor(tmp_path)
    Path(model._weights.uri).unlink()
    with pytest.raises(Exception, match="weights"):
        model.module()
