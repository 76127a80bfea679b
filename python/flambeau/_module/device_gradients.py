"""The gradients of a module on its device: the flat tensors that are reduced, and what is done to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class DeviceGradients:
    """One flat tensor of zeros for each bucket; what lies between the gradients in them stays zero.

    `wanted` are the buckets as (dtype, number of elements). With `halves`, a dtype of 16 bits, such a tensor
    lies beside each bucket of float32. `stream` is what orders access to them on a GPU. Nothing waits for the
    device but `are_finite`.
    """

    def __init__(
        self,
        wanted: Sequence[tuple[str, int]],
        halves: str | None,
        device: torch.device | None,
        stream: torch.cuda.Stream | None,
    ) -> None:
        self._stream = stream
        self.buckets = [
            torch.zeros(numel, dtype=getattr(torch, dtype), device=device) for dtype, numel in wanted
        ]
        self._halves = [
            torch.zeros_like(bucket, dtype=getattr(torch, halves))
            if halves and bucket.dtype == torch.float32
            else None
            for bucket in self.buckets
        ]

    def addresses(self) -> list[tuple[int, int]]:
        """Where each bucket begins, and the 16-bit floats beside it; 0 where there are none."""
        return [
            (bucket.data_ptr(), 0 if halves is None else halves.data_ptr())
            for bucket, halves in zip(self.buckets, self._halves, strict=True)
        ]

    def narrow(self, bucket: int) -> None:
        """Copies a bucket to its 16-bit floats."""
        self._copy(self.buckets[bucket], self._halves[bucket])

    def widen(self, bucket: int) -> None:
        """Copies a bucket's 16-bit floats back."""
        self._copy(self._halves[bucket], self.buckets[bucket])

    def _copy(self, source: Tensor | None, target: Tensor | None) -> None:
        if source is None or target is None:
            raise RuntimeError("the bucket was allocated without 16-bit floats")
        # In backward the present stream may be another one.
        with torch.no_grad(), torch.cuda.stream(self._stream):
            target.copy_(source)

    def scale(self, factor: float) -> None:
        """Multiplies all by `factor`; exactly 1 leaves them alone."""
        if factor != 1.0:
            torch._foreach_mul_(self.buckets, factor)

    def are_finite(self) -> bool:
        """Whether all are finite."""
        return bool(torch.isfinite(self._norms(torch.inf)).all())

    def clip(self, max_norm: float) -> None:
        """Scales all down to a 2-norm of at most `max_norm`, by the factor that PyTorch's `clip_grad_norm_`
        has.
        """
        norm = torch.linalg.vector_norm(self._norms(2.0))
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for bucket in self.buckets:
            bucket.mul_(factor)

    def _norms(self, order: float) -> Tensor:
        """The norm of each bucket: float64 [buckets]."""
        return torch.stack([norm.double() for norm in torch._foreach_norm(self.buckets, order)])
