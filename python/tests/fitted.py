"""Fitted models made from modules and local weights, without a training, and modules to make them of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flambeau import TorchClassifier, TorchEstimator, TorchRegressor
from flambeau._saved.program import dump_skeleton, probe_output
from flambeau._saved.weights import save_module
from flambeau._tensors import TensorColumns

AnyModule = TypeVar("AnyModule", bound=nn.Module)
HISTORY = {
    "epochs": [
        {
            "epoch": epoch,
            "steps": 10 * (epoch + 1),
            "numRows": 100,
            "seconds": 0.5,
            "rowsPerSecond": 200.0,
            "loss": 2.0 - epoch,
            "metrics": [["mae", 1.0 - 0.5 * epoch]],
            "validationLoss": 3.0 - epoch,
            "validationMetrics": [["mae", 1.5 - 0.5 * epoch]],
        }
        for epoch in range(2)
    ]
}


class Mlp(nn.Module):
    """A layer, batch norm, dropout and an output layer over one input."""

    def __init__(self, num_inputs: int = 4, num_outputs: int = 3) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_inputs, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(8, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.dropout(torch.relu(self.norm(self.hidden(x)))))


class Scalar(nn.Module):
    """One number a row, of shape [rows]."""

    def __init__(self, num_inputs: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(num_inputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(1)


class Tied(nn.Module):
    """An embedding whose table is also the output layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6)
        self.output = nn.Linear(6, 10, bias=False)
        self.output.weight = self.table.weight

    def forward(self, i: Tensor) -> Tensor:
        return self.output(self.table(i))


class Branching(nn.Module):
    """A branch on data, which torch.export does not take, over a dict, which TorchScript does not take as it
    is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.sign = {True: 1.0, False: -1.0}

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.sign[bool(x.sum() > 0)] * len([y for y in (1,) if isinstance(y, int)])


@torch.library.custom_op("flambeau_test::twice", mutates_args=(), schema="(Tensor x) -> Tensor")
def twice(x: Tensor) -> Tensor:
    """An operator that Python alone has."""
    return x * 2


class Custom(nn.Module):
    """What TorchScript takes, and libtorch does not run."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.flambeau_test.twice(x).sum(1)


@dataclass
class Result:
    """An output that TorchScript does not take."""

    mean: Tensor
    total: Tensor


class Registered(nn.Module):
    """What torch.export takes where the class of its output is registered."""

    def forward(self, x: Tensor) -> Result:
        return Result(mean=x.mean(1), total=x.sum(1))


def trained(module: AnyModule) -> AnyModule:
    """The module with its batch-norm statistics moved, as by a training."""
    with torch.no_grad():
        for name, tensor in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                tensor.copy_(torch.linspace(0.5, 1.5, tensor.numel()))
    return module


def features(size: int, dtype: str = "float32", name: str = "features") -> TensorColumns:
    """An input of one array or vector column."""
    return TensorColumns(name, (name,), dtype, (size,))


def fitted(estimator: TorchEstimator, module: nn.Module, inputs: list[TensorColumns], folder: Path) -> Any:
    """What `estimator` would give for a module trained to its present weights."""
    folder.mkdir(parents=True, exist_ok=True)
    return estimator._model_class()._create(
        estimator,
        programs={"pickle": dump_skeleton(module)},
        weights=save_module(module, folder / "weights.safetensors"),
        history=HISTORY,
        inputs=inputs,
        output=probe_output(module, inputs),
        num_rows=100,
        num_steps=20,
        num_validation_rows=10,
        training_seconds=1.25,
    )


def classifier(folder: Path, **params: Any) -> Any:
    """A classifier of three classes on `features` of four numbers."""
    module = trained(Mlp())
    return fitted(TorchClassifier(model=module, **params), module, [features(4)], folder)


def regressor(folder: Path, module: nn.Module | None = None, **params: Any) -> Any:
    """A regressor on `features` of four numbers."""
    module = module or Scalar()
    return fitted(TorchRegressor(model=module, **params), module, [features(4)], folder)
