"""What tells an object of the user's from another, as JSON that is the same in every process.

The oracle of what belongs to an object is pickle: what it would keep of it is told. Pickles themselves are no
such text: they hold sets in the order of a process's hashes, and names in place of code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

_PLAIN = (str, int, float, bool, bytes, type(None))
# Objects that hold others deeper than this are told by their classes.
_MAX_DEPTH = 60


def digest_of(value: Any, trained: bool = False) -> str:
    """A SHA-256 of what tells `value` from others.

    A function counts by its code, defaults, closure and those names of its own module that it uses, an
    object by its class and state, a tensor by its bytes. Of a module that is `trained` the parameters and
    buffers count by names, shapes, types and `requires_grad` alone.
    """
    import torch

    is_module = trained and isinstance(value, torch.nn.Module)
    return digest(_Teller([*value.parameters(), *value.buffers()] if is_module else []).told(value))


def digest(value: Any) -> str:
    """The SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class _Teller:
    """Tells one object; `trained` are tensors whose bytes do not count."""

    def __init__(self, trained: list[Any]) -> None:
        self._trained = {id(tensor): tensor for tensor in trained}
        # Functions and classes are told once; other objects may be equal and not the same.
        self._named: list[FunctionType | type] = []
        self._within: list[Any] = []

    def told(self, value: Any) -> Any:
        if type(value) is bytes:
            return ["bytes", hashlib.sha256(value).hexdigest()]
        if type(value) in _PLAIN:
            return value
        if isinstance(value, (BuiltinFunctionType, ModuleType)):
            return _name(value)
        is_named = isinstance(value, (FunctionType, type))
        if is_named and (_is_torchs(value) or any(value is one for one in self._named)):
            return _name(value)
        if any(value is one for one in self._within) or len(self._within) > _MAX_DEPTH:
            return _name(value if is_named else type(value))
        if is_named:
            self._named.append(value)
        self._within.append(value)
        try:
            return self._object(value)
        finally:
            self._within.pop()

    def _object(self, value: Any) -> Any:
        import torch

        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, CodeType):
            return [value.co_code.hex(), list(value.co_names), self._all(value.co_consts)]
        if isinstance(value, CellType):
            return self._cell(value)
        if type(value) in (list, tuple):
            return self._all(value)
        if isinstance(value, (set, frozenset)):
            return sorted(self._all(value), key=json.dumps)
        if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections"):
            return ["items", *([self.told(key), self.told(one)] for key, one in value.items())]
        if isinstance(value, torch.optim.Optimizer):
            # Its parameters are the module's, its state is in the checkpoints.
            shapes = [[list(one.shape) for one in group["params"]] for group in value.param_groups]
            groups = [
                {key: one for key, one in group.items() if key != "params"} for group in value.param_groups
            ]
            return [self.told(type(value)), shapes, self.told(groups)]
        if isinstance(value, (torch.jit.ScriptModule, torch.fx.GraphModule)):
            tensors = {**dict(value.named_parameters()), **dict(value.named_buffers())}
            return [_name(type(value)), [_code_of(one) for one in value.modules()], self.told(tensors)]
        return self._reduced(value)

    def _reduced(self, value: Any) -> Any:
        """An object as pickle takes it apart; by its class alone where it does not."""
        import torch

        try:
            parts = value.__reduce_ex__(4)
        except Exception:
            return self.told(type(value))
        if isinstance(parts, str):
            return [_name(type(value)), parts]
        make, arguments, state, items, pairs = (*parts, None, None, None)[:5]
        if isinstance(value, torch.nn.Module) and isinstance(state, dict):
            # Hooks are known by numbers that grow with each in a process.
            state = {key: one for key, one in state.items() if "_hooks" not in key}
        return [self.told(make), *map(self.told, (arguments, state, list(items or ()), list(pairs or ())))]

    def _tensor(self, value: Any) -> Any:
        import torch

        what = [list(value.shape), str(value.dtype), value.requires_grad]
        if id(value) in self._trained:
            return what
        raw = value.detach().cpu().resolve_conj().resolve_neg()
        if raw.layout != torch.strided or raw.is_quantized:
            return [*what, str(raw)]
        return [*what, hashlib.sha256(raw.contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()]

    def _function(self, function: FunctionType) -> Any:
        named = [
            [name, self.told(function.__globals__[name])]
            for name in _names(function.__code__)
            if name in function.__globals__ and _belongs(function.__globals__[name], function.__module__)
        ]
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__, function.__closure__)
        return [_name(function), *map(self.told, parts), named]

    def _class(self, kind: type) -> Any:
        """A class with the functions and the plain values of its body, and the classes that it is made of."""
        body: list[Any] = []
        for name, one in sorted(vars(kind).items()):
            if isinstance(one, property):
                body += [name, *map(self.told, (one.fget, one.fset))]
            elif isinstance(one, (staticmethod, classmethod)):
                body += [name, self.told(one.__func__)]
            elif isinstance(one, FunctionType) or (_is_plain(one) and not name.startswith("__")):
                body += [name, self.told(one)]
        return [_name(kind), body, self._all(kind.__bases__)]

    def _cell(self, cell: CellType) -> Any:
        try:
            return self.told(cell.cell_contents)
        except ValueError:
            return "empty"

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return list(map(self.told, values))


def _names(code: CodeType) -> list[str]:
    """The names that a function's code, and that of functions in it, may look up."""
    inner = (_names(one) for one in code.co_consts if isinstance(one, CodeType))
    return sorted({*code.co_names, *(name for names in inner for name in names)})


def _belongs(value: Any, module: str | None) -> bool:
    """Whether a global of a function is a function or a class of the same module, or a plain value."""
    if isinstance(value, (FunctionType, type)):
        return value.__module__ == module
    return _is_plain(value)


def _is_plain(value: Any) -> bool:
    import torch

    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return isinstance(value, (*_PLAIN, torch.Tensor)) or type(value).__module__ == "numpy"


def _is_torchs(value: FunctionType | type) -> bool:
    """Whether something is torch's or Python's own, which its name tells."""
    return (value.__module__ or "").split(".")[0] in ("torch", "builtins", "copyreg")


def _code_of(module: Any) -> str | None:
    """The code of a scripted or traced module; None for one without a forward."""
    try:
        # A number that torch gives to the second of a name in a process.
        return re.sub(r"\.?___torch_mangle_\d+", "", str(module.code))
    except (AttributeError, RuntimeError):
        return None


def _name(value: Any) -> str:
    # Functions that torch makes of others share their qualified names.
    return ".".join(str(getattr(value, part, "")) for part in ("__module__", "__qualname__", "__name__"))
