"""Writes exported programs with what PyTorch computes with them, as the oracle of `tests/exported.rs`.

`exported.py DIRECTORY` writes a folder for each case: `eval.pt2`, `train.pt2` and `expected.safetensors`,
with inputs (`input.0`, ...), outputs in evaluation and training mode (`eval.0`, `train.0`, ...), the
gradients of the sum of the squares of all outputs in training mode (`gradient.<parameter>`) and the buffers
after it (`buffer.<name>`). `2.7.pt2` and `2.8.pt2` are `eval.pt2` in the layouts of those versions.
"""

from __future__ import annotations

import copy
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch._export.serde.serialize import serialize

SEED = 7


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))


class Tied(nn.Module):
    """A parameter under two names, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.table.weight
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.table(ids) * self.scale)


class Recurrent(nn.Module):
    """States of zeros for a number of rows that is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, num_layers=2, dropout=0.2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(10, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        first, _ = self.lstm(x)
        second, state = self.gru(first)
        return second[:, -1] + state[-1]


class Sizes(nn.Module):
    """Arithmetic on the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        doubled = self.layer(x).reshape(rows * 2, 3)
        place = torch.arange(rows * 2, dtype=x.dtype, device=x.device) / (rows + 1)
        shifted = (doubled + place[:, None]).reshape(rows, 6)
        return shifted * (rows / 2) + rows // 2 - 1.5 * (rows % 3)


class Modes(nn.Module):
    """Parts without gradients and with autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.layer(x).mean(0) * x.shape[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = self.layer(x)
        with torch.autocast("cpu", enabled=False):
            high = self.layer(low.float())
        return high - target


class Pair(NamedTuple):
    mean: Tensor
    deviation: Tensor


torch.utils._pytree._register_namedtuple(Pair, serialized_type_name="programs.Pair")


class Several(nn.Module):
    """Lists, optional tensors, constants, a buffer outside the state, several inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("scale", torch.arange(6.0), persistent=False)

    def forward(self, x: Tensor, index: Tensor) -> dict[str, Tensor]:
        joined = torch.cat([x, x * 2.0], 1)
        left, right = (self.layer(joined) * self.scale).chunk(2, 1)
        picked = left[index]
        return {
            "sum": left + right,
            "picked": picked * torch.tensor([1.0, 0.5, 0.25]),
            "clamped": right.clamp(min=0),
        }


class Tuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Pair:
        hidden = self.layer(x)
        return Pair(hidden.mean(1), hidden.std(1))


class Counted(nn.Module):
    """A buffer with a new value, and one that changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
            self.count.add_(1)
        return self.layer(x - self.average)


class Counting(nn.Module):
    """A buffer that changes in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1.0)
        return self.layer(x) * self.count


class Convolutions(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3, padding="same"),
            nn.BatchNorm2d(8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 2),
        )


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x).mean(1)


def normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.randn(rows, *shape)


def below(limit: int, *shape: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.randint(0, limit, (rows, *shape))


CASES: dict[str, tuple[Callable[[], nn.Module], list[Callable[[int], Tensor]]]] = {
    "mlp": (Mlp, [normal(4)]),
    "mlp_float64": (lambda: Mlp().double(), [lambda rows: torch.randn(rows, 4, dtype=torch.float64)]),
    "tied": (Tied, [below(7)]),
    "recurrent": (Recurrent, [normal(6, 3)]),
    "sizes": (Sizes, [normal(4)]),
    "modes": (Modes, [normal(4)]),
    "several": (Several, [normal(3), lambda rows: torch.arange(rows).flip(0)]),
    "tuple": (Tuple, [normal(4)]),
    "counted": (Counted, [normal(4)]),
    "counting": (Counting, [normal(4)]),
    "convolutions": (Convolutions, [normal(1, 8, 8)]),
    "transformer": (Transformer, [normal(5, 8)]),
}


def export(module: nn.Module, inputs: list[Tensor], path: Path) -> None:
    rows = torch.export.Dim("rows", min=1)
    shapes = tuple({0: rows} for _ in inputs)
    torch.export.save(torch.export.export(module, tuple(inputs), dynamic_shapes=shapes, strict=False), path)


def write_older(program: torch.export.ExportedProgram, source: Path, folder: Path) -> None:
    """The archive of a program as torch 2.8, and versions before it, laid it out."""
    artifact = serialize(program)
    entries = {
        "version": b"8.20",
        "serialized_exported_program.json": artifact.exported_program,
        "serialized_state_dict.pt": artifact.state_dict,
        "serialized_constants.pt": artifact.constants,
        "serialized_example_inputs.pt": artifact.example_inputs,
    }
    with zipfile.ZipFile(folder / "2.7.pt2", "w") as target:
        for name, data in entries.items():
            target.writestr(name, data)
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(folder / "2.8.pt2", "w") as target:
        for name in archive.namelist():
            if "/data/weights/" not in name and "/data/constants/" not in name:
                target.writestr(name, archive.read(name))
        root = archive.namelist()[0].split("/")[0]
        target.writestr(f"{root}/data/weights/model.pt", artifact.state_dict)
        target.writestr(f"{root}/data/constants/model.pt", artifact.constants)


def tensors(output: object) -> list[Tensor]:
    return (
        [output]
        if isinstance(output, Tensor)
        else list(output.values() if isinstance(output, dict) else output)
    )


def write(folder: Path, module: nn.Module, make: list[Callable[[int], Tensor]]) -> None:
    folder.mkdir(parents=True)
    expected = {}
    inputs = [one(5) for one in make]
    examples = [one(3) for one in make]
    for index, tensor in enumerate(inputs):
        expected[f"input.{index}"] = tensor
    with torch.no_grad():
        export(copy.deepcopy(module).eval(), examples, folder / "eval.pt2")
        # In evaluation mode an eager transformer takes a kernel of its own, which torch.export leaves alone.
        program = torch.export.load(folder / "eval.pt2")
        write_older(program, folder / "eval.pt2", folder)
        for index, tensor in enumerate(tensors(program.module()(*inputs))):
            expected[f"eval.{index}"] = tensor.clone()
    export(copy.deepcopy(module).train(), examples, folder / "train.pt2")
    torch.manual_seed(SEED)
    outputs = tensors(module.train()(*inputs))
    sum((output * output).sum() for output in outputs).backward()
    for index, tensor in enumerate(outputs):
        expected[f"train.{index}"] = tensor.detach().clone()
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            expected[f"gradient.{name}"] = parameter.grad
    for name, buffer in module.named_buffers():
        expected[f"buffer.{name}"] = buffer
    save_file(
        {name: tensor.contiguous() for name, tensor in expected.items()}, folder / "expected.safetensors"
    )


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name, (make, inputs) in CASES.items():
        torch.manual_seed(1)
        write(Path(sys.argv[1]) / name, make(), inputs)


if __name__ == "__main__":
    main()
