"""Writes saved models and, for each, rows with what torch itself makes of them.

saved_models.py DIRECTORY

For each case: `<case>/model` in the format of docs/model-format, and `<case>/rows.parquet` with the inputs' columns and
the module's outputs as `expected` (`expected_1`, ... of a tuple). Of some, `<case>/described.json`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from flambeau import TorchModel
from flambeau._saved.weights import save_module

NUM_ROWS = 1000


class Mlp(nn.Module):
    """One number from packed columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(1)


class Linear(nn.Module):
    """A vector of `size` numbers from an array of three."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Several(nn.Module):
    """A number, a vector, whole numbers, flags and a matrix from an array, a category, a flag and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.category = nn.Embedding(5, 3)
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor, n: Tensor, flag: Tensor, data: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        joined = self.linear(x.to(torch.float32) + self.category(n)) + data.to(torch.float32).mean(1, keepdim=True) / 255
        flags = torch.logical_not(flag).unsqueeze(1).expand(-1, 2)
        return joined.sum(1), joined, n + 1, flags, joined.unsqueeze(1).expand(-1, 2, 3)


class Writing(Linear):
    """Writes a file, as a script."""

    def __init__(self, path: Path) -> None:
        super().__init__(1)
        self.path = str(path)

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            torch.save(x, self.path)
        return self.linear(x)


def columns() -> dict[str, Any]:
    """The columns of all cases, by name."""
    numbers = np.random.default_rng(7)
    return {
        "id": np.arange(NUM_ROWS),
        "a": numbers.normal(size=NUM_ROWS),
        "b": numbers.integers(-5, 6, NUM_ROWS).astype(np.int32),
        "x": numbers.normal(size=(NUM_ROWS, 3)).astype(np.float32),
        "n": numbers.integers(0, 5, NUM_ROWS),
        "flag": numbers.integers(0, 2, NUM_ROWS).astype(bool),
        "data": numbers.integers(0, 256, (NUM_ROWS, 4)).astype(np.uint8),
    }


def arrow(values: Any) -> pa.Array:
    """An array of numbers, of lists (of lists), or of bytes."""
    if values.dtype == np.uint8:
        return pa.array([row.tobytes() for row in values], pa.binary())
    if values.ndim > 1:
        return pa.array(values.tolist(), _lists(pa.from_numpy_dtype(values.dtype), values.ndim - 1))
    return pa.array(values)


def _lists(kind: pa.DataType, depth: int) -> pa.DataType:
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def tensor(name: str, names: list[str], dtype: str, shape: list[int]) -> dict[str, Any]:
    """A tensor as the metadata names it."""
    return {"name": name, "columns": names, "dtype": dtype, "shape": shape}


def save(
    root: Path,
    kind: str,
    module: nn.Module,
    inputs: list[dict[str, Any]],
    params: dict[str, Any],
    *,
    form: str = "scripted",
    classes: str = "logits",
) -> None:
    """One case."""
    model, table = root / "model", columns()
    (model / "metadata").mkdir(parents=True)
    module.eval()
    joined = [
        np.stack([table[name] for name in i["columns"]], axis=1) if len(i["columns"]) > 1 else table[i["columns"][0]]
        for i in inputs
    ]
    given = [torch.tensor(array).to(getattr(torch, i["dtype"])) for array, i in zip(joined, inputs, strict=True)]
    with torch.no_grad():
        outputs = module(*given)
    several = isinstance(outputs, tuple)
    named = [(f"_{i + 1}", one) for i, one in enumerate(outputs)] if several else [(None, outputs)]

    weights = save_module(module, model / "weights.safetensors")
    files = {"weights.safetensors": {"size": weights.size, "sha256": weights.sha256}}
    history = {
        "epochs": [
            {"epoch": 0, "steps": 4, "numRows": 10, "seconds": 0.5, "rowsPerSecond": 20.0, "loss": 0.75,
             "metrics": [["mae", 0.5]], "validationLoss": 1.0, "validationMetrics": [["mae", None]]},
            {"epoch": 1, "steps": 4, "numRows": 10, "seconds": 0.5, "rowsPerSecond": 20.0, "loss": None,
             "metrics": [["mae", 0.25]], "validationLoss": 0.5, "validationMetrics": [["mae", 0.125]]},
        ]
    }
    names = {"scripted": "program.pt", "exported": "program.pt2", "pickle": "program.pkl"}
    (model / "history.json").write_text(json.dumps(history))
    if form == "scripted":
        torch.jit.save(torch.jit.script(module), str(model / names[form]))
    elif form == "exported":
        rows = torch.export.Dim("rows", min=1)
        shapes = tuple({0: rows} for _ in inputs)
        program = torch.export.export(module, tuple(t[:3] for t in given), dynamic_shapes=shapes, strict=False)
        torch.export.save(program, str(model / names[form]))
    else:
        (model / names[form]).write_bytes(b"a pickle")
    for name in ("history.json", names[form]):
        data = (model / name).read_bytes()
        files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    output = [
        {"name": name, "dtype": str(one.dtype).removeprefix("torch."), "shape": list(one.shape[1:])}
        for name, one in named
    ]
    metadata = {
        "class": f"flambeau.{kind}",
        "timestamp": 0,
        "sparkVersion": "4.1.0",
        "uid": f"{kind}_0123456789ab",
        "paramMap": params,
        "defaultParamMap": {"predictionCol": "prediction", "featuresCol": "features", "inferenceBatchSize": 4096},
        "flambeau": {
            "formatVersion": 1,
            "flambeauVersion": "0.1.0",
            "torchVersion": torch.__version__,
            "programs": {form: names[form]},
            "reasons": {"scripted": "it is not for it", "exported": "nor for that"} if form == "pickle" else {},
            "files": files,
            "inputs": inputs,
            "output": output,
            "classes": classes,
            "summary": {"numRows": 20, "numSteps": 8, "numValidationRows": 5, "trainingSeconds": 1.5},
        },
    }
    (model / "metadata" / "part-00000").write_text(json.dumps(metadata) + "\n")
    (model / "metadata" / "_SUCCESS").touch()
    expected = {f"expected{name or ''}": arrow(one.numpy()) for name, one in named}
    pq.write_table(pa.table({name: arrow(value) for name, value in table.items()} | expected), root / "rows.parquet")


def describe(root: Path) -> None:
    """What PySpark tells of a case's model, as `described.json`."""
    model = TorchModel.load(str(root / "model"))
    inputs = [[one.name, one.columns, one.dtype, one.shape] for one in model.inputs]
    outputs = [[one.name, one.kind, one.columnType] for one in model.outputs]
    told = {"text": str(model), "inputs": inputs, "outputs": outputs}
    (root / "described.json").write_text(json.dumps(told))


def main(root: Path) -> None:
    """All cases."""
    torch.manual_seed(3)
    packed = [tensor("features", ["a", "b"], "float32", [2])]
    array = [tensor("x", ["x"], "float32", [3])]
    several = [
        tensor("x", ["x"], "float64", [3]),
        tensor("n", ["n"], "int64", []),
        tensor("flag", ["flag"], "bool", []),
        tensor("data", ["data"], "uint8", [4]),
    ]
    names = {"inputCols": ["x", "n", "flag", "data"], "inputTypes": ["float64", "int64", "bool", "uint8"]}
    mlp = Mlp()
    mlp(torch.randn(50, 2) * 3 + 1)
    save(root / "mlp", "TorchRegressionModel", mlp, packed, {"featuresCols": ["a", "b"], "inferenceBatchSize": 64})
    save(root / "exported", "TorchRegressionModel", mlp, packed, {"featuresCols": ["a", "b"]}, form="exported")
    save(root / "pickle", "TorchModel", mlp, packed, {"featuresCols": ["a", "b"]}, form="pickle")
    save(root / "column", "TorchModel", Linear(1), array, {"featuresCol": "x"})
    save(root / "writing", "TorchModel", Writing(root / "written"), array, {"featuresCol": "x"})
    save(root / "array", "TorchModel", Linear(4), array, {"inputCols": ["x"]})
    save(root / "several", "TorchModel", Several(), several, names)
    save(root / "classes", "TorchClassificationModel", Linear(3), array, {"featuresCol": "x"})
    save(root / "binary", "TorchClassificationModel", Linear(1), array, {"featuresCol": "x"})
    for name in ("mlp", "several", "classes", "binary"):
        describe(root / name)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
