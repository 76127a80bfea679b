"""`flambeau.save_program`: what it writes, and what it refuses."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import fitted
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import flambeau
from flambeau._saved.program import instantiate
from flambeau._saved.weights import load_into
from flambeau.errors import FlambeauError, ParamError


def saved(module: nn.Module, inputs: list[Tensor], folder: Path) -> dict[str, Any]:
    flambeau.save_program(module, str(folder), inputs)
    contents: dict[str, Any] = json.loads((folder / "program.json").read_text())
    return contents


def test_a_directory_holds_each_form_and_the_weights(tmp_path: Path) -> None:
    module = fitted.trained(fitted.Mlp())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.dropout.eval()
    folder = tmp_path / "program"
    contents = saved(module, [torch.randn(3, 4)], folder)
    assert contents["programs"] == {
        "scripted": "program.pt",
        "exported": "program.pt2",
        "exportedTrain": "program-train.pt2",
    }
    assert contents["reasons"] == {}
    assert sorted(path.name for path in folder.iterdir()) == sorted([*contents["files"], "program.json"])
    for name, entry in contents["files"].items():
        data = (folder / name).read_bytes()
        assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    read = load_file(folder / "weights.safetensors")
    assert all(torch.equal(tensor, read[name]) for name, tensor in before.items())
    # The module is as it was.
    assert module.norm.training and not module.dropout.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    x = torch.randn(5, 4)
    for form in ("scripted", "exported"):
        program = instantiate({form: (folder / contents["programs"][form]).read_bytes()})
        load_into(program, folder / "weights.safetensors")
        with torch.inference_mode():
            assert torch.equal(program(x), module.eval()(x)), form
    torch.export.load(io.BytesIO((folder / "program-train.pt2").read_bytes()))


def test_one_form_is_enough(tmp_path: Path) -> None:
    class Looping(nn.Module):
        """Its length depends on the data, which torch.export does not take."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            if bool(x.sum() > 0):
                return self.layer(x)
            return self.layer(-x)

    contents = saved(Looping(), [torch.randn(2, 4)], tmp_path / "program")
    assert list(contents["programs"]) == ["scripted"]
    assert "data-dependent" in contents["reasons"]["exported"]


def test_a_module_without_any_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParamError, match=r"Branching can be neither scripted nor exported .*data-dependent"):
        flambeau.save_program(fitted.Branching(), str(tmp_path / "program"), [torch.randn(2, 4)])
    assert not (tmp_path / "program").exists()


def test_a_path_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    with pytest.raises(FlambeauError, match="exists already"):
        flambeau.save_program(fitted.Scalar(), str(tmp_path / "program"), [torch.randn(2, 4)])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "give a list of example tensors"),
        (torch.randn(2, 4), "give a list of example tensors"),
        ([[1.0, 2.0]], "number 1 must be a tensor"),
        ([torch.tensor(1.0)], "number 1 must be a tensor"),
        ([torch.zeros(2, 4, dtype=torch.int32)], "number 1 is int32"),
        ([torch.zeros(2, 4), torch.zeros(3, 4)], "same number of rows"),
        ([torch.zeros(0, 4)], "same number of rows"),
        ([torch.zeros(2, 4), torch.zeros(2, 4)], r"cannot take the inputs \(input_1, input_2\)"),
        ([torch.zeros(2, 5)], "fails on inputs"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(tmp_path: Path, inputs: Any, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        flambeau.save_program(fitted.Scalar(), str(tmp_path / "program"), inputs)
