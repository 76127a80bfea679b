"""A worker's process, which Spark keeps from task to task."""

from __future__ import annotations

import hashlib
import json
import weakref
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from harness import make_job, tensor, write_shards
from torch import nn

from flambeau import _native
from flambeau._module.adapter import ModuleModel
from flambeau._rank.worker import RankOutcome, WorkerRequest, failure_kind, run_rank
from flambeau.errors import StoreError


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("as the test wants it")


def run(directory: Path, module: nn.Module | None, stored: bytes = b"") -> RankOutcome:
    """Trains on one rank, in this process; without a module, what is stored."""
    x = np.zeros((64, 12), np.float32)
    shards = write_shards(directory / "data", {"x": x, "y": x[:, 0].copy()})
    job = make_job(directory, shards, [tensor("x")], [tensor("y")], batchSize=16, device="cpu", numThreads=1)
    program = {"model": module, "loss": "mse", "optimizer": "adam", "metrics": None}
    data = None if module is None else cloudpickle.dumps(program)
    digest = hashlib.sha256(stored).hexdigest()
    request = WorkerRequest(
        json.dumps(job), secret=bytes(16), program=data, program_uri="stored", program_sha256=digest
    )
    return run_rank(request, 0, 1, lambda message: [message], "127.0.0.1")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("width", [8, 700], ids=["one bucket", "several buckets"])
def test_a_training_leaves_nothing_behind(
    width: int, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters: list[weakref.ref[Any]] = []
    make = ModuleModel.__init__

    def noted(self: Any, *args: Any) -> None:
        adapters.append(weakref.ref(self))
        make(self, *args)

    monkeypatch.setattr(ModuleModel, "__init__", noted)
    layers = [nn.Linear(12, width), nn.Linear(width, width), nn.Linear(width, 1)]
    outcome = run(tmp_path, nn.Sequential(*layers, *([Fails()] if fails else [])))
    assert outcome.ok != fails, outcome.traceback
    assert [adapter() for adapter in adapters] == [None]


def test_only_what_may_pass_is_worth_another_attempt(tmp_path: Path) -> None:
    """A store that throttles is; a program that is not there is not, and Rust tells which is which."""
    assert failure_kind(StoreError("slow down", is_transient=True), "model") == "store"
    job: dict[str, Any] = {"data": {"spec": {"inputs": []}}, "params": {}}
    request = WorkerRequest(json.dumps(job), secret=bytes(16), program_uri=str(tmp_path / "program"))
    outcome = run_rank(request, 0, 1, lambda message: [message], "127.0.0.1")
    assert outcome.error_type == "flambeau.errors.StoreError", outcome.traceback
    assert outcome.error_kind == "data"


def test_a_program_that_changed_on_its_way_is_not_unpickled(tmp_path: Path) -> None:
    job: dict[str, Any] = {"data": {"spec": {"inputs": []}}, "params": {}}
    (tmp_path / "program").write_bytes(cloudpickle.dumps({"model": None}))
    request = WorkerRequest(
        json.dumps(job), bytes(16), program_uri=str(tmp_path / "program"), program_sha256="0" * 64
    )
    outcome = run_rank(request, 0, 1, lambda message: [message], "127.0.0.1")
    assert "is not the program that the driver wrote there" in (outcome.message or ""), outcome.traceback
    assert outcome.error_kind == "data"


class Pickle(bytes):
    """Bytes that tell when nobody holds them any more."""

    def __del__(self) -> None:
        released.append(True)


released: list[bool] = []


def mse(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    assert released, "the pickle is held while the module trains"
    return nn.functional.mse_loss(output, label[:, None])


def test_a_rank_trains_without_the_pickle_that_it_came_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = {"model": nn.Linear(12, 1), "loss": mse, "optimizer": "adam", "metrics": None}
    stored = cloudpickle.dumps(program)

    class Store:
        def __init__(self, options: Any) -> None:
            pass

        def get(self, uri: str) -> Pickle:
            return Pickle(stored)

    monkeypatch.setattr(_native, "Store", Store)
    released.clear()
    outcome = run(tmp_path, None, stored)
    assert outcome.ok, outcome.traceback
