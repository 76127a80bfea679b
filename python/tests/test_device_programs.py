"""Each operation that the compression of gradients asks of a device against its definition.

Where there is no GPU, the CPU is the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_devices import DEVICES
from torch import Tensor

from flambeau._module.device_programs import DevicePrograms


def programs(
    bucket: Tensor, device: torch.device, wanted: list[tuple[str, int]], *program: tuple[Any, ...]
) -> DevicePrograms:
    """Programs of one operation each, on a copy of one bucket."""
    return DevicePrograms(
        [bucket.to(device, copy=True)], None, wanted, [[operation] for operation in program]
    )


def values(made: DevicePrograms, tensor: int) -> np.ndarray:
    return np.frombuffer(made.read(tensor), dtype=np.float32)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_become_16_bit_floats_and_come_back(device: torch.device, dtype: str) -> None:
    gradients = normal(40) * 100
    gradients[3], gradients[4] = 1e6, torch.nan
    here, there = [(0, 0, 7), (0, 16, 40)], [(1, 0, 7), (1, 7, 31)]
    made = programs(gradients, device, [(dtype, 31)], ("copy", here, there), ("copy", there, here))
    made.run(0)
    made._tensors[1].mul_(0.5)
    made.run(1)
    expected = gradients.clone()
    for part in (slice(0, 7), slice(16, 40)):
        expected[part] = (gradients[part].to(getattr(torch, dtype)) * 0.5).float()
    torch.testing.assert_close(made._tensors[0].cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_not_sent_is_added_to(device: torch.device) -> None:
    gradients = normal(40)
    parts = [(0, 0, 8), (0, 16, 40)], [(1, 24, 32), (1, 0, 24)]
    made = programs(gradients, device, [("float32", 32)], ("add", *parts))
    made.write(1, np.full(32, 0.25, np.float32).tobytes())
    made.run(0)
    expected = torch.cat([gradients[16:], gradients[:8]]).numpy() + np.float32(0.25)
    np.testing.assert_array_equal(values(made, 1), expected)


def gram_schmidt(rows: np.ndarray) -> np.ndarray:
    """In float64, each projection twice."""
    basis: list[np.ndarray] = []
    for row in rows.astype(np.float64):
        for _ in range(2):
            for other in basis:
                row = row - (row @ other) * other
        basis.append(row / np.linalg.norm(row))
    return np.stack(basis)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("num", "num_rows", "num_columns"), [(1, 1, 50), (3, 4, 30), (2, 5, 6)])
def test_rows_become_orthonormal(device: torch.device, num: int, num_rows: int, num_columns: int) -> None:
    matrices = normal(num, num_rows, num_columns)
    end = 5 + matrices.numel()
    whole = ("orthonormalize", (0, 5, end, num_rows, num_columns))
    made = programs(torch.cat([torch.zeros(5), matrices.flatten()]), device, [], whole)
    made.run(0)
    assert not values(made, 0)[:5].any()
    for own, matrix in zip(values(made, 0)[5:].reshape(matrices.shape), matrices.numpy(), strict=True):
        np.testing.assert_allclose(own, gram_schmidt(matrix), rtol=0, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_depend_on_others_give_way_to_a_basis(device: torch.device) -> None:
    row = normal(6)
    matrices = torch.stack([torch.zeros(2, 6), torch.stack([row, -2 * row])])
    made = programs(matrices.flatten(), device, [], ("orthonormalize", (0, 0, 24, 2, 6)))
    made.run(0)
    for own in values(made, 0).reshape(2, 2, 6):
        np.testing.assert_allclose(own @ own.T, np.eye(2), atol=1e-6)
    broken = torch.tensor([1.0, 2.0, 4.0, torch.nan, 3.0, 1.0])
    made = programs(broken, device, [], ("orthonormalize", (0, 0, 6, 2, 3)))
    made.run(0)
    assert np.isnan(values(made, 0)[3:]).all()


@pytest.mark.parametrize("device", DEVICES)
def test_products_are_those_of_their_definitions(device: torch.device) -> None:
    num, rank, num_rows, num_columns = 3, 2, 7, 10
    left, right = normal(num, rank, num_rows), normal(num, rank, num_columns)
    matrices = normal(num, num_rows, num_columns)
    flat = [tensor.flatten() for tensor in (left, right, matrices)]
    ends = np.cumsum([0] + [len(tensor) for tensor in flat]).tolist()
    p = (0, ends[0], ends[1], rank, num_rows)
    q = (0, ends[1], ends[2], rank, num_columns)
    m = (0, ends[2], ends[3], num_rows, num_columns)
    numel = num_rows * num_columns
    gradients = [(2, number * 80, number * 80 + numel) for number in (2, 0, 1)]
    made = programs(
        torch.cat(flat),
        device,
        [("float32", ends[2]), ("float32", 240)],
        ("multiply", q, m, True, (1, *p[1:])),
        ("multiply", p, m, False, (1, *q[1:])),
        ("expand", p, q, m, gradients),
    )
    made.run(0)
    made.run(1)
    left, right, matrices = left.double(), right.double(), matrices.double()
    products = [right @ matrices.mT, left @ matrices]
    expected = torch.cat([product.flatten() for product in products]).numpy()
    np.testing.assert_allclose(values(made, 1), expected, rtol=1e-5, atol=1e-5)
    made.run(2)
    product = left.mT @ right
    unsent = values(made, 0)[ends[2] :].reshape(matrices.shape)
    np.testing.assert_allclose(unsent, (matrices - product).numpy(), rtol=1e-5, atol=1e-5)
    for (_, start, end), one in zip(gradients, product, strict=True):
        np.testing.assert_allclose(values(made, 2)[start:end], one.flatten().numpy(), rtol=1e-5, atol=1e-6)


LARGEST = {
    "all different": normal(1000),
    "many equal": normal(5000).round(),
    "all equal": torch.full((100,), -2.0),
    "zeros": torch.zeros(64),
    "not finite": torch.tensor([1.0, torch.nan, -torch.inf, 3.0, torch.inf, -torch.nan, 1e-45]),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_are_taken_and_the_first_of_equal_ones(
    name: str, share: float, device: torch.device
) -> None:
    given, start, num_ranks = LARGEST[name], 16, 2
    numel, k = len(given), int(np.ceil(len(given) * share))
    bucket = torch.cat([torch.ones(start), given]).to(device)
    # The other rank has half of each number.
    made = DevicePrograms(
        [bucket, bucket * 0.5, torch.full((start + numel,), 7.0, device=device)],
        None,
        [("int64", k * num_ranks)],
        [
            [
                ("take_largest", (rank, start, start + numel), (3, rank * k, (rank + 1) * k))
                for rank in (0, 1)
            ],
            [("average", (3, 0, 2 * k), num_ranks, (2, 0, start + numel))],
        ],
    )
    made.run(0)
    magnitudes = given.numpy().view(np.int32) & 0x7FFFFFFF
    chosen = np.argsort(-magnitudes.astype(np.int64), kind="stable")[:k]
    left = given.numpy().copy()
    left[chosen] = 0
    np.testing.assert_array_equal(values(made, 0), np.concatenate([np.ones(start, np.float32), left]))
    made.run(1)
    sent = np.zeros((2, start + numel), np.float32)
    for rank in (0, 1):
        whole = given.numpy() * np.float32(0.5**rank)
        order = np.argsort(-(whole.view(np.int32) & 0x7FFFFFFF).astype(np.int64), kind="stable")[:k]
        sent[rank, start + order] = whole[order]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(values(made, 2), (sent[0] + sent[1]) / np.float32(2))
