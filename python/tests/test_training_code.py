"""A module's own training code: its steps, torch's schedules, losses that take the inputs. Lightning and
transformers are in test_trainers.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import make_job, one_thread, tensor, train, write_shards
from pyspark.sql import SparkSession
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from flambeau import Callback, ParamError, TorchEstimator
from flambeau._module import losses
from flambeau._module.adapter import ModuleModel
from flambeau._module.assembly import check_program
from flambeau._module.layout import Layout
from flambeau._module.steps import logged_names
from flambeau._saved.program import probe_output
from flambeau._tensors import TensorColumns
from flambeau.callbacks import Context

NUM_ROWS = 52
BATCH_SIZE = 10
EPOCHS = 4
STEPS = 6
"""Of an epoch; the last batch has 2 rows."""


def rows() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    x = generator.standard_normal((NUM_ROWS, 3))
    return {"x": x, "y": x @ [1.0, -2.0, 0.5] + 0.1 * generator.standard_normal(NUM_ROWS)}


class Net(nn.Module):
    """A small module in float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(1)


class Stepping(Net):
    """It makes its own loss, and says what else is to be told."""

    def training_step(self, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        x, y = batch
        output = self(x)
        return {"loss": functional.mse_loss(output, y), "mae": (output - y).abs().mean()}

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        x, y = batch
        return {"loss": functional.mse_loss(self(x), y), "worst": (self(x) - y).abs().max()}


def job_of(directory: Path, **params: Any) -> dict[str, Any]:
    shards = write_shards(directory / "data", rows())
    given: dict[str, Any] = {"numWorkers": 1, "batchSize": BATCH_SIZE, "shuffle": False, "epochs": EPOCHS}
    given |= {"numThreads": 1, **params}
    if given.pop("validates", True):
        given["validation"] = shards
    inputs = [tensor("x", dtype="float64", shape=[3])]
    return make_job(directory, shards, inputs, [tensor("y", dtype="float64", shape=[])], **given)


def batches() -> list[tuple[Tensor, Tensor]]:
    columns = rows()
    x, y = torch.from_numpy(columns["x"]), torch.from_numpy(columns["y"])
    return list(zip(x.split(BATCH_SIZE), y.split(BATCH_SIZE), strict=True))


def sgd(parameters: Any) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def assert_same(weights: dict[str, Tensor], module: nn.Module) -> None:
    for name, weight in module.state_dict().items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-12, atol=1e-12)


@one_thread()
def test_a_plain_modules_steps_are_a_plain_loop(tmp_path: Path) -> None:
    module = Stepping()
    optimizer = sgd(module.parameters())
    losses_seen, errors, worst, validated = [], [], [], []
    for _ in range(EPOCHS):
        sums = np.zeros(2)
        for x, y in batches():
            made = module.training_step((x, y))
            optimizer.zero_grad()
            made["loss"].backward()
            optimizer.step()
            sums += len(x) * np.array([made["loss"].item(), made["mae"].item()])
        losses_seen.append(sums[0] / NUM_ROWS)
        errors.append(sums[1] / NUM_ROWS)
        with torch.no_grad():
            found = [(len(x), module.validation_step((x, y))) for x, y in batches()]
        validated.append(sum(n * one["loss"].item() for n, one in found) / NUM_ROWS)
        worst.append(sum(n * one["worst"].item() for n, one in found) / NUM_ROWS)

    program = {"model": Stepping(), "loss": None, "optimizer": sgd}
    result, weights = train(job_of(tmp_path), program, 1, tmp_path / "ranks")
    assert_same(weights, module)
    records = result["history"]["epochs"]
    assert [one["loss"] for one in records] == pytest.approx(losses_seen, rel=1e-12)
    assert [dict(one["metrics"]) for one in records] == [pytest.approx({"mae": e}, rel=1e-12) for e in errors]
    assert [one["validationLoss"] for one in records] == pytest.approx(validated, rel=1e-12)
    assert [dict(one["validationMetrics"]) for one in records] == [
        pytest.approx({"worst": e}, rel=1e-12) for e in worst
    ]


@one_thread()
def test_two_ranks_train_on_the_mean_of_all_rows(tmp_path: Path) -> None:
    module = Stepping()
    optimizer = sgd(module.parameters())
    x, y = (torch.from_numpy(column) for column in rows().values())
    half = NUM_ROWS // 2
    for _ in range(2):
        for start in range(0, half, BATCH_SIZE):
            stop = min(start + BATCH_SIZE, half)
            both = torch.cat([torch.arange(start, stop), torch.arange(half + start, half + stop)])
            optimizer.zero_grad()
            module.training_step((x[both], y[both]))["loss"].backward()
            optimizer.step()
    program = {"model": Stepping(), "loss": None, "optimizer": sgd}
    result, weights = train(job_of(tmp_path, numWorkers=2, epochs=2), program, 2, tmp_path / "ranks")
    assert_same(weights, module)
    assert [name for name, _ in result["history"]["epochs"][1]["metrics"]] == ["mae"]


def warm_up(optimizer: Optimizer) -> SequentialLR:
    first = LinearLR(optimizer, start_factor=0.1, total_iters=4)
    return SequentialLR(optimizer, [first, CosineAnnealingWarmRestarts(optimizer, 7)], milestones=[4])


SCHEDULERS: dict[str, tuple[str, Callable[[Optimizer], Any]]] = {
    "one cycle": ("step", lambda o: OneCycleLR(o, 0.1, total_steps=EPOCHS * STEPS)),
    "sequence": ("step", warm_up),
    "decay": ("epoch", lambda o: StepLR(o, 2, gamma=0.3)),
    "plateau": ("epoch", lambda o: ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0.6)),
}


@pytest.mark.parametrize("case", SCHEDULERS)
@one_thread()
def test_a_scheduler_is_torchs_and_its_state_is_in_checkpoints(tmp_path: Path, case: str) -> None:
    interval, factory = SCHEDULERS[case]
    module = Net()
    optimizer = sgd(module.parameters())
    scheduler = factory(optimizer)
    last_rates = []
    for _ in range(EPOCHS):
        for x, y in batches():
            optimizer.zero_grad()
            functional.mse_loss(module(x), y).backward()
            last_rate = optimizer.param_groups[0]["lr"]
            optimizer.step()
            if interval == "step":
                scheduler.step()
        with torch.no_grad():
            whole = sum(len(x) * functional.mse_loss(module(x), y).item() for x, y in batches()) / NUM_ROWS
        if interval == "epoch":
            scheduler.step(*((whole,) if case == "plateau" else ()))
        last_rates.append(last_rate)
    assert len(set(last_rates)) > 1

    def program() -> dict[str, Any]:
        made = {"model": Net(), "loss": "mse", "optimizer": sgd}
        return {**made, "lrScheduler": factory, "lrSchedulerInterval": interval}

    params = {"checkpointSteps": 5, "attempt": "whole"}
    result, weights = train(job_of(tmp_path, **params), program(), 1, tmp_path / "whole")
    assert_same(weights, module)
    records = result["history"]["epochs"]
    assert [one["learningRate"] for one in records] == pytest.approx(last_rates, rel=1e-12)

    # From the middle of the last epoch but one, and from its end.
    uris = sorted((tmp_path / "attempts" / "whole" / "checkpoints").iterdir())
    assert uris, "no checkpoint is left"
    for number, uri in enumerate(uris):
        again = {**params, "attempt": f"again-{number}", "resume": f"file://{uri}"}
        gone_on, resumed = train(job_of(tmp_path, **again), program(), 1, tmp_path / f"again-{number}")
        assert all(resumed[name].equal(weight) for name, weight in weights.items())
        rates = [one["learningRate"] for one in gone_on["history"]["epochs"]]
        assert rates == [one["learningRate"] for one in records]


class Configuring(Stepping):
    """A plain module with the optimizer and the schedule that a LightningModule would have."""

    def configure_optimizers(self) -> Any:
        optimizer = sgd(self.parameters())
        return [optimizer], [StepLR(optimizer, 2, gamma=0.3)]


@one_thread()
def test_a_plain_module_configures_its_optimizer(tmp_path: Path) -> None:
    module = Configuring()
    (optimizer,), (scheduler,) = module.configure_optimizers()
    for _ in range(EPOCHS):
        for batch in batches():
            optimizer.zero_grad()
            module.training_step(batch)["loss"].backward()
            optimizer.step()
        scheduler.step()
    program = {"model": Configuring(), "loss": None, "optimizer": None}
    result, weights = train(job_of(tmp_path), program, 1, tmp_path / "ranks")
    assert_same(weights, module)
    rates = [one["learningRate"] for one in result["history"]["epochs"]]
    assert rates == pytest.approx([0.05, 0.05, 0.015, 0.015], rel=1e-12)


def test_the_learning_rate_is_that_of_the_last_step() -> None:
    module = Net()
    given = {"model": module, "loss": "mse", "optimizer": sgd, "lrSchedulerInterval": "step"}
    model = ModuleModel({**given, "lrScheduler": lambda o: StepLR(o, 1, gamma=0.5)}, LAYOUT)
    assert model.learning_rate() == 0.05
    for expected in (0.05, 0.025, 0.0125):
        model._views = [torch.zeros_like(parameter) for parameter in module.parameters()]
        model.optimizer_step([True] * 4, 1.0)
        assert model.learning_rate() == expected
        assert model.optimizer.param_groups[0]["lr"] == expected / 2
    with pytest.raises(ParamError, match="leave lrSchedule, warmupEpochs and scaleLearningRate out"):
        model.optimizer_step(None, 0.5)


LAYOUT = Layout([TensorColumns("x", ("x",), "float64", (3,))], [TensorColumns("y", ("y",), "float64", ())])


def layout(**changed: Any) -> Layout:
    return Layout(**{**vars(LAYOUT), **changed})


class Unvalidated(Net):
    def training_step(self, batch: Any) -> Tensor:
        return self(batch[0]).mean()


class Untrained(Net):
    def validation_step(self, batch: Any) -> Tensor:
        return self(batch[0]).mean()


class Lossless(Net):
    def training_step(self, batch: Any) -> dict[str, Tensor]:
        return {"mae": self(batch[0]).mean()}


class Sometimes(Net):
    """Logs what it does not log of zeros."""

    def training_step(self, batch: Any) -> dict[str, Tensor]:
        output = self(batch[0])
        found = {"loss": output.square().mean(), "least": output.min()}
        return found | {"odd": output.max()} if batch[0].any() else found

    validation_step = training_step


class Vector(Net):
    def training_step(self, batch: Any) -> Tensor:
        return self(batch[0])


class Taken(Net):
    def training_step(self, batch: Any) -> dict[str, Tensor]:
        return {"loss": self(batch[0]).mean(), "steps": torch.ones(())}


@pytest.mark.parametrize(
    ("program", "changed", "message"),
    [
        ({"model": Stepping(), "loss": "mse"}, {}, "loss: Stepping has a training_step.* leave loss out"),
        ({"model": Stepping(), "metrics": ["mae"]}, {}, "metrics: Stepping has a training_step"),
        ({"model": Stepping()}, {"is_weighted": True}, "weightCol is set, but what training_step returns"),
        (
            {"model": Stepping()},
            {"by_name": True, "inputs": [TensorColumns("labels", ("x",), "float64", (3,))]},
            "more than one 'labels': it has a label as",
        ),
        (
            {"model": Stepping()},
            {
                "by_name": True,
                "is_weighted": True,
                "inputs": [TensorColumns("weight", ("x",), "float64", (3,))],
            },
            "more than one 'weight'",
        ),
        (
            {"model": Stepping()},
            {
                "by_name": True,
                "inputs": [TensorColumns("y", ("x",), "float64", (3,))],
                "labels": [*LAYOUT.labels, TensorColumns("z", ("z",), "float64", ())],
            },
            "more than one 'y'",
        ),
        ({"model": Unvalidated()}, {"validates": True}, "a training_step but no validation_step: define one"),
        ({"model": Untrained(), "loss": "mse"}, {}, "Untrained has a validation_step and no training_step"),
        ({"model": Configuring()}, {}, "optimizer: Configuring has configure_optimizers, which is used"),
        ({"model": Net(), "loss": "mse", "lrScheduler": StepLR}, {}, "missing 1 required positional"),
        ({"model": Net(), "loss": "mse", "lrScheduler": lambda o: o}, {}, "expected a scheduler of torch"),
        ({"model": Net(), "loss": "mse", "lrScheduler": 3}, {}, "expected a callable that makes .* got int"),
        ({"model": Net(), "loss": "mse", "lrScheduler": ReduceLROnPlateau}, {}, "ReduceLROnPlateau watches"),
        (
            {"model": Net(), "loss": "mse", "lrScheduler": ReduceLROnPlateau, "lrSchedulerInterval": "step"},
            {"validates": True},
            "set the interval to 'epoch'",
        ),
    ],
)
def test_what_is_refused_before_any_worker_starts(program: dict, changed: dict, message: str) -> None:
    with pytest.raises((ParamError, TypeError), match=message):
        check_program({"optimizer": "sgd", **program}, layout(**changed))


def test_torchs_schedule_is_refused_beside_the_jobs() -> None:
    program = {"model": Net(), "loss": "mse", "optimizer": "sgd", "lrScheduler": lambda o: StepLR(o, 1)}
    check_program(program, LAYOUT)
    with pytest.raises(ParamError, match="leave lrSchedule, warmupEpochs and scaleLearningRate out"):
        check_program(program, LAYOUT, has_schedule=True)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Lossless(), "training_step returns a dict without 'loss'"),
        (Vector(), r"training_step returns a tensor of \[2\]; return the loss of the batch as one number"),
        (Taken(), "'steps', which is taken by a column of the history"),
    ],
)
def test_steps_are_tried_before_the_training(module: nn.Module, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        ModuleModel({"model": module, "loss": None, "optimizer": "sgd"}, LAYOUT)


def test_trying_a_step_leaves_no_trace() -> None:
    class Counting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3).double()
            self.seen: list[int] = []

        def training_step(self, batch: Any) -> Tensor:
            self.seen.append(len(batch[0]))
            return self(self.norm(batch[0])).mean() + torch.rand(())

    module = Counting()
    before = torch.get_rng_state()
    ModuleModel({"model": module, "loss": None, "optimizer": "sgd"}, LAYOUT)
    assert module.seen == [] and module.norm.num_batches_tracked == 0
    assert torch.get_rng_state().equal(before)


def test_steps_tried_side_by_side_leave_the_random_generator_as_it_was() -> None:
    """Without turns, the one that begins last would put back what the other one's draw had left."""

    class Drawing(Net):
        def training_step(self, batch: Any) -> Tensor:
            drawn = torch.rand(())
            drew.set()
            time.sleep(0.2)
            return self(batch[0]).mean() * drawn

    drew, modules = threading.Event(), [Drawing(), Drawing()]
    before = torch.get_rng_state()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(logged_names, modules[0], LAYOUT)
        assert drew.wait(60)
        second = pool.submit(logged_names, modules[1], LAYOUT)
        assert first.result() == second.result() == {"training_step": []}
    assert torch.equal(torch.get_rng_state(), before)


def test_a_name_that_comes_later_is_left_out_with_a_warning(tmp_path: Path) -> None:
    program = {"model": Sometimes(), "loss": None, "optimizer": sgd}
    result, _ = train(job_of(tmp_path), program, 1, tmp_path / "ranks")
    records = result["history"]["epochs"]
    assert len(records) == EPOCHS
    for record in records:
        assert dict(record["metrics"]).keys() == dict(record["validationMetrics"]).keys() == {"least"}
    steps = ("training_step", "validation_step")
    warnings = [one.partition(" on two rows")[0] for one in result["warnings"]]
    assert warnings == [f"model: {step} logs 'odd', which it did not" for step in steps]


def test_a_monitor_is_what_validation_step_logs(spark: SparkSession) -> None:
    df = spark.range(40).selectExpr("array(1.0D, 2.0D, 3.0D) as x", "double(id) as y")
    estimator = TorchEstimator(
        model=Stepping(),
        optimizer="sgd",
        inputCols=["x"],
        inputTypes=["float64"],
        labelCol="y",
        numWorkers=1,
        validationFraction=0.5,
        monitor="val_mae",
    )
    with pytest.raises(
        ParamError, match=r'monitor is "val_mae", but must be one of loss, mae, val_loss, val_worst'
    ):
        estimator.fit(df)


class Asking(Net):
    """Its configure_optimizers is called by a loop of its own, as minGPT's."""

    def configure_optimizers(self, weight_decay: float) -> Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, weight_decay=weight_decay)


def test_what_an_estimator_would_not_use_is_refused(spark: SparkSession) -> None:
    df = spark.range(8).selectExpr("array(1.0D, 2.0D, 3.0D) as x", "double(id) as y")
    common: dict[str, Any] = {"inputCols": ["x"], "inputTypes": ["float64"], "labelCol": "y", "loss": "mse"}
    with pytest.raises(ParamError, match=r"Asking.* has a configure_optimizers that takes arguments"):
        TorchEstimator(model=Asking(), **common).fit(df)
    with pytest.raises(ParamError, match="the model's validation_step is Python's"):
        TorchEstimator(model=Untrained(), runtime="native", **common).fit(df)
    model = TorchEstimator(model=Asking(), optimizer="sgd", numWorkers=1, epochs=1, verbose=0, **common).fit(
        df
    )
    assert len(model.history["loss"]) == 1


class Dropping(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.dropout(x, 0.5, self.training))


class LeavesEval(Callback):
    def on_step_end(self, context: Context) -> None:
        assert context.module is not None and context.module.training
        context.module.eval()

    on_train_begin = on_epoch_begin = on_epoch_end = on_step_end


@one_thread()
def test_after_a_hook_the_module_is_in_training_mode(tmp_path: Path) -> None:
    def weights_of(name: str, callbacks: list[Callback]) -> dict[str, Tensor]:
        job = job_of(tmp_path, validates=False, attempt=name)
        job["attempt"]["callbacks"] = bool(callbacks)
        program = {"model": Dropping(), "loss": "mse", "optimizer": sgd, "callbacks": callbacks}
        return train(job, program, 1, tmp_path / name)[1]

    expected = weights_of("without", [])
    assert all(weight.equal(expected[name]) for name, weight in weights_of("with", [LeavesEval()]).items())


def third(output: Tensor, label: Tensor, x: Tensor) -> Tensor:
    return (output - label - x[:, 0]).square().mean()


def keyword(output: Tensor, label: Tensor, *, inputs: Tensor) -> Tensor:
    return third(output, label, inputs)


class Both(nn.Module):
    def forward(self, output: Tensor, label: Tensor, x: Tensor) -> Tensor:
        return third(output, label, x)


def otherwise(inputs: Tensor, targets: Tensor, power: float = 2.0) -> Tensor:
    return (inputs - targets).abs().pow(power).mean()


@pytest.mark.parametrize("loss", [third, keyword, Both()])
@one_thread()
def test_a_loss_takes_the_inputs(tmp_path: Path, loss: Any) -> None:
    module = Net()
    optimizer = sgd(module.parameters())
    for x, y in batches():
        optimizer.zero_grad()
        third(module(x), y, x).backward()
        optimizer.step()
    program = {"model": Net(), "loss": loss, "optimizer": sgd}
    _, weights = train(job_of(tmp_path, epochs=1), program, 1, tmp_path / "ranks")
    assert_same(weights, module)


def test_a_third_argument_with_a_default_is_not_the_inputs() -> None:
    output, label = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0])
    value, rows_counted = losses.build(otherwise)(output, [label], None, 2)
    assert (value.item(), rows_counted) == (2.5, 2.0)
    assert not isinstance(losses.build(otherwise), losses.InputsLoss)


class Labelled(Net):
    """Its forward makes the loss where it gets labels, as those of transformers do."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict:  # type: ignore[override]
        output = super().forward(x)
        if labels is None:
            return {"output": output}
        return {"loss": functional.mse_loss(output, labels), "output": output}


@one_thread()
def test_a_modules_own_loss(tmp_path: Path) -> None:
    module = Net()
    optimizer = sgd(module.parameters())
    for x, y in batches():
        optimizer.zero_grad()
        functional.mse_loss(module(x), y).backward()
        optimizer.step()
    program = {"model": Labelled(), "loss": None, "optimizer": sgd, "metrics": ["mse"]}
    result, weights = train(job_of(tmp_path, epochs=1), program, 1, tmp_path / "ranks")
    assert_same(weights, module)
    (record,) = result["history"]["epochs"]
    assert dict(record["metrics"])["mse"] == pytest.approx(record["loss"], rel=1e-12)


@dataclass
class Outputs:
    """A dataclass as an output."""

    first: Tensor
    second: Tensor
    unused: Tensor | None = None


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 2)

    def forward(
        self, unused: Tensor | None = None, scale: Tensor | None = None, x: Tensor | None = None
    ) -> Outputs:
        assert unused is None and scale is not None and x is not None
        return Outputs(self.line(x) * scale, scale)


def test_inputs_by_name_and_outputs_of_a_dataclass() -> None:
    inputs = [
        TensorColumns("x", ("a",), "float32", (1,), keyword=True),
        TensorColumns("scale", ("b",), "float32", (1,), keyword=True),
    ]
    assert [(one.name, one.shape) for one in probe_output(Several(), inputs).tensors] == [
        ("first", (2,)),
        ("second", (1,)),
    ]


def test_a_named_batch_and_weights_by_name(tmp_path: Path) -> None:
    class Named(Net):
        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            error = (self(batch["x"]) - batch["labels"]).square()
            return (error * batch["weight"]).sum() / batch["weight"].sum()

    class Careless(Net):
        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return (self(batch["x"]) - batch["labels"]).square().mean()

    columns = rows()
    columns["w"] = np.arange(NUM_ROWS) % 3.0
    shards = write_shards(tmp_path / "data", columns)
    params: dict[str, Any] = {"numWorkers": 1, "batchSize": NUM_ROWS, "shuffle": False, "epochs": 1}
    params |= {"inputNames": ["x"], "inputCols": ["x"], "numThreads": 1}
    inputs, labels = [tensor("x", dtype="float64", shape=[3])], [tensor("y", dtype="float64", shape=[])]
    weight = tensor("w", dtype="float64", shape=[])
    job = make_job(tmp_path, shards, inputs, labels, weight=weight, **params)
    x, y, w = (torch.from_numpy(column) for column in columns.values())
    module = Net()
    optimizer = sgd(module.parameters())
    loss = ((module(x) - y).square() * w).sum() / w.sum()
    loss.backward()
    optimizer.step()
    program = {"model": Named(), "loss": None, "optimizer": sgd}
    result, weights = train(job, program, 1, tmp_path / "ranks")
    assert_same(weights, module)
    assert result["history"]["epochs"][0]["loss"] == pytest.approx(loss.item(), rel=1e-12)
    given = layout(is_weighted=True, by_name=True)
    with pytest.raises(ParamError, match=r"takes no batch\['weight'\]"):
        ModuleModel({"model": Careless(), "loss": None, "optimizer": "sgd"}, given)
