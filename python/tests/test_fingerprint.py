"""What tells one job from another: each change of an object is a change of its digest, and an object that is
made again, here or in another process, has the same.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import prune

from flambeau._spark.fit import fingerprint
from flambeau._spark.fit.run import job_of

SCALE = 1.0


def closing(over: Any) -> Callable[..., Any]:
    return lambda output, label: over * (output - label)


def with_keyword(default: float) -> Callable[..., Any]:
    def loss(output: Tensor, label: Tensor, *, delta: float = default) -> Tensor:
        return delta * (output - label)

    return loss


def power(output: Tensor, label: Tensor, exponent: float) -> Tensor:
    return (output - label) ** exponent


def scaled(output: Tensor, label: Tensor) -> Tensor:
    return SCALE * helped(output - label)


def helped(difference: Tensor) -> Tensor:
    return difference.abs()


def squared(difference: Tensor) -> Tensor:
    return difference**2


class Weighted:
    """A loss with state, of which a part is a set and another refers to the loss itself."""

    def __init__(self, weight: float) -> None:
        self.weights = np.array([weight, 1.0])
        self.names = {"mean", "sum", "max", "min", "median"}
        self.own = self.__call__

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        return self.weights[0] * (output - label)


class Net(nn.Module):
    """A module with an attribute that is no tensor, and a list in the place of code."""

    def __init__(self, slope: float, trains: bool = True, activation: Any = torch.relu) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.slope = slope
        self.activation = activation
        self.linear.bias.requires_grad_(trains)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.linear(x)) * self.slope


def adam(parameters: Any, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr)


def wrapped(part: Any) -> Any:
    """An object of a class of which that is a member."""
    return type("Own", (), {"__module__": __name__, "part": part})()


class Scripted(nn.Module):
    def __init__(self, alpha: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.alpha


def scripted(alpha: int) -> Any:
    torch.manual_seed(1)
    return torch.jit.script(Scripted(alpha))


def hooked(hook: Any) -> nn.Module:
    module = nn.Linear(2, 1)
    module.register_forward_hook(hook)
    return module


def doubled(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output * 2


def halved(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output / 2


class Raises:
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotImplementedError


class Normed(nn.Module):
    """Holds tensors beside its parameters and buffers, as weight_norm and prune have them."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.linear = nn.utils.weight_norm(nn.Linear(2, 1))
        prune.l1_unstructured(self.linear, "bias", amount=0)
        self.kept = [shared()]
        self.kept.append(self.kept)


def with_constant(value: float) -> nn.Module:
    """A module with a tensor that no checkpoint holds."""
    module = nn.Linear(2, 1)
    module.kept = torch.tensor(value)
    return module


def shared() -> list[Any]:
    """What would take 2**60 steps without a memo."""
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    return value


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "a closure": (lambda: closing(1.0), lambda: closing(2.0)),
    "a tensor in a closure": (lambda: closing(torch.ones(3)), lambda: closing(torch.zeros(3))),
    "a function in a closure": (lambda: closing(helped), lambda: closing(squared)),
    "a keyword's default": (lambda: with_keyword(1.0), lambda: with_keyword(2.0)),
    "a partial's argument": (
        lambda: functools.partial(power, exponent=2),
        lambda: functools.partial(power, exponent=3),
    ),
    "a callable's state": (lambda: Weighted(1.0), lambda: Weighted(2.0)),
    "a bound method's object": (lambda: Weighted(1.0).__call__, lambda: Weighted(2.0).__call__),
    "a loss's weights": (
        lambda: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])),
        lambda: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])),
    ),
    "a loss's option": (lambda: nn.HuberLoss(delta=1.0), lambda: nn.HuberLoss(delta=2.0)),
    "a name's option": (
        lambda: {"name": "huber", "options": {"delta": 1.0}},
        lambda: {"name": "huber", "options": {"delta": 2.0}},
    ),
    "torch's function": (lambda: nn.functional.mse_loss, lambda: nn.functional.l1_loss),
    "a scripted loss": (
        lambda: torch.jit.script(nn.HuberLoss(delta=1.0)),
        lambda: torch.jit.script(nn.MSELoss()),
    ),
    "a scripted loss's attribute": (lambda: scripted(1), lambda: scripted(2)),
    "a pattern": (lambda: closing(re.compile("a")), lambda: closing(re.compile("b"))),
    "a cached member": (
        lambda: wrapped(functools.lru_cache(helped)),
        lambda: wrapped(functools.lru_cache(squared)),
    ),
    "a cached property": (
        lambda: wrapped(functools.cached_property(helped)),
        lambda: wrapped(functools.cached_property(squared)),
    ),
    "a method by type": (
        lambda: wrapped(functools.singledispatchmethod(helped)),
        lambda: wrapped(functools.singledispatchmethod(squared)),
    ),
    "a partial method": (
        lambda: wrapped(functools.partialmethod(power, exponent=2)),
        lambda: wrapped(functools.partialmethod(power, exponent=3)),
    ),
    "a static method": (lambda: wrapped(staticmethod(helped)), lambda: wrapped(staticmethod(squared))),
    "a number of many digits": (lambda: closing(1 << 20000), lambda: closing(1 << 20001)),
    "objects in a set": (
        lambda: closing({functools.partial(power, exponent=i) for i in (2, 3)}),
        lambda: closing({functools.partial(power, exponent=i) for i in (2, 4)}),
    ),
    "a factory's default": (lambda: functools.partial(adam, lr=1.0), lambda: functools.partial(adam, lr=2.0)),
}
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "requires_grad": (lambda: Net(1.0), lambda: Net(1.0, trains=False)),
    "an attribute": (lambda: Net(1.0), lambda: Net(2.0)),
    "an activation": (lambda: Net(1.0), lambda: Net(1.0, activation=torch.tanh)),
    "dropout": (lambda: nn.Dropout(0.1), lambda: nn.Dropout(0.2)),
    "a scripted attribute": (
        lambda: torch.jit.script(Scripted(1)),
        lambda: torch.jit.script(Scripted(2)),
    ),
    "a part of a graph": (
        lambda: fx.symbolic_trace(nn.Sequential(nn.Dropout(0.1))),
        lambda: fx.symbolic_trace(nn.Sequential(nn.Dropout(0.2))),
    ),
    "a hook": (lambda: hooked(doubled), lambda: hooked(halved)),
    "a constant": (lambda: with_constant(1.0), lambda: with_constant(2.0)),
    "a size": (lambda: nn.Linear(2, 1), lambda: nn.Linear(2, 2)),
}


# What is the same in each process, although it refers to much that is not.
ALIKE: dict[str, Callable[[], Any]] = {
    "tensors beside parameters": Normed,
    "a logger": lambda: closing(logging.getLogger("own")),
    "others' code": lambda: closing([np.linalg.norm, logging.getLogger, json.JSONEncoder, subprocess.Popen]),
    "a lock": lambda: closing(threading.Lock()),
    "what raises": lambda: closing([Raises(), torch.ones(2, device="meta")]),
    "a set of objects": lambda: closing({Weighted(i) for i in range(20)}),
    "what is shared": lambda: closing(shared()),
}


def of_loss(value: Any) -> Any:
    return job_of({}, "python", {"loss": value})["loss"]


def of_model(value: Any) -> Any:
    module = value if isinstance(value, nn.Module) else Net(1.0, activation=value)
    return job_of({}, "python", {"model": module})["model"]


def digests() -> dict[str, str]:
    """Those of all that is compared here, by name."""
    made = {f"{name} {i}": of_loss(both[i]()) for name, both in CHANGES.items() for i in (0, 1)}
    made |= {f"model {name} {i}": of_model(both[i]()) for name, both in MODELS.items() for i in (0, 1)}
    made |= {f"{name} is alike": of_model(make()) for name, make in ALIKE.items()}
    return made | {"globals": of_loss(scaled)}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_loss_is_told(name: str) -> None:
    one, other = CHANGES[name]
    assert of_loss(one()) == of_loss(one())
    assert of_loss(one()) != of_loss(other())


@pytest.mark.parametrize("name", MODELS)
def test_a_change_of_a_model_is_told(name: str) -> None:
    """Its weights, which are drawn anew for each, do not count."""
    one, other = MODELS[name]
    assert of_model(one()) == of_model(one())
    assert of_model(one()) != of_model(other())


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_made_anew_is_alike(name: str) -> None:
    assert of_model(ALIKE[name]()) == of_model(ALIKE[name]())


def test_many_objects_are_told_by_their_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_MAX_OBJECTS", 50)
    many = [Weighted(i) for i in range(50)]
    assert of_loss(closing(many)) == of_loss(closing([*many[:-1], Weighted(0)]))
    assert of_loss(closing(many)) != of_loss(closing([Weighted(-1), *many[1:]]))


def test_what_a_function_uses_of_its_module_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_loss(scaled)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    with_constant = of_loss(scaled)
    monkeypatch.setitem(globals(), "helped", squared)
    assert len({before, with_constant, of_loss(scaled)}) == 3


PROGRAM = """
import json, pickle
import cloudpickle, test_fingerprint
from torch import nn

NAMES = {"one", "two", "three", "four"}

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x):
        return helper(self.linear(x))

def helper(x):
    return x if len(NAMES) > 3 else -x

own = pickle.loads(cloudpickle.dumps({"model": Own(), "loss": lambda output, label: helper(output - label)}))
more = {"own": test_fingerprint.of_model(own["model"]), "own loss": test_fingerprint.of_loss(own["loss"])}
print(json.dumps(test_fingerprint.digests() | more))
"""


def test_two_processes_tell_the_same() -> None:
    """What a notebook defines, which is pickled by value, among it."""
    here = os.path.dirname(__file__)
    processes = []
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join([here, os.path.dirname(here)]),
        }
        processes.append(
            subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE)
        )
    first, second = (one.communicate(timeout=120)[0] for one in processes)
    assert first and first == second
