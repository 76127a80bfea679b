"""What trains and scores without Python: common modules through `flambeau-worker`, against eager torch.

Each module is trained for six steps in both forms, TorchScript and torch.export, and its losses are compared
with those of a loop of plain torch; its rows are scored and compared with what the module returns.
docs/native-modules.md holds the outcome; `FLAMBEAU_WRITE_DOCS=1 pytest tests/test_native_modules.py` writes
it anew.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from harness import one_thread
from programs.native_modules import CASES, NUM_IDS, Case, GaussianLoss
from torch import Tensor, nn
from worker_program import LIBTORCH, ROOT, launch, run

from flambeau._saved.program import FILE_NAMES, compile_programs, probe_output
from flambeau._saved.weights import FILE_NAME, save_module
from flambeau._tensors import TensorColumns

PAGE = ROOT / "docs/native-modules.md"
FORMS = {"scripted": "TorchScript", "exported": "torch.export"}
NUM_ROWS, BATCH, NUM_STEPS, SEED = 24, 8, 6, 5
LEARNING_RATE = 0.01
LOSSES: dict[str, Callable[..., Tensor]] = {
    "mse": nn.functional.mse_loss,
    "l1": nn.functional.l1_loss,
    "huber": nn.functional.huber_loss,
    "bce_with_logits": nn.functional.binary_cross_entropy_with_logits,
    "cross_entropy": nn.functional.cross_entropy,
    "scripted": lambda output, label: GaussianLoss()(output, label).mean(),
}
INTRODUCTION = """# What runs without Python

A module trains and scores on native workers where TorchScript or torch.export takes it. This table is made
by `tests/test_native_modules.py`: each module is trained for six steps by `flambeau-worker` and by a loop of
plain torch, whose losses must agree to 1e-5, dropout included, and its scores must be the module's.

Where a form does not take a module, the table says why. `flambeau.save_program` tries both forms and gives
the reason for each that is missing; one of them is enough.

| module | as TorchScript | as torch.export |
|---|---|---|
"""
END = """
Neither form takes what depends on Python while it runs: other libraries, functions in attributes that the
data decides to call. Such a module trains with `runtime="python"`; its model is saved as a pickle, which
Scala does not read.

Some of what torch.export takes, the native runtime refuses when it loads the program, by the name of the
node: `torch.cond` and other operators that call graphs, operators of extensions (`torchvision::nms`, Triton
kernels), objects that are no tensors, and graphs with a fixed number of rows. A `.pt2` archive that Flambeau
did not make holds one mode. It trains only where no operator depends on the mode: that of dropout and batch
norm is fixed in it.
"""
RUNS = "trains, scores"
# Those that are tried on each change: several inputs, ids, attention with state, a loss of one's own,
# refusals.
SHORT = {
    "two towers (several inputs)",
    "DLRM",
    "LSTM with dropout",
    "transformer encoder",
    "several outputs, loss of one's own",
}


@dataclass(frozen=True)
class Rows:
    """The rows of a case as tensors and as a Parquet file."""

    inputs: list[Tensor]
    label: Tensor
    specs: list[TensorColumns]
    path: Path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("modules")


def rows_of(case: Case, folder: Path) -> Rows:
    """Normal numbers, ids and labels that are the same at each call."""
    generator = torch.Generator().manual_seed(11)
    inputs, specs, table = [], [], {}
    for index, (dtype, shape) in enumerate(case.inputs):
        size, name = (NUM_ROWS, *shape), f"x{index}"
        if dtype == "int64":
            inputs.append(torch.randint(0, NUM_IDS, size, generator=generator))
        else:
            inputs.append(torch.randn(size, generator=generator))
        specs.append(TensorColumns(name, (name,), dtype, shape))
        table[name] = column(inputs[-1])
    if case.loss == "cross_entropy":
        label = torch.randint(0, case.num_classes, (NUM_ROWS,), generator=generator)
    elif case.num_classes:
        label = torch.randint(0, 2, (NUM_ROWS,), generator=generator).float()
    else:
        label = torch.randn((NUM_ROWS, *case.label), generator=generator)
    table["y"] = column(label)
    path = folder / "rows.parquet"
    pq.write_table(pa.table(table), path, row_group_size=NUM_ROWS)
    return Rows(inputs, label, specs, path)


def column(tensor: Tensor) -> pa.Array:
    """A column of numbers, or of arrays of them."""
    flat = pa.array(tensor.reshape(-1).numpy())
    if tensor.dim() == 1:
        return flat
    size = tensor[0].numel()
    return pa.ListArray.from_arrays(np.arange(len(tensor) + 1, dtype=np.int32) * size, flat)


def eager_losses(module: nn.Module, case: Case, rows: Rows) -> list[float]:
    """The losses of a loop of plain torch over the batches in order; `module` is trained."""
    optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
    module.train()
    # As the training loop seeds rank 0 before its first step.
    digest = hashlib.sha256(f"{SEED}:0:0".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little"))
    losses = []
    for step in range(NUM_STEPS):
        at = step * BATCH % NUM_ROWS
        output = module(*[tensor[at : at + BATCH] for tensor in rows.inputs])
        label = rows.label[at : at + BATCH]
        if isinstance(output, Tensor) and case.loss != "cross_entropy":
            label = label.reshape(output.shape)
        loss = LOSSES[case.loss](output, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def native_losses(case: Case, form: str, rows: Rows, folder: Path, programs: dict[str, bytes]) -> list[float]:
    """The losses of `flambeau-worker` on the program in `folder`."""
    weights = folder / FILE_NAME
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    label = {
        "name": "y",
        "columns": ["y"],
        "dtype": str(rows.label.dtype).removeprefix("torch."),
        "shape": list(case.label),
    }
    loss: dict[str, Any] = {"name": case.loss}
    if case.loss == "scripted":
        torch.jit.script(GaussianLoss()).save(str(folder / "loss.pt"))
        loss = {"script": str(folder / "loss.pt")}
    program = {
        "form": form,
        "eval": str(folder / FILE_NAMES[form]),
        "train": str(folder / FILE_NAMES["exportedTrain"]) if form == "exported" else None,
        "weights": {"uri": str(weights), "size": weights.stat().st_size, "sha256": digest},
        "loss": loss,
        "optimizer": {"name": "adam", "options": {"lr": LEARNING_RATE}},
    }
    epochs = NUM_STEPS * BATCH // NUM_ROWS
    job = {
        "format": 1,
        "params": {"numThreads": 1, "batchSize": BATCH, "epochs": epochs, "seed": SEED, "shuffle": False},
        "data": {
            "train": [str(rows.path)],
            "spec": {"inputs": [spec.to_json() for spec in rows.specs], "labels": [label]},
        },
        "attempt": {"id": form, "workDir": str(folder)},
        "program": program,
    }
    *lines, last = launch(job, "--report-steps")
    assert "result" in last, last
    return [line["step"]["loss"] for line in lines if "step" in line]


def native_scores(form: str, rows: Rows, folder: Path, output: list[dict[str, Any]]) -> list[Tensor]:
    """The scores of `flambeau-worker`, flattened to one vector a row."""
    weights = folder / FILE_NAME
    contents = {
        "programs": {form: FILE_NAMES[form]},
        "files": {FILE_NAME: {"size": weights.stat().st_size, "sha256": ""}},
        "inputs": [spec.to_json() for spec in rows.specs],
        "output": output,
    }
    (folder / "program.json").write_text(json.dumps(contents))
    scores = folder / "scores.parquet"
    done = run("score", folder, rows.path, scores, "--num-threads", 1, "--libtorch", LIBTORCH)
    assert done.returncode == 0, done.stderr
    return [
        torch.tensor(np.stack([np.ravel(value) for value in chunk.to_pylist()]))
        for chunk in pq.read_table(scores).columns
    ]


@cache
@one_thread()
def outcome_of(case: Case, form: str, folder: Path) -> str:
    """RUNS where the module trains and scores as eager torch does, else the reason as the docs tell it.

    Fails where neither holds.
    """
    folder = folder / f"{CASES.index(case)}-{form}"
    folder.mkdir(exist_ok=True)
    torch.manual_seed(3)
    module = case.make()
    rows = rows_of(case, folder)
    save_module(module, folder / FILE_NAME)
    forms = ("scripted",) if form == "scripted" else ("exported", "exportedTrain")
    programs, reasons = compile_programs(copy.deepcopy(module), rows.specs, folder / FILE_NAME, forms)
    if form in case.refused:
        told, said = case.refused[form]
        assert not programs and re.search(said, reasons[form]), reasons
        return told
    assert not reasons, reasons
    for name, data in programs.items():
        (folder / FILE_NAMES[name]).write_bytes(data)
    output = probe_output(module, rows.specs)
    with torch.no_grad():
        returned = copy.deepcopy(module).eval()(*rows.inputs)
    expected = [returned] if isinstance(returned, Tensor) else list(returned)
    scores = native_scores(form, rows, folder, output.to_json())
    assert len(scores) == len(expected)
    for actual, tensor in zip(scores, expected, strict=True):
        torch.testing.assert_close(actual.float(), tensor.reshape(NUM_ROWS, -1), rtol=1e-6, atol=1e-6)
    losses = native_losses(case, form, rows, folder, programs)
    assert losses == pytest.approx(eager_losses(module, case, rows), rel=1e-5)
    return RUNS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in SHORT or case.refused else pytest.mark.long)
        for case in CASES
    ],
)
def test_a_module_trains_and_scores_as_in_eager_torch(case: Case, form: str, folder: Path) -> None:
    assert (outcome_of(case, form, folder) == RUNS) == (form not in case.refused)


@pytest.mark.long
def test_the_page_holds_what_was_found(folder: Path) -> None:
    def row(case: Case) -> str:
        return f"| {case.name} | " + " | ".join(outcome_of(case, form, folder) for form in FORMS) + " |\n"

    page = INTRODUCTION + "".join(row(case) for case in CASES) + END
    if os.environ.get("FLAMBEAU_WRITE_DOCS"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page, (
        "write it anew: FLAMBEAU_WRITE_DOCS=1 pytest tests/test_native_modules.py"
    )
