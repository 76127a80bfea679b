"""Metrics over uneven parts against their definition on all rows."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from flambeau._module import metrics
from flambeau.errors import DataError, ParamError


def over_parts(given, output, label, weight=None, **options) -> dict[str, float]:
    built = metrics.build(given, **options)
    sums = [torch.zeros(metric.size, dtype=torch.float64) for metric in built]
    bounds = (0, 2, 3, 10, len(output))
    for start, end in itertools.pairwise(bounds):
        rows = slice(start, end)
        part = None if weight is None else weight[rows]
        for total, metric in zip(sums, built, strict=True):
            total += metric.update(output[rows], [label[rows]], part, end - start)
    return {metric.name: metric.finish(total.tolist()) for total, metric in zip(sums, built, strict=True)}


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

    assert over_parts(bias, output, label)["bias"] == pytest.approx((output - label).mean().item(), rel=1e-5)


def test_what_is_refused() -> None:
    with pytest.raises(ParamError, match="unknown name 'auc'"):
        metrics.build(["auc"])
    with pytest.raises(ParamError, match="given twice"):
        metrics.build(["mae", "mae"])
    with pytest.raises(ParamError, match="taken by the loss"):
        metrics.build({"loss": "mae"})
    with pytest.raises(DataError, match="two classes"):
        over_parts(["f1"], torch.randn(23, 3), torch.zeros(23))
    with pytest.raises(DataError, match=r"metric mae: the model's output has shape \[2, 3\]"):
        over_parts(["mae"], torch.randn(23, 3), torch.zeros(23))
