"""What tells one job from another: each change of an object is a change of its digest, and an object that is
made again, here or in another process, has the same.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flambeau._fit.run import job_of

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
    "a factory's default": (lambda: functools.partial(adam, lr=1.0), lambda: functools.partial(adam, lr=2.0)),
}
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "requires_grad": (lambda: Net(1.0), lambda: Net(1.0, trains=False)),
    "an attribute": (lambda: Net(1.0), lambda: Net(2.0)),
    "an activation": (lambda: Net(1.0), lambda: Net(1.0, activation=torch.tanh)),
    "dropout": (lambda: nn.Dropout(0.1), lambda: nn.Dropout(0.2)),
    "a size": (lambda: nn.Linear(2, 1), lambda: nn.Linear(2, 2)),
}


def of_loss(value: Any) -> Any:
    return job_of({}, "python", {"loss": value})["loss"]


def of_model(value: Any) -> Any:
    return job_of({}, "python", {"model": value})["model"]


def digests() -> dict[str, str]:
    """Those of all that is compared here, by name."""
    made = {f"{name} {i}": of_loss(both[i]()) for name, both in CHANGES.items() for i in (0, 1)}
    made |= {f"model {name} {i}": of_model(both[i]()) for name, both in MODELS.items() for i in (0, 1)}
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


def test_what_a_function_uses_of_its_module_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_loss(scaled)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    with_constant = of_loss(scaled)
    monkeypatch.setitem(globals(), "helped", squared)
    assert len({before, with_constant, of_loss(scaled)}) == 3


PROGRAM = """
import json, pickle
import cloudpickle, test_told
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
more = {"own": test_told.of_model(own["model"]), "own loss": test_told.of_loss(own["loss"])}
print(json.dumps(test_told.digests() | more))
"""


def test_two_processes_tell_the_same() -> None:
    """What a notebook defines, which is pickled by value, among it."""
    here = os.path.dirname(__file__)
    told = []
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join([here, os.path.dirname(here)]),
        }
        told.append(
            subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE)
        )
    first, second = (one.communicate(timeout=120)[0] for one in told)
    assert first and first == second
