"""Which operation made an output: whether a module ends in a sigmoid or a softmax, however it is written."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ACTIVATIONS = {
    "aten::sigmoid": "sigmoid",
    "aten::sigmoid_": "sigmoid",
    "aten::_softmax": "softmax",
    "aten::_log_softmax": "log_softmax",
}
_COPIES = ("aten::clone", "aten::_to_copy", "aten::contiguous")


class LastOperations(TorchDispatchMode):
    """While it is active, remembers what made each tensor. It keeps those alive, so it is for a few rows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: dict[int, str] = {}
        # An address means one tensor as long as that lives.
        self._kept: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name, returns = func._schema.name, func._schema.returns
        # A view is what its base is.
        is_view = bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write
        if isinstance(out, Tensor) and not is_view:
            self._kept.append(out)
            self._made[_address(out)] = self._made.get(_address(args[0]), "") if name in _COPIES else name
        return out

    def activation(self, output: Tensor) -> str | None:
        """`sigmoid`, `softmax` or `log_softmax` where that made the output, else None."""
        return _ACTIVATIONS.get(self._made.get(_address(output), ""))


def _address(tensor: Tensor) -> int:
    # Of the storage itself: on the meta device there is no memory.
    return int(tensor.untyped_storage()._cdata)
