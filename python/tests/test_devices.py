"""Training on a device: what is found in main memory before a batch goes there, and the whole way of a batch.

Where there is no GPU, the CPU is the device: torch has streams and events for it that do nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from harness import layout
from torch import Tensor, nn
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]  # torch's own types leave it out

from flambeau._module import devices
from flambeau._module.adapter import ModuleModel
from flambeau._module.device_gradients import DeviceGradients
from flambeau._module.losses import HostFacts
from flambeau._module.losses import build as build_loss
from flambeau.errors import DataError

DEVICES = [
    torch.device("cpu"),
    pytest.param(
        torch.device("cuda", 0),
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
        ],
    ),
]


class OneRank:
    """The reducer of a training on one rank: nothing to add up."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._starts = [sum(sizes[:index]) for index in range(len(sizes))]
        self.ready: list[int] = []

    def view(self, index: int) -> tuple[int, int]:
        return 0, self._starts[index]

    def mark_all_ready(self, indices: list[int]) -> None:
        self.ready += indices


def occupied(module: nn.Module, loss: object, device: torch.device, metrics: object = None) -> ModuleModel:
    """An adapter on a device, attached to a reducer of one rank."""
    program = {"model": module, "loss": loss, "optimizer": torch.optim.Adam, "metrics": metrics}
    adapter = ModuleModel(program, layout())
    adapter.occupy(device)
    sizes = [numel for _, numel, _, _ in adapter.parameters()]
    adapter.allocate_gradients([("float32", sum(sizes))], None)
    adapter.attach(OneRank(sizes))  # type: ignore[arg-type]
    return adapter


def on_device(adapter: ModuleModel) -> DeviceGradients:
    """The adapter's gradients."""
    assert adapter._device_gradients is not None
    return adapter._device_gradients


def network(outputs: int) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, outputs))


CLASS_WEIGHTS = torch.tensor([0.5, 2.0, 1.0])
CASES = {
    "mse": ("mse", 1, torch.linspace(-1, 1, 6)),
    "classes": ("cross_entropy", 3, torch.tensor([0.0, 2.0, 1.0, 1.0, 0.0, 2.0])),
    "ignored": (nn.CrossEntropyLoss(ignore_index=-100), 3, torch.tensor([0, -100, 1, 1, -100, 2])),
    "class weights": (nn.CrossEntropyLoss(weight=CLASS_WEIGHTS), 3, torch.tensor([0, 2, 1, 1, 0, 2])),
    "probabilities": ("cross_entropy", 3, torch.eye(3).repeat(2, 1)),
    "callable": (lambda output, label: (output - label).abs().flatten(1).mean(1), 1, torch.linspace(0, 1, 6)),
}


def gradients(module: nn.Module) -> list[Tensor]:
    """Those of its parameters, each of which has one."""
    found = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    assert len(found) == len(list(module.parameters()))
    return found


def batches(label: Tensor, weight: Tensor | None) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    torch.manual_seed(5)
    return [(torch.randn(6, 4), label, weight) for _ in range(4)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_batch_on_a_device_is_trained_as_a_plain_loop_does(
    name: str, weighted: bool, device: torch.device
) -> None:
    # A loss that is a module goes to the device with its adapter.
    loss, outputs, label = copy.deepcopy(CASES[name])
    weight = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 3.0], dtype=torch.float64) if weighted else None
    metrics = ["mae"] if outputs == 1 else ["accuracy"]
    adapter = occupied(network(outputs), loss, device, metrics)
    reference = network(outputs)
    optimizer = torch.optim.Adam(reference.parameters())
    plain, plain_metric = build_loss(CASES[name][0]), adapter.metrics[0]
    ahead: list[devices.TensorBatch] = []
    todo = batches(label, weight)
    for step, (x, y, w) in enumerate(todo):
        while len(ahead) < 2 and step + len(ahead) < len(todo):
            nx, ny, nw = todo[step + len(ahead)]
            ahead.append(
                adapter.stage([to_dlpack(nx)], [to_dlpack(ny)], None if nw is None else to_dlpack(nw), 6)
            )
        mean, denominator, *sums = adapter.train_staged(ahead.pop(0), 5.0, 1.0)
        output = reference(x)
        value, expected_denominator = plain(output, [y], w, 6)
        (value * (expected_denominator / 5.0)).backward()
        with torch.no_grad():
            expected = plain_metric.update(output, [y], w, 6).tolist()
        assert denominator == pytest.approx(expected_denominator, rel=1e-12)
        assert mean == pytest.approx(value.item() * expected_denominator, rel=1e-5)
        assert sums == pytest.approx(expected, rel=1e-5)
        adapter.optimizer_step(None, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    for own, other in zip(adapter.module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own.cpu(), other, rtol=1e-4, atol=1e-5)
    x, y, w = todo[0]
    staged = adapter.stage([to_dlpack(x)], [to_dlpack(y)], None if w is None else to_dlpack(w), 6)
    evaluated = adapter.evaluate_staged(staged)
    reference.eval()
    value, expected_denominator = plain(reference(x), [y], w, 6)
    assert evaluated[0] == pytest.approx(value.item() * expected_denominator, rel=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_what_the_ranks_make_of_gradients_is_what_the_optimizer_steps_on(device: torch.device) -> None:
    adapter = occupied(network(1), "mse", device)
    reference = network(1).to(device)
    optimizer = torch.optim.Adam(reference.parameters())
    for _ in range(3):
        for _ in range(2):  # micro-batches
            x, y = torch.randn(6, 4), torch.randn(6)
            adapter.train_staged(adapter.stage([to_dlpack(x)], [to_dlpack(y)], None, 6), 12.0, 1.0)
            (nn.functional.mse_loss(reference(x.to(device)).squeeze(1), y.to(device)) / 2).backward()
        bucket = on_device(adapter).buckets[0]
        expected = torch.cat([gradient.reshape(-1) for gradient in gradients(reference)])
        torch.testing.assert_close(bucket, expected)
        bucket.mul_(0.5)
        for gradient in gradients(reference):
            gradient.mul_(0.5)
        adapter.optimizer_step(None, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in adapter.module.parameters())
    for own, other in zip(adapter.module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    staged = adapter.stage([to_dlpack(x)], [to_dlpack(y)], None, 6)
    adapter.train_staged(staged, 6.0, 1.0)
    before = [parameter.clone() for parameter in adapter.module.parameters()]
    used = [False] * len(before)
    used[0] = True
    adapter.optimizer_step(used, 1.0)
    changed = [not torch.equal(a, b) for a, b in zip(before, adapter.module.parameters(), strict=True)]
    assert changed == used


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_on_a_device_are_scaled_and_clipped_as_torch_does(device: torch.device) -> None:
    adapter = occupied(network(1), "mse", device)
    x, y = torch.randn(6, 4), torch.randn(6)
    adapter.train_staged(adapter.stage([to_dlpack(x)], [to_dlpack(y)], None, 6), 6.0, 1.0)
    reference = [gradient.clone() for gradient in gradients(adapter.module)]
    on_device(adapter).scale(4.0)
    assert on_device(adapter).are_finite()
    for own, other in zip(gradients(adapter.module), reference, strict=True):
        torch.testing.assert_close(own, other * 4.0)
    on_device(adapter).scale(0.25)
    holders = [nn.Parameter(torch.zeros_like(gradient)) for gradient in reference]
    for holder, gradient in zip(holders, reference, strict=True):
        holder.grad = gradient.clone()
    norm = nn.utils.clip_grad_norm_(holders, 0.1)
    assert norm > 0.1
    on_device(adapter).clip(0.1)
    for own, holder in zip(gradients(adapter.module), holders, strict=True):
        torch.testing.assert_close(own, holder.grad)
    gradients(adapter.module)[0].view(-1)[0] = torch.inf
    assert not on_device(adapter).are_finite()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_become_16_bit_floats_and_come_back(device: torch.device, dtype: torch.dtype) -> None:
    values = torch.randn(40, generator=torch.Generator().manual_seed(1)) * 100
    values[3], values[4] = 1e6, torch.nan
    halves = str(dtype).removeprefix("torch.")
    made = DeviceGradients([("float64", 3), ("float32", 40)], halves, device, None)
    assert made.addresses()[0][1] == 0 != made.addresses()[1][1]
    made.buckets[1].copy_(values)
    made.narrow(1)
    made.buckets[1].zero_()
    made.widen(1)
    torch.testing.assert_close(
        made.buckets[1].cpu(), values.to(dtype).float(), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_are_copies_in_main_memory_that_are_taken_over(device: torch.device) -> None:
    adapter = occupied(network(1), "mse", device)
    named = {name: rest for name, *rest in adapter.tensors()}
    assert "0.weight" in named and "2.running_mean" in named
    for tensor, on_host in adapter._host_copies:
        assert on_host.device.type == "cpu" and tensor.device == device
        with torch.no_grad():
            on_host.fill_(0.5)
    adapter.take_tensors()
    state = adapter.module.state_dict()
    assert all(bool((value.float() == 0.5).all()) for name, value in state.items() if "tracked" not in name)
    assert {name for name, *_ in adapter.tensors(only_buffers=True)} == {
        "2.running_mean",
        "2.running_var",
        "2.num_batches_tracked",
    }


@pytest.mark.parametrize("device", DEVICES)
def test_state_crosses_between_a_device_and_the_cpu(device: torch.device, tmp_path) -> None:
    adapter = occupied(network(1), "mse", device)
    x, y = torch.randn(6, 4), torch.randn(6)
    adapter.train_staged(adapter.stage([to_dlpack(x)], [to_dlpack(y)], None, 6), 6.0, 1.0)
    adapter.optimizer_step(None, 1.0)
    with open(tmp_path / "state", "wb") as file:
        adapter.save_state(file)
    program = {"model": network(1), "loss": "mse", "optimizer": torch.optim.Adam}
    plain = ModuleModel(program, layout())
    plain.load_state((tmp_path / "state").read_bytes())
    for own, other in zip(plain.module.parameters(), adapter.module.parameters(), strict=True):
        assert own.device.type == "cpu"
        torch.testing.assert_close(own, other.cpu(), rtol=0, atol=0)
    moment = next(iter(plain.optimizer.state.values()))["exp_avg"]
    # An optimizer that has a state goes with its parameters.
    plain.occupy(device)
    assert next(iter(plain.optimizer.state.values()))["exp_avg"].device == device
    torch.testing.assert_close(next(iter(plain.optimizer.state.values()))["exp_avg"].cpu(), moment.cpu())


def test_a_class_label_out_of_range_is_refused_before_a_device_would_assert() -> None:
    loss = build_loss("cross_entropy")
    labels, facts = loss.on_host([torch.tensor([0.0, 3.0, 1.0])], None)
    assert labels[0].dtype == torch.int64 and facts == HostFacts(3.0, (0, 3))
    with pytest.raises(DataError, match="the class label 3 lies outside the 3 classes"):
        loss(torch.zeros(3, 3), labels, None, 3, facts)
    weighted = build_loss(nn.CrossEntropyLoss(weight=CLASS_WEIGHTS))
    labels, facts = weighted.on_host([torch.tensor([0, -1, 1])], None)
    with pytest.raises(DataError, match="the class label -1 lies outside the 3 classes"):
        weighted(torch.zeros(3, 3), labels, None, 3, facts)
    with pytest.raises(DataError, match=r"whole numbers, but one is 0\.5"):
        loss.on_host([torch.tensor([0.5])], None)


def test_torch_says_why_it_has_no_gpu() -> None:
    obstacle = devices.cuda_obstacle()
    if torch.cuda.is_available():
        assert obstacle is None
    else:
        assert obstacle is not None and f"torch {torch.__version__}" in obstacle
