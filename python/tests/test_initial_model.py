"""`initialModel` and `initialState`: training that starts where another ended, against plain torch, and what
a model tells of where it comes from.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import fitted
import numpy as np
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from test_native_runtime import pytestmark as needs_libtorch
from torch import nn

from flambeau import FlambeauError, ParamError, TorchModel, TorchRegressor
from flambeau._saved.weights import WeightsRef
from flambeau._spark import files
from flambeau.model import Lineage

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


def in_plain_torch(
    spark: SparkSession, epochs_of_fits: list[int], rates: list[float] | None = None
) -> nn.Module:
    """The same fits one after the other, each with its own optimizer, or all with one, at these rates."""
    table = np.array([tuple(row) for row in rows(spark).collect()])
    x, y = torch.from_numpy(table[:, :2]), torch.from_numpy(table[:, 2:])
    module = net()
    optimizer = momentum(module.parameters())
    for fit, epochs in enumerate(epochs_of_fits):
        if rates is None:
            optimizer = momentum(module.parameters())
        else:
            optimizer.param_groups[0]["lr"] = rates[fit]
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


@pytest.mark.parametrize("runtime", ["python", pytest.param("native", marks=needs_libtorch)])
def test_an_optimizer_goes_on_where_another_ended(spark: SparkSession, tmp_path: Path, runtime: str) -> None:
    """Its momenta, at the rate that is asked for now."""
    df = rows(spark)
    params: dict[str, Any] = {
        "optimizer": {"name": "sgd", "options": {"lr": 0.05, "momentum": 0.9}},
        "runtime": runtime,
        "workDir": str(tmp_path / "work"),
    }
    first = regressor(**params, epochs=3, keepCheckpoints=1).fit(df)
    state = first.lineage.checkpoint
    assert state == first.checkpoints[-1].uri and first.checkpoints[-1].epoch == 3
    again = regressor(**params, epochs=2, initialModel=first, initialState=state, learningRate=0.01).fit(df)
    expected = in_plain_torch(spark, [3, 2], [0.05, 0.01])
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(again.module().state_dict()[name], value, rtol=1e-10, atol=1e-12)
    assert again.history["epoch"] == [0, 1] and again.summary.numSteps == 2 * ROWS // BATCH


def test_an_optimizer_keeps_its_steps_and_both_moments(spark: SparkSession, tmp_path: Path) -> None:
    """Adam's, by the names of torch's."""
    df, work = rows(spark), str(tmp_path / "work")
    params: dict[str, Any] = {"optimizer": "adam", "workDir": work}
    first = regressor(**params, epochs=2, keepCheckpoints=1).fit(df)
    state = first.lineage.checkpoint
    again = regressor(**params, epochs=2, initialModel=first, initialState=state).fit(df)
    assert_close(again.module(), regressor(optimizer="adam", epochs=4).fit(df).module())


@needs_libtorch
@pytest.mark.parametrize(
    ("name", "option"),
    [("rmsprop", {"momentum": 0.9}), ("rmsprop", {"centered": True}), ("adam", {"amsgrad": True})],
)
def test_what_an_option_adds_to_the_state_begins_as_zeros(
    spark: SparkSession, tmp_path: Path, name: str, option: dict[str, Any]
) -> None:
    """In both runtimes, whose optimizers are not the same code."""
    df = rows(spark)
    found = []
    for runtime in ("python", "native"):
        params: dict[str, Any] = {"workDir": str(tmp_path / runtime), "runtime": runtime, "epochs": 2}
        optimizer = {"name": name, "options": {"lr": 0.01}}
        first = regressor(**params, optimizer=optimizer, keepCheckpoints=1).fit(df)
        optimizer = {"name": name, "options": {"lr": 0.01, **option}}
        state = first.lineage.checkpoint
        again = regressor(**params, optimizer=optimizer, initialModel=first, initialState=state).fit(df)
        found.append(again.module().state_dict())
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-10, atol=1e-12)


def test_an_optimizers_groups_may_be_others(spark: SparkSession, tmp_path: Path) -> None:
    """Its state is each parameter's own."""
    df = rows(spark)

    def grouped(order: list[int]) -> Any:
        def make(parameters: Any) -> torch.optim.Optimizer:
            listed = list(parameters)
            return torch.optim.Adam([{"params": [listed[index]]} for index in order], lr=0.01)

        return make

    params: dict[str, Any] = {"workDir": str(tmp_path / "work"), "epochs": 2}
    first = regressor(**params, optimizer=grouped([0, 1, 2, 3]), keepCheckpoints=1).fit(df)
    state = first.lineage.checkpoint
    again = regressor(**params, optimizer=grouped([3, 2, 1, 0]), initialModel=first, initialState=state)
    unbroken = regressor(optimizer=grouped([0, 1, 2, 3]), epochs=4).fit(df)
    assert_close(again.fit(df).module(), unbroken.module())


def test_a_state_that_is_not_the_optimizers_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    df, work = rows(spark), str(tmp_path / "work")
    first = regressor(workDir=work, epochs=1, keepCheckpoints=1).fit(df)
    state = first.lineage.checkpoint
    assert state is not None
    wider = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    others: list[tuple[dict[str, Any], str]] = [
        ({"optimizer": "adam"}, r"initialState: .* holds the state of torch\.optim\.sgd\.SGD, not of .*Adam"),
        ({"model": wider}, r"initialState: the parameter 0\.weight is \[5, 2\], and the .* is \[4, 2\]"),
        (
            {"initialState": str(tmp_path / "none")},
            "none is no checkpoint to start from: there is none",
        ),
    ]
    for changed, said in others:
        with pytest.raises(ParamError, match=said):
            regressor(**{"workDir": work, "initialState": state} | changed).fit(df)
    (Path(state) / "shared.bin").unlink()
    with pytest.raises(ParamError, match=r"is no checkpoint to start from: its part shared\.bin is gone"):
        regressor(workDir=work, initialState=state).fit(df)


@needs_libtorch
@pytest.mark.parametrize(("runtime", "other"), [("python", "native"), ("native", "python")])
def test_a_state_of_the_other_runtime_is_refused(
    spark: SparkSession, tmp_path: Path, runtime: str, other: str
) -> None:
    df = rows(spark)
    params: dict[str, Any] = {"optimizer": "adam", "workDir": str(tmp_path / "work"), "epochs": 1}
    state = regressor(**params, runtime=runtime, keepCheckpoints=1).fit(df).lineage.checkpoint
    said = f'initialState: the checkpoint is of runtime="{runtime}", and this training has runtime="{other}"'
    with pytest.raises(ParamError, match=said):
        regressor(**params, runtime=other, initialState=state).fit(df)


def test_a_model_tells_where_it_comes_from(spark: SparkSession, tmp_path: Path) -> None:
    df, path = rows(spark), str(tmp_path / "first")
    params: dict[str, Any] = {"workDir": str(tmp_path / "work"), "epochs": 1}
    alone = regressor(**params).fit(df)
    assert alone.lineage == Lineage()
    first = regressor(**params, runId="monday", keepCheckpoints=1).fit(df)
    first.save(path)
    assert first.lineage == Lineage("monday", first.lineage.rowsSha256, checkpoint=first.checkpoints[0].uri)
    second = regressor(
        **params, runId="tuesday", initialModel=path, initialState=first.lineage.checkpoint
    ).fit(df)
    second.save(str(tmp_path / "second"))
    told = TorchModel.load(str(tmp_path / "second")).lineage
    weights = Path(path) / "weights.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert told == second.lineage
    assert (told.initialWeights, told.initialWeightsSha256) == (weights.as_uri(), digest)
    assert told.initialState == first.lineage.checkpoint and told.checkpoint is None
    # The same rows, by all their bytes.
    assert told.rowsSha256 is not None and told.rowsSha256 == first.lineage.rowsSha256
    other = regressor(**params, runId="wednesday").fit(df.withColumn("label", F.col("label") + 1))
    assert other.lineage.rowsSha256 not in (None, told.rowsSha256)


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
