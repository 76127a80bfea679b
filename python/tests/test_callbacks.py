"""Callbacks: which are called where, when and with what. The oracles are written lists, the model's history,
plain torch loops, and fits without callbacks.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from harness import make_job, one_thread, tensor, train, write_shards
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from test_parity import lanes
from torch import Tensor, nn

import flambeau
from flambeau import (
    Callback,
    CallbackError,
    FlambeauError,
    ParamError,
    TorchEstimator,
    TorchRegressor,
    WorkerError,
)
from flambeau._callbacks import HOOKS
from flambeau._spark import site
from flambeau._spark.fit.listener_bus import ListenerBus
from flambeau._spark.fit.program import program_of
from flambeau._spark.fit.run import job_of
from flambeau._spark.site import Site
from flambeau._spark.work_directory import WorkDirectory
from flambeau.callbacks import Context

OF_WORKERS = [hook for hook in HOOKS if hook not in ("on_fit_begin", "on_fit_end", "on_exception")]


def rows(spark: SparkSession) -> DataFrame:
    """48 rows to train on, and 16 to validate."""
    x = np.random.default_rng(3).standard_normal((64, 4))
    df = spark.createDataFrame([(xs.tolist(), float(xs.sum())) for xs in x], "x array<float>, label float")
    return df.coalesce(1).withColumn("held_out", F.monotonically_increasing_id() % 4 == 0)


def regressor(**params: Any) -> TorchRegressor:
    """Two workers, three steps in an epoch, two epochs."""
    torch.manual_seed(1)
    settings: dict[str, Any] = {
        "model": nn.Linear(4, 1),
        "optimizer": {"name": "sgd", "options": {"lr": 0.1}},
        "metrics": ["mae"],
        "inputCols": ["x"],
        "validationIndicatorCol": "held_out",
        "numWorkers": 2,
        "numThreads": 1,
        "batchSize": 8,
        "epochs": 2,
        "verbose": 0,
    }
    return TorchRegressor(**(settings | params))


def slow_module(seconds: float = 0.02) -> nn.Module:
    """One whose steps take a while, in either runtime."""

    class Slow(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                time.sleep(seconds)
            return super().forward(x)

    return Slow(4, 1)


class Notes(Callback):
    """Notes each call in a file of the process's rank, or of the driver."""

    def __init__(self, directory: Path, where: str = "rank0", every_n_steps: int = 1) -> None:
        self.path, self.where, self.every_n_steps = str(directory / where), where, every_n_steps

    def note(self, hook: str, context: Context) -> None:
        module: Any = context.module
        told = {
            "hook": hook,
            "metrics": context.metrics,
            "history": context.history,
            "lr": context.learning_rate,
            "norm": context.gradient_norm,
            "weight": None if module is None else module.weight.tolist(),
            "checkpoint": context.checkpoint,
            "size": [context.epochs, context.steps_per_epoch, context.world_size],
            "at": [context.epoch, context.step],
        }
        with open(f"{self.path}-{context.rank}", "a") as file:
            file.write(json.dumps(told) + "\n")


class Everything(Notes):
    """Has every hook that workers call."""


def noting(hook: str) -> Any:
    return lambda self, context: self.note(hook, context)


for name in OF_WORKERS:
    setattr(Everything, name, noting(name))


def noted(directory: Path, where: str, rank: int | None) -> list[dict[str, Any]]:
    text = (directory / f"{where}-{rank}").read_text()
    return [json.loads(line) for line in text.splitlines()]


def calls(told: list[dict[str, Any]]) -> list[str]:
    return [f"{one['hook'].removeprefix('on_')} {one['at'][0]}.{one['at'][1]}" for one in told]


EPOCHS = [
    "train_begin 0.0",
    "epoch_begin 0.0",
    "step_end 0.1",
    "step_end 0.2",
    "step_end 0.3",
    "validation_end 0.3",
    "epoch_end 0.3",
    "checkpoint 0.3",
    "epoch_begin 1.3",
    "step_end 1.4",
    "step_end 1.5",
    "step_end 1.6",
    "validation_end 1.6",
    "epoch_end 1.6",
    "train_end 1.6",
]


def test_hooks_are_called_in_their_order(any_spark: SparkSession, tmp_path: Path) -> None:
    """In every worker, in that of rank 0, and on the driver."""
    places = ["rank0", "ranks", "driver"]
    callbacks = [Everything(tmp_path, where) for where in places]
    model = regressor(callbacks=callbacks, lrSchedule="linear", logGradientNorm=True).fit(rows(any_spark))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "driver-None",
        "rank0-0",
        "ranks-0",
        "ranks-1",
    ]
    for where, rank in (("rank0", 0), ("ranks", 0), ("ranks", 1)):
        assert calls(noted(tmp_path, where, rank)) == EPOCHS
    on_driver = noted(tmp_path, "driver", None)
    live = [call for call in calls(on_driver) if not call.startswith("step_end")]
    assert live == [call for call in EPOCHS if not call.startswith("step_end")]

    history = {name: model.history[name] for name in ("loss", "mae", "val_loss", "val_mae")}
    for told in (noted(tmp_path, "rank0", 0), noted(tmp_path, "ranks", 1), on_driver):
        for hook in ("on_validation_end", "on_epoch_end"):
            ends = [one for one in told if one["hook"] == hook]
            assert {name: [one["metrics"][name] for one in ends] for name in history} == history
            assert all(one["metrics"].keys() == history.keys() for one in ends)
        assert told[-1]["size"] == [2, 3, 2]
        [written] = [one["checkpoint"] for one in told if one["checkpoint"]]
        assert written.endswith("checkpoints/0000000003")
    # Seconds are each rank's own, and those of the driver are rank 0's.
    for told in (noted(tmp_path, "rank0", 0), on_driver):
        last = told[-1]["history"]
        assert {name: [row[name] for row in last] for name in model.history} == model.history
    steps = [one for one in noted(tmp_path, "ranks", 0) if one["hook"] == "on_step_end"]
    mean = np.mean([one["metrics"]["loss"] for one in steps[3:]])
    assert mean == pytest.approx(model.history["loss"][1], rel=1e-6)
    assert [one["lr"] for one in steps] == pytest.approx([0.1 * (1 - step / 6) for step in range(6)])
    norms = [one["norm"] for one in steps]
    assert [np.mean(norms[:3]), np.mean(norms[3:])] == pytest.approx(model.history["gradient_norm"])
    of_driver = [one for one in on_driver if one["hook"] == "on_step_end"]
    told_of_a_step = ("metrics", "lr", "norm")
    assert of_driver
    for one in of_driver:
        same = steps[one["at"][1] - 1]
        assert [one[name] for name in told_of_a_step] == [same[name] for name in told_of_a_step]


def test_without_validation_rows_nothing_is_told_of_them(spark: SparkSession, tmp_path: Path) -> None:
    estimator = regressor(callbacks=[Everything(tmp_path)], validationIndicatorCol=None, epochs=1)
    estimator.fit(rows(spark))
    told = noted(tmp_path, "rank0", 0)
    assert "on_validation_end" not in {one["hook"] for one in told}
    assert told[-1]["metrics"].keys() == {"loss", "mae"}


class OfSteps(Notes):
    def on_step_end(self, context: Context) -> None:
        self.note("on_step_end", context)


class OfMoreSteps(OfSteps):
    pass


def test_each_callback_has_its_own_interval(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    callbacks = [
        OfSteps(tmp_path, every_n_steps=4),
        OfMoreSteps(tmp_path / "more", every_n_steps=6),
        Everything(tmp_path, "driver"),
    ]
    regressor(callbacks=callbacks, epochs=4).fit(rows(spark))
    assert [one["at"][1] for one in noted(tmp_path, "rank0", 0)] == [4, 8, 12]
    assert [one["at"][1] for one in noted(tmp_path / "more", "rank0", 0)] == [6, 12]


class OfCheckpoints(Notes):
    def on_checkpoint(self, context: Context) -> None:
        self.note("on_checkpoint", context)


def test_a_checkpoint_is_told_with_its_step(spark: SparkSession, tmp_path: Path) -> None:
    callbacks = [OfCheckpoints(tmp_path), OfCheckpoints(tmp_path, "driver")]
    regressor(callbacks=callbacks, checkpointSteps=2).fit(rows(spark))
    for where, rank in (("rank0", 0), ("driver", None)):
        told = noted(tmp_path, where, rank)
        steps = [one["at"][1] for one in told]
        assert steps == [int(Path(one["checkpoint"]).name) for one in told]
        assert 2 in steps and 4 in steps


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_step_is_told_with_its_parameters(tmp_path: Path, world_size: int) -> None:
    """Of the ranks' batches together, as a loop of torch's has them."""
    random = np.random.default_rng(5)
    x = random.standard_normal((40, 3))
    y = x @ [[1.0], [-2.0], [0.5]] + 0.1 * random.standard_normal((40, 1))
    shards = write_shards(tmp_path / "data", {"x": x, "y": y})
    torch.manual_seed(2)
    module = nn.Linear(3, 1, dtype=torch.float64)
    program = {
        "model": module,
        "loss": "mse",
        "optimizer": {"name": "sgd", "options": {"lr": 0.2, "momentum": 0.9}},
        "callbacks": [OfSteps(tmp_path)],
    }
    job = make_job(
        tmp_path,
        shards,
        [tensor("x", dtype="float64")],
        [tensor("y", dtype="float64")],
        shuffle=False,
        numWorkers=world_size,
        batchSize=8 // world_size,
        numThreads=1,
        epochs=1,
        lrSchedule="cosine",
        logGradientNorm=True,
    )
    job["attempt"]["callbacks"] = True
    train(job, program, world_size, tmp_path / "ranks")
    told = noted(tmp_path, "rank0", 0)
    assert len(told) == 5

    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(told))
    with one_thread():
        for step, one in enumerate(told):
            size = 8 // world_size
            batch = [row for lane in lanes(40, world_size) for row in lane[size * step : size * step + size]]
            loss = nn.functional.mse_loss(module(torch.tensor(x[batch])), torch.tensor(y[batch]))
            optimizer.zero_grad()
            loss.backward()
            gradients = [p.grad.reshape(-1) for p in module.parameters() if p.grad is not None]
            norm = torch.linalg.vector_norm(torch.cat(gradients))
            assert one["norm"] == pytest.approx(norm.item(), rel=1e-9)
            assert one["lr"] == pytest.approx(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
            assert one["metrics"]["loss"] == pytest.approx(loss.item(), rel=1e-9)
            np.testing.assert_allclose(one["weight"], module.weight.detach(), rtol=1e-9)


class StopsAt(Callback):
    """Stops the training in one rank, in a hook, at a step."""

    def __init__(self, hook: str, step: int, where: str = "ranks", rank: int | None = 1) -> None:
        self.where, self.step, self.rank = where, step, rank
        setattr(self, hook, self.stop_there)

    def stop_there(self, context: Context) -> None:
        if (context.rank, context.step) == (self.rank, self.step):
            context.stop()


@pytest.mark.parametrize(("hook", "step", "most"), [("on_step_end", 4, 5), ("on_epoch_end", 3, 3)])
def test_a_stop_in_one_rank_stops_all(
    spark: SparkSession, tmp_path: Path, hook: str, step: int, most: int
) -> None:
    callbacks = [StopsAt(hook, step), Everything(tmp_path, "ranks")]
    model = regressor(callbacks=callbacks, epochs=50).fit(rows(spark))
    last = [noted(tmp_path, "ranks", rank)[-1] for rank in (0, 1)]
    assert [one["hook"] for one in last] == ["on_train_end"] * 2
    assert last[0]["at"] == last[1]["at"]
    assert step <= last[0]["at"][1] <= most
    assert model.history["steps"] == [3, last[0]["at"][1]][: 1 + (most > 3)]
    assert None not in model.history["val_loss"]
    module: Any = model.module()
    assert module.weight.tolist() == last[0]["weight"] == last[1]["weight"]
    if most == 3:
        undisturbed: Any = regressor(epochs=1).fit(rows(spark)).module()
        assert torch.equal(module.weight, undisturbed.weight)


class StopsOnTheDriver(Callback):
    where = "driver"

    def on_epoch_end(self, context: Context) -> None:
        if context.epoch >= 1:
            context.stop()


@pytest.mark.parametrize("runtime", ["python", "native"])
def test_a_stop_on_the_driver_stops_the_training(spark: SparkSession, tmp_path: Path, runtime: str) -> None:
    module = slow_module() if runtime == "python" else nn.Linear(4, 1)
    epochs = 1000 if runtime == "python" else 100_000
    callback = StopsOnTheDriver()
    estimator = regressor(model=module, epochs=epochs, runtime=runtime, checkpointInterval=-1, loss="mse")
    model = estimator.setCallbacks([callback]).setWorkDir(str(tmp_path)).fit(rows(spark))
    assert 2 <= len(model.history["loss"]) < epochs
    left = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"models"}


def test_a_stop_is_asked_again_of_the_next_attempt(spark: SparkSession, tmp_path: Path) -> None:
    context, work = Context(), WorkDirectory(str(tmp_path))
    bus = ListenerBus([StopsOnTheDriver()], context, None)
    stop = [tmp_path / "attempts" / attempt / "stop" for attempt in "ab"]
    for file in stop:
        with bus.attempt(Site(spark, work, True), file.parent.name):
            context.stop()
            deadline = time.monotonic() + 20
            while not file.exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
    assert bus.around(lambda: 7) == 7
    stop[0].unlink()
    context.stop()
    with bus.attempt(Site(spark, work, True), "c"):
        pass
    assert not stop[0].exists()


class Epochs(Callback):
    """Keeps the epochs that the driver is told of."""

    where = "driver"

    def __init__(self) -> None:
        self.told: list[int] = []

    def on_epoch_end(self, context: Context) -> None:
        self.told.append(context.epoch)


class Dies(Callback):
    """Kills the process of rank 1 once, in the second epoch, when what was to be told by then `is_told`."""

    where = "ranks"

    def __init__(self, marker: Path, is_told: Callable[[], bool]) -> None:
        self.marker, self.is_told = str(marker), is_told

    def on_step_end(self, context: Context) -> None:
        if context.rank == 1 and context.step == 5 and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            # The others wait, and rank 0 writes what it has told.
            deadline = time.monotonic() + 60
            while not self.is_told():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)


def test_after_a_restart_the_epochs_to_come_are_told(spark: SparkSession, tmp_path: Path) -> None:
    on_driver = tmp_path / "driver-None"
    dies = Dies(tmp_path / "died", lambda: on_driver.exists() and '"at": [1, 3]' in on_driver.read_text())
    callbacks = [Everything(tmp_path, "driver"), Everything(tmp_path), dies]
    model = regressor(callbacks=callbacks, epochs=3).fit(rows(spark))
    assert (tmp_path / "died").exists()
    told = noted(tmp_path, "driver", None)
    live = [call for call in calls(told) if not call.startswith("step_end")]
    first, second, third = (
        [f"epoch_begin {epoch}.{3 * epoch}", f"validation_end {at}", f"epoch_end {at}"]
        for epoch in range(3)
        for at in [f"{epoch}.{3 * epoch + 3}"]
    )
    assert live == [
        "train_begin 0.0",
        *first,
        "checkpoint 0.3",
        "epoch_begin 1.3",
        # In the second attempt.
        *second,
        "checkpoint 1.6",
        *third,
        "train_end 2.9",
    ]
    assert [row["loss"] for row in told[-1]["history"]] == model.history["loss"]
    again = calls(noted(tmp_path, "rank0", 0))
    assert [call for call in again if call.startswith("train_begin")] == [
        "train_begin 0.0",
        "train_begin 1.3",
    ]
    undisturbed = regressor(epochs=3).fit(rows(spark))
    assert model.history["val_loss"] == undisturbed.history["val_loss"]


class UsersError(Exception):
    pass


class Raises(Callback):
    """Raises in a hook, and keeps what the fit raises."""

    def __init__(self, hook: str, error: BaseException, where: str = "driver") -> None:
        self.where, self.error = where, error
        self.told: list[BaseException | None] = []
        setattr(self, hook, self.fail)
        if where == "driver":
            self.on_exception = self.keep  # type: ignore[method-assign]

    def fail(self, context: Context) -> None:
        raise self.error

    def keep(self, context: Context) -> None:
        self.told.append(context.error)


def test_what_a_worker_raises_is_raised_by_the_fit(spark: SparkSession) -> None:
    callback = Raises("on_epoch_end", LookupError("no such run"), "ranks")
    with pytest.raises(LookupError, match="no such run") as failure:
        regressor(callbacks=[callback]).fit(rows(spark))
    assert "in on_epoch_end of the callback Raises" in failure.value.__notes__[0]
    with pytest.raises(WorkerError, match="UsersError: no such run") as of_class:
        regressor(callbacks=[Raises("on_step_end", UsersError("no such run"))]).setCallbacks(
            [Raises("on_step_end", UsersError("no such run"), "rank0")]
        ).fit(rows(spark))
    assert "in on_step_end of the callback Raises" in str(of_class.value)


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        ("on_fit_begin", UsersError("no server")),
        ("on_epoch_end", UsersError("no server")),
        ("on_epoch_begin", KeyboardInterrupt()),
    ],
)
def test_what_a_callback_of_the_driver_raises_ends_the_fit(
    spark: SparkSession, tmp_path: Path, hook: str, error: BaseException
) -> None:
    is_endless = hook.startswith("on_epoch")
    callback, after = Raises(hook, error), Raises(hook, AssertionError("is not called any more"))
    estimator = regressor(
        model=slow_module(),
        epochs=100_000 if is_endless else 2,
        callbacks=[callback, after],
        workDir=str(tmp_path),
    )
    with pytest.raises(type(error)) as raised:
        estimator.fit(rows(spark))
    assert raised.value is error
    assert callback.told == after.told == [error]
    assert error.__notes__[0] == f"in {hook} of the callback Raises"
    assert not list(tmp_path.glob("models/*/*")) and not list(tmp_path.glob("shards/*/*"))
    # The slots are free again.
    assert spark.range(0, 2, 1, 2).count() == 2
    if hook == "on_epoch_end":
        kept = error.__notes__[-1]
        assert kept.startswith("the newest checkpoint is kept in ")
        assert len(list(tmp_path.glob("runs/*.json"))) == 1


@pytest.mark.parametrize(
    ("hook", "is_seen"), [("on_fit_end", True), ("on_train_end", True), ("on_epoch_end", False)]
)
def test_a_failure_at_the_very_end_has_the_model(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, hook: str, is_seen: bool
) -> None:
    monkeypatch.setattr(site, "_is_visible", lambda *_: is_seen)
    callback, df = Raises(hook, UsersError("no server")), rows(spark)
    with pytest.raises(
        CallbackError, match=f"UsersError in {hook} of the callback Raises: no server; the model was made"
    ) as end:
        regressor(callbacks=[callback]).fit(df)
    assert end.value.__cause__ is callback.error
    assert callback.told == [end.value]
    assert end.value.model.transform(df).collect() == regressor().fit(df).transform(df).collect()


def test_a_failing_fit_is_told(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Callback):
        where = "driver"

        def on_exception(self, context: Context) -> None:
            raise UsersError("no server")

    callback = Raises("on_fit_end", AssertionError("not reached"))
    with pytest.raises(FlambeauError, match="nothing to train on") as failure:
        regressor(callbacks=[Fails(), callback]).fit(rows(spark).where("held_out").limit(0))
    assert callback.told == [failure.value]
    assert "on_exception of a callback failed" in caplog.text and "no server" in caplog.text


class Tells(Callback):
    """Keeps which hooks were called, with what they gave."""

    where = "driver"

    def __init__(self) -> None:
        self.told: list[str] = []
        self.model: Any = None

    def on_fit_begin(self, context: Context) -> None:
        self.told.append("fit_begin")
        self.estimator, self.dataset = context.estimator, context.dataset

    def on_epoch_end(self, context: Context) -> None:
        self.told.append(f"epoch_end {context.epoch}")
        # Longer than what is left of the training.
        time.sleep(0.5)
        self.told.append(f"epoch_ended {context.epoch}")

    def on_fit_end(self, context: Context) -> None:
        self.told.append("fit_end")
        self.model = context.model


def test_a_slow_callback_of_the_driver_is_told_of_everything(spark: SparkSession) -> None:
    callback, df = Tells(), rows(spark)
    estimator = regressor(callbacks=[callback], epochs=4)
    model = estimator.fit(df)
    ends = [f"{call} {epoch}" for epoch in range(4) for call in ("epoch_end", "epoch_ended")]
    assert callback.told == ["fit_begin", *ends, "fit_end"]
    assert callback.model is model and callback.dataset is df
    assert callback.estimator.uid == estimator.uid


def test_where_the_directory_is_not_seen_the_driver_is_told_late(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_is_visible", lambda *_: False)
    callbacks = [Everything(tmp_path, "driver"), StopsOnTheDriver()]
    regressor(callbacks=callbacks, epochs=3).fit(rows(spark))
    live = [call for call in calls(noted(tmp_path, "driver", None)) if not call.startswith("step_end")]
    assert live[:3] == ["train_begin 0.0", "epoch_begin 0.0", "validation_end 0.3"]
    assert live[-1] == "train_end 2.9"
    assert "are told of the training only now that it has ended" in caplog.text
    assert "asked for a stop, which cannot be passed on" in caplog.text
    assert "not told of all of the training" not in caplog.text


class NoHook(Callback):
    def on_epoch_finish(self, context: Context) -> None: ...


class OnDriverAlone(Callback):
    def on_fit_end(self, context: Context) -> None: ...


class Fine(Callback):
    def on_epoch_end(self, context: Context) -> None: ...


class Elsewhere(Fine):
    where = "drivers"


class Never(Fine):
    every_n_steps = 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Fine(), "callbacks must be a list of flambeau.callbacks.Callback, got Fine: put it into a list"),
        ("early_stopping", "callbacks must be a list of flambeau.callbacks.Callback, got str"),
        ([Fine], r"callbacks has the class Fine where an object of it is needed: give Fine\(\)"),
        (
            [Fine(), len],
            "callbacks must be objects of classes derived from flambeau.callbacks.Callback, got b",
        ),
        (
            [NoHook()],
            r"callbacks has NoHook, which overrides no hook; on_epoch_finish: did you mean on_epoch",
        ),
        (
            [Callback()],
            "callbacks has Callback, which overrides no hook; hooks are on_fit_begin, on_train_be",
        ),
        ([OnDriverAlone()], "OnDriverAlone with on_fit_end, called on the driver alone, and where='rank0'"),
        (
            [Elsewhere()],
            "where='drivers', which must be one of 'rank0', 'ranks', 'driver'; did you mean 'dri",
        ),
        ([Never()], "every_n_steps=0, which must be a whole number of at least 1"),
    ],
)
def test_what_would_never_be_called_is_refused(given: Any, said: str) -> None:
    for set_them in (lambda: TorchEstimator(callbacks=given), lambda: TorchEstimator().setCallbacks(given)):
        with pytest.raises(ParamError, match=said):
            set_them()


def test_workers_without_python_call_none(spark: SparkSession) -> None:
    estimator = regressor(runtime="native", loss="mse", callbacks=[StopsOnTheDriver(), Fine()])
    said = r"\[Fine\] are called in workers \(where='rank0'\).*: set where='driver', which both runtimes have"
    with pytest.raises(ParamError, match=said):
        estimator.fit(rows(spark))


def test_what_cannot_be_sent_to_workers_is_named(spark: SparkSession) -> None:
    callback: Any = Fine()
    callback.lock = threading.Lock()
    with pytest.raises(ParamError, match=r"callbacks \(\[Fine\]\) cannot be pickled"):
        regressor(callbacks=[callback]).fit(rows(spark))


def test_callbacks_are_params_and_saved(spark: SparkSession, tmp_path: Path) -> None:
    callbacks = [Everything(tmp_path), Tells()]
    estimator = regressor(callbacks=callbacks)
    assert estimator.getCallbacks() == estimator.copy().getCallbacks() == callbacks
    assert "callbacks" in estimator.explainParams() and "[Everything, Tells]" in estimator.explainParams()
    estimator.write().save(str(tmp_path / "saved"))
    loaded = TorchRegressor.load(str(tmp_path / "saved")).getCallbacks()
    assert [type(one) for one in loaded] == [Everything, Tells]
    assert loaded[0].path == callbacks[0].path  # type: ignore[attr-defined]
    assert estimator.setCallbacks(None).getCallbacks() is None


def test_a_run_is_the_same_with_other_callbacks(spark: SparkSession, tmp_path: Path) -> None:
    def job(estimator: TorchRegressor) -> dict[str, Any]:
        return job_of(estimator._job_params(), "python", program_of(estimator, spark, None).objects)

    assert job(regressor()) == job(regressor(callbacks=[Everything(tmp_path), Tells()]))
    assert job(regressor()) != job(regressor(metrics=["mse"]))


class Shares(Callback):
    """Looks whether a rank has one module, of which the optimizer and the callback have the parameters."""

    where = "ranks"
    told: ClassVar[list[str]] = []

    def __init__(self, module: nn.Module) -> None:
        self.given = module

    def on_train_begin(self, context: Context) -> None:
        assert context.module is self.given
        of_optimizer = [p for group in context.optimizer.param_groups for p in group["params"]]  # type: ignore[union-attr]
        assert all(one is other for one, other in zip(of_optimizer, self.given.parameters(), strict=True))
        raise UsersError("they are the same")


def test_a_callback_has_the_module_that_trains(spark: SparkSession) -> None:
    module = nn.Linear(4, 1)
    with pytest.raises(WorkerError, match="they are the same"):
        regressor(model=module, callbacks=[Shares(module)]).fit(rows(spark))


def test_the_package_names_them() -> None:
    assert flambeau.Callback is Callback
    assert {"Callback", "CallbackError"} <= set(flambeau.__all__)
