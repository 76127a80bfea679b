"""What a pickled module calls when it is read.

The pickles of saved models have this address in them, so it is a part of their format, and stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def _hollow(shape: tuple[int, ...], dtype: torch.dtype, is_parameter: bool, requires_grad: bool) -> Tensor:
    """A tensor of that shape that takes the memory of one element; its data is to be replaced."""
    import torch

    tensor = torch.zeros((), dtype=dtype).expand(shape)
    return torch.nn.Parameter(tensor, requires_grad=requires_grad) if is_parameter else tensor
