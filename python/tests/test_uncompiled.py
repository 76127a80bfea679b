"""Named optimizers without torch's compiler: torch's own bits, and nothing changed for who compiles."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from flambeau._module import optimizers
from flambeau._module.uncompiled import COMPILER, step_of, uncompiled

# Each runs in a process of its own: this one has loaded the compiler.
_TRAINS = """
import io, sys, torch
from torch import nn
from flambeau._module import optimizers
from flambeau._module.adapter import ModuleModel
from flambeau._module.layout import Layout
from flambeau._tensors import TensorColumns

layout = Layout([TensorColumns("x", ("x",), "float32", None)])

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

def train(module, step):
    torch.manual_seed(1)
    for _ in range(5):
        module.zero_grad()
        (module(torch.randn(3, 4)) ** 2).mean().backward()
        step()

ours = []
for name in optimizers.NAMES:
    model = ModuleModel({"model": net(), "loss": "mse", "optimizer": name}, layout)
    train(model.module, model._step)
    state = io.BytesIO()
    model.save_state(state)
    model.load_state(state.getvalue())
    train(model.module, model._step)
    ours.append(model)
assert "torch._dynamo" not in sys.modules, "the compiler was loaded"

for name, model in zip(optimizers.NAMES, ours, strict=True):
    module = net()
    options = {"fused": True} if model.optimizer.defaults.get("fused") else {}
    optimizer = type(model.optimizer)(module.parameters(), **options)
    train(module, optimizer.step)
    optimizer.load_state_dict(optimizer.state_dict())
    train(module, optimizer.step)
    for one, other in zip(module.parameters(), model.module.parameters(), strict=True):
        assert torch.equal(one, other), name
assert "torch._dynamo" in sys.modules
"""

_COMPILES = """
import torch
from torch import nn
from flambeau._module.uncompiled import uncompiled

module = nn.Linear(4, 1)
with uncompiled():
    optimizer = torch.optim.Adam(module.parameters())
compiled = torch.compile(module, backend="eager")
traced = torch.compile(lambda: optimizer.zero_grad(), backend="eager")
x = torch.randn(3, 4)
compiled(x).sum().backward()
optimizer.step()
traced()
assert all(parameter.grad is None for parameter in module.parameters())
assert torch.equal(compiled(x), module(x))
import torch._dynamo
known = torch.optim.Optimizer.add_param_group.__wrapped__.__dict__.get("__dynamo_disable")
assert known is None, known
torch.optim.SGD(module.parameters(), lr=0.1)
known = torch.optim.Optimizer.add_param_group.__wrapped__.__dynamo_disable
assert known is not torch.optim.Optimizer.add_param_group.__wrapped__
"""


@pytest.mark.parametrize("program", [_TRAINS, _COMPILES], ids=["bits", "compile"])
def test_in_a_fresh_process(program: str) -> None:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_where_the_compiler_is_loaded_torchs_own_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    monkeypatch.setitem(sys.modules, COMPILER, sys.modules[__name__])
    assert step_of(optimizer) == optimizer.step
    with uncompiled():
        method: Any = torch.optim.Optimizer.add_param_group
        assert vars(method.__wrapped__).get("__dynamo_disable") is not method.__wrapped__


def test_global_hooks_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    monkeypatch.delitem(sys.modules, COMPILER, raising=False)
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    assert step_of(optimizer) != optimizer.step
    handle = register_optimizer_step_pre_hook(lambda *_: None)
    try:
        assert step_of(optimizer) == optimizer.step
    finally:
        handle.remove()


def test_an_optimizer_of_the_users_steps_as_it_is() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    for given in (optimizer, torch.optim.SGD, lambda parameters: optimizer):
        assert optimizers.step(given, optimizer) == optimizer.step
