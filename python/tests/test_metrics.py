"""Metrics over uneven parts against their definition on all rows."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import sklearn.metrics
import torch
import torchmetrics
from harness import layout, make_job, tensor, train, write_shards

from flambeau._module import gathered, losses, metrics
from flambeau._module.adapter import ModuleModel
from flambeau._module.metrics import Reading
from flambeau.errors import DataError, ParamError


def over_parts(given, output, label, weight=None, **reading) -> dict[str, float]:
    """The metrics over four batches, of which the first rank has two, the second one, the third one and the
    fourth none.
    """
    ranks = [metrics.build(given, Reading(**reading)) for _ in range(4)]
    sums = [torch.zeros(metric.size, dtype=torch.float64) for metric in ranks[0][0]]
    bounds = (0, 2, 3, 10, len(output))
    for (start, end), (of_sums, of_all) in zip(
        itertools.pairwise(bounds), (ranks[0], ranks[0], ranks[1], ranks[2]), strict=True
    ):
        rows = slice(start, end)
        part = None if weight is None else weight[rows]
        for total, metric in zip(sums, of_sums, strict=True):
            total += metric.update(output[rows], [label[rows]], part, end - start)
        for whole in of_all:
            whole.update(output[rows], [label[rows]], part, end - start)
    of_sums, of_all = ranks[0]
    found = {metric.name: metric.finish(total.tolist()) for total, metric in zip(sums, of_sums, strict=True)}
    return found | dict(gathered.finish(of_all, [gathered.pack(rank) for _, rank in ranks]))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(23,), (23, 1)])
def test_regression(weighted: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    output, label = torch.randn(shape), torch.randn(23) + 3
    weight = torch.rand(23) if weighted else None
    found = over_parts(["mse", "rmse", "mae", "r2"], output, label, weight)
    y, p = label.double().numpy(), output.reshape(-1).double().numpy()
    w = np.ones(23) if weight is None else weight.double().numpy()
    mse = np.average((y - p) ** 2, weights=w)
    r2 = 1 - mse / np.average((y - np.average(y, weights=w)) ** 2, weights=w)
    assert found == pytest.approx(
        {"mse": mse, "rmse": math.sqrt(mse), "mae": np.average(np.abs(y - p), weights=w), "r2": r2}, rel=1e-12
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_classes(weighted: bool) -> None:
    torch.manual_seed(0)
    output, label = torch.randn(23, 5), torch.randint(0, 5, (23,))
    label[4] = -100
    weight = torch.rand(23) if weighted else None
    found = over_parts(["accuracy", "top3_accuracy"], output, label, weight, ignore_index=-100)
    w = (torch.ones(23) if weight is None else weight).double() * (label != -100)
    order = output.argsort(1, descending=True)
    for name, top in (("accuracy", 1), ("top3_accuracy", 3)):
        hit = (order[:, :top] == label[:, None]).any(1)
        assert found[name] == pytest.approx(((hit * w).sum() / w.sum()).item(), rel=1e-12)


@pytest.mark.parametrize("form", ["logit", "probability", "two columns"])
def test_binary(form: str) -> None:
    torch.manual_seed(0)
    logit, label = torch.randn(40), torch.randint(0, 2, (40,)).float()
    output = {
        "logit": logit[:, None],
        "probability": logit.sigmoid(),
        "two columns": torch.stack([-logit, logit], 1),
    }
    names = ["accuracy", "precision", "recall", "f1"]
    found = over_parts(names, output[form], label, threshold=0.5 if form == "probability" else 0.0)
    predicted, actual = (logit > 0).numpy(), label.bool().numpy()
    precision = (predicted & actual).sum() / predicted.sum()
    recall = (predicted & actual).sum() / actual.sum()
    assert found == pytest.approx(
        {
            "accuracy": (predicted == actual).mean(),
            "precision": precision,
            "recall": recall,
            "f1": 2 * precision * recall / (precision + recall),
        }
    )


def test_callables() -> None:
    output, label = torch.randn(23), torch.randn(23)
    weight = torch.rand(23)
    per_row = {"bias": lambda o, y: o - y}
    mean = ((output - label).double() @ weight.double() / weight.double().sum()).item()
    assert over_parts(per_row, output, label, weight)["bias"] == pytest.approx(mean)

    def bias(o, y):
        return (o - y).mean().item()

    with pytest.raises(
        ParamError, match="returned one number for a batch of 2 rows, and the mean of batches"
    ):
        over_parts(bias, output, label)
    # torch's own losses say what they are means over.
    found = over_parts([torch.nn.functional.l1_loss, torch.nn.MSELoss()], output, label, weight)
    w = weight.double().numpy()
    assert found == pytest.approx(
        {
            "l1_loss": np.average((output - label).abs().double().numpy(), weights=w),
            "MSELoss": np.average(((output - label) ** 2).double().numpy(), weights=w),
        },
        rel=1e-6,
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", ["logit", "two columns"])
def test_curves_are_those_of_scikit_learn(weighted: bool, form: str) -> None:
    torch.manual_seed(0)
    label = torch.randint(0, 2, (400,))
    # Scores that lie close together, some of them equal.
    score = 1 + torch.randint(0, 40, (400,)).double() * 1e-9 + label * 5e-9
    weight = torch.rand(400) * (torch.rand(400) > 0.1) if weighted else None
    output = score[:, None] if form == "logit" else torch.stack([torch.zeros_like(score), score], 1)
    found = over_parts(["auc", "average_precision"], output, label, weight)
    w = None if weight is None else weight.double().numpy()
    assert found == pytest.approx(
        {
            "auc": sklearn.metrics.roc_auc_score(label, score, sample_weight=w),
            "average_precision": sklearn.metrics.average_precision_score(label, score, sample_weight=w),
        },
        rel=1e-12,
    )
    assert math.isnan(over_parts(["auc"], output, torch.ones_like(label))["auc"])


@pytest.mark.parametrize("weighted", [False, True])
def test_figures_by_class_are_those_of_scikit_learn(weighted: bool) -> None:
    torch.manual_seed(0)
    # Class 3 is predicted and never right, class 4 is neither.
    output, label = torch.randn(60, 5), torch.randint(0, 3, (60,))
    output[:, 4] = -10
    weight = torch.rand(60) if weighted else None
    figures = ("precision", "recall", "f1")
    names = [f"{which}_{figure}" for which in ("macro", "class2") for figure in figures]
    found = over_parts(names, output, label, weight)
    options = {"sample_weight": None if weight is None else weight.double().numpy(), "zero_division": 0}
    expected: dict[str, float] = {}
    for which, more in (("macro", {"average": "macro"}), ("class2", {"average": "macro", "labels": [2]})):
        values = sklearn.metrics.precision_recall_fscore_support(label, output.argmax(1), **more, **options)
        expected |= {f"{which}_{figure}": value for figure, value in zip(figures, values, strict=False)}
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", ["logits", "probabilities"])
def test_several_labels_a_row(form: str) -> None:
    torch.manual_seed(0)
    logits, label = torch.randn(60, 4), torch.randint(0, 2, (60, 4)).float()
    output, threshold = (logits, 0.0) if form == "logits" else (logits.sigmoid(), 0.5)
    reading = {"threshold": threshold, "several": True}
    found = over_parts(["macro_f1", "class3_recall"], output, label, **reading)
    predicted = (logits > 0).int()
    assert found == pytest.approx(
        {
            "macro_f1": sklearn.metrics.f1_score(label, predicted, average="macro"),
            "class3_recall": sklearn.metrics.recall_score(label[:, 3], predicted[:, 3]),
        }
    )
    for name in ("accuracy", "f1", "auc"):
        with pytest.raises(DataError, match=r"classes|one label a row"):
            over_parts([name], output, label, **reading)


def foreign_metrics() -> dict[str, torchmetrics.Metric]:
    options: dict[str, Any] = {"task": "multiclass", "num_classes": 5}
    return {
        "accuracy": torchmetrics.Accuracy(**options, average="micro"),
        "f1": torchmetrics.F1Score(**options, average="macro"),
        "exact": torchmetrics.AUROC(**options),
        "binned": torchmetrics.AveragePrecision(**options, thresholds=20),
        "kappa": torchmetrics.CohenKappa(**options),
    }


def test_metrics_of_torchmetrics() -> None:
    torch.manual_seed(0)
    output, label = torch.randn(60, 5).softmax(1), torch.randint(0, 5, (60,))
    expected = {name: metric(output, label).item() for name, metric in foreign_metrics().items()}
    assert over_parts(foreign_metrics(), output, label) == pytest.approx(expected, rel=1e-6)
    collection = torchmetrics.MetricCollection({**foreign_metrics()})
    assert over_parts(collection, output, label) == pytest.approx(expected, rel=1e-6)
    _, of_all = metrics.build(foreign_metrics())
    assert {metric.name for metric in of_all} == {"exact"}, "what is sums is summed, in training too"
    x, y = torch.randn(60), torch.randn(60)
    numbers = [torchmetrics.PearsonCorrCoef(), torchmetrics.R2Score()]
    expected = {type(m).__name__: m(x, y).item() for m in numbers}
    assert over_parts(numbers, x, y) == pytest.approx(expected, rel=1e-5)


def test_what_is_refused_of_torchmetrics() -> None:
    output, label = torch.randn(60, 5), torch.randint(0, 5, (60,))
    each = torchmetrics.F1Score(task="multiclass", num_classes=5, average=None)
    with pytest.raises(ParamError, match="comes to more than one number"):
        over_parts({"each": each}, output, label)
    with pytest.raises(ParamError, match="takes no weights of rows, and weightCol is set"):
        over_parts(foreign_metrics(), output, label, torch.ones(60))
    with pytest.raises(ParamError, match="takes no weights of rows, and weightCol is set"):
        metrics.check(foreign_metrics(), weighted=True, validates=True)
    halves = torchmetrics.Accuracy(task="binary") + torchmetrics.Recall(task="binary")
    with pytest.raises(ParamError, match="keeps nothing"):
        metrics.build({"halves": halves})


def test_what_is_refused() -> None:
    with pytest.raises(ParamError, match=r"unknown name 'gini'; the names are mse, .* auc"):
        metrics.build(["gini"])
    with pytest.raises(ParamError, match="given twice"):
        metrics.build(["mae", "mae"])
    for taken in ("loss", "seconds", "num_rows", "val_loss", "val_mae"):
        with pytest.raises(ParamError, match=f"the name '{taken}' is taken by a column of the history"):
            metrics.build({taken: "mae"})
    with pytest.raises(ParamError, match="auc is made of all validation rows at once, and there are none"):
        metrics.check(["mae", "auc"], weighted=False, validates=False)
    with pytest.raises(DataError, match="two classes"):
        over_parts(["f1"], torch.randn(23, 3), torch.zeros(23))
    with pytest.raises(DataError, match=r"metric mae: the model's output has shape \[2, 3\]"):
        over_parts(["mae"], torch.randn(23, 3), torch.zeros(23))


def test_ranks_gather_what_no_sums_make(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((90, 4)).astype(np.float32)
    y = (x[:, 0] + random.standard_normal(90) > 0).astype(np.float32)
    columns = {"x": x, "y": y, "w": random.random(90).astype(np.float32)}
    shards = write_shards(tmp_path / "train", columns, num_shards=2)
    inputs, labels = [tensor("x")], [tensor("y")]
    params: dict[str, Any] = {"numWorkers": 2, "batchSize": 8, "epochs": 2, "numThreads": 1}
    params |= {"validationFraction": 0.5, "monitor": "val_auc"}
    job = make_job(tmp_path, shards, inputs, labels, validation=shards, weight=tensor("w"), **params)
    module = torch.nn.Linear(4, 1)
    program = {"model": module, "loss": "bce_with_logits", "optimizer": "sgd", "metrics": ["auc", "f1"]}
    result, weights = train(job, program, 2, tmp_path / "ranks")
    records = [
        (dict(record["metrics"]), dict(record["validationMetrics"])) for record in result["history"]["epochs"]
    ]
    scores = x @ weights["weight"].numpy()[0] + weights["bias"].numpy()[0]
    expected = sklearn.metrics.roc_auc_score(y, scores, sample_weight=columns["w"])
    assert records[-1][1]["auc"] == pytest.approx(expected, rel=1e-6)
    assert all(set(training) == {"f1"} and set(held) == {"auc", "f1"} for training, held in records)
    aucs = [held["auc"] for _, held in records]
    assert result["history"]["bestEpoch"] == int(np.argmax(aucs))


def test_a_module_that_ends_in_a_sigmoid_is_cut_at_one_half() -> None:
    x, label = torch.linspace(-2, 2, 40)[:, None], (torch.linspace(-2, 2, 40) > 0).float()

    class Probability(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            with torch.no_grad():
                self.layer.weight.fill_(1.0)
                self.layer.bias.fill_(0.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(self.layer(x)).squeeze(1)

    def focal(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return (output - label).abs() ** 3

    for loss in (focal, "mse"):
        program = {"model": Probability(), "loss": loss, "optimizer": "sgd", "metrics": ["accuracy"]}
        model = ModuleModel(program, layout())
        sums = model.evaluate_batch([x.__dlpack__()], [label.__dlpack__()], None, 40)
        assert model.finish_metrics(False, sums[2:]) == [("accuracy", 1.0)]


FACTORS = torch.ones(3)


def scaled(factors: torch.Tensor, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    assert factors.device == output.device
    return (factors * (output - label)).square().mean(1)


def of_a_global(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return scaled(FACTORS, output, label)


def sent(function: Callable[..., Any]) -> Any:
    """As a worker gets a function of a notebook's."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.loads(cloudpickle.dumps(function))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


class Holder:
    def __init__(self) -> None:
        self.factors = torch.ones(3)

    def __call__(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return scaled(self.factors, output, label)


def closure() -> Callable[..., torch.Tensor]:
    factors = torch.ones(3)
    return lambda output, label: scaled(factors, output, label)


@pytest.mark.parametrize(
    "make",
    [
        closure,
        Holder,
        lambda: Holder().__call__,
        lambda: functools.partial(scaled, torch.ones(3)),
        lambda: sent(of_a_global),
    ],
    ids=["closure", "attribute", "method", "partial", "global"],
)
def test_what_a_function_captures_goes_to_the_modules_device(make: Callable[[], Any]) -> None:
    """The meta device stands for a GPU: torch tells apart where tensors are."""
    meta = torch.device("meta")
    output, label = torch.zeros(4, 3, device=meta), torch.zeros(4, 3, device=meta)
    (metric,), _ = metrics.build({"scaled": make()})
    metric.to(meta)
    assert metric.update(output, [label], None, 4).is_meta
    loss = losses.build(make())
    loss.to(meta)
    assert loss(output, [label], None, 4)[0].is_meta
    assert FACTORS.device.type == "cpu"
