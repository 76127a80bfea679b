"""Modules of Lightning and of transformers, beside Lightning's Trainer and plain loops of torch.

Both are heavy, and have an environment of their own: `make test-trainers`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from harness import make_job, one_thread, run_ranks, tensor, train, write_shards
from test_training_code import LAYOUT, NUM_ROWS, Net, assert_same, job_of, layout, rows, sgd
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from flambeau import ParamError, TorchClassifier, TorchEstimator, TorchModel
from flambeau._module import lightning as adapted
from flambeau._module.adapter import ModuleModel
from flambeau._module.assembly import check_program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_REASON = "SKIPPED: Lightning and transformers have an environment of their own: make test-trainers"
lightning = pytest.importorskip("lightning", reason=_REASON)
pytorch_lightning = pytest.importorskip("pytorch_lightning", reason=_REASON)
transformers = pytest.importorskip("transformers", reason=_REASON)

EPOCHS = 4

FORMS: dict[str, Any] = {
    "optimizer": lambda o: o,
    "a list": lambda o: [o],
    "two lists": lambda o: ([o], [StepLR(o, 1, gamma=0.5)]),
    "a dict": lambda o: {"optimizer": o},
    "a scheduler": lambda o: {"optimizer": o, "lr_scheduler": StepLR(o, 2, gamma=0.1)},
    "of steps": lambda o: {
        "optimizer": o,
        "lr_scheduler": {"scheduler": OneCycleLR(o, 0.1, total_steps=EPOCHS * 6), "interval": "step"},
    },
    "of some steps": lambda o: {
        "optimizer": o,
        "lr_scheduler": {"scheduler": StepLR(o, 1, gamma=0.9), "interval": "step", "frequency": 4},
    },
    "of some epochs": lambda o: (
        [o],
        [{"scheduler": StepLR(o, 1, gamma=0.5), "frequency": 2}, {"scheduler": StepLR(o, 3, gamma=0.9)}],
    ),
    "a plateau": lambda o: {
        "optimizer": o,
        "lr_scheduler": ReduceLROnPlateau(o, patience=0, threshold=0.6),
        "monitor": "val_loss",
    },
    "a plateau of training": lambda o: {
        "optimizer": o,
        "lr_scheduler": {
            "scheduler": ReduceLROnPlateau(o, patience=0, threshold=0.6),
            "monitor": "train_loss",
        },
    },
    "a plateau of what is logged": lambda o: {
        "optimizer": o,
        "lr_scheduler": {
            "scheduler": ReduceLROnPlateau(o, patience=0, threshold=0.5),
            "monitor": "worst",
        },
    },
}


class Steps:
    """What a LightningModule of these tests does, for either package."""

    def __init__(self, form: str = "optimizer") -> None:
        super().__init__()
        self.save_hyperparameters()  # type: ignore[attr-defined]
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = functional.mse_loss(self.forward(x), y)
        # What it knows of the training counts too.
        known = self.current_epoch + batch_idx  # type: ignore[attr-defined]
        loss = loss + 0.01 * known * loss.detach() * next(self.layers.parameters()).sum()
        self.log("train_loss", loss, on_step=False, on_epoch=True)  # type: ignore[attr-defined]
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, y = batch
        output = self.forward(x)
        found = {"val_loss": functional.mse_loss(output, y), "worst": (output - y).abs().max()}
        self.log_dict(found)  # type: ignore[attr-defined]

    def configure_optimizers(self) -> Any:
        return FORMS[self.hparams["form"]](sgd(self.parameters()))  # type: ignore[attr-defined]


class Lit(Steps, lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Of `lightning`."""


class OldLit(Steps, pytorch_lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Of `pytorch_lightning`."""


def by_trainer(module: Any, package: Any) -> list[dict[str, float]]:
    """What Lightning's own Trainer makes of the same batches; the metrics of each epoch."""
    found: list[dict[str, float]] = []

    class Metrics(package.Callback):  # type: ignore[misc]
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            found.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    columns = (torch.from_numpy(column) for column in rows().values())
    loader = DataLoader(TensorDataset(*columns), batch_size=10)
    trainer = package.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=False,
        callbacks=[Metrics()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, loader, loader)
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore")
@one_thread()
def test_a_lightning_module_is_trained_as_by_its_trainer(tmp_path: Path, form: str) -> None:
    is_old = form == "optimizer"
    kind, package = (OldLit, pytorch_lightning) if is_old else (Lit, lightning.pytorch)
    module = kind(form)
    expected = by_trainer(module, package)
    program = {"model": kind(form), "loss": None, "optimizer": None}
    result, weights = train(job_of(tmp_path), program, 1, tmp_path / "ranks")
    assert_same(weights, module)
    for record, metrics in zip(result["history"]["epochs"], expected, strict=True):
        assert dict(record["metrics"]) == pytest.approx({"train_loss": metrics["train_loss"]}, rel=1e-6)
        assert record["loss"] == pytest.approx(metrics["train_loss"], rel=1e-6)
        assert record["validationLoss"] == pytest.approx(metrics["val_loss"], rel=1e-6)
        assert dict(record["validationMetrics"]) == pytest.approx({"worst": metrics["worst"]}, rel=1e-6)
    if form not in ("optimizer", "a list", "a dict"):
        assert len({record["learningRate"] for record in result["history"]["epochs"]}) > 1


@pytest.mark.parametrize("form", ["of some steps", "a plateau"])
@one_thread()
def test_a_lightning_module_goes_on_to_the_same_bits(tmp_path: Path, form: str) -> None:
    def run(attempt: str, resume: str | None = None) -> dict[str, Tensor]:
        job = job_of(tmp_path, checkpointSteps=5, attempt=attempt, resume=resume)
        return train(job, {"model": Lit(form), "loss": None, "optimizer": None}, 1, tmp_path / attempt)[1]

    whole = run("whole")
    uris = sorted((tmp_path / "attempts" / "whole" / "checkpoints").iterdir())
    assert uris
    for number, uri in enumerate(uris):
        gone_on = run(f"again-{number}", f"file://{uri}")
        assert all(gone_on[name].equal(weight) for name, weight in whole.items())


def made(**members: Any) -> Any:
    """A LightningModule with further members."""
    return type("Made", (Lit,), members)()


def two(self: Any) -> Any:
    return [sgd(self.parameters()), sgd(self.parameters())]


def other(self: Any) -> Any:
    return {"optimizer": sgd(self.parameters()), "lr_scheduler": StepLR(sgd(self.parameters()), 1)}


def manual() -> Any:
    module = Lit()
    module.automatic_optimization = False
    return module


class Untrained(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Leaves training to a loss, and evaluates by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(1)

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return batch[0].mean()


@pytest.mark.parametrize(
    ("module", "program", "message"),
    [
        (manual, {}, "Lit sets automatic_optimization = False"),
        (lambda: made(configure_optimizers=two), {}, "configure_optimizers returns 2 optimizers"),
        (lambda: made(configure_optimizers=other), {}, "a scheduler of another optimizer"),
        (
            lambda: made(configure_optimizers=lambda self: None),
            {},
            "configure_optimizers returns None; return",
        ),
        (
            lambda: made(optimizer_step=lambda self: None),
            {},
            r"overrides what no fit calls: optimizer_step \(",
        ),
        (lambda: made(optimizer_zero_grad=lambda self: None), {}, r"no fit calls: optimizer_zero_grad \("),
        (lambda: made(backward=lambda self, loss: None), {}, r"no fit calls: backward \("),
        (lambda: made(lr_scheduler_step=lambda self: None), {}, r"no fit calls: lr_scheduler_step \("),
        (lambda: made(on_train_epoch_end=lambda self: None), {}, r"no fit calls: on_train_epoch_end \(log"),
        (Untrained, {"loss": "mse", "optimizer": "sgd"}, "a validation_step and no training_step"),
        (Lit, {"loss": "mse"}, "loss: Lit has a training_step"),
        (Lit, {"optimizer": "sgd"}, "optimizer: Lit has configure_optimizers"),
        (Lit, {"lrScheduler": lambda o: StepLR(o, 1)}, "lrScheduler: Lit has configure_optimizers"),
    ],
)
def test_what_is_refused_by_name(module: Any, program: dict, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        check_program({"model": module(), **program}, layout(validates=True))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda self, batch: self.log("a", 1.0, reduce_fx="sum"), "'a' is logged with reduce_fx='sum'"),
        (
            lambda self, batch: self.log("a", 1.0, False, None, None, True, "sum"),
            "logged with reduce_fx='sum'",
        ),
        (lambda self, batch: self.log("loss", 1.0), "logs another 'loss' than it returns"),
        (lambda self, batch: self.log("a", batch[0]), r"'a' is logged as a tensor of \[2, 3\]"),
        (lambda self, batch: self.log("a", nn.Identity()), "'a' is logged as Identity: log a number"),
        (lambda self, batch: self.log("val_a", 1.0), "'val_a', which is taken by a column of the history"),
        (lambda self, batch: self.trainer.num_training_batches, "self.trainer.num_training_batches"),
        (
            lambda self, batch: self.optimizers(),
            "self.trainer.strategy is asked for, and a fit has no Trainer",
        ),
    ],
)
def test_what_a_step_asks_for_and_is_not_there(step: Any, message: str) -> None:
    module = made(training_step=lambda self, batch: [step(self, batch), self(batch[0]).mean()][1])
    with pytest.raises(ParamError, match=message):
        ModuleModel({"model": module, "loss": None, "optimizer": None}, LAYOUT)


def test_options_of_log_by_position() -> None:
    module = Lit()
    taken: list[tuple[Any, ...]] = []
    with adapted.logging_to(module, lambda *given: taken.append(given)):
        module.log("a", 1.0, True)
        module.log("b", 2.0, True, None, None, True, "mean", False, False, None, True, 4)
        module.log_dict({"c": 3.0}, True, None, None, True, torch.mean, False, False, None, True, 5)
    assert taken == [("a", 1.0, None), ("b", 2.0, 4), ("c", 3.0, 5)]


class Diverging(Lit):
    """Its loss becomes NaN, and is logged as it is returned, as a copy, and as a number."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = functional.mse_loss(self.forward(x), y) * (float("nan") if self.current_epoch else 1.0)
        for logged in (loss, loss.detach().clone(), loss.item()):
            self.log("loss", logged)
        return loss


def test_a_diverged_loss_that_is_logged_is_told_as_one(tmp_path: Path) -> None:
    program = {"model": Diverging(), "loss": None, "optimizer": None}
    (outcome,) = run_ranks(job_of(tmp_path, validates=False), program, 1, tmp_path / "ranks")
    assert (outcome.error_kind, outcome.epoch) == ("diverged", 1), outcome.message


def test_a_plateau_watches_what_there_is() -> None:
    program = {"model": Lit("a plateau"), "loss": None, "optimizer": None}
    with pytest.raises(ParamError, match=r"monitors 'val_loss', which is none of loss, train_loss"):
        ModuleModel(program, LAYOUT)
    ModuleModel(program, layout(validates=True))


def test_dataloaders_are_told_to_be_unused() -> None:
    module = made(train_dataloader=lambda self: [])
    model = ModuleModel({"model": module, "loss": None, "optimizer": None}, LAYOUT)
    assert model.warnings() == ["model: train_dataloader is not called: the rows are those of the DataFrame"]


def test_it_is_known_by_its_classes() -> None:
    assert adapted.base_of(Lit()) is lightning.LightningModule
    assert adapted.base_of(OldLit()) is pytorch_lightning.LightningModule
    assert adapted.base_of(Net()) is None


def numbers(spark: SparkSession) -> DataFrame:
    columns = rows()
    data = [([float(v) for v in x], float(y)) for x, y in zip(columns["x"], columns["y"], strict=True)]
    return spark.createDataFrame(data, "x array<double>, y double").coalesce(1)


def test_an_estimator_trains_a_lightning_module(spark: SparkSession, tmp_path: Path) -> None:
    df = numbers(spark)
    common: dict[str, Any] = {"inputCols": ["x"], "inputTypes": ["float64"], "labelCol": "y", "numWorkers": 2}
    common |= {"epochs": 2, "batchSize": 10, "validationFraction": 0.2, "workDir": str(tmp_path / "work")}
    estimator = TorchEstimator(model=Lit("of some epochs"), monitor="val_worst", monitorMode="min", **common)
    model = estimator.fit(df)
    assert {"loss", "train_loss", "val_loss", "val_worst"} <= set(model.history)
    assert "val_train_loss" not in model.history
    model.write().overwrite().save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    with torch.no_grad():
        expected = model.module()(torch.from_numpy(rows()["x"])).tolist()
    for one in (model, loaded):
        assert [row.prediction for row in one.transform(df).collect()] == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ParamError, match="monitor"):
        TorchEstimator(model=Lit(), monitor="val_accuracy", **common).fit(df)
    with pytest.raises(ParamError, match="must be one of loss, train_loss, val_loss, val_worst"):
        TorchEstimator(model=Lit(), monitor="val_train_loss", monitorMode="min", **common).fit(df)
    with pytest.raises(ParamError, match="loss: Lit has a training_step"):
        TorchEstimator(model=Lit(), loss="mse", **common).fit(df)
    with pytest.raises(ParamError, match="the model's training_step is Python's"):
        TorchEstimator(model=Lit(), runtime="native", **common).fit(df)


class Predicting(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Has no forward."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1).double()

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        return functional.mse_loss(self.predict_step(batch), batch["labels"])

    def predict_step(self, batch: dict[str, Tensor]) -> Tensor:
        return self.line(batch["x"]).squeeze(1)


def test_a_module_without_a_forward_scores_by_its_predict_step(spark: SparkSession, tmp_path: Path) -> None:
    df = numbers(spark)
    common: dict[str, Any] = {"inputTypes": ["float64"], "labelCol": "y", "epochs": 1}
    common |= {"workDir": str(tmp_path / "work")}
    model = TorchEstimator(model=Predicting(), optimizer="sgd", inputCols={"x": "x"}, **common).fit(df)
    model.write().overwrite().save(str(tmp_path / "model"))
    with torch.no_grad():
        trained: Any = model.module()
        expected = trained.line(torch.from_numpy(rows()["x"])).squeeze(1).tolist()
    for one in (model, TorchModel.load(str(tmp_path / "model"))):
        assert [row.prediction for row in one.transform(df).collect()] == pytest.approx(expected, rel=1e-12)


def test_the_page_runs(tmp_path: Path) -> None:
    """In a fresh process, from top to bottom."""
    page = Path(__file__).parents[2] / "docs" / "training-code.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    program = tmp_path / "blocks.py"
    program.write_text("\n".join(blocks))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# transformers


LENGTH = 7


def bert(**config: Any) -> Any:
    """A tiny classifier of three classes."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 20, "max_position_embeddings": 16}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 3}
    given = transformers.BertConfig(**sizes, **config)
    return transformers.BertForSequenceClassification(given).double()


def tokens() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(2)
    ids = generator.integers(1, 30, (NUM_ROWS, LENGTH))
    mask = (np.arange(LENGTH) < generator.integers(2, LENGTH + 1, (NUM_ROWS, 1))).astype(np.int64)
    return {"ids": ids, "mask": mask, "kind": ids[:, 0] % 3}


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def by_loop(module: Any, names: dict[str, str]) -> list[float]:
    """A plain loop with the model's own loss; each epoch's mean."""
    columns = {name: torch.from_numpy(column) for name, column in tokens().items()}
    optimizer, means = adamw(module.parameters()), []
    module.train()
    for _ in range(2):
        total = 0.0
        for start in range(0, NUM_ROWS, 10):
            part = slice(start, start + 10)
            inputs = {name: columns[column][part] for name, column in names.items()}
            loss = module(**inputs, labels=columns["kind"][part]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(columns["kind"][part])
        means.append(total / NUM_ROWS)
    return means


LEADING = {"input_ids": "ids", "attention_mask": "mask"}
APART = {"token_type_ids": "mask", "input_ids": "ids"}
"""The first and the third argument of forward."""


@pytest.mark.parametrize("names", [LEADING, APART], ids=["leading", "apart"])
@one_thread()
def test_a_models_own_loss_is_a_plain_loop(tmp_path: Path, names: dict[str, str]) -> None:
    module = bert()
    means = by_loop(module, names)
    shards = write_shards(tmp_path / "data", tokens())
    inputs = [tensor(name, column, dtype="int64", shape=[LENGTH]) for name, column in names.items()]
    params: dict[str, Any] = {"numWorkers": 1, "batchSize": 10, "shuffle": False, "epochs": 2}
    params |= {"inputNames": list(names), "inputCols": list(names.values()), "numThreads": 1}
    job = make_job(tmp_path, shards, inputs, [tensor("kind", dtype="int64", shape=[])], **params)
    program = {"model": bert(), "loss": None, "optimizer": adamw, "metrics": ["accuracy"]}
    result, weights = train(job, program, 1, tmp_path / "ranks")
    assert_same(weights, module)
    assert [one["loss"] for one in result["history"]["epochs"]] == pytest.approx(means, rel=1e-12)
    assert result["history"]["epochs"][1]["metrics"][0][0] == "accuracy"


def sentences(spark: SparkSession) -> DataFrame:
    columns = tokens()
    data = [(i.tolist(), m.tolist(), int(k)) for i, m, k in zip(*columns.values(), strict=True)]
    return spark.createDataFrame(data, "ids array<bigint>, mask array<bigint>, kind int").coalesce(1)


@pytest.mark.parametrize("names", [LEADING, APART], ids=["leading", "apart"])
def test_an_estimator_trains_and_scores_a_model_of_transformers(
    spark: SparkSession, tmp_path: Path, names: dict[str, str]
) -> None:
    df = sentences(spark)
    estimator = TorchEstimator(
        model=bert(),
        optimizer=adamw,
        inputCols=names,
        labelCol="kind",
        numWorkers=2,
        epochs=2,
        batchSize=10,
        workDir=str(tmp_path / "work"),
    )
    model = estimator.fit(df)
    assert len(model.history["loss"]) == 2
    model.write().overwrite().save(str(tmp_path / "model"))
    columns = tokens()
    with torch.no_grad():
        given = {name: torch.from_numpy(columns[column]) for name, column in names.items()}
        expected = model.module()(**given).logits.numpy()
    for one in (model, TorchModel.load(str(tmp_path / "model"))):
        scored = [row.prediction for row in one.transform(df).collect()]
        np.testing.assert_allclose(scored, expected, rtol=1e-9)


def test_a_classifier_of_transformers_with_several_outputs(spark: SparkSession, tmp_path: Path) -> None:
    df = sentences(spark)
    common: dict[str, Any] = {"optimizer": adamw, "inputCols": LEADING, "labelCol": "kind", "epochs": 1}
    common |= {"workDir": str(tmp_path / "work")}
    scored = TorchClassifier(model=bert(), metrics=["accuracy"], **common).fit(df).transform(df)
    assert {row.prediction for row in scored.collect()} <= {0.0, 1.0, 2.0}
    several = TorchEstimator(model=bert(output_hidden_states=False), **common)
    columns = {name: torch.from_numpy(column) for name, column in tokens().items()}
    for kind in (dict, PooledOutput):
        model = several.setModel(Pooled(kind)).fit(df)
        with torch.no_grad():
            expected = model.module()(columns["ids"], columns["mask"])
        found = [row.prediction for row in model.transform(df).collect()]
        for name in ("logits", "pooled"):
            np.testing.assert_allclose([row[name] for row in found], expected[name].numpy(), rtol=1e-6)


@dataclass
class PooledOutput(transformers.utils.ModelOutput):  # type: ignore[misc, name-defined]
    """Two tensors, and a loss."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    pooled: Tensor | None = None


class Pooled(nn.Module):
    """Two outputs by name, with a loss where there are labels."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.model = bert()
        self.kind = kind

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
        made = self.model.bert(input_ids, attention_mask)
        logits = self.model.classifier(made.pooler_output)
        found = {"logits": logits, "pooled": made.pooler_output}
        loss = {} if labels is None else {"loss": functional.cross_entropy(logits, labels)}
        return self.kind(**loss, **found)


class LitBert(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Transformers within Lightning: a batch by name."""

    def __init__(self) -> None:
        super().__init__()
        self.model = bert()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids, attention_mask).logits

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self.model(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adamw(self.parameters())


@one_thread()
def test_transformers_within_lightning(tmp_path: Path) -> None:
    module = bert()
    by_loop(module, LEADING)
    shards = write_shards(tmp_path / "data", tokens())
    inputs = [tensor(name, column, dtype="int64", shape=[LENGTH]) for name, column in LEADING.items()]
    params: dict[str, Any] = {"numWorkers": 1, "batchSize": 10, "shuffle": False, "epochs": 2}
    params |= {"inputNames": list(LEADING), "inputCols": list(LEADING.values()), "numThreads": 1}
    job = make_job(tmp_path, shards, inputs, [tensor("kind", dtype="int64", shape=[])], **params)
    _, weights = train(job, {"model": LitBert(), "loss": None, "optimizer": None}, 1, tmp_path / "ranks")
    assert_same({name.removeprefix("model."): weight for name, weight in weights.items()}, module)
