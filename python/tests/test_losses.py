"""Losses against torch on the whole batch: values to the bit, denominators so that parts add up to the
whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flambeau._module import losses
from flambeau.errors import DataError, ParamError

ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "huber": F.huber_loss,
    "l1": F.l1_loss,
    "mse": F.mse_loss,
    "poisson_nll": F.poisson_nll_loss,
    "smooth_l1": F.smooth_l1_loss,
    "soft_margin": F.soft_margin_loss,
}


def parts_add_up(loss: losses.Loss, output, label, weight, whole: torch.Tensor, cuts=(3, 4, 11)) -> None:
    """The sums over uneven parts of the rows give the loss of all rows in one process."""
    numerator = denominator = 0.0
    for start, end in zip((0, *cuts), (*cuts, len(output)), strict=True):
        rows = slice(start, end)
        value, part = loss(output[rows], [label[rows]], None if weight is None else weight[rows], end - start)
        numerator += value.item() * part if part else 0.0
        denominator += part
    assert numerator / denominator == pytest.approx(whole.item(), rel=1e-12)


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("shape", [(17,), (17, 1), (17, 3), (17, 2, 4)])
def test_elementwise_losses_are_torchs(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    output, label = torch.randn(shape, dtype=torch.float64), torch.rand(shape, dtype=torch.float64).round()
    loss = losses.build(name)
    value, denominator = loss(output, [label], None, 17)
    assert value.equal(ELEMENTWISE[name](output, label)) and denominator == 17.0
    parts_add_up(loss, output, label, None, ELEMENTWISE[name](output, label))
    weight = torch.rand(17, dtype=torch.float64)
    unreduced = ELEMENTWISE[name](output, label, reduction="none").reshape(17, -1).mean(1)
    parts_add_up(loss, output, label, weight, (unreduced * weight).sum() / weight.sum())


@pytest.mark.parametrize("given", ["mse", nn.MSELoss(), F.mse_loss, lambda o, y: ((o - y) ** 2).mean()])
def test_a_scalar_label_takes_the_outputs_trailing_one(given) -> None:
    output, label = torch.randn(8, 1), torch.randn(8)
    value, _ = losses.build(given)(output, [label], None, 8)
    assert value.item() == pytest.approx(F.mse_loss(output[:, 0], label).item())
    value, _ = losses.build(given)(output[:, 0], [label[:, None]], None, 8)
    assert value.item() == pytest.approx(F.mse_loss(output[:, 0], label).item())


def test_other_shapes_are_refused() -> None:
    with pytest.raises(DataError, match=r"shape \[8, 3\] and the label \[8\]"):
        losses.build("mse")(torch.randn(8, 3), [torch.randn(8)], None, 8)
    with pytest.raises(DataError, match=r"must be \[rows, classes"):
        losses.build("cross_entropy")(torch.randn(8), [torch.zeros(8)], None, 8)
    with pytest.raises(DataError, match=r"label must have shape \[8\]"):
        losses.build("cross_entropy")(torch.randn(8, 3), [torch.zeros(8, 2, dtype=torch.int64)], None, 8)
    with pytest.raises(DataError, match="a tuple of 2"):
        losses.build("mse")((torch.randn(8), torch.randn(8)), [torch.randn(8)], None, 8)


@pytest.mark.parametrize("bad", [3, -1, 7])
def test_a_class_label_outside_the_logits_is_named(bad: int) -> None:
    label = torch.tensor([0, 1, bad, 2])
    with pytest.raises(DataError, match=rf"class label {bad} lies outside the 3 classes"):
        losses.build("cross_entropy")(torch.randn(4, 3), [label], None, 4)
    weighted = nn.CrossEntropyLoss(weight=torch.ones(3))
    with pytest.raises(DataError, match=rf"class label {bad} lies outside the 3 classes"):
        losses.build(weighted)(torch.randn(4, 3), [label], torch.ones(4), 4)


def test_class_labels_must_be_whole() -> None:
    loss = losses.build("cross_entropy")
    output = torch.randn(4, 3)
    label = torch.tensor([0.0, 1.0, 2.0, 1.0])
    assert loss(output, [label], None, 4)[0].equal(F.cross_entropy(output, label.long()))
    assert loss(output, [label[:, None]], None, 4)[0].equal(F.cross_entropy(output, label.long()))
    with pytest.raises(DataError, match=r"one is 1\.5"):
        loss(output, [torch.tensor([0.0, 1.5, 2.0, 1.0])], None, 4)


@pytest.mark.parametrize("per_row", [(), (5,)])
@pytest.mark.parametrize("class_weight", [None, torch.tensor([0.2, 3.0, 1.0, 0.5], dtype=torch.float64)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_adds_up_with_ignored_targets_and_class_weights(
    per_row, class_weight, smoothing
) -> None:
    torch.manual_seed(1)
    output = torch.randn(17, 4, *per_row, dtype=torch.float64)
    label = torch.randint(0, 4, (17, *per_row))
    label[3:4] = -1  # a whole part of parts_add_up
    label[9] = -1
    loss = losses.build(nn.CrossEntropyLoss(weight=class_weight, ignore_index=-1, label_smoothing=smoothing))
    options = {"weight": class_weight, "ignore_index": -1, "label_smoothing": smoothing}
    whole = F.cross_entropy(output, label, **options)
    assert loss(output, [label], None, 17)[0].equal(whole)
    parts_add_up(loss, output, label, None, whole)

    # A row's weight counts as if the row were there that many times.
    copies = torch.randint(0, 4, (17,))
    repeated = F.cross_entropy(
        output.repeat_interleave(copies, 0), label.repeat_interleave(copies, 0), **options
    )
    parts_add_up(loss, output, label, copies.to(torch.float64), repeated)


def test_class_probabilities() -> None:
    output, label = torch.randn(6, 3), torch.rand(6, 3)
    value, denominator = losses.build("cross_entropy")(output, [label], None, 6)
    assert value.equal(F.cross_entropy(output, label)) and denominator == 6.0


def test_nll() -> None:
    output, label = torch.randn(6, 3).log_softmax(1), torch.tensor([0, 1, 2, 0, 1, 2])
    value, denominator = losses.build("nll")(output, [label], None, 6)
    assert value.equal(F.nll_loss(output, label)) and denominator == 6.0


def test_callables_return_a_mean_or_a_value_per_row() -> None:
    output, label = torch.randn(6, 2), torch.randn(6, 2)
    weight = torch.rand(6)
    scalar = losses.build(lambda o, y: (o - y).abs().mean())
    per_row = losses.build(lambda o, y: (o - y).abs().mean(1))
    assert scalar(output, [label], None, 6) == ((output - label).abs().mean(), 6.0)
    value, denominator = per_row(output, [label], weight, 6)
    assert value.item() == pytest.approx(((output - label).abs().mean(1) @ weight / weight.sum()).item())
    assert denominator == pytest.approx(weight.sum().item())
    with pytest.raises(ParamError, match="weightCol"):
        scalar(output, [label], weight, 6)
    with pytest.raises(ParamError, match=r"shape \[2\] for 6 rows"):
        losses.build(lambda o, y: (o - y).abs().mean(0))(output, [label], None, 6)
    with pytest.raises(ParamError, match="must return a tensor"):
        losses.build(lambda o, y: 1.0)(output, [label], None, 6)


def test_labels_of_all_counts() -> None:
    output = torch.randn(6, 2)
    first, second = torch.randn(6), torch.randn(6)
    value, _ = losses.build("mse")(output, [first, second], None, 6)
    assert value.equal(F.mse_loss(output, torch.stack([first, second], 1)))
    with pytest.raises(DataError, match="there are 2"):
        losses.build("mse")(torch.randn(6, 3), [first, second], None, 6)
    seen = []

    def seeing(output: dict[str, Tensor], label: Any) -> Tensor:
        seen.append(label)
        return output["a"].mean()

    losses.build(seeing)({"a": output}, [first, second], None, 6)
    assert isinstance(seen[0], tuple) and seen[0][1] is second
    assert losses.build(lambda o: o.mean())(output, [], None, 6)[0].equal(output.mean())
    with pytest.raises(DataError, match="set labelCol"):
        losses.build("mse")(output, [], None, 6)


def test_named_losses_take_torchs_options() -> None:
    torch.manual_seed(0)
    output, label = torch.randn(8, 3), torch.randn(8, 3)
    value, _ = losses.build({"name": "huber", "options": {"delta": 0.25}})(output, [label], None, 8)
    assert value.equal(F.huber_loss(output, label, delta=0.25))
    classes = torch.tensor([0, 1, 2, 2, 1, 0, 1, 2])
    options = {"weight": [1.0, 2.0, 0.5], "ignore_index": 1, "label_smoothing": 0.1}
    value, denominator = losses.build({"name": "cross_entropy", "options": options})(
        output, [classes], None, 8
    )
    weight = torch.tensor([1.0, 2.0, 0.5])
    assert value.equal(F.cross_entropy(output, classes, weight, ignore_index=1, label_smoothing=0.1))
    assert denominator == 2 * 1.0 + 3 * 0.5


def test_a_scripted_loss_comes_from_its_file(tmp_path) -> None:
    class Relative(nn.Module):
        def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return ((output - label) / (1 + label.abs())).square()

    torch.jit.script(Relative()).save(str(tmp_path / "loss.pt"))
    output, label = torch.randn(8), torch.randn(8)
    value, denominator = losses.build({"script": str(tmp_path / "loss.pt")})(output, [label], None, 8)
    assert value.equal(Relative()(output, label).mean()) and denominator == 8


def test_what_is_refused() -> None:
    with pytest.raises(ParamError, match=r"huber does not take the options .*gamma"):
        losses.build({"name": "huber", "options": {"gamma": 1.0}})
    with pytest.raises(ParamError, match="unknown name 'hubert'"):
        losses.build({"name": "hubert"})
    with pytest.raises(ParamError, match="got dict"):
        losses.build({"delta": 1.0})
    with pytest.raises(ParamError, match=r"unknown name .msee.; the names are .*mse"):
        losses.build("msee")
    with pytest.raises(ParamError, match="reduction='sum'"):
        losses.build(nn.MSELoss(reduction="sum"))
    with pytest.raises(ParamError, match="int"):
        losses.build(3)

    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

    with pytest.raises(ParamError, match=r"parameters of its own .scale"):
        losses.build(Learned())
