"""The types that a module is trained in, by precision and by the kind of device that it is on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

_HALF_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """What forward and loss run in. Left after each batch, which drops the cast weights."""
    if precision not in _HALF_TYPES:
        return nullcontext()
    return torch.autocast(device.type, dtype=_HALF_TYPES[precision])


@contextmanager
def tensor_float32(precision: str) -> Iterator[None]:
    """In the block, "tf32" has GPUs round what goes into float32 matrix products and convolutions to TF32.

    That holds for backward too. A CPU has no such type, and torch ignores these flags there. They are the
    process's, which Spark gives to the next fit too, so the block sets them back. These are torch's older
    names for its `fp32_precision`: once that is set by the new ones, reading the old ones fails, and torch's
    compiler reads them.
    """
    if precision != "tf32":
        yield
        return
    backends: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = True
        yield
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed
