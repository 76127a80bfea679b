"""What the engine makes of gradients, rates and weights beside the optimizer's step, against plain loops of
torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import one_thread, train
from lightning_stub import LightningModule
from pyspark.sql import SparkSession
from test_estimator import linear_rows, regressor
from test_native_runtime import pytestmark as needs_libtorch
from test_training_code import EPOCHS, STEPS, Net, assert_same, batches, job_of, sgd
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from flambeau import Callback, FlambeauError, ParamError, _callbacks
from flambeau._range_test import RangeTest
from flambeau.callbacks import Context


def loss_and_r2(module: nn.Module) -> tuple[float, float]:
    """Of all rows, which are the validation rows too."""
    module.eval()
    with torch.no_grad():
        errors = torch.cat([module(x) - y for x, y in batches()])
    module.train()
    labels = torch.cat([y for _, y in batches()])
    loss = errors.square().mean()
    return loss.item(), 1 - (loss / labels.var(correction=0)).item()


def looped(
    module: nn.Module,
    epochs: int,
    after_backward: Callable[[], object] = lambda: None,
    after_step: Callable[[], object] = lambda: None,
    after_epoch: Callable[[], object] = lambda: None,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[float]:
    """Trains, and returns the learning rate of each epoch's last step."""
    stepped = optimizer or sgd(module.parameters())
    rates = []
    for _ in range(epochs):
        for x, y in batches():
            stepped.zero_grad()
            functional.mse_loss(module(x), y).backward()
            after_backward()
            rate = stepped.param_groups[0]["lr"]
            stepped.step()
            after_step()
        rates.append(rate)
        after_epoch()
    return rates


def program(module: nn.Module) -> dict[str, Any]:
    return {"model": module, "loss": "mse", "optimizer": sgd, "metrics": ["r2"]}


def rates_of(result: dict[str, Any]) -> list[float]:
    return [record["learningRate"] for record in result["history"]["epochs"]]


def assert_resumes(directory: Path, module: Callable[[], nn.Module], weights: Any, **params: Any) -> None:
    """From the last checkpoints of the attempt `whole` training goes on to the same bits."""
    uris = sorted((directory / "attempts" / "whole" / "checkpoints").iterdir())
    assert uris, "no checkpoint is left"
    for number, uri in enumerate(uris):
        job = job_of(directory, attempt=f"again-{number}", resume=f"file://{uri}", **params)
        _, resumed = train(job, program(module()), 1, directory / f"again-{number}")
        assert all(resumed[name].equal(weight) for name, weight in weights.items())


@pytest.mark.parametrize(
    ("param", "clip"), [("gradientClipValue", clip_grad_value_), ("gradientClipNorm", clip_grad_norm_)]
)
@one_thread()
def test_gradients_are_clipped_as_torch_clips_them(
    tmp_path: Path, param: str, clip: Callable[..., Any]
) -> None:
    module = Net()
    looped(module, EPOCHS, after_backward=lambda: clip(module.parameters(), 0.05))
    _, weights = train(job_of(tmp_path, **{param: 0.05}), program(Net()), 1, tmp_path / "ranks")
    assert_same(weights, module)


@pytest.mark.parametrize("given", [{}, {"pct_start": 0.5, "div_factor": 10.0, "final_div_factor": 100.0}])
@one_thread()
def test_one_cycle_is_torchs(tmp_path: Path, given: dict[str, Any]) -> None:
    module = Net()
    optimizer = sgd(module.parameters())
    scheduler = OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * STEPS, cycle_momentum=False, **given)
    rates = looped(module, EPOCHS, after_step=scheduler.step, optimizer=optimizer)
    names = {
        "pct_start": "oneCyclePctStart",
        "div_factor": "oneCycleDivFactor",
        "final_div_factor": "oneCycleFinalDivFactor",
    }
    params = {names[name]: value for name, value in given.items()}
    job = job_of(tmp_path, lrSchedule="onecycle", **params)
    result, weights = train(job, program(Net()), 1, tmp_path / "ranks")
    assert_same(weights, module)
    assert rates_of(result) == pytest.approx(rates, rel=1e-9)


@pytest.mark.parametrize("monitor", ["val_loss", "val_r2"])
@one_thread()
def test_a_plateau_is_torchs_and_goes_on_from_a_checkpoint(tmp_path: Path, monitor: str) -> None:
    module = Net()
    optimizer = sgd(module.parameters())
    mode = "min" if monitor == "val_loss" else "max"
    given: dict[str, Any] = {"factor": 0.5, "patience": 1, "threshold": 0.3, "cooldown": 1, "min_lr": 0.01}
    scheduler = ReduceLROnPlateau(optimizer, mode, **given)  # type: ignore[arg-type]

    def after_epoch() -> None:
        scheduler.step(loss_and_r2(module)[mode == "max"])

    epochs = 14
    rates = looped(module, epochs, after_epoch=after_epoch, optimizer=optimizer)
    assert len(set(rates)) > 2 and rates[-1] == 0.01
    params: dict[str, Any] = {"lrSchedule": "plateau", "lrDecayRate": 0.5, "plateauPatience": 1}
    params |= {"plateauThreshold": 0.3, "plateauCooldown": 1, "lrEndFactor": 0.2, "epochs": epochs}
    params |= {"validationFraction": 0.5, "monitor": monitor}
    result, weights = train(
        job_of(tmp_path, attempt="whole", **params), program(Net()), 1, tmp_path / "whole"
    )
    assert_same(weights, module)
    assert rates_of(result) == pytest.approx(rates, rel=1e-12)
    if mode == "min":
        assert_resumes(tmp_path, Net, weights, **params)


class Normed(Net):
    """With buffers, which are no part of an average."""

    def __init__(self) -> None:
        super().__init__()
        self.layers.insert(1, nn.BatchNorm1d(8).double())


@pytest.mark.parametrize("restores", [False, True])
@one_thread()
def test_averaged_weights_are_torchs(tmp_path: Path, restores: bool) -> None:
    module = Normed()
    averaged = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    losses: list[float] = []
    states: list[dict[str, Tensor]] = []

    def after_epoch() -> None:
        losses.append(loss_and_r2(averaged.module)[0])
        states.append({name: value.clone() for name, value in averaged.module.state_dict().items()})

    epochs = 10
    looped(module, epochs, lambda: None, lambda: averaged.update_parameters(module), after_epoch)
    best = int(np.argmin(losses))
    params: dict[str, Any] = {"emaDecay": 0.9, "epochs": epochs, "validationFraction": 0.5}
    params |= {"restoreBestWeights": restores}
    result, weights = train(
        job_of(tmp_path, attempt="whole", **params), program(Normed()), 1, tmp_path / "whole"
    )
    records = result["history"]["epochs"]
    assert [record["validationLoss"] for record in records] == pytest.approx(losses, rel=1e-9)
    expected = states[best if restores else -1]
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-9, atol=1e-9)
    if restores:
        assert best < epochs - 1
    else:
        assert_resumes(tmp_path, Normed, weights, **params)
        assert any(not weights[name].equal(weight) for name, weight in module.state_dict().items())


ALL = {
    "emaDecay": 0.8,
    "gradientClipValue": 0.05,
    "bucketSize": 256,
    "gradientGroups": [["bias", "weight"]],
    "lrSchedule": "onecycle",
    "learningRate": 0.05,
    "validationFraction": 0.2,
}


@pytest.mark.parametrize("case", [ALL, {**ALL, "lrSchedule": "plateau", "plateauPatience": 0}])
@needs_libtorch
def test_both_runtimes_come_to_the_same(spark: SparkSession, case: dict[str, Any]) -> None:
    given = {"optimizer": "sgd", "loss": "mse", "epochs": 3, "plateauThreshold": 0.5, **case}
    df = linear_rows(spark, 400)
    python, native = (regressor(runtime=runtime, **given).fit(df) for runtime in ("python", "native"))
    for name in ("loss", "val_loss", "learning_rate"):
        assert native.history[name] == pytest.approx(python.history[name], rel=1e-5)
    for name, weight in python.module().state_dict().items():
        torch.testing.assert_close(native.module().state_dict()[name], weight, rtol=1e-5, atol=1e-6)


LOW, HIGH, TESTED = 1e-6, 100.0, 60


def losses_by_rate(high: float, num_steps: int) -> RangeTest:
    """Whole batches of the rows of `linear_rows`, with the rate of each step by torch itself."""
    ids = torch.arange(200)
    x = torch.stack([((ids * step) % 97).double() / 48.5 - 1 for step in (7, 31, 53)], 1)
    y = x @ torch.tensor([1.5, -2.0, 0.5]).double() + 3
    torch.manual_seed(0)
    module = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=LOW)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, (high / LOW) ** (1 / (num_steps - 1)))
    found = RangeTest([], [], [])
    mean, least = 0.0, math.inf
    for number in range(1, num_steps + 1):
        loss = functional.mse_loss(module(x).squeeze(1), y)
        if not loss.isfinite():
            break
        mean = 0.98 * mean + 0.02 * loss.item()
        smoothed = mean / (1 - 0.98**number)
        found.rates.append(optimizer.param_groups[0]["lr"])
        found.losses.append(loss.item())
        found.smoothed.append(smoothed)
        if smoothed > 4 * least:
            break
        least = min(least, smoothed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return replace(found, _suggestion=suggested(found))


def suggested(found: RangeTest) -> float:
    """Lightning's rule, by torch's gradient."""
    slopes = torch.gradient(torch.tensor(found.smoothed[10:-1], dtype=torch.float64))[0]
    return found.rates[int(slopes.argmin()) + 10]


@pytest.mark.parametrize("runtime", ["python", pytest.param("native", marks=needs_libtorch)])
def test_a_range_test_is_a_loop_with_a_growing_rate(
    spark: SparkSession, tmp_path: Path, runtime: str
) -> None:
    work = tmp_path / "work"
    estimator = regressor(
        optimizer="sgd",
        runtime=runtime,
        batchSize=100,
        workDir=str(work),
        runId="kept",
        keepCheckpoints=2,
        lrSchedule="cosine",
        emaDecay=0.9,
    )
    before = {param.name: estimator._value(param.name) for param in estimator.params}
    found = estimator.findLearningRate(linear_rows(spark, 200), LOW, HIGH, TESTED)
    expected = losses_by_rate(HIGH, TESTED)
    assert len(found.rates) == len(expected.rates) < TESTED, "it ends where the loss diverges"
    assert found.rates == pytest.approx(expected.rates, rel=1e-9)
    assert found.losses == pytest.approx(expected.losses, rel=1e-4)
    assert found.smoothed == pytest.approx(expected.smoothed, rel=1e-4)
    assert found.suggestion() == pytest.approx(expected.suggestion(), rel=1e-9)
    assert [path for path in work.rglob("*") if path.is_file()] == []
    assert before == {param.name: estimator._value(param.name) for param in estimator.params}


class Told(Callback):
    """One of every fit, as MLflow's is."""

    where = "driver"

    def __init__(self) -> None:
        self.hooks: list[str] = []

    def on_train_begin(self, context: Context) -> None:
        self.hooks.append("on_train_begin")


def test_a_range_test_is_no_fit_to_the_callbacks_of_every_fit(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, df = Told(), linear_rows(spark, 100)
    monkeypatch.setattr(_callbacks, "of_every_fit", [told])
    regressor(optimizer="sgd").findLearningRate(df, 1e-3, 1e-2, 3)
    assert told.hooks == []
    regressor(optimizer="sgd", epochs=1).fit(df)
    assert told.hooks == ["on_train_begin"]


def test_a_range_test_ends_where_the_loss_is_no_number(spark: SparkSession) -> None:
    found = regressor(optimizer="sgd", learningRate=0.1).findLearningRate(
        linear_rows(spark, 100), 1e-3, 1e35, 4
    )
    assert 1 < len(found.rates) <= 4 and all(map(math.isfinite, found.losses))
    with pytest.raises(ParamError, match="suggests no rate: take more numSteps"):
        found.suggestion()


def test_a_range_is_refused_that_is_none(spark: SparkSession) -> None:
    df = linear_rows(spark, 10)
    for low, high in [(1.0, 0.1), (0.0, 0.1), (-1.0, 0.1), (0.1, math.inf), (0.1, math.nan)]:
        said = f"minRate is {low} and maxRate {high}, but must be above 0, the latter the larger"
        with pytest.raises(ParamError, match=f"(?i)^{said}"):
            regressor().findLearningRate(df, low, high)
    with pytest.raises(ParamError, match=r"^minRate is 1e-310 and maxRate 1\.0, but must be less than 1e308"):
        regressor().findLearningRate(df, 1e-310, 1.0)
    for num_steps in (1, -1):
        with pytest.raises(ParamError, match=f"^numSteps is {num_steps}, but must be at least 2"):
            regressor().findLearningRate(df, numSteps=num_steps)


class Scheduled(LightningModule):
    """Has a scheduler of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x)

    def configure_optimizers(self) -> Any:
        optimizer = sgd(self.parameters())
        return [optimizer], [StepLR(optimizer, 1)]


def test_a_module_with_a_scheduler_of_its_own_has_no_range_test(spark: SparkSession) -> None:
    said = "configure_optimizers returns a scheduler.*return the optimizer alone, as findLearningRate"
    with pytest.raises(ParamError, match=said):
        regressor(model=Scheduled(), optimizer=None).findLearningRate(linear_rows(spark, 10))


def test_a_range_test_is_plotted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    found = losses_by_rate(HIGH, TESTED)
    axes = found.plot()
    curve, mark = axes.lines
    assert np.asarray(curve.get_xdata()).tolist() == found.rates
    assert np.asarray(curve.get_ydata()).tolist() == found.smoothed
    assert np.asarray(mark.get_xdata())[0] == found.suggestion() == suggested(found)
    assert axes.get_xscale() == "log" and found.plot(axes) is axes
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(FlambeauError, match=r"pip install flambeau\[plot\]"):
        found.plot()


def test_what_does_not_go_together_is_refused(spark: SparkSession) -> None:
    df = linear_rows(spark, 10)
    with pytest.raises(ParamError, match="gradients are clipped by one of the two"):
        regressor(gradientClipNorm=1.0, gradientClipValue=0.5).fit(df)
    with pytest.raises(ParamError, match="whose own warm-up has the share oneCyclePctStart"):
        regressor(lrSchedule="onecycle", warmupEpochs=1.0).fit(df)
