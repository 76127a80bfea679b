"""What the compression of gradients asks of a device: tensors, and programs of operations on them.

What travels as what, when, and what is kept is the training loop's to say, in `native/train`; here is how
torch computes it. Nothing waits for the device but `read` and `write`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

Part = tuple[int, int, int]
"""Elements of a flat tensor: its number, the first one, the one behind the last."""

Matrices = tuple[int, int, int, int, int]
"""The same, as matrices of so many rows and columns."""

Operation = Callable[[], Any]


class DevicePrograms:
    """Tensors beside the buckets, and programs by number.

    `buckets` are float tensors on a device, and `stream` is what orders access to them on a GPU. `wanted` are
    the further tensors, of zeros, as (dtype, number of elements); they are numbered after the buckets. A
    program is a list of operations, each a name and arguments: parts, matrices and numbers. The names are the
    methods here that make an operation ready.
    """

    def __init__(
        self,
        buckets: Sequence[Tensor],
        stream: torch.cuda.Stream | None,
        wanted: Sequence[tuple[str, int]],
        programs: Sequence[Sequence[tuple[Any, ...]]],
    ) -> None:
        self._stream = stream
        device = buckets[0].device
        made = [torch.zeros(numel, dtype=getattr(torch, dtype), device=device) for dtype, numel in wanted]
        self._tensors = [*buckets, *made]
        self._programs: list[list[Operation]] = [
            [getattr(self, name)(*arguments) for name, *arguments in program] for program in programs
        ]

    def addresses(self) -> list[int]:
        """Where each tensor begins, the buckets among them."""
        return [tensor.data_ptr() for tensor in self._tensors]

    def run(self, program: int) -> None:
        """Carries out a program."""
        # In backward the present stream may be another one.
        with torch.no_grad(), torch.cuda.stream(self._stream):
            for operation in self._programs[program]:
                operation()

    def read(self, tensor: int) -> bytes:
        """The numbers of a float32 tensor, which it waits for."""
        return self._tensors[tensor].cpu().numpy().tobytes()

    def write(self, tensor: int, values: bytes) -> None:
        """Overwrites a float32 tensor."""
        self._tensors[tensor].copy_(torch.frombuffer(bytearray(values), dtype=torch.float32))

    def _part(self, part: Part) -> Tensor:
        tensor, start, end = part
        return self._tensors[tensor][start:end]

    def _parts(self, parts: Sequence[Part]) -> list[Tensor]:
        return [self._part(part) for part in parts]

    def _matrices(self, matrices: Matrices) -> Tensor:
        tensor, start, end, num_rows, num_columns = matrices
        return self._part((tensor, start, end)).view(-1, num_rows, num_columns)

    # The operations.

    def copy(self, sources: Sequence[Part], targets: Sequence[Part]) -> Operation:
        """Copies each source over its target, perhaps in another dtype."""
        return partial(torch._foreach_copy_, self._parts(targets), self._parts(sources))

    def add(self, sources: Sequence[Part], targets: Sequence[Part]) -> Operation:
        """Adds each source to its target."""
        return partial(torch._foreach_add_, self._parts(targets), self._parts(sources))

    def orthonormalize(self, matrices: Matrices) -> Operation:
        """Makes the rows of each matrix orthonormal, in their order."""
        return partial(_orthonormalize, self._matrices(matrices))

    def multiply(
        self, vectors: Matrices, matrices: Matrices, is_transposed: bool, products: Matrices
    ) -> Operation:
        """Makes each product that of a matrix of `vectors` and one of `matrices`, or of that transposed."""
        right = self._matrices(matrices)
        right = right.mT if is_transposed else right
        return partial(torch.bmm, self._matrices(vectors), right, out=self._matrices(products))

    def expand(
        self, left: Matrices, right: Matrices, unsent: Matrices, gradients: Sequence[Part]
    ) -> Operation:
        """Makes each gradient the product of a transposed matrix of `left` and one of `right`, and takes it
        off `unsent`.
        """
        views = [gradient.view(unsent[3:]) for gradient in self._parts(gradients)]
        return partial(_expand, self._matrices(left), self._matrices(right), self._matrices(unsent), views)

    def take_largest(self, unsent: Part, entries: Part) -> Operation:
        """Moves the elements of largest magnitude to `entries`."""
        return partial(_take_largest, self._part(unsent), unsent[1], *_fields(self._part(entries)))

    def average(self, entries: Part, num_ranks: int, gradients: Part) -> Operation:
        """Makes the gradients the mean of the ranks' entries."""
        of_ranks = [_fields(part) for part in self._part(entries).chunk(num_ranks)]
        return partial(_average, of_ranks, self._part(gradients))


def _fields(entries: Tensor) -> tuple[Tensor, Tensor]:
    """The indices (int32 [entries], without a sign) and the values (float32 [entries]) of entries."""
    halves = entries.view(torch.int32).view(-1, 2)
    return halves[:, 1], halves[:, 0].view(torch.float32)


def _orthonormalize(matrices: Tensor) -> None:
    basis, upper = torch.linalg.qr(matrices.mT.double())
    diagonal = upper.diagonal(dim1=-2, dim2=-1)
    # As Gram and Schmidt's: no vector turns around.
    signs = torch.ones_like(diagonal).copysign_(diagonal)
    matrices.copy_((basis * signs.unsqueeze(-2)).mT)


def _expand(left: Tensor, right: Tensor, unsent: Tensor, gradients: list[Tensor]) -> None:
    products = torch.bmm(left.mT, right)
    unsent.sub_(products)
    torch._foreach_copy_(gradients, products.unbind())


def _take_largest(unsent: Tensor, start: int, indices: Tensor, values: Tensor) -> None:
    magnitudes = unsent.view(torch.int32) & 0x7FFFFFFF
    # No two keys are equal: of equal magnitudes that of the first element is the largest.
    keys = torch.arange(0, -unsent.numel(), -1, device=unsent.device)
    keys.add_(magnitudes, alpha=1 << 32)
    chosen = keys.topk(indices.numel(), sorted=False).indices
    values.copy_(unsent[chosen])
    indices.copy_(chosen + start)
    unsent.index_fill_(0, chosen, 0.0)


def _average(of_ranks: list[tuple[Tensor, Tensor]], gradients: Tensor) -> None:
    gradients.zero_()
    for indices, values in of_ranks:
        # No rank has an index twice, so the order of additions is that of the ranks.
        gradients.index_add_(0, indices.long() & 0xFFFFFFFF, values)
    gradients.div_(len(of_ranks))
