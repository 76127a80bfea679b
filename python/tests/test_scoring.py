"""The worker's side of transform, without Spark: what the module is given, and what its memory does.

Oracles: numpy's stack of the columns, the module on one tensor of all rows, and the allocator's own account.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch
from heap import Heap
from torch import Tensor, nn

from flambeau._input_rows import InputRows
from flambeau._saved.program import dump_skeleton, probe_output
from flambeau._saved.weights import save_module
from flambeau._score.heads import Head
from flambeau._score.scoring import Scorer
from flambeau._tensors import TensorColumns

RANDOM = np.random.default_rng(0)


def scorer(module: nn.Module, inputs: Sequence[TensorColumns], folder: Path, batch_size: int) -> Scorer:
    output = probe_output(module, list(inputs))
    return Scorer(
        programs={"pickle": dump_skeleton(module)},
        weights=save_module(module, folder / "weights.safetensors"),
        inputs=inputs,
        output=output,
        batch_size=batch_size,
        batch_bytes=64 << 20,
        heads=[Head(f"output{index}") for index in range(len(output.tensors))],
    )


def packed(num_columns: int) -> TensorColumns:
    return TensorColumns("x", tuple(f"c{i}" for i in range(num_columns)), "float32", (num_columns,))


def lists(values: np.ndarray[Any, Any]) -> pa.Array:
    flat = pa.array(values.reshape(-1))
    return pa.ListArray.from_arrays(np.arange(0, len(flat) + 1, values.shape[1], dtype=np.int32), flat)


FLOATS = RANDOM.normal(size=(20, 6)).astype(np.float32)
BYTES = RANDOM.integers(0, 256, size=(20, 6), dtype=np.uint8)
FLAGS = RANDOM.integers(0, 2, size=20).astype(bool)


@pytest.mark.parametrize(
    ("tensor", "columns", "expected"),
    [
        (packed(6), [pa.array(column) for column in FLOATS.T], FLOATS),
        (TensorColumns("x", ("x",), "float32", (2, 3)), [lists(FLOATS)], FLOATS.reshape(20, 2, 3)),
        (
            TensorColumns("x", ("x",), "uint8", (6,)),
            [pa.array([row.tobytes() for row in BYTES], pa.binary())],
            BYTES,
        ),
        (TensorColumns("x", ("x",), "bool", ()), [pa.array(FLAGS)], FLAGS),
        (TensorColumns("x", ("x",), "float64", (1,)), [pa.array(FLOATS[:, 0].astype(float))], FLOATS[:, :1]),
    ],
    ids=["columns", "lists", "binary", "flags", "one column of shape [1]"],
)
def test_rows_are_those_of_the_columns(
    tensor: TensorColumns, columns: list[pa.Array], expected: np.ndarray[Any, Any]
) -> None:
    for first, length in ((0, 20), (3, 11)):
        [rows] = InputRows.of([tensor], [column.slice(first, length) for column in columns])
        for start, stop in ((0, length), (2, 7), (length - 1, length)):
            found = rows.tensor(start, stop)
            np.testing.assert_array_equal(found.numpy(), expected[first + start : first + stop])
            assert found.data_ptr() % 64 == 0


def test_a_module_may_write_to_its_input(tmp_path: Path) -> None:
    class Doubling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(2)

    columns = tuple(pa.array(column) for column in FLOATS.T)
    twice = list(scorer(Doubling(), [packed(6)], tmp_path, 7).score(iter([columns, columns])))
    for result in twice:
        np.testing.assert_array_equal(np.stack(result.to_numpy(zero_copy_only=False)), 2 * FLOATS)


def test_batches_lie_in_the_memory_of_those_before(tmp_path: Path) -> None:
    # In a process of its own, as Spark has it: what ran before in this one decides what its allocator does.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        heaps = pool.apply(heaps_of_scoring, (tmp_path,))
    assert len(heaps) == 12
    # Eight tensors of 4 MiB live at once; left to itself, glibc keeps 8 MiB of what is free when they go.
    assert all(within > 8 * 4 << 20 and after > within - (4 << 20) for within, after in heaps[4:])


class Branches(nn.Module):
    """Holds the outputs of eight layers at once: more than glibc would keep of its own accord."""

    heaps: ClassVar[list[int]] = []
    """What memory the process had for them at each call."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, width) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        outputs = [layer(x) for layer in self.layers]
        self.heaps.append(Heap.now().heaps)
        return torch.stack([output.mean(1) for output in outputs]).sum(0)


def heaps_of_scoring(folder: Path) -> list[tuple[int, int]]:
    """How large the heaps have been while batches were scored, and are after each."""
    num_rows, width = 8192, 256
    module = Branches(width)
    values = RANDOM.normal(size=(num_rows, 4)).astype(np.float32)
    batch = tuple(pa.array(column) for column in values.T)
    scored = scorer(module, [packed(4)], folder, 4096).score(batch for _ in range(12))
    heaps = []
    # Each batch's results go before the next one's come, as Spark has it.
    for result in scored:
        last = result.to_numpy().copy()
        heaps.append((max(Branches.heaps), Heap.now().heaps))
    with torch.inference_mode():
        expected = module.eval()(torch.from_numpy(values))
    np.testing.assert_allclose(last, expected.double(), rtol=1e-5, atol=1e-6)
    return heaps
