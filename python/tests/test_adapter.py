"""What the adapter accepts and refuses, without a training."""

from __future__ import annotations

import pickle
import random
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from harness import layout
from torch import nn

from flambeau._module import optimizers
from flambeau._module.adapter import ModuleModel
from flambeau.errors import DataError, FlambeauError, ParamError, WorkerError, WorkerLost


def adapter(module: nn.Module, optimizer="sgd", loss="mse", inputs=(), **rest) -> ModuleModel:
    return ModuleModel({"model": module, "loss": loss, "optimizer": optimizer}, layout(*inputs), **rest)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 1)

    def forward(self, first, second):
        return self.line(first + second)


def test_parameters_are_trainable_ones_once() -> None:
    module = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "frozen": nn.Linear(2, 2)})
    module["b"].weight = module["a"].weight
    module["frozen"].requires_grad_(False)
    module.forward = lambda x: x
    listed = adapter(module).parameters()
    assert listed == [("a.weight", 9, 3, "float32"), ("a.bias", 3, 3, "float32"), ("b.bias", 3, 3, "float32")]


def test_tensors_are_parameters_and_buffers_where_they_lie() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    module.register_buffer("mask", torch.tensor([True, False]), persistent=False)
    tensors = {name: rest for name, *rest in adapter(module).tensors()}
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert list(tensors) == list(state)
    for name, value in state.items():
        assert tensors[name][0] == value.data_ptr() and tensors[name][1] == value.numel()
    assert tensors["1.num_batches_tracked"][2:] == ["int64", 8]
    assert tensors["mask"][2:] == [None, 2]
    assert tensors["0.weight"][2:] == ["float32", 24]
    buffers = [name for name, *_ in adapter(module).tensors(only_buffers=True)]
    assert buffers == [name for name, _ in module.named_buffers()]


def test_forward_must_take_the_inputs() -> None:
    adapter(Pair(), inputs=[("a", ["a"]), ("b", ["b"])])
    with pytest.raises(DataError, match=r"forward\(first, second\).* 1 input tensors x \(from x\)"):
        adapter(Pair())
    with pytest.raises(DataError, match=r"3 input tensors a \(from a, b\)"):
        adapter(Pair(), inputs=[("a", ["a", "b"]), ("b", ["b"]), ("c", ["c"])])


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 2, sparse=True)

    def forward(self, x):
        return self.table(x)


def complex_parameter() -> nn.Module:
    module = nn.Linear(1, 1)
    module.weight = nn.Parameter(torch.zeros(1, 1, dtype=torch.complex64))
    return module


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: Sparse(), "table makes sparse gradients.*sparse=False"),
        (lambda: nn.LazyLinear(2), "weight is not initialised yet; call the module once"),
        (complex_parameter, "weight is complex"),
        (lambda: nn.Linear(1, 1).requires_grad_(False), "no parameter is trainable"),
        (lambda: nn.DataParallel(nn.Linear(1, 1)), r"pass model\.module"),
        (lambda: nn.Sequential(nn.Linear(1, 1), nn.SyncBatchNorm(1)), "1 is a SyncBatchNorm"),
        (lambda: 3, "expected a torch.nn.Module, got int"),
    ],
)
def test_refused_modules(module, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        adapter(module())


@pytest.mark.parametrize("name", optimizers.NAMES)
def test_named_optimizers_are_torchs(name: str) -> None:
    module = nn.Linear(2, 2)
    optimizer = optimizers.build(name, module, 0.125)
    assert type(optimizer).__name__.lower() == name
    assert all(group["lr"] == 0.125 for group in optimizer.param_groups)
    # Older releases have no kernel of Adagrad's for CUDA.
    fused = ("adam", "adamw", "sgd", *(("adagrad",) if torch.__version__ >= "2.13" else ()))
    if name in fused:
        assert optimizer.defaults["fused"]


def test_an_optimizer_without_a_fused_kernel_for_gpus_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Adagrad in older releases of torch, which refuse it in the first step on a GPU."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    monkeypatch.setattr(
        torch._C,
        "_dispatch_has_kernel_for_dispatch_key",
        lambda name, key: key != "CUDA" or (name != "aten::_fused_adagrad_" and has_kernel(name, "CPU")),
    )
    assert not optimizers.build("adagrad", nn.Linear(1, 1), None).defaults["fused"]
    assert optimizers.build("adam", nn.Linear(1, 1), None).defaults["fused"]


def test_named_optimizers_take_torchs_options() -> None:
    module = nn.Linear(2, 2)
    given = {"name": "sgd", "options": {"lr": 0.5, "momentum": 0.9, "nesterov": True, "fused": False}}
    optimizer = optimizers.build(given, module, None)
    wanted = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9, nesterov=True, fused=False)
    assert type(optimizer) is torch.optim.SGD and optimizer.defaults == wanted.defaults
    assert optimizers.build({"name": "adam"}, module, None).defaults["fused"]


def test_an_instance_keeps_its_parameters_through_a_pickle() -> None:
    module = nn.Linear(2, 2)
    groups: list[dict[str, Any]] = [{"params": [module.weight]}, {"params": [module.bias], "lr": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    program = pickle.loads(
        cloudpickle.dumps({"model": module, "loss": "mse", "optimizer": optimizer, "metrics": None})
    )
    built = ModuleModel(program, layout())
    assert built.optimizer.param_groups[0]["params"][0] is built.module.weight
    assert built.optimizer.param_groups[1]["lr"] == 0.5
    with pytest.raises(ParamError, match="not the model's"):
        optimizers.build(optimizer, nn.Linear(2, 2), None)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("sgdd", "unknown name 'sgdd'; the names are"),
        ({"name": "sgdd", "options": {}}, "unknown name 'sgdd'; the names are"),
        ({"name": "sgd", "options": {"beta": 1}}, "sgd does not take the options .*beta"),
        ({"name": "sgd", "options": {"lr": -1.0}}, "sgd does not take the options .*Invalid learning rate"),
        (torch.optim.LBFGS, "LBFGS evaluates the loss several times"),
        (lambda p: torch.optim.SparseAdam(p), "SparseAdam needs sparse gradients"),
        ([torch.optim.SGD, torch.optim.SGD], "several optimizers"),
        (lambda p: (torch.optim.SGD(p), torch.optim.SGD(p)), "returned several"),
        (lambda p: None, "returned NoneType"),
        (3, "got int"),
    ],
)
def test_refused_optimizers(optimizer, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        optimizers.build(optimizer, nn.Linear(2, 2), None)


def draws() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


def test_generators() -> None:
    model = adapter(nn.Linear(1, 1))
    model.seed(7, 3, 1)
    first = draws()
    state = model.save_rank_state()
    second = draws()
    model.load_rank_state(state)
    assert draws() == second
    for seed in [(8, 3, 1), (7, 4, 1), (7, 3, 0)]:
        model.seed(*seed)
        assert all(one != other for one, other in zip(draws(), first, strict=True))
    model.seed(7, 3, 1)
    assert draws() == first


def test_errors_survive_a_pickle() -> None:
    error = WorkerLost("lost rank 3", rank=3, host="h", epoch=1, step=2, traceback="tb")
    back = pickle.loads(pickle.dumps(error))
    assert isinstance(back, WorkerError) and isinstance(back, FlambeauError)
    assert (str(back), back.rank, back.host, back.epoch, back.step) == (str(error), 3, "h", 1, 2)
    assert "lost rank 3" in str(back) and "tb" in str(back)
