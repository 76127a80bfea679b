"""`compile=True` trains what torch.compile makes of the module, and the module itself where that fails."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import make_job, run_ranks, tensor, write_shards
from pyspark.sql import SparkSession
from safetensors.torch import load_file
from torch import Tensor, nn

from flambeau import ParamError, TorchRegressor
from flambeau._module import generators
from flambeau._module.compiled import CompiledModule


class Net(nn.Module):
    """With random numbers and statistics, which a trial must not use up; `refuses` fails compiled."""

    def __init__(self, refuses: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Dropout(0.3), nn.Linear(32, 1))
        self.refuses = refuses
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        if self.refuses and torch.compiler.is_compiling():
            torch._dynamo.graph_break()
            raise RuntimeError("not to be compiled")
        return self.layers(x)


def rows(num_rows: int = 250) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((num_rows, 6)).astype(np.float32)
    return {"x": x, "y": x.sum(1)}


def run(
    directory: Path, module: nn.Module, **params: Any
) -> tuple[dict[str, Tensor], list[str], list[float]]:
    """The weights, the warnings of a rank, and the epochs' losses."""
    directory.mkdir()
    shards = write_shards(directory / "data", rows(), num_shards=1, rows_per_group=50)
    given = {"batchSize": 100, "epochs": 3, "numThreads": 1, "seed": 5, "checkpointInterval": -1, **params}
    job = make_job(directory, shards, [tensor("x")], [tensor("y")], validation=shards, **given)
    program = {"model": module, "loss": "mse", "optimizer": {"name": "sgd", "options": {"lr": 0.05}}}
    (outcome,) = run_ranks(job, program, 1, directory / "ranks")
    assert outcome.ok, outcome.traceback
    result = json.loads(outcome.result_json or "")
    losses = [epoch["loss"] for epoch in result["history"]["epochs"]]
    return load_file(result["weights"]["uri"].removeprefix("file://")), result["warnings"], losses


def test_it_trains_what_is_trained_without(tmp_path: Path) -> None:
    """Two sizes of batches: 100 and, at the end of an epoch, 50."""
    module = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1))
    weights, warnings, losses = run(tmp_path / "compiled", module, compile=True)
    expected, _, plain_losses = run(tmp_path / "plain", module)
    assert warnings == []
    assert weights.keys() == expected.keys()
    # The compiler fuses what rounds apart.
    assert losses == pytest.approx(plain_losses, rel=1e-5)
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_compiled_is_trained_as_it_is_to_the_bit(tmp_path: Path) -> None:
    weights, warnings, losses = run(tmp_path / "compiled", Net(refuses=True), compile=True)
    expected, none, plain_losses = run(tmp_path / "plain", Net(refuses=True))
    (warning,) = warnings
    assert warning.startswith("compile: torch.compile failed, and the module was trained as it is: ")
    assert none == [] and losses == plain_losses
    for name, weight in expected.items():
        assert weights[name].equal(weight), name


def test_the_warning_says_that_there_is_no_compiler() -> None:
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache

    module, twin = Net(), Net()
    compiled = CompiledModule(module)
    x = torch.randn(10, 6)
    with fresh_cache(), config.patch({"cpp.cxx": (None, "/no/such/compiler")}):
        torch.manual_seed(1)
        output = compiled(x)
    torch.manual_seed(1)
    assert output.equal(twin(x))
    assert compiled.warning is not None
    assert "No working C++ compiler found" in compiled.warning and "TORCH" not in compiled.warning


def test_a_trial_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    module, twin = Net(), Net()
    x = torch.randn(10, 6)
    ready: list[int] = []
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: ready.append(1))
    compiled = CompiledModule(module)
    monkeypatch.setattr(torch, "compile", lambda module: module)
    torch.manual_seed(1)
    output = compiled(x)
    assert module.num_calls == 2 and ready == []
    after = generators.state()
    torch.manual_seed(1)
    assert output.equal(twin(x)) and torch.equal(after["torch"], torch.get_rng_state())
    for (name, buffer), other in zip(module.named_buffers(), twin.buffers(), strict=True):
        assert buffer.equal(other), name
    assert all(parameter.grad is None for parameter in module.parameters())
    compiled(x)
    assert module.num_calls == 3, "a size is tried once"


def test_a_fit_warns_and_keeps_the_module(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    """In float16, whose scale the history tells."""
    columns = rows(60)
    df = spark.createDataFrame(
        [(x.tolist(), float(y)) for x, y in zip(columns["x"], columns["y"], strict=True)],
        "features array<float>, label double",
    )

    def fit(module: nn.Module) -> nn.Module:
        params: dict[str, Any] = {"compile": True, "precision": "fp16", "batchSize": 30, "verbose": 0}
        model = TorchRegressor(model=module, **params).fit(df)
        (scale,), (skipped,) = model.history["loss_scale"], model.history["skipped_steps"]
        assert scale == 2.0 ** (16 - skipped)
        return model.module()

    with caplog.at_level(logging.WARNING, logger="flambeau"):
        assert list(fit(nn.Linear(6, 1)).state_dict()) == ["weight", "bias"]
        assert not [record for record in caplog.records if "compile" in record.message]
        assert isinstance(fit(Net(refuses=True)), Net)
    (record,) = [record for record in caplog.records if "compile" in record.message]
    assert "trained as it is" in record.message


def test_the_native_runtime_refuses_it(spark: SparkSession) -> None:
    df = spark.createDataFrame([([1.0], 1.0)], "features array<float>, label double")
    estimator = TorchRegressor(model=nn.Linear(1, 1), compile=True, runtime="native")
    with pytest.raises(ParamError, match="compile is True, but runtime='native' trains programs"):
        estimator.fit(df)
